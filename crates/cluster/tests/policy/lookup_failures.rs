//! Every look-up with every kind of failure, in the words of policy-server: the module and the core deny with the reason
//! and the remedy, and ask for nothing more. The tests of `src/kubewarden_cluster.rs` have all words for each kind of
//! failure.

use std::sync::{Arc, Mutex};

use clusterip_cluster::policy::host_calls::{HostCall, HostCalls};
use serde_json::{Value, json};

use crate::support::{NoCluster, SHELLS, Shell, request, service};

const IP_ADDRESS: &str = "get networking.k8s.io/v1/IPAddress";
const RUNTIME_CLASS: &str = "get node.k8s.io/v1/RuntimeClass";
/// The only list for the blocks of Nodes.
const LIST_OF_NODES: &str = "list v1/Node";
/// The same list as for ClusterIPs, with other fields.
const LIST_OF_EXTERNAL_ADDRESSES: &str = "list external addresses v1/Service";
/// One custom kind stands for all.
const ROLLOUT: &str = "list argoproj.io/v1alpha1/Rollout";

/// The lists of workloads, each with the kind as the settings name it.
const WORKLOADS: [(&str, &str); 9] = [
    ("list apps/v1/Deployment", "Deployment"),
    ("list apps/v1/StatefulSet", "StatefulSet"),
    ("list apps/v1/DaemonSet", "DaemonSet"),
    ("list apps/v1/ReplicaSet", "ReplicaSet"),
    ("list v1/ReplicationController", "ReplicationController"),
    ("list batch/v1/Job", "Job"),
    ("list batch/v1/CronJob", "CronJob"),
    ("list v1/Pod", "Pod"),
    (ROLLOUT, "argoproj.io/v1alpha1/Rollout"),
];

/// The evidence and the pool that are known when addresses are looked up.
const BY_ANNOTATION: &str = r#"{"source":"annotation clusterip-policy/os","labels":{"kubernetes.io/os":"linux"}}"#;
const BY_NODE: &str = r#"{"source":"Node w1","labels":{"kubernetes.io/os":"linux"}}"#;

/// A decision that makes a look-up.
struct Case {
    lookup: &'static str,
    /// The name of the object that is looked up.
    name: Option<&'static str>,
    settings: Value,
    request: Value,
    /// What the decision finds before it makes the look-up.
    found: Option<(&'static str, Value)>,
    /// What the answer has besides the decision and the reason.
    annotations: Value,
}

impl Case {
    /// A decision that looks for workloads of one kind.
    fn evidence(lookup: &'static str, kind: &str) -> Self {
        Self {
            lookup,
            name: None,
            settings: json!({"services": {"evidence": {"kinds": [kind]}}}),
            request: request(service()),
            found: None,
            annotations: json!({}),
        }
    }

    /// Every look-up that a decision can make.
    fn all() -> Vec<Self> {
        let annotated = || {
            let mut service = service();
            service["metadata"]["annotations"] = json!({"clusterip-policy/os": "linux"});
            request(service)
        };
        let linux = || json!({"evidence": BY_ANNOTATION, "pool": "linux"});
        let mut cases: Vec<Self> = WORKLOADS.map(|(lookup, kind)| Self::evidence(lookup, kind)).into();
        let base = || Self::evidence("", "Deployment");
        cases.push(Self {
            lookup: "list in one namespace apps/v1/Deployment",
            settings: json!({"services": {"evidence": {"kinds": ["Deployment"], "lookups": "namespace"}}}),
            ..base()
        });
        cases.push(Self {
            lookup: "list v1/Service",
            settings: json!({"services": {"order": "lowest"}}),
            request: annotated(),
            annotations: linux(),
            ..base()
        });
        let mut balancer = service();
        balancer["spec"]["type"] = json!("LoadBalancer");
        balancer["spec"]["clusterIP"] = json!("10.96.0.7");
        balancer["spec"]["clusterIPs"] = json!(["10.96.0.7"]);
        balancer["spec"]["loadBalancerIP"] = json!("10.0.9.20");
        cases.push(Self {
            lookup: LIST_OF_EXTERNAL_ADDRESSES,
            settings: json!({"external": {"pools": [{"name": "edge", "cidrs": ["10.0.9.10-10.0.9.40"]}]}}),
            request: request(balancer),
            annotations: json!({"external": "denied"}),
            ..base()
        });
        let mut node = request(json!({
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": "w1", "labels": {"kubernetes.io/os": "linux"}},
            "spec": {"podCIDR": "10.244.1.0/24", "podCIDRs": ["10.244.1.0/24"]},
        }));
        node["kind"]["kind"] = json!("Node");
        node["resource"]["resource"] = json!("nodes");
        node["name"] = json!("w1");
        node.as_object_mut().unwrap().remove("namespace");
        let pool = json!({"name": "linux", "cidrs": ["10.244.0.0/16"], "match": {"os": "linux"}});
        cases.push(Self {
            lookup: LIST_OF_NODES,
            settings: json!({"nodes": {"pools": [pool], "explicit": "deny"}}),
            request: node,
            annotations: json!({"evidence": BY_NODE, "pool": "linux"}),
            ..base()
        });
        let mut without_selector = service();
        without_selector["spec"].as_object_mut().unwrap().remove("selector");
        cases.push(Self {
            lookup: "get v1/Namespace",
            name: Some("shop"),
            settings: json!({}),
            request: request(without_selector),
            ..base()
        });
        let metadata = json!({"name": "web", "namespace": "shop", "labels": {"app": "web"}});
        cases.push(Self {
            lookup: "get v1/Node",
            name: Some("win-1"),
            found: Some(("list v1/Pod", json!({"metadata": metadata, "spec": {"nodeName": "win-1"}}))),
            ..Self::evidence("", "Pod")
        });
        let template = json!({"metadata": {"labels": {"app": "web"}}, "spec": {"runtimeClassName": "windows-2022"}});
        cases.push(Self {
            lookup: RUNTIME_CLASS,
            name: Some("windows-2022"),
            found: Some(("list apps/v1/Deployment", json!({"metadata": metadata, "spec": {"template": template}}))),
            ..base()
        });
        cases.push(Self {
            lookup: IP_ADDRESS,
            name: Some("172.21.0.59"),
            settings: json!({}),
            request: annotated(),
            annotations: linux(),
            ..base()
        });
        cases
    }

    /// The API version and the kind.
    fn resource(&self) -> &str {
        self.lookup.rsplit(' ').next().unwrap()
    }

    /// What a denial calls the object.
    fn about(&self) -> String {
        self.name.map_or(self.resource().to_owned(), |name| format!("{} {name}", self.resource()))
    }

    /// Whether the settings can do without the look-up.
    fn is_of_workloads(&self) -> bool {
        self.settings["services"]["evidence"].is_object() && self.name.is_none()
    }

    fn answer(&self, shell: Shell, fails: Option<Failure>) -> (Value, Vec<String>) {
        let host = Arc::new(Host {
            found: self.found.clone(),
            fails: fails.map(|failure| (self.lookup, failure.words(self))),
            asked: Mutex::default(),
        });
        let payload = json!({"request": self.request, "settings": self.settings}).to_string();
        let answer = serde_json::from_slice(&shell(payload.as_bytes(), Arc::clone(&host) as _)).unwrap();
        let asked = host.asked.lock().unwrap().clone();
        (answer, asked)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failure {
    NotGranted,
    Absent,
    Interrupted,
    CutOff,
}

impl Failure {
    const ALL: [Self; 4] = [Self::NotGranted, Self::Absent, Self::Interrupted, Self::CutOff];

    /// What the host answers.
    fn words(self, case: &Case) -> Result<String, String> {
        match self {
            Self::CutOff => Ok(r#"{"apiVersion":"v1","k"#.to_owned()),
            _ => Err(self.quoted(case)),
        }
    }

    /// What the denial quotes of it.
    fn quoted(self, case: &Case) -> String {
        let resource = case.resource();
        match self {
            Self::NotGranted => format!(
                "Policy has not been granted access to Kubernetes {resource} resources. The violation has been reported."
            ),
            Self::Absent => format!("Cannot find resource {resource}"),
            Self::Interrupted => "Error obtaining response over callback channel".to_owned(),
            Self::CutOff if case.name.is_some() => "EOF while parsing a string at line 1 column 21".to_owned(),
            Self::CutOff => "EOF while parsing a string at line 1 column 2 of the last 2 bytes".to_owned(),
        }
    }

    /// The whole message of the denial.
    fn message(self, case: &Case) -> String {
        let subject = match case.lookup {
            LIST_OF_NODES => "Node w1: unknown whether another Node has 10.244.1.0/24",
            _ => "Service shop/web",
        };
        let (resource, about, quoted) = (case.resource(), case.about(), self.quoted(case));
        let without = if case.is_of_workloads() { ", or remove the kind from services.evidence.kinds" } else { "" };
        let what = match self {
            Self::NotGranted => {
                format!("no permission to read {about}: {quoted}; grant the policy and its host read access{without}")
            }
            Self::Absent => format!("the cluster has no {about}: {quoted}; install the API{without}"),
            Self::Interrupted => {
                format!("looking up {about} failed: {quoted}; try again; if it still fails, see the log of the host")
            }
            Self::CutOff => {
                format!("the host's answer about {resource} can't be read: {quoted}; report it with the host's version")
            }
        };
        format!("{subject}: {what}")
    }

    /// Whether the decision continues: before Kubernetes 1.33, there was no `IPAddress`.
    fn is_normal(self, case: &Case) -> bool {
        case.lookup == IP_ADDRESS && self == Self::Absent
    }
}

/// A cluster with at most one object, in which one look-up can fail.
struct Host {
    found: Option<(&'static str, Value)>,
    fails: Option<(&'static str, Result<String, String>)>,
    asked: Mutex<Vec<String>>,
}

impl HostCalls for Host {
    fn answer(&self, call: &HostCall) -> Result<Vec<u8>, String> {
        let lookup = lookup(call);
        self.asked.lock().unwrap().push(lookup.clone());
        match (&self.fails, &self.found) {
            (Some((fails, words)), _) if *fails == lookup => words.clone().map(String::into_bytes),
            (_, Some((found, object))) if *found == lookup => Ok(json!({"items": [object]}).to_string().into_bytes()),
            _ => NoCluster.answer(call),
        }
    }
}

/// A look-up without the names and the fields that it asks for.
pub fn lookup(call: &HostCall) -> String {
    match call {
        HostCall::ListAll { api_version, kind, field_masks, .. } => {
            let is_external = field_masks.iter().flatten().any(|mask| mask == "spec.externalIPs");
            let what = if is_external { "external addresses " } else { "" };
            format!("list {what}{api_version}/{kind}")
        }
        HostCall::ListNamespace { api_version, kind, .. } => format!("list in one namespace {api_version}/{kind}"),
        HostCall::Get { api_version, kind, .. } => format!("get {api_version}/{kind}"),
    }
}

/// Whether a decision can make this look-up.
pub fn is_known(lookup: &str) -> bool {
    Case::all().iter().any(|case| case.lookup == lookup)
}

/// The answer is right if it is `None`.
fn problem(case: &Case, failure: Failure, answer: &Value, asked: &[String]) -> Option<String> {
    let message = failure.message(case);
    let mut annotations = json!({"decision": "denied", "reason": message});
    annotations.as_object_mut().unwrap().extend(case.annotations.as_object().unwrap().clone());
    let expected = json!({"accepted": false, "message": message, "code": 500, "audit_annotations": annotations});
    if *answer != expected {
        return Some(format!("expected {expected:#}, found {answer:#}"));
    }
    (asked.last().map(String::as_str) != Some(case.lookup)).then(|| format!("asked for more: {asked:?}"))
}

#[test]
fn failed_look_up_is_the_last_one_and_denies_with_reason_and_remedy() {
    let mut problems = Vec::new();
    for case in Case::all() {
        for (by, shell) in SHELLS {
            let (_, without_failure) = case.answer(shell, None);
            for failure in Failure::ALL.into_iter().filter(|failure| !failure.is_normal(&case)) {
                let (answer, asked) = case.answer(shell, Some(failure));
                let problem = problem(&case, failure, &answer, &asked)
                    .or_else(|| (!without_failure.starts_with(&asked)).then(|| format!("asked for {asked:?}")));
                problems
                    .extend(problem.map(|problem| format!("{failure:?} of {} by the {by}: {problem}", case.lookup)));
            }
        }
    }
    assert!(problems.is_empty(), "{} problems:\n{}", problems.len(), problems.join("\n"));
}
