//! MetalLB, as its manifest installs it, beside `deploy/external`: the speaker of one node announces the address that
//! `clusterip` chooses, and the speaker of the other node takes the address over.

use std::env;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use clusterip_cluster::yaml;
use e2e_tests::missing;
use e2e_tests::support::command::{Ended, ended};
use e2e_tests::support::documented_steps::{Operator, Step, steps_of};
use e2e_tests::support::eventually::{eventually, eventually_within};
use e2e_tests::support::installation::{AGENTS, field, service, uninstall};
use e2e_tests::support::whole_cluster::{WholeCluster, write_image};
use serde_json::{Value, json};

/// The environment variable with the folder of MetalLB's programs and manifest. `make test-pods` builds them.
const BUILT: &str = "CLUSTERIP_METALLB";
const NAMESPACE: &str = "metallb-system";
/// Each tenant has a namespace, and a pool and a Pod of the same name.
const SHOP: &str = "metallb-shop";
const BANK: &str = "metallb-bank";
/// Each pool of `clusterip` and its range, in the network of the nodes.
const POOLS: [(&str, &str); 2] = [(SHOP, "10.88.0.140-10.88.0.149"), (BANK, "10.88.0.150-10.88.0.159")];
/// The range of MetalLB's pool contains both, and more addresses.
const RANGE: &str = "10.88.0.140-10.88.0.169";
const IN_NO_POOL: &str = "10.88.0.165";
/// The annotation that `clusterip` writes and MetalLB reads.
const ANNOUNCED: &str = "metallb.io/loadBalancerIPs";
/// memberlist declares a member dead after 4 to 7 s.
const MAX_FAILOVER: Duration = Duration::from_secs(30);

/// MetalLB's programs on this machine, and the objects of its manifest.
struct MetalLb {
    folder: PathBuf,
    objects: Vec<Value>,
}

/// Writes the images that the manifest of MetalLB names. None if the programs are not built.
pub fn write_images(folder: &Path) -> Vec<PathBuf> {
    let programs = MetalLb::built().into_iter().flat_map(|metallb| {
        ["controller", "speaker"].map(|program| {
            let archive = folder.join(format!("{program}.tar"));
            let image = metallb.workload(program)["spec"]["template"]["spec"]["containers"][0]["image"].clone();
            write_image(image.as_str().unwrap(), &archive, &metallb.folder.join(program));
            archive
        })
    });
    programs.collect()
}

pub async fn chosen_address_is_announced(cluster: &WholeCluster) {
    let Some(metallb) = MetalLb::built() else {
        missing::skip("metallb", &format!("the test of MetalLB's speaker needs the folder that {BUILT} names"));
        return;
    };
    install_pools(cluster).await;
    metallb.install(cluster).await;
    for (namespace, _) in POOLS {
        cluster.namespace(namespace).await;
        cluster.web_server(namespace, namespace, "node-1").await;
    }
    cluster.web_server(SHOP, "client", "node-2").await;

    let shared = json!({"metadata": {"annotations": {"metallb.io/allow-shared-ip": "front"}}});
    create(cluster, None, SHOP, SHOP, &shared).await.ok();
    let address = announced_address(cluster, SHOP, SHOP).await;
    answers(cluster, address).await;
    eventually("an answer to a Pod on another node", async || {
        let asked = cluster.ask_from_pod(SHOP, "client", &address.to_string(), 80).await;
        asked.ok().filter(|answer| answer == SHOP)
    })
    .await;
    let held = ["get", "leases", "--namespace", AGENTS, "--selector", "clusterip-policy/lease=external"];
    assert_eq!(cluster.kubectl(&[&held[..], &["--output", "name"]].concat()).await.ok(), "", "agents hold it, too");

    other_tenant_gets_only_addresses_of_its_pool(cluster, address).await;
    other_speaker_takes_over(cluster, &metallb, address).await;

    cluster.kubectl(&["delete", "namespace", SHOP, BANK]).await.ok();
    cluster.kubectl_with(&["delete", "--filename", "-"], &metallb.manifest()).await.ok();
    uninstall(cluster).await;
}

/// Installs `deploy/external` as docs/external.md says, with a pool that MetalLB announces for each namespace.
async fn install_pools(cluster: &WholeCluster) {
    let operator = Operator::with_pods(cluster);
    let quick = steps_of("external.md", "Quick start");
    let [Step::Write { path, .. }, installation @ ..] = &quick[..7] else { panic!("{quick:?}") };
    let pools = POOLS.map(|(namespace, range)| {
        let pool = json!({
            "apiVersion": "clusterip-policy.io/v1alpha1", "kind": "ExternalPool", "metadata": {"name": namespace},
            "spec": {
                "cidrs": [range], "match": {"namespaces": [namespace]}, "announcer": "metallb", "loadBalancerClass": "",
            },
        });
        pool.to_string()
    });
    operator.write(path, &pools.join("\n---\n"));
    operator.does_all(installation).await;
    cluster.kubectl(&["wait", "--for=condition=Ready", "externalpools", "--all", "--timeout=60s"]).await.ok();
}

impl MetalLb {
    fn built() -> Option<Self> {
        let folder = PathBuf::from(env::var_os(BUILT)?);
        let manifest = fs::read_to_string(folder.join("metallb-native.yaml")).unwrap();
        let objects = yaml::documents(&manifest).map(|document| document.unwrap().to_value()).collect();
        Some(Self { folder, objects })
    }

    /// The Deployment of the controller, or the DaemonSet of the speakers.
    fn workload(&self, name: &str) -> &Value {
        let is_it = |object: &&Value| object["metadata"]["name"] == name && !object["spec"]["template"].is_null();
        self.objects.iter().find(is_it).unwrap()
    }

    /// The manifest without the DaemonSet, whose Pods [`Self::start_speaker`] creates.
    fn manifest(&self) -> String {
        let others: Vec<&Value> = self.objects.iter().filter(|object| object["kind"] != "DaemonSet").collect();
        json!({"apiVersion": "v1", "kind": "List", "items": others}).to_string()
    }

    async fn install(&self, cluster: &WholeCluster) {
        let apply =
            async |manifest: &str| cluster.kubectl_with(&["apply", "--server-side", "--filename", "-"], manifest).await;
        apply(&self.manifest()).await.ok();
        let status = ["rollout", "status", "--namespace", NAMESPACE, "deployment/controller", "--timeout=120s"];
        cluster.kubectl(&status).await.ok();
        let object = |kind: &str, spec: Value| {
            let metadata = json!({"name": "lan", "namespace": NAMESPACE});
            json!({"apiVersion": "metallb.io/v1beta1", "kind": kind, "metadata": metadata, "spec": spec})
        };
        let pools = json!({"apiVersion": "v1", "kind": "List", "items": [
            object("IPAddressPool", json!({"addresses": [RANGE], "autoAssign": false})),
            object("L2Advertisement", json!({"ipAddressPools": ["lan"]})),
        ]});
        // The webhook of MetalLB may not answer yet.
        eventually("MetalLB to accept its pool", async || (apply(&pools.to_string()).await.status == 0).then_some(()))
            .await;
        for node in cluster.nodes().keys() {
            self.start_speaker(cluster, node).await;
        }
    }

    /// Starts the speaker of a node as the DaemonSet does, except that it is not started again when it ends. The speakers
    /// start one after the other, because a speaker looks for others at its start, and then only every few minutes.
    async fn start_speaker(&self, cluster: &WholeCluster, node: &str) {
        let name = format!("speaker-{node}");
        let mut pod = self.workload("speaker")["spec"]["template"].clone();
        json_patch::merge(
            &mut pod,
            &json!({
                "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": NAMESPACE},
                "spec": {"nodeName": node, "restartPolicy": "Never"},
            }),
        );
        let container = &mut pod["spec"]["containers"][0];
        // As in the image of MetalLB.
        container["securityContext"]["runAsUser"] = 0.into();
        // The first probe of the manifest comes after ten seconds.
        container["readinessProbe"]["initialDelaySeconds"] = 1.into();
        cluster.apply(&pod.to_string()).await;
        let wait = ["wait", "--namespace", NAMESPACE, "--for=condition=Ready", "--timeout=120s"];
        cluster.kubectl(&[&wait[..], &[&format!("pod/{name}")]].concat()).await.ok();
    }

    /// Kills the speaker of a node, and returns when.
    async fn kill_speaker(cluster: &WholeCluster, node: &str) -> Instant {
        let id = ".status.containerStatuses[0].containerID";
        let id = field(cluster, NAMESPACE, &format!("pod/speaker-{node}"), id).await;
        let mut kill = Command::new("ctr");
        kill.arg("--address").arg(cluster.folder().join(node).join("run/containerd/containerd.sock"));
        kill.args(["--namespace", "k8s.io", "tasks", "kill", "--signal", "SIGKILL"]);
        kill.arg(id.strip_prefix("containerd://").unwrap());
        let begin = Instant::now();
        ended(kill).await.ok();
        begin
    }
}

/// Creates a Service of type LoadBalancer with this change, as the administrator or as this user.
async fn create(cluster: &WholeCluster, user: Option<&str>, namespace: &str, name: &str, change: &Value) -> Ended {
    let spec = json!({"type": "LoadBalancer", "allocateLoadBalancerNodePorts": false, "selector": {"app": namespace}});
    let mut service = service(namespace, name, spec);
    json_patch::merge(&mut service, change);
    let user = user.map(|user| format!("--as={user}"));
    let arguments: Vec<&str> = ["create", "--filename", "-"].into_iter().chain(user.as_deref()).collect();
    cluster.kubectl_with(&arguments, &service.to_string()).await
}

/// Waits until MetalLB shows an address of a Service, which must be the one that `clusterip` has chosen.
async fn announced_address(cluster: &WholeCluster, namespace: &str, name: &str) -> IpAddr {
    let service = format!("service/{name}");
    let of = async |path: &str| field(cluster, namespace, &service, path).await;
    let shown = eventually("MetalLB to show the address", async || {
        Some(of(".status.loadBalancer.ingress[*].ip").await).filter(|shown| !shown.is_empty())
    })
    .await;
    let annotation = |name: &str| format!(".metadata.annotations.{}", name.replace('.', "\\."));
    for name in ["clusterip-policy/external-addresses", ANNOUNCED] {
        assert_eq!(of(&annotation(name)).await, shown, "{name}");
    }
    let range = POOLS.iter().find(|(pool, _)| *pool == namespace).unwrap().1;
    assert!(is_in(range, &shown), "{shown}");
    shown.parse().unwrap()
}

/// Whether an address is in a range from a first to a last address.
fn is_in(range: &str, address: &str) -> bool {
    let (first, last) = range.split_once('-').unwrap();
    let parse = |text: &str| text.parse::<IpAddr>().unwrap();
    (parse(first)..=parse(last)).contains(&parse(address))
}

/// Waits until the Pod of the shop answers a client outside of the cluster at this address.
async fn answers(cluster: &WholeCluster, address: IpAddr) {
    eventually_within(MAX_FAILOVER, &format!("an answer from {address} to a client outside"), async || {
        cluster.ask_from_outside(SocketAddr::new(address, 80)).await.ok().filter(|answer| answer == SHOP)
    })
    .await;
}

/// A user who may edit the other namespace asks for an address of the shop, and for one of no pool.
async fn other_tenant_gets_only_addresses_of_its_pool(cluster: &WholeCluster, of_shop: IpAddr) {
    const OF_SHOP: &str = "lies in pool \"metallb-shop\"";
    struct Attempt {
        name: &'static str,
        change: Value,
        /// Why the request is refused. If it is not, the Service has an address of its own pool.
        refusal: Option<&'static str>,
    }
    let user = "tenant";
    let binding = ["create", "rolebinding", "tenant", "--namespace", BANK, "--clusterrole=edit", "--user", user];
    cluster.kubectl(&binding).await.ok();
    let annotated = |key: &str, value: &str| json!({"metadata": {"annotations": {key: value}}});
    let of_shop = &of_shop.to_string();
    let attempts = [
        // `own` is then changed in the ways in which the Services below are created.
        Attempt { name: "own", change: json!({}), refusal: None },
        Attempt { name: "shared-key", change: annotated("metallb.io/allow-shared-ip", "front"), refusal: None },
        Attempt { name: "named-pool", change: annotated("metallb.io/address-pool", "lan"), refusal: None },
        Attempt { name: "of-shop", change: annotated(ANNOUNCED, of_shop), refusal: Some(OF_SHOP) },
        Attempt {
            name: "of-shop-by-old-annotation",
            change: annotated("metallb.universe.tf/loadBalancerIPs", of_shop),
            refusal: Some(OF_SHOP),
        },
        Attempt {
            name: "of-shop-by-field",
            change: json!({"spec": {"loadBalancerIP": of_shop}}),
            refusal: Some(OF_SHOP),
        },
        Attempt { name: "in-no-pool", change: annotated(ANNOUNCED, IN_NO_POOL), refusal: Some("lies in no pool") },
    ];
    for Attempt { name, change, refusal } in attempts {
        let created = create(cluster, Some(user), BANK, name, &change).await;
        match refusal {
            Some(reason) => {
                let refused = created.refused();
                assert!(refused.contains(reason), "{name}: {refused}");
                let patch = ["patch", "service/own", "--namespace", BANK, "--as", user, "--type=merge", "--patch"];
                let refused = cluster.kubectl(&[&patch[..], &[&change.to_string()]].concat()).await.refused();
                assert!(refused.contains(reason), "change of own, {name}: {refused}");
            }
            None => {
                created.ok();
                announced_address(cluster, BANK, name).await;
            }
        }
    }
    let status = json!({"status": {"loadBalancer": {"ingress": [{"ip": of_shop}]}}}).to_string();
    let patch = ["patch", "service/own", "--namespace", BANK, "--as", user, "--type=merge", "--patch", &status];
    let refused = cluster.kubectl(&[&patch[..], &["--subresource=status"]].concat()).await.refused();
    assert!(refused.contains("Forbidden"), "{refused}");

    // A namespace without a pool, whose Service names the pool of MetalLB.
    let named = annotated("metallb.io/address-pool", "lan");
    let guest = &cluster.namespace("guest").await;
    create(cluster, None, guest, "guest", &named).await.ok();
    eventually("MetalLB to refuse the Service", async || {
        let events = ["get", "events", "--namespace", guest, "--field-selector=reason=AllocationFailed"];
        let events = cluster.kubectl(&[&events[..], &["--output=name"]].concat()).await.ok();
        (!events.is_empty()).then_some(())
    })
    .await;
    assert_eq!(field(cluster, guest, "service/guest", ".status.loadBalancer.ingress").await, "");
    cluster.kubectl(&["delete", "namespace", guest, "--wait=false"]).await.ok();

    assert!(cluster.ask_from_outside(SocketAddr::new(IN_NO_POOL.parse().unwrap(), 80)).await.is_err());
    answers(cluster, of_shop.parse().unwrap()).await;
}

/// The speaker that announces the address is killed. `FAILOVERS=20` measures more failovers than a test needs.
async fn other_speaker_takes_over(cluster: &WholeCluster, metallb: &MetalLb, address: IpAddr) {
    // The client gets to know the hardware addresses of the nodes.
    for node in cluster.nodes().values() {
        let _ = cluster.ask_from_outside(SocketAddr::new(*node, 10250)).await;
    }
    let first = announcer(cluster, address).await.expect("a node that announces the address");
    let mut took = Vec::new();
    for _ in 0..env::var("FAILOVERS").map_or(2, |count| count.parse().unwrap()) {
        let begin = MetalLb::kill_speaker(cluster, &first).await;
        // Otherwise the client would go on sending packets to the node of the dead speaker, which still forwards them.
        outside(cluster, &["ip", "neigh", "flush", "to", &address.to_string(), "dev", "eth0"]).await;
        answers(cluster, address).await;
        took.push(begin.elapsed());
        let next = announcer(cluster, address).await;
        assert!(next.is_some() && next.as_ref() != Some(&first), "{next:?} took over from {first}");

        let name = format!("speaker-{first}");
        cluster.kubectl(&["delete", "pod", "--namespace", NAMESPACE, &name]).await.ok();
        metallb.start_speaker(cluster, &first).await;
        // The order of the nodes depends on the address and on the names of the nodes alone.
        eventually("the address to return", async || {
            answers(cluster, address).await;
            (announcer(cluster, address).await.as_ref() == Some(&first)).then_some(())
        })
        .await;
    }
    took.sort();
    println!("{} failovers: median {:?}, worst {:?}", took.len(), took[took.len() / 2], took[took.len() - 1]);
}

/// The node whose hardware address the client outside uses for this address.
async fn announcer(cluster: &WholeCluster, address: IpAddr) -> Option<String> {
    let known = outside(cluster, &["ip", "-json", "neigh", "show", "dev", "eth0"]).await;
    let known: Vec<Value> = serde_json::from_str(&known).unwrap();
    let hardware = |address: IpAddr| known.iter().find(|entry| entry["dst"] == address.to_string())?["lladdr"].as_str();
    let announced = hardware(address)?;
    let mut nodes = cluster.nodes().iter();
    nodes.find(|(_, node)| hardware(**node) == Some(announced)).map(|(name, _)| name.clone())
}

/// Runs a command in the network of the client outside, and returns its output.
async fn outside(cluster: &WholeCluster, command: &[&str]) -> String {
    let mut nsenter = Command::new("nsenter");
    nsenter.arg(format!("--net={}", cluster.outside().display())).args(command);
    ended(nsenter).await.ok()
}
