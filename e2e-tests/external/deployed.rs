//! `deploy/external` as it stands: server and agents with the arguments, the service accounts and the capabilities
//! that it gives them.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use clusterip::agent::claims::name;
use serde_json::{Value, json};

use super::cases::BEGIN;
use super::field::{Field, RUNTIME, Way, within};
use super::support::control_plane::{ControlPlane, Options};
use super::support::host::{Host, HostBuilder, free_port};
use super::support::proxy::{Fault, Proxy, Seen};
use super::support::runbook::{Operator, Step};

const NAMESPACE: &str = "clusterip-policy";
const SERVER: &str = "clusterip";
const AGENT: &str = "clusterip-agent";

/// What the network of the field has room for.
const SETTINGS: &str = "
external:
  pools:
  - {name: all, cidrs: [10.0.9.10-10.0.9.240]}
";

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

/// What the manifests grant an account, in the same words.
fn granted(plane: &ControlPlane, account: &str) -> BTreeSet<String> {
    let account = format!("--as=system:serviceaccount:{NAMESPACE}:{account}");
    let list = ["auth", "can-i", "--list", "--no-headers", &account, "-n", NAMESPACE];
    let list = RUNTIME.block_on(plane.kubectl(&list)).ok();
    let mut rights = BTreeSet::new();
    for line in list.lines().filter(|line| !line.trim_start().starts_with('[') && !line.starts_with("selfsubject")) {
        let (resource, verbs) = (line.split_whitespace().next().unwrap(), line.rsplit('[').next().unwrap());
        rights.extend(verbs.trim_end().trim_end_matches(']').split(' ').map(|verb| format!("{verb} {resource}")));
    }
    rights
}

/// The arguments of the only container of an object.
fn arguments(plane: &ControlPlane, object: &str) -> Vec<String> {
    let path = "jsonpath={.spec.template.spec.containers[0].args}";
    let told = plane_says(plane, &["get", object, "--namespace", NAMESPACE, "--output", path]);
    serde_json::from_str(&told).unwrap()
}

fn plane_says(plane: &ControlPlane, arguments: &[&str]) -> String {
    RUNTIME.block_on(plane.kubectl(arguments)).ok()
}

/// Starts the server as its Deployment does.
fn serve(plane: &ControlPlane, heard: &Heard, port: u16) -> Host {
    let token = RUNTIME.block_on(plane.token(NAMESPACE, SERVER));
    let kubeconfig = plane.write_kubeconfig("server.kubeconfig", heard.proxy.url(), &token);
    let arguments = arguments(plane, "deployment/clusterip");
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
fn shown(plane: &ControlPlane, namespace: &str, name: &str) -> std::net::IpAddr {
    within(BEGIN, &format!("an address of {name}"), || {
        let path = "jsonpath={.status.loadBalancer.ingress[0].ip}";
        let service = format!("service/{name}");
        plane_says(plane, &["get", &service, "--namespace", namespace, "--output", path]).parse().ok()
    })
}

pub fn works_with_its_rights() {
    let plane = ControlPlane::start(Options { audit: false, ..Options::default() });
    let port = free_port();
    let operator = Operator::new(&plane, &format!("https://127.0.0.1:{port}"));
    operator.write("deploy/external/settings.yaml", SETTINGS);
    let apply = Step::Type("kubectl apply -k deploy/external".to_owned());
    RUNTIME.block_on(operator.does(&apply));
    plane_says(&plane, &["create", "namespace", "shop"]);

    let (by_server, by_agents) = (Heard::begin(&plane), Heard::begin(&plane));
    let mut server = serve(&plane, &by_server, port);
    let token = RUNTIME.block_on(plane.token(NAMESPACE, AGENT));
    let arguments = arguments(&plane, "daemonset/clusterip-agent");
    let way = Way { plane: &plane, server: by_agents.proxy.url(), token: &token, arguments };
    let mut field = Field::with(&way, NAMESPACE.to_owned(), tempfile::tempdir().unwrap());
    let listeners = field.network.nodes.iter().map(|node| {
        let mut inside = node.inside();
        inside.expect("listen 80", "listening");
        inside
    });
    let _listeners: Vec<_> = listeners.collect();

    // Placed in admission, and held.
    within(BEGIN, "the API server to ask the webhook", || {
        let trial = create(&plane, "shop", "trial", &json!({"type": "ClusterIP", "externalIPs": ["10.0.9.0.1"]}));
        trial.is_err_and(|said| !said.contains("failed calling webhook")).then_some(())
    });
    create(&plane, "shop", "web", &of_our_class()).unwrap();
    let address = shown(&plane, "shop", "web");
    let mut client = field.network.client.inside();
    within(BEGIN, "an answer", || (client.ask(&format!("tcp {address} 80 1")) == "answered").then_some(()));
    // Nobody is asked about the own namespace: the controller gives this one its address.
    create(&plane, NAMESPACE, "late", &of_our_class()).unwrap();
    let late = shown(&plane, NAMESPACE, "late");
    assert_ne!(late, address);
    // Another can't have it.
    let hijack = json!({"externalIPs": [address]});
    let refused = create(&plane, "default", "hijack", &hijack).unwrap_err();
    assert!(refused.contains(&format!("{address} of pool \"all\" is held by shop/web")), "{refused}");

    // The agents follow the settings, and take away what nobody has any more.
    operator.write("deploy/external/settings.yaml", &SETTINGS.replace("10.0.9.240", "10.0.9.241"));
    RUNTIME.block_on(operator.does(&apply));
    within(BEGIN, "all agents to follow the settings", || {
        let taken = field.log().iter().filter(|line| line.contains("settings in use")).count();
        (taken >= 6).then_some(())
    });
    plane_says(&plane, &["delete", "service", "web", "--namespace", "shop"]);
    within(BEGIN, "nobody to hold it", || field.holder(address).is_none().then_some(()));
    let lease = format!("lease.coordination.k8s.io/{}", name(address));
    within(BEGIN, "its claim to go", || {
        let leases = plane_says(&plane, &["get", "leases", "--namespace", NAMESPACE, "--output", "name"]);
        leases.lines().all(|other| other != lease).then_some(())
    });

    // Whoever is told to end gives back, and comes back.
    let holder = field.holder(late).unwrap();
    field.signal(holder, nix::sys::signal::Signal::SIGTERM);
    assert!(field.ended(holder).success());
    within(BEGIN, "another holder", || field.holder(late).filter(|next| *next != holder));

    // Without the server nobody claims an address; Services of our class wait for theirs.
    RUNTIME.block_on(server.terminate());
    let refused = create(&plane, "default", "hijack", &hijack).unwrap_err();
    assert!(refused.contains(r#"failed calling webhook "external.clusterip-policy.io""#), "{refused}");
    create(&plane, "shop", "waits", &of_our_class()).unwrap();
    let _server = serve(&plane, &by_server, port);
    shown(&plane, "shop", "waits");

    // Nothing was asked for that is not granted, and nothing granted that was not asked for.
    assert_eq!(by_agents.asked(), granted(&plane, AGENT));
    let more = [
        "list leases.coordination.k8s.io",
        "patch services",
        "patch services/status",
        "watch leases.coordination.k8s.io",
    ];
    let more: BTreeSet<String> = more.map(str::to_owned).into();
    let (asked, granted) = (by_server.asked(), granted(&plane, SERVER));
    assert_eq!(asked.difference(&granted).collect::<Vec<_>>(), Vec::<&String>::new());
    assert!(asked.is_superset(&more), "{asked:?}");
}
