//! `deploy/external` as it is shipped: server and agents run with its arguments, service accounts and capabilities.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use clusterip_failover::claims::HolderClaim;
use serde_json::{Value, json};

use super::agent_cluster::{AgentCluster, AgentOptions, BEGIN, RUNTIME, within};
use super::support::control_plane::{ControlPlane, Options};
use super::support::documented_steps::{Operator, Step, steps_of, types};
use super::support::fault_proxy::{Fault, Proxy, Seen};
use super::support::serve_process::{Server, ServerBuilder, free_port};

const NAMESPACE: &str = "clusterip-policy";
const SERVER: &str = "clusterip";
const AGENTS: &str = "clusterip-policy-agents";
const AGENT: &str = "clusterip-agent";

/// An HTTP probe of a kubelet.
#[derive(serde::Deserialize)]
struct Probe {
    host: String,
    port: u16,
    path: String,
}

/// Records the requests of an account as `VERB RESOURCE`, followed by the group unless it is the core group.
struct PermissionRecorder {
    proxy: Proxy,
    asked: Arc<Mutex<BTreeSet<String>>>,
}

impl PermissionRecorder {
    fn begin(plane: &ControlPlane) -> Self {
        let proxy = RUNTIME.block_on(Proxy::start(plane));
        let asked: Arc<Mutex<BTreeSet<String>>> = Arc::default();
        let recorded = Arc::clone(&asked);
        // The rule records every request and matches none.
        let records = move |seen: &Seen| {
            recorded.lock().unwrap().extend(permission(seen));
            false
        };
        proxy.on(records, Fault::CutBefore);
        Self { proxy, asked }
    }

    fn asked(&self) -> BTreeSet<String> {
        self.asked.lock().unwrap().clone()
    }
}

/// The permission that a request needs; `None` if every account has it.
fn permission(seen: &Seen) -> Option<String> {
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

/// The permissions that the manifests grant an account in both namespaces, in the same format.
fn granted(plane: &ControlPlane, account: &str) -> BTreeSet<String> {
    let account = format!("--as=system:serviceaccount:{account}");
    let list = |namespace: &str| {
        let list = ["auth", "can-i", "--list", "--no-headers", &account, "-n", namespace];
        RUNTIME.block_on(plane.kubectl(&list)).ok()
    };
    let list = list(NAMESPACE) + &list(AGENTS);
    let mut rights = BTreeSet::new();
    // What every account may do: since Kubernetes 1.37, also read ClusterTrustBundles.
    let of_all = ["[", "selfsubject", "clustertrustbundles.certificates.k8s.io "];
    for line in list.lines().filter(|line| !of_all.iter().any(|begin| line.trim_start().starts_with(begin))) {
        let (resource, verbs) = (line.split_whitespace().next().unwrap(), line.rsplit('[').next().unwrap());
        // kubectl prints clusterippolicies.clusterip-policy.io/status.
        let resource = match resource.split_once('/').map(|(resource, part)| (resource.split_once('.'), part)) {
            Some((Some((name, group)), part)) => format!("{name}/{part}.{group}"),
            _ => resource.to_owned(),
        };
        rights.extend(verbs.trim_end().trim_end_matches(']').split(' ').map(|verb| format!("{verb} {resource}")));
    }
    rights
}

/// The arguments of the only container of an object.
fn arguments(plane: &ControlPlane, object: &str, namespace: &str) -> Vec<String> {
    let path = "jsonpath={.spec.template.spec.containers[0].args}";
    let output = plane_says(plane, &["get", object, "--namespace", namespace, "--output", path]);
    serde_json::from_str(&output).unwrap()
}

fn plane_says(plane: &ControlPlane, arguments: &[&str]) -> String {
    RUNTIME.block_on(plane.kubectl(arguments)).ok()
}

/// Starts the server as its Deployment does.
fn serve(plane: &ControlPlane, recorder: &PermissionRecorder, port: u16) -> Server {
    let token = RUNTIME.block_on(plane.token(NAMESPACE, SERVER));
    let kubeconfig = plane.write_kubeconfig("server.kubeconfig", recorder.proxy.url(), &token);
    let arguments = arguments(plane, "deployment/clusterip", NAMESPACE);
    // The node chooses the address to listen on, and the certificate must contain it.
    let ["serve", "--listen", _, rest @ ..] = &arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] else {
        panic!("{arguments:?}")
    };
    let server =
        ServerBuilder::as_user(&kubeconfig).port(port).args(&["--namespace", NAMESPACE, "--service", "127.0.0.1"]);
    RUNTIME.block_on(async { server.pools().args(rest).start().await })
}

/// Creates a Service; returns the error of `kubectl` if it is refused.
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

/// Waits until the status of a Service shows an address.
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

/// The recorded addresses, and those that the status shows.
fn has(plane: &ControlPlane, name: &str) -> (String, String) {
    let path =
        "jsonpath={.metadata.annotations.clusterip-policy/external-addresses} {.status.loadBalancer.ingress[*].ip}";
    let output = plane_says(plane, &["get", "service", name, "--output", path]);
    let (record, shown) = output.split_once(' ').unwrap();
    (record.to_owned(), shown.to_owned())
}

/// Sends the probes of the kubelet to the agent of a node, from this node.
fn assert_probes_succeed(plane: &ControlPlane, cluster: &AgentCluster, node: usize) {
    let probes = "{.startupProbe.httpGet}{.livenessProbe.httpGet}{.readinessProbe.httpGet}";
    let probes = format!("jsonpath={{range .spec.template.spec.containers[0]}}{probes}{{end}}");
    let probes = plane_says(plane, &["get", "daemonset/clusterip-agent", "-n", AGENTS, "--output", &probes]);
    let probes: Vec<Value> = serde_json::Deserializer::from_str(&probes).into_iter().map(Result::unwrap).collect();
    assert_eq!(probes.len(), 3);
    let mut kubelet = cluster.network.nodes[node].inside();
    for Probe { host, port, path } in probes.into_iter().map(|probe| serde_json::from_value(probe).unwrap()) {
        assert_eq!(kubelet.ask(&format!("http {host} {port} {path}")), "HTTP/1.1 200 OK", "{path}");
    }
}

/// The Service `web` asks for another address, and gets a third one when that is outside of all pools. Returns the
/// third address.
fn requested_address_is_assigned(
    plane: &ControlPlane,
    operator: &Operator<'_>,
    cluster: &AgentCluster,
    former: IpAddr,
    apply: &Step,
) -> IpAddr {
    let does = |step: &Step| RUNTIME.block_on(operator.does(step));
    let asks = steps("Ask for an address");
    let [ask, ask_no_more] = &asks[..] else { panic!("{asks:?}") };
    does(ask);
    within(BEGIN, "the address that was asked for", || {
        (has(plane, "web") == ("10.0.9.20".to_owned(), "10.0.9.20".to_owned())).then_some(())
    });
    within(BEGIN, "the former address to be released", || cluster.holder(former).is_none().then_some(()));
    within(BEGIN, "its claim to be deleted", || {
        let leases = plane_says(plane, &["get", "leases", "--namespace", AGENTS, "--output", "name"]);
        let lease = format!("lease.coordination.k8s.io/{}", HolderClaim::lease_name(former));
        leases.lines().all(|other| other != lease).then_some(())
    });
    let file = "deploy/external/pools.yaml";
    operator.write(file, &operator.read(file).replace("[10.0.9.10-", "[fd00:9::100-fd00:9::1ff, 10.0.9.21-"));
    does(apply);
    let none = ("10.0.9.20".to_owned(), String::new());
    within(BEGIN, "the addresses to be removed", || (has(plane, "web") == none).then_some(()));
    does(ask_no_more);
    let other = shown(plane, "default", "web");
    assert_ne!(other.to_string(), "10.0.9.20");
    other
}

/// The requests of the agents need exactly the granted permissions. The requests of the server need no others than the
/// granted ones.
fn assert_permissions_are_exact(plane: &ControlPlane, by_server: &PermissionRecorder, by_agents: &PermissionRecorder) {
    let mut of_agents = by_agents.asked();
    // Agents watch them from the first Service with externalTrafficPolicy: Local on.
    of_agents.insert("watch endpointslices.discovery.k8s.io".to_owned());
    // An API server without streaming lists is asked for a list before each watch.
    let lists: Vec<String> =
        of_agents.iter().filter_map(|right| Some(format!("list {}", right.strip_prefix("watch ")?))).collect();
    of_agents.extend(lists);
    assert_eq!(of_agents, granted(plane, &format!("{AGENTS}:{AGENT}")));
    let leases = ["list leases.coordination.k8s.io", "watch leases.coordination.k8s.io"];
    let more: BTreeSet<String> =
        leases.into_iter().chain(["patch services", "patch services/status"]).map(str::to_owned).collect();
    let (asked, granted) = (by_server.asked(), granted(plane, &format!("{NAMESPACE}:{SERVER}")));
    assert_eq!(asked.difference(&granted).collect::<Vec<_>>(), Vec::<&String>::new());
    assert!(asked.is_superset(&more), "{asked:?}");
}

/// Executes `docs/external.md` as it is written, with the accounts of `deploy/external`.
pub fn deployment_works_with_exactly_its_permissions() {
    let plane = ControlPlane::start(Options { audit: false, ..Options::dual_stack() });
    RUNTIME.block_on(plane.install_pools());
    let port = free_port();
    let operator = Operator::new(&plane, &format!("https://127.0.0.1:{port}"));
    let does = |step: &Step| RUNTIME.block_on(operator.does(step));
    let quick = steps("Quick start");
    let [pools, api, established, apply, begun, agents_begun, fence, manifest, create_it, waited, shown_it, holders] =
        &quick[..]
    else {
        panic!("{quick:?}")
    };
    // There is no controller manager, so the test starts the program below.
    assert!(types(begun, "rollout status") && types(agents_begun, "rollout status"));
    for step in [pools, api, established, apply] {
        does(step);
    }

    let (by_server, by_agents) = (PermissionRecorder::begin(&plane), PermissionRecorder::begin(&plane));
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
    cluster.proxy();

    // The webhook assigns an address, and an agent holds it.
    within(BEGIN, "the API server to call the webhook", || {
        let trial = create(&plane, "default", "trial", &json!({"type": "ClusterIP", "externalIPs": ["10.0.9.0.1"]}));
        trial.is_err_and(|said| !said.contains("failed calling webhook")).then_some(())
    });
    does(fence);
    does(manifest);
    does(create_it);
    let (record, _) = has(&plane, "web");
    let address: IpAddr = record.parse().unwrap();
    does(waited);
    assert!(does(shown_it).contains(&record));
    let holder = cluster.holder(address).unwrap();
    let output = does(holders);
    let words: Vec<Vec<&str>> = output.lines().skip(1).map(|line| line.split_whitespace().collect()).collect();
    let [line] = &words[..] else { panic!("{output}") };
    assert!(line[0] == record && line[1].starts_with(cluster.name(holder)), "{output}");
    let mut client = cluster.network.client.inside();
    within(BEGIN, "an answer", || (client.ask(&format!("tcp {address} 80 1")) == "answered").then_some(()));
    let looks: Vec<Step> = steps("On the node");
    let [Step::Type(addresses), Step::Type(table)] = &looks[..] else { panic!("{looks:?}") };
    for look in [addresses, table] {
        let seen = cluster.network.nodes[holder].namespace.exec(&["bash", "-c", look]);
        assert!(seen.contains(&record), "{look}: {seen}");
    }

    assert_probes_succeed(&plane, &cluster, holder);

    // Another Service can't claim the address.
    let refused = create(&plane, "default", "hijack", &json!({"externalIPs": [address]})).unwrap_err();
    assert!(refused.contains(&format!("{address} of pool \"lan\" is held by default/web")), "{refused}");
    // The webhook is not called for the namespace of the server: there the controller assigns the address.
    create(&plane, NAMESPACE, "late", &of_our_class()).unwrap();
    let late = shown(&plane, NAMESPACE, "late");
    assert_ne!(late, address);

    let other = requested_address_is_assigned(&plane, &operator, &cluster, address, apply);

    // A Service with an address of each family.
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

    // An agent that is stopped releases its addresses.
    let holder = within(BEGIN, "a holder", || cluster.holder(other));
    cluster.signal(holder, nix::sys::signal::Signal::SIGTERM);
    assert!(cluster.ended(holder).success());
    within(BEGIN, "another holder", || cluster.holder(other).filter(|next| *next != holder));

    // Without the server, claims are refused, and Services of our class wait for an address.
    assert_eq!(RUNTIME.block_on(server.terminate()), 0);
    let refused = create(&plane, "default", "hijack", &json!({"externalIPs": [other]})).unwrap_err();
    assert!(refused.contains(r#"failed calling webhook "external.clusterip-policy.io""#), "{refused}");
    create(&plane, "default", "waits", &of_our_class()).unwrap();
    let _server = serve(&plane, &by_server, port);
    shown(&plane, "default", "waits");

    assert_permissions_are_exact(&plane, &by_server, &by_agents);

    // Uninstall the feature.
    let uninstall = steps("Uninstall");
    let [Step::Type(agents), pools, shown, rest @ ..] = &uninstall[..] else { panic!("{uninstall:?}") };
    // There is no garbage collector, and these agents go on.
    does(&Step::Type(agents.replace("foreground", "background")));
    assert!(does(shown).contains(&other.to_string()));
    does(pools);
    within(BEGIN, "the statuses to be emptied", || does(shown).trim().is_empty().then_some(()));
    assert_eq!(has(&plane, "web").0, other.to_string(), "the record stays");
    for step in rest {
        does(step);
    }
    let names = ["get", "mutatingwebhookconfiguration", "clusterip-policy", "--output", "jsonpath={.webhooks[*].name}"];
    assert_eq!(plane_says(&plane, &names), "services.clusterip-policy.io");
}
