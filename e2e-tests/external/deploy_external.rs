//! `deploy/external` as it stands: server and agents with the arguments, the service accounts and the capabilities
//! that it gives them.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use clusterip::agent::claims::name;
use serde_json::{Value, json};

use super::agent_cluster::{AgentCluster, AgentOptions, BEGIN, RUNTIME, within};
use super::support::control_plane::{ControlPlane, Options};
use super::support::documented_steps::{Operator, Step, steps_of, types};
use super::support::fault_proxy::{Fault, Proxy, Seen};
use super::support::serve_process::{Host, HostBuilder, free_port};

const NAMESPACE: &str = "clusterip-policy";
const SERVER: &str = "clusterip";
const AGENTS: &str = "clusterip-policy-agents";
const AGENT: &str = "clusterip-agent";

/// What a kubelet asks by HTTP.
#[derive(serde::Deserialize)]
struct Probe {
    host: String,
    port: u16,
    path: String,
}

/// What an account asks for: `VERB RESOURCE`, with the group behind the resource unless it is the core's.
struct Heard {
    proxy: Proxy,
    asked: Arc<Mutex<BTreeSet<String>>>,
}

impl Heard {
    fn begin(plane: &ControlPlane) -> Self {
        let proxy = RUNTIME.block_on(Proxy::start(plane));
        let asked: Arc<Mutex<BTreeSet<String>>> = Arc::default();
        let heard = Arc::clone(&asked);
        // It sees every request, and none meets a fault.
        let listens = move |seen: &Seen| {
            heard.lock().unwrap().extend(right(seen));
            false
        };
        proxy.on(listens, Fault::CutBefore);
        Self { proxy, asked }
    }

    fn asked(&self) -> BTreeSet<String> {
        self.asked.lock().unwrap().clone()
    }
}

/// The right that a request needs; none where everybody has it.
fn right(seen: &Seen) -> Option<String> {
    let words: Vec<&str> = seen.path.trim_matches('/').split('/').collect();
    let (group, rest) = match words[..] {
        ["api", _, ref rest @ ..] => (String::new(), rest),
        ["apis", group, _, ref rest @ ..] => (format!(".{group}"), rest),
        _ => return None,
    };
    let (resource, name, below) = match rest {
        ["namespaces", _, resource, more @ ..] => (*resource, more.first(), more.get(1)),
        [resource, more @ ..] => (*resource, more.first(), more.get(1)),
        [] => return None,
    };
    if resource.starts_with("selfsubject") {
        return None;
    }
    let verb = match (seen.method.as_str(), name) {
        ("GET", None) if seen.query.contains("watch=") => "watch",
        ("GET", None) => "list",
        ("GET", Some(_)) => "get",
        ("POST", _) => "create",
        ("PUT", _) => "update",
        ("PATCH", _) => "patch",
        ("DELETE", _) => "delete",
        other => panic!("{other:?}"),
    };
    let below = below.map(|below| format!("/{below}")).unwrap_or_default();
    Some(format!("{verb} {resource}{below}{group}"))
}

/// What the manifests grant an account in both namespaces, in the same words.
fn granted(plane: &ControlPlane, account: &str) -> BTreeSet<String> {
    let account = format!("--as=system:serviceaccount:{account}");
    let list = |namespace: &str| {
        let list = ["auth", "can-i", "--list", "--no-headers", &account, "-n", namespace];
        RUNTIME.block_on(plane.kubectl(&list)).ok()
    };
    let list = list(NAMESPACE) + &list(AGENTS);
    let mut rights = BTreeSet::new();
    for line in list.lines().filter(|line| !line.trim_start().starts_with('[') && !line.starts_with("selfsubject")) {
        let (resource, verbs) = (line.split_whitespace().next().unwrap(), line.rsplit('[').next().unwrap());
        rights.extend(verbs.trim_end().trim_end_matches(']').split(' ').map(|verb| format!("{verb} {resource}")));
    }
    rights
}

/// The arguments of the only container of an object.
fn arguments(plane: &ControlPlane, object: &str, namespace: &str) -> Vec<String> {
    let path = "jsonpath={.spec.template.spec.containers[0].args}";
    let told = plane_says(plane, &["get", object, "--namespace", namespace, "--output", path]);
    serde_json::from_str(&told).unwrap()
}

fn plane_says(plane: &ControlPlane, arguments: &[&str]) -> String {
    RUNTIME.block_on(plane.kubectl(arguments)).ok()
}

/// Starts the server as its Deployment does.
fn serve(plane: &ControlPlane, heard: &Heard, port: u16) -> Host {
    let token = RUNTIME.block_on(plane.token(NAMESPACE, SERVER));
    let kubeconfig = plane.write_kubeconfig("server.kubeconfig", heard.proxy.url(), &token);
    let arguments = arguments(plane, "deployment/clusterip", NAMESPACE);
    // Where it listens is the node's matter, and its certificate must say so.
    let ["serve", "--listen", _, rest @ ..] = &arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] else {
        panic!("{arguments:?}")
    };
    let host = HostBuilder::as_user(&kubeconfig).port(port).args(&["--namespace", NAMESPACE, "--service", "127.0.0.1"]);
    RUNTIME.block_on(async { host.args(rest).start().await })
}

/// A Service, and what `kubectl` says when it is created.
fn create(plane: &ControlPlane, namespace: &str, name: &str, spec: &Value) -> Result<(), String> {
    let mut service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": namespace},
        "spec": {"ports": [{"port": 80}]},
    });
    json_patch::merge(&mut service["spec"], spec);
    let created = RUNTIME.block_on(plane.kubectl_with(&["create", "-f", "-"], &service.to_string()));
    if created.status == 0 { Ok(()) } else { Err(created.stderr) }
}

fn of_our_class() -> Value {
    json!({
        "type": "LoadBalancer", "loadBalancerClass": "clusterip-policy/external",
        "allocateLoadBalancerNodePorts": false,
    })
}

/// What the status of a Service shows, as soon as it shows something.
fn shown(plane: &ControlPlane, namespace: &str, name: &str) -> IpAddr {
    within(BEGIN, &format!("an address of {name}"), || {
        let path = "jsonpath={.status.loadBalancer.ingress[0].ip}";
        let service = format!("service/{name}");
        plane_says(plane, &["get", &service, "--namespace", namespace, "--output", path]).parse().ok()
    })
}

/// The steps below a heading of `docs/external.md`.
fn steps(heading: &str) -> Vec<Step> {
    steps_of("external.md", heading)
}

/// What is recorded, with the addresses that the status shows.
fn has(plane: &ControlPlane, name: &str) -> (String, String) {
    let path =
        "jsonpath={.metadata.annotations.clusterip-policy/external-addresses} {.status.loadBalancer.ingress[*].ip}";
    let told = plane_says(plane, &["get", "service", name, "--output", path]);
    let (record, shown) = told.split_once(' ').unwrap();
    (record.to_owned(), shown.to_owned())
}

/// `docs/external.md`, done as it is written there, by the accounts that `deploy/external` makes.
pub fn deployment_works_with_exactly_its_permissions() {
    let plane = ControlPlane::start(Options { audit: false, ..Options::dual_stack() });
    let port = free_port();
    let operator = Operator::new(&plane, &format!("https://127.0.0.1:{port}"));
    let does = |step: &Step| RUNTIME.block_on(operator.does(step));
    let quick = steps("Quick start");
    let [settings, apply, begun, agents_begun, manifest, create_it, waited, shown_it, holders] = &quick[..] else {
        panic!("{quick:?}")
    };
    // Nobody here makes Pods of Deployments: they are started below.
    assert!(types(begun, "rollout status") && types(agents_begun, "rollout status"));
    does(settings);
    does(apply);

    let (by_server, by_agents) = (Heard::begin(&plane), Heard::begin(&plane));
    let mut server = serve(&plane, &by_server, port);
    let token = |node: &str| RUNTIME.block_on(plane.token_on(node, AGENTS, AGENT));
    let arguments = arguments(&plane, "daemonset/clusterip-agent", AGENTS);
    let options = AgentOptions { plane: &plane, server: by_agents.proxy.url(), token: &token, arguments };
    let mut cluster = AgentCluster::with(&options, AGENTS.to_owned(), tempfile::tempdir().unwrap());
    let listeners = cluster.network.nodes.iter().map(|node| {
        let mut inside = node.inside();
        inside.expect("listen 80", "listening");
        inside
    });
    let _listeners: Vec<_> = listeners.collect();

    // Placed in admission, and held.
    within(BEGIN, "the API server to ask the webhook", || {
        let trial = create(&plane, "default", "trial", &json!({"type": "ClusterIP", "externalIPs": ["10.0.9.0.1"]}));
        trial.is_err_and(|said| !said.contains("failed calling webhook")).then_some(())
    });
    does(manifest);
    does(create_it);
    let (record, _) = has(&plane, "web");
    let address: IpAddr = record.parse().unwrap();
    does(waited);
    assert!(does(shown_it).contains(&record));
    let holder = cluster.holder(address).unwrap();
    let told = does(holders);
    let words: Vec<Vec<&str>> = told.lines().skip(1).map(|line| line.split_whitespace().collect()).collect();
    let [line] = &words[..] else { panic!("{told}") };
    assert!(line[0] == record && line[1].starts_with(cluster.name(holder)), "{told}");
    let mut client = cluster.network.client.inside();
    within(BEGIN, "an answer", || (client.ask(&format!("tcp {address} 80 1")) == "answered").then_some(()));
    let looks: Vec<Step> = steps("On the node");
    let [Step::Type(addresses), Step::Type(table)] = &looks[..] else { panic!("{looks:?}") };
    for look in [addresses, table] {
        let seen = cluster.network.nodes[holder].namespace.exec(&["bash", "-c", look]);
        assert!(seen.contains(&record), "{look}: {seen}");
    }

    // What the kubelet of the node asks, from there.
    let probes = "{.startupProbe.httpGet}{.livenessProbe.httpGet}{.readinessProbe.httpGet}";
    let probes = format!("jsonpath={{range .spec.template.spec.containers[0]}}{probes}{{end}}");
    let probes = plane_says(&plane, &["get", "daemonset/clusterip-agent", "-n", AGENTS, "--output", &probes]);
    let probes: Vec<Value> = serde_json::Deserializer::from_str(&probes).into_iter().map(Result::unwrap).collect();
    assert_eq!(probes.len(), 3);
    let mut kubelet = cluster.network.nodes[holder].inside();
    for Probe { host, port, path } in probes.into_iter().map(|probe| serde_json::from_value(probe).unwrap()) {
        assert_eq!(kubelet.ask(&format!("http {host} {port} {path}")), "HTTP/1.1 200 OK", "{path}");
    }

    // Another can't have it.
    let refused = create(&plane, "default", "hijack", &json!({"externalIPs": [address]})).unwrap_err();
    assert!(refused.contains(&format!("{address} of pool \"lan\" is held by default/web")), "{refused}");
    // Nobody is asked about the own namespace: the controller gives this one its address.
    create(&plane, NAMESPACE, "late", &of_our_class()).unwrap();
    let late = shown(&plane, NAMESPACE, "late");
    assert_ne!(late, address);

    // Another one, and another one still when that is of no pool any more.
    let asks = steps("Ask for an address");
    let [ask, ask_no_more] = &asks[..] else { panic!("{asks:?}") };
    does(ask);
    within(BEGIN, "the address that was asked for", || {
        (has(&plane, "web") == ("10.0.9.20".to_owned(), "10.0.9.20".to_owned())).then_some(())
    });
    within(BEGIN, "the former address to be let go", || cluster.holder(address).is_none().then_some(()));
    within(BEGIN, "its claim to go", || {
        let leases = plane_says(&plane, &["get", "leases", "--namespace", AGENTS, "--output", "name"]);
        let lease = format!("lease.coordination.k8s.io/{}", name(address));
        leases.lines().all(|other| other != lease).then_some(())
    });
    let file = "deploy/external/settings.yaml";
    operator.write(file, &operator.read(file).replace("[10.0.9.10-", "[fd00:9::100-fd00:9::1ff, 10.0.9.21-"));
    does(apply);
    let none = ("10.0.9.20".to_owned(), String::new());
    within(BEGIN, "nobody to hold it", || (has(&plane, "web") == none).then_some(()));
    does(ask_no_more);
    let other = shown(&plane, "default", "web");
    assert_ne!(other.to_string(), "10.0.9.20");

    // One of each family.
    let mut both = of_our_class();
    both["ipFamilyPolicy"] = json!("RequireDualStack");
    create(&plane, "default", "both", &both).unwrap();
    let all = within(BEGIN, "two addresses", || {
        let (record, shown) = has(&plane, "both");
        (record.contains(',') && record.replace(',', " ") == shown).then_some(shown)
    });
    for address in all.split(' ') {
        within(BEGIN, "an answer", || (client.ask(&format!("tcp {address} 80 1")) == "answered").then_some(()));
    }

    // Whoever is told to end gives back.
    let holder = within(BEGIN, "a holder", || cluster.holder(other));
    cluster.signal(holder, nix::sys::signal::Signal::SIGTERM);
    assert!(cluster.ended(holder).success());
    within(BEGIN, "another holder", || cluster.holder(other).filter(|next| *next != holder));

    // Without the server nobody claims an address; Services of our class wait for theirs.
    assert_eq!(RUNTIME.block_on(server.terminate()), 0);
    let refused = create(&plane, "default", "hijack", &json!({"externalIPs": [other]})).unwrap_err();
    assert!(refused.contains(r#"failed calling webhook "external.clusterip-policy.io""#), "{refused}");
    create(&plane, "default", "waits", &of_our_class()).unwrap();
    let _server = serve(&plane, &by_server, port);
    shown(&plane, "default", "waits");

    // Nothing was asked for that is not granted, and nothing granted that was not asked for.
    assert_eq!(by_agents.asked(), granted(&plane, &format!("{AGENTS}:{AGENT}")));
    let leases = ["list leases.coordination.k8s.io", "watch leases.coordination.k8s.io"];
    let more: BTreeSet<String> =
        leases.into_iter().chain(["patch services", "patch services/status"]).map(str::to_owned).collect();
    let (asked, granted) = (by_server.asked(), granted(&plane, &format!("{NAMESPACE}:{SERVER}")));
    assert_eq!(asked.difference(&granted).collect::<Vec<_>>(), Vec::<&String>::new());
    assert!(asked.is_superset(&more), "{asked:?}");

    // And off again.
    for step in steps("Uninstall") {
        does(&step);
    }
    let names = ["get", "mutatingwebhookconfiguration", "clusterip-policy", "--output", "jsonpath={.webhooks[*].name}"];
    assert_eq!(plane_says(&plane, &names), "services.clusterip-policy.io");
}
