//! The migration in `docs/nodes.md` from the allocator of a real controller manager to ours, and back.

use std::collections::BTreeMap;

use clusterip_cluster::yaml;
use kube::Api;
use kube::api::DynamicObject;
use serde_json::json;

use crate::support::control_plane::ControlPlane;
use crate::support::documented_steps::{Operator, Step, steps_of};
use crate::support::eventually::eventually;
use crate::support::fake_kubelet::Installed;
use crate::support::node_ipam_controller::NodeIpam;
use crate::support::node_webhook_rules::{block, node, nodes};

/// The folder of the static Pods of a control plane, and its replacement in this test.
const MANIFESTS: (&str, &str) = ("/etc/kubernetes/manifests/", "manifests/");
const MANIFEST: &str = "manifests/kube-controller-manager.yaml";

/// The manifest of kubeadm, reduced to what matters here.
const STATIC_POD: &str = "
apiVersion: v1
kind: Pod
metadata:
  name: kube-controller-manager
  namespace: kube-system
spec:
  containers:
  - name: kube-controller-manager
    command:
    - kube-controller-manager
    - --allocate-node-cidrs=true
    - --cluster-cidr=10.244.0.0/16
    - --service-cluster-ip-range=172.21.0.0/16
";

fn steps(heading: &str) -> Vec<Step> {
    let here = |step| match step {
        Step::Type(command) => Step::Type(command.replace(MANIFESTS.0, MANIFESTS.1)),
        write @ Step::Write { .. } => write,
    };
    steps_of("nodes.md", heading).into_iter().map(here).collect()
}

/// Acts as the kubelet of the control plane: runs the controller manager with the arguments of its manifest.
fn restarted(plane: &ControlPlane, operator: &Operator<'_>, before: Option<NodeIpam>) -> NodeIpam {
    drop(before);
    let pod = yaml::single(&operator.read(MANIFEST)).unwrap();
    let command: Vec<String> = serde_json::from_value(pod["spec"]["containers"][0]["command"].clone()).unwrap();
    NodeIpam::start(plane, &command[1..].iter().map(String::as_str).collect::<Vec<_>>())
}

async fn register(all: &Api<DynamicObject>, name: &str, os: &str) {
    all.create(&<_>::default(), &node(name, os, json!({}))).await.unwrap();
}

/// Waits for the block of a Node.
async fn given(all: &Api<DynamicObject>, name: &str) -> String {
    eventually(&format!("a block for {name}"), async || {
        let spec = &all.get(name).await.unwrap().data["spec"];
        let block = spec["podCIDR"].as_str()?;
        assert_eq!(spec["podCIDRs"], json!([block]));
        Some(block.to_owned())
    })
    .await
}

async fn blocks(all: &Api<DynamicObject>) -> BTreeMap<String, Option<String>> {
    let list = all.list(&<_>::default()).await.unwrap();
    let block = |node: &DynamicObject| node.data["spec"]["podCIDR"].as_str().map(str::to_owned);
    list.items.iter().map(|node| (node.metadata.name.clone().unwrap(), block(node))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_keep_their_blocks_and_new_nodes_get_the_next() {
    let cluster = Installed::nothing().await;
    let all = nodes(cluster.client.clone());
    let operator = Operator::new(&cluster.plane, &cluster.node.url());
    std::fs::create_dir(operator.folder().join(MANIFESTS.1)).unwrap();
    operator.write(MANIFEST, STATIC_POD);
    let theirs = restarted(&cluster.plane, &operator, None);
    let mut handed_out = Vec::new();
    for (name, os) in [("linux-1", "linux"), ("linux-2", "linux"), ("windows-1", "windows")] {
        register(&all, name, os).await;
        handed_out.push(given(&all, name).await);
    }
    assert_eq!(handed_out[0], "10.244.0.0/24");
    // The controller manager skips a block if it handles a Node twice at once.
    let mut free = (0..9).map(|number| format!("10.244.{number}.0/24")).filter(|block| !handed_out.contains(block));
    let (first, second) = (free.next().unwrap(), free.next().unwrap());

    let write_down = steps("1. Record the current blocks");
    let [list, arguments] = &write_down[..] else { panic!("{write_down:?}") };
    operator.does(list).await;
    assert_eq!(operator.does(arguments).await, "--allocate-node-cidrs=true\n--cluster-cidr=10.244.0.0/16\n");

    let lay_out = steps("2. Plan the pools");
    let [settings @ Step::Write { .. }, audit] = &lay_out[..] else { panic!("{lay_out:?}") };
    operator.does(settings).await;
    let wrong = operator.does(audit).await;
    let wrong: Vec<&str> = wrong.lines().skip_while(|line| !line.starts_with("wrong-node-pool (1)")).skip(1).collect();
    assert!(wrong.first().is_some_and(|line| line.contains("windows-1") && line.contains(&handed_out[2])), "{wrong:?}");

    operator.does_all(&steps("3. Disable the allocator of the controller manager")).await;
    assert!(operator.read(MANIFEST).contains("--allocate-node-cidrs=false"));
    let theirs = restarted(&cluster.plane, &operator, Some(theirs));
    register(&all, "linux-3", "linux").await;

    operator.does_all(&steps("4. Install clusterip")).await;
    assert_eq!(given(&all, "linux-3").await, first, "the next block, for the Node that waited");
    register(&all, "windows-2", "windows").await;
    assert_eq!(given(&all, "windows-2").await, "10.244.128.0/24", "a block of its own pool");
    all.delete("linux-1", &<_>::default()).await.unwrap();
    register(&all, "linux-4", "linux").await;
    assert_eq!(given(&all, "linux-4").await, second, "not the block that was released last");
    // The log contains refused requests.
    let refused: Vec<String> = cluster.node.log().await.into_iter().filter(|line| line.contains("forbidden")).collect();
    assert_eq!(refused, Vec::<String>::new());

    let check = steps("5. Check the result");
    let [list, differ, twice, audit] = &check[..] else { panic!("{check:?}") };
    operator.does(list).await;
    let differs = operator.does(differ).await;
    let mut differs: Vec<Vec<&str>> = differs
        .lines()
        .filter(|line| line.starts_with(['<', '>']))
        .map(|line| line.split_whitespace().collect())
        .collect();
    differs.sort_unstable();
    assert_eq!(
        differs,
        [
            ["<", "linux-1", "[10.244.0.0/24]"],
            [">", "linux-3", &format!("[{first}]")],
            [">", "linux-4", &format!("[{second}]")],
            [">", "windows-2", "[10.244.128.0/24]"],
        ]
    );
    assert_eq!(operator.does(twice).await, "");
    let audited = operator.does(audit).await;
    assert!(audited.contains("wrong-node-pool (1)") && !audited.contains("shared-block"), "{audited}");
    let settled = blocks(&all).await;

    let back = steps("Roll back");
    let (switch, uninstall) = back.split_last().unwrap();
    let of_nodes = async || {
        let webhooks = "get mutatingwebhookconfiguration clusterip-policy --output jsonpath={.webhooks[*].name}";
        let may = "auth can-i patch nodes --as system:serviceaccount:clusterip-policy:clusterip";
        let ask = async |line: &str| cluster.plane.kubectl(&line.split(' ').collect::<Vec<_>>()).await.stdout;
        (ask(webhooks).await, ask(may).await.trim().to_owned())
    };
    let both = "services.clusterip-policy.io nodes.clusterip-policy.io";
    assert_eq!(of_nodes().await, (both.to_owned(), "yes".to_owned()));
    operator.does_all(uninstall).await;
    assert_eq!(of_nodes().await, ("services.clusterip-policy.io".to_owned(), "no".to_owned()));
    register(&all, "linux-5", "linux").await;
    operator.does(switch).await;
    let theirs = restarted(&cluster.plane, &operator, Some(theirs));
    assert_eq!(
        given(&all, "linux-5").await,
        "10.244.0.0/24",
        "the first free block, as after every start of the controller manager"
    );
    let mut expected = settled;
    expected.insert("linux-5".to_owned(), Some("10.244.0.0/24".to_owned()));
    assert_eq!(blocks(&all).await, expected, "the blocks after the rollback");

    // With blocks outside of `--cluster-cidr`, the migration can't be rolled back.
    all.create(&<_>::default(), &node("elsewhere", "linux", block("10.99.0.0/24"))).await.unwrap();
    let mut theirs = restarted(&cluster.plane, &operator, Some(theirs));
    assert!(!theirs.ended().await.success(), "{}", NodeIpam::log(&cluster.plane));
    assert!(NodeIpam::log(&cluster.plane).contains("10.99.0.0"), "{}", NodeIpam::log(&cluster.plane));
}
