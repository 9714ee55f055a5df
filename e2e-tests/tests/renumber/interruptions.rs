//! The commands end, or are killed, at each of their writes, and the next commands continue. With `CHAOS`, the commands
//! end at each write in each way.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use axum::http::Method;
use serde_json::{Value, json};

use super::support::{NEW, addresses, begin, cluster, cluster_without_services, delete_pod, ranges, renumber};
use crate::support::control_plane::ControlPlane;
use crate::support::fault_proxy::{Fault, Gate, Proxy, Seen};
use crate::support::move_helpers::send;
use crate::support::program;

/// More than the writes of a whole renumbering.
const MOST_RUNS: usize = 90;

/// How a command ends at a write.
#[derive(Clone, Copy, Debug)]
enum End {
    /// Its connections are cut before the write.
    Cut,
    /// It is killed before the write.
    KilledBefore,
    /// It is killed after the write.
    KilledAfter,
    /// It is killed, and the API server carries the write out when the next command has begun.
    Late,
}

const ENDS: [End; 4] = [End::Cut, End::KilledBefore, End::KilledAfter, End::Late];

/// Runs a command again and again until it succeeds. Each run ends after two or three writes, because with fewer, a swap
/// would hardly come further than its trigger, and later ones after more: a run goes back with the moves of the previous
/// one. Returns the number of runs.
async fn few_writes_at_a_time(plane: &ControlPlane, ends: &[End], arguments: &[&str]) -> usize {
    let mut late: Option<(Gate, Proxy)> = None;
    for run in 1..=MOST_RUNS {
        let end = ends[run % ends.len()];
        let proxy = Proxy::start(plane).await;
        let kubeconfig = plane.write_kubeconfig("interrupted.kubeconfig", proxy.url(), plane.admin_token());
        let fault = match end {
            End::Cut => Fault::CutBefore,
            End::KilledAfter => Fault::PauseAfter,
            End::KilledBefore | End::Late => Fault::PauseBefore,
        };
        // A question about permissions writes nothing, and neither does a dry run.
        let is_write = |seen: &Seen| seen.is_write() && !seen.is_dry_run() && !seen.path.contains("/selfsubject");
        let gate = proxy.on_nth(2 + run % 2 + run / 6, MOST_RUNS, is_write, fault);
        let mut command = Command::new(program());
        command.arg("renumber").args(arguments).arg("--kubeconfig").arg(&kubeconfig).current_dir(plane.folder());
        // The next command waits for so long for the requests of this one.
        command.args(["--request-timeout", "3s"]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().unwrap();
        if let Some((gate, _)) = late.take() {
            tokio::time::sleep(Duration::from_millis(500)).await;
            gate.release();
            gate.carried_out().await;
        }
        match ended(child, &gate, !matches!(end, End::Cut)).await {
            Some(0) => return run,
            Some(status) => assert_eq!(status, 2, "{arguments:?}, run {run}, {end:?}"),
            None if matches!(end, End::Late) => late = Some((gate, proxy)),
            None => gate.discard(),
        }
        // Whatever the last run left: at most one Service holds an old address, and each name points to an address.
        let held = addresses(plane).await;
        for address in ["10.96.0.1", "10.96.0.10"] {
            let holders = held.iter().filter(|service| service.ends_with(&format!(" {address}"))).count();
            assert!(holders <= 1, "{held:?}");
        }
        for (namespace, name) in [("default", "kubernetes"), ("kube-system", "kube-dns")] {
            let of = |name: &str| {
                let start = format!("{namespace}/{name} ");
                held.iter().find_map(|service| service.strip_prefix(&start)).unwrap_or_else(|| panic!("{held:?}"))
            };
            if let Some(points_to) = of(name).strip_prefix("points to ") {
                assert!(of(points_to.split('.').next().unwrap()).starts_with("10."), "{held:?}");
            }
        }
    }
    panic!("{arguments:?} does not end");
}

/// The exit status of a command; `None` if it was killed when a write had arrived.
async fn ended(mut child: Child, gate: &Gate, kills: bool) -> Option<i32> {
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return Some(status.code().unwrap());
        }
        if kills && gate.count() > 0 {
            child.kill().unwrap();
            child.wait().unwrap();
            return None;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Carries out a whole renumbering.
async fn whole(plane: &ControlPlane, ends: &[End]) {
    let begin = ["begin", "--to", NEW, "--yes", "--grace-period", "1"];
    // The record, two ServiceCIDRs and the next phase.
    assert!(few_writes_at_a_time(plane, ends, &begin).await > 1);
    plane.stop_api_server();
    plane.start_api_server_with(NEW);
    assert!(few_writes_at_a_time(plane, ends, &["switch", "--grace-period", "1"]).await > 5);
    let swapped = |addresses: Vec<String>| -> Vec<String> {
        addresses.into_iter().filter(|service| !service.starts_with("shop/")).collect()
    };
    assert_eq!(
        swapped(addresses(plane).await),
        [
            "default/clusterip-alias-kubernetes 10.96.0.1",
            "default/kubernetes 10.100.0.1",
            "kube-system/clusterip-alias-kube-dns 10.96.0.10",
            "kube-system/kube-dns 10.100.0.10",
        ]
    );
    delete_pod(plane, "coredns-a").await;
    assert!(few_writes_at_a_time(plane, ends, &["finish", "--kubelets-changed"]).await > 2);
    assert_eq!(swapped(addresses(plane).await), ["default/kubernetes 10.100.0.1", "kube-system/kube-dns 10.100.0.10"]);
    assert_eq!(ranges(plane).await, [r#"kubernetes ["10.100.0.0/24"]"#]);
}

/// A whole renumbering of a cluster with Services, whose moves a killed command leaves unfinished.
async fn forward(end: End) {
    let plane = cluster().await;
    whole(&plane, &[end]).await;
    let moved = addresses(&plane).await;
    assert!(moved.iter().all(|service| service.contains(" 10.100.0.")), "{end:?}: {moved:?}");
}

async fn forward_and_back(end: End) {
    let plane = cluster().await;
    let before = addresses(&plane).await;
    let begin = ["begin", "--to", NEW, "--yes", "--grace-period", "1"];
    few_writes_at_a_time(&plane, &[end], &begin).await;
    few_writes_at_a_time(&plane, &[end], &["rollback", "--grace-period", "1"]).await;
    let after = addresses(&plane).await;
    assert_eq!(after.len(), before.len(), "{end:?}: {after:?}");
    assert!(after.iter().all(|service| service.contains(" 10.96.0.")), "{end:?}: {after:?}");
    assert_eq!(ranges(&plane).await, [r#"kubernetes ["10.96.0.0/24"]"#], "{end:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn command_that_ends_at_each_write_reaches_the_end() {
    if std::env::var_os("CHAOS").is_none() {
        return whole(&cluster_without_services().await, &ENDS).await;
    }
    // The commands wait most of the time.
    let rounds = ENDS.map(|end| async move {
        forward(end).await;
        forward_and_back(end).await;
        println!("a renumbering and a rollback whose commands end at each write, {end:?}: ok");
    });
    futures::future::join_all(rounds).await;
}

/// Runs a command until it has printed a line that begins like this, and sends it SIGTERM. Returns its exit status, or
/// `None` if it does not end soon, and its last line.
fn terminated(mut command: Command, at: &str) -> (Option<i32>, String) {
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.any(|line| line.starts_with(at)), "no line {at}");
    assert!(Command::new("kill").arg(child.id().to_string()).status().unwrap().success());
    for _ in 0..100 {
        if let Some(status) = child.try_wait().unwrap() {
            return (status.code(), lines.last().unwrap_or_default());
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    child.kill().unwrap();
    (None, lines.last().unwrap_or_default())
}

#[tokio::test(flavor = "multi_thread")]
async fn signal_ends_a_command_that_waits_after_its_moves() {
    const FINALIZER: &str = "networking.k8s.io/service-cidr-finalizer";
    let plane = cluster().await;
    begin(&plane).await.ok();
    let set_finalizers = async |finalizers: Value| {
        let patch = json!({"metadata": {"finalizers": finalizers}});
        let path = "/apis/networking.k8s.io/v1/servicecidrs/clusterip-new";
        send(&plane.client(), Method::PATCH, path, Some(&patch)).await.unwrap();
    };
    set_finalizers(json!([FINALIZER, "example.com/stay"])).await;
    let mut command = Command::new(program());
    command.args(["renumber", "rollback", "--grace-period", "1", "--kubeconfig"]).arg(plane.kubeconfig());
    command.current_dir(plane.folder()).stdin(Stdio::null());
    let ended = tokio::task::spawn_blocking(|| terminated(command, "waiting: ServiceCIDR clusterip-new")).await;
    assert_eq!(ended.unwrap(), (Some(1), "error: interrupted: the same command continues".to_owned()));

    set_finalizers(json!([])).await;
    let rest = renumber(&plane, &["rollback"]).await;
    let is_back = rest.stdout.ends_with("the renumbering is rolled back\n");
    assert!(is_back, "{}{}", rest.stdout, rest.stderr);
    assert!(!rest.stderr.contains("requests of the previous command"), "{}", rest.stderr);
}
