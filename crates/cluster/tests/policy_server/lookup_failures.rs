//! There is a session for every look-up and every way it can fail, and the answer is the promised one.

use std::collections::BTreeSet;

use clusterip_cluster::policy::host_calls::HostCall;
use clusterip_cluster::policy::recorded_session::Exchange;
use serde_json::Value;

use crate::recorded_sessions;

const DEPLOYMENT: &str = "list apps/v1/Deployment";
const CRON_JOB: &str = "list batch/v1/CronJob";
const ROLLOUT: &str = "list argoproj.io/v1alpha1/Rollout";
const RUNTIME_CLASS: &str = "get node.k8s.io/v1/RuntimeClass";
/// The only list for the blocks of Nodes.
const LIST_OF_NODES: &str = "list v1/Node";
/// The same list as for ClusterIPs, with other fields.
const LIST_OF_EXTERNAL_ADDRESSES: &str = "list external addresses v1/Service";
const IP_ADDRESS: &str = "get networking.k8s.io/v1/IPAddress";

/// Every look-up that an evaluation can make; one custom kind stands for all custom kinds.
const LOOKUPS: [&str; 17] = [
    DEPLOYMENT,
    "list apps/v1/StatefulSet",
    "list apps/v1/DaemonSet",
    "list apps/v1/ReplicaSet",
    "list v1/ReplicationController",
    "list batch/v1/Job",
    CRON_JOB,
    "list v1/Pod",
    ROLLOUT,
    "list in one namespace apps/v1/Deployment",
    "list v1/Service",
    LIST_OF_EXTERNAL_ADDRESSES,
    LIST_OF_NODES,
    "get v1/Namespace",
    "get v1/Node",
    RUNTIME_CLASS,
    IP_ADDRESS,
];

/// The possible outcomes, with the text of the denial; an outcome without a text is a normal answer.
const OUTCOMES: [(Outcome, Option<&str>); 9] = [
    (Outcome::CapabilityNotGranted, Some("no permission to read ")),
    (Outcome::KindNotGranted, Some("no permission to read ")),
    (Outcome::Forbidden, Some("no permission to read ")),
    (Outcome::KindAbsent, Some("the cluster has no ")),
    (Outcome::ApiAbsent, Some("the cluster has no ")),
    (Outcome::Unreachable, Some("looking up ")),
    (Outcome::Interrupted, Some("looking up ")),
    (Outcome::CutOff, Some("the host's answer about ")),
    (Outcome::Empty, None),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    CapabilityNotGranted,
    KindNotGranted,
    Forbidden,
    KindAbsent,
    ApiAbsent,
    Unreachable,
    Interrupted,
    CutOff,
    Empty,
}

impl Outcome {
    /// The outcome of an exchange by the words of policy-server and of the API server; `None` if it is not one of those
    /// tested here.
    fn of(exchange: &Exchange) -> Option<Self> {
        let text = match &exchange.answer {
            Ok(payload) => {
                return match serde_json::from_str::<Value>(payload) {
                    Err(_) => Some(Self::CutOff),
                    Ok(list) => list["items"].as_array().is_some_and(Vec::is_empty).then_some(Self::Empty),
                };
            }
            Err(text) => text,
        };
        let by_words = [
            ("Cannot find resource ", Self::KindAbsent),
            ("404 page not found", Self::ApiAbsent),
            (" host capability.", Self::CapabilityNotGranted),
            ("granted access to Kubernetes ", Self::KindNotGranted),
            ("code: 403", Self::Forbidden),
            ("client error (Connect)", Self::Unreachable),
            ("over callback channel", Self::Interrupted),
            ("Cannot find ", Self::Empty),
        ];
        by_words.into_iter().find(|(words, _)| text.contains(words)).map(|(_, outcome)| outcome)
    }

    /// Whether this outcome can occur for this look-up. Every cluster has the other APIs.
    fn is_possible(self, lookup: &str) -> bool {
        match self {
            Self::KindAbsent => [CRON_JOB, ROLLOUT, IP_ADDRESS].contains(&lookup),
            Self::ApiAbsent => [ROLLOUT, RUNTIME_CLASS, IP_ADDRESS].contains(&lookup),
            _ => true,
        }
    }

    /// Whether the decision continues: nothing was found, or the cluster is older than Kubernetes 1.33.
    fn is_normal(self, lookup: &str) -> bool {
        self == Self::Empty || (lookup == IP_ADDRESS && [Self::KindAbsent, Self::ApiAbsent].contains(&self))
    }
}

fn lookup(call: &HostCall) -> String {
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

#[test]
fn every_look_up_has_a_session_for_each_way_to_fail() {
    let mut there = BTreeSet::new();
    for session in recorded_sessions::all() {
        for exchange in &session.exchanges {
            if let Some(outcome) = Outcome::of(exchange) {
                there.insert((lookup(&exchange.call), outcome));
            }
        }
    }
    let mut missing = Vec::new();
    for lookup in LOOKUPS {
        for (outcome, _) in OUTCOMES {
            if outcome.is_possible(lookup) && !there.contains(&(lookup.to_owned(), outcome)) {
                missing.push(format!("{lookup}: {outcome:?}"));
            }
        }
    }
    assert!(missing.is_empty(), "no session for\n{}", missing.join("\n"));
    let unknown: Vec<_> = there.iter().filter(|(lookup, _)| !LOOKUPS.contains(&lookup.as_str())).collect();
    assert!(unknown.is_empty(), "not in the table: {unknown:?}");
}

/// A failed look-up for a check, not for a placement, is a warning if the settings ask only for warnings.
const ONLY_WARN: [&str; 2] = ["by-hand-and-a-look-up-fails-warns", "node-and-a-look-up-fails-warns"];

#[test]
fn failed_look_up_is_the_last_one_and_denies_with_reason_and_remedy() {
    let mut problems = Vec::new();
    for session in recorded_sessions::all() {
        if ONLY_WARN.contains(&session.name.as_str()) {
            continue;
        }
        for (index, exchange) in session.exchanges.iter().enumerate() {
            let Some(outcome) = Outcome::of(exchange) else { continue };
            let lookup = lookup(&exchange.call);
            if outcome.is_normal(&lookup) {
                continue;
            }
            let begin = OUTCOMES.iter().find(|(other, _)| *other == outcome).and_then(|(_, words)| *words).unwrap();
            let resource = lookup.rsplit(' ').next().unwrap();
            let subject = match lookup.as_str() {
                LIST_OF_NODES => "Node w1: unknown whether another Node has 10.244.1.0/24",
                _ => "Service shop/web",
            };
            let expected = format!("{subject}: {begin}{resource}");
            let message = session.response["status"]["message"].as_str().unwrap_or_default();
            let remedy = message.rsplit_once("; ").map(|(_, remedy)| remedy).unwrap_or_default();
            let holds = session.response["allowed"] == false
                && session.response["status"]["code"] == 500
                && session.response["patch"].is_null()
                && index + 1 == session.exchanges.len()
                && message.starts_with(&expected)
                && ["grant ", "install ", "try again", "report ", "if it still fails"]
                    .iter()
                    .any(|verb| remedy.starts_with(verb));
            if !holds {
                problems.push(format!("{}: {outcome:?} of {lookup}: {message:?}", session.name));
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn empty_result_is_a_normal_answer() {
    let is_normal =
        |exchange: &Exchange| Outcome::of(exchange).is_none_or(|outcome| outcome.is_normal(&lookup(&exchange.call)));
    let mut seen = 0;
    for session in recorded_sessions::all().into_iter().filter(|session| session.name.starts_with("lookup-")) {
        if session.exchanges.iter().all(is_normal) {
            assert_eq!(session.response["allowed"], true, "{}", session.name);
            // The blocks of Nodes and external addresses are only checked here, never assigned.
            let only_checks = [LIST_OF_NODES, LIST_OF_EXTERNAL_ADDRESSES];
            let is_a_check = |exchange: &Exchange| only_checks.contains(&lookup(&exchange.call).as_str());
            let operations = if session.exchanges.iter().any(is_a_check) { None } else { Some(1) };
            assert_eq!(session.response["patch"].as_array().map(Vec::len), operations, "{}", session.name);
            seen += 1;
        }
    }
    assert_eq!(seen, LOOKUPS.len());
}
