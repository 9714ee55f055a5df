//! The command ends after each of its writes, and the next one continues.

use super::support::{NEW, addresses, cluster_without_services, ranges};
use crate::support::command::clusterip;
use crate::support::control_plane::ControlPlane;
use crate::support::fault_proxy::{Fault, Proxy, Seen};

/// More than the writes of a whole renumbering.
const MOST_RUNS: usize = 60;

/// Runs a command again and again until it succeeds. Each run ends after one or two writes: with one, a swap would
/// never come further than its trigger. Returns the number of runs.
async fn few_writes_at_a_time(plane: &ControlPlane, arguments: &[&str]) -> usize {
    for run in 1..=MOST_RUNS {
        let proxy = Proxy::start(plane).await;
        let kubeconfig = plane.write_kubeconfig("interrupted.kubeconfig", proxy.url(), plane.admin_token());
        // A question about permissions writes nothing.
        let is_write = |seen: &Seen| seen.is_write() && !seen.path.contains("/selfsubject");
        proxy.on_nth(1 + run % 2, MOST_RUNS, is_write, Fault::CutBefore);
        let ended = clusterip(plane.folder(), &kubeconfig, &[&["renumber"], arguments].concat()).await;
        if ended.status == 0 {
            return run;
        }
        assert_eq!(ended.status, 2, "{}{}", ended.stdout, ended.stderr);
        // Whatever the last run left: an old address is held by its Service, by its alias, or is free for both.
        let held = addresses(plane).await;
        for address in ["10.96.0.1", "10.96.0.10"] {
            let holders = held.iter().filter(|service| service.ends_with(&format!(" {address}"))).count();
            assert!(holders <= 1, "{held:?}");
        }
    }
    panic!("{arguments:?} does not end");
}

#[tokio::test(flavor = "multi_thread")]
async fn command_that_ends_after_each_write_reaches_the_end() {
    let plane = cluster_without_services().await;
    let begin = ["begin", "--to", NEW, "--yes", "--grace-period", "1"];
    // The record, two ServiceCIDRs and the next phase.
    assert!(few_writes_at_a_time(&plane, &begin).await > 2);
    plane.stop_api_server();
    plane.start_api_server_with(NEW);
    assert!(few_writes_at_a_time(&plane, &["switch", "--grace-period", "1"]).await > 5);
    let switched = addresses(&plane).await;
    assert_eq!(
        switched,
        [
            "default/clusterip-alias-kubernetes 10.96.0.1",
            "default/kubernetes 10.100.0.1",
            "kube-system/clusterip-alias-kube-dns 10.96.0.10",
            "kube-system/kube-dns 10.100.0.10",
        ]
    );
    assert!(few_writes_at_a_time(&plane, &["finish", "--kubelets-changed", "--force"]).await > 3);
    assert_eq!(addresses(&plane).await, ["default/kubernetes 10.100.0.1", "kube-system/kube-dns 10.100.0.10"]);
    assert_eq!(ranges(&plane).await, [r#"kubernetes ["10.100.0.0/24"]"#]);
}
