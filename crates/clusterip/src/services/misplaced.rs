//! Finds out whether a Service is misplaced, and whether it moves: its endpoints may be reached at its present addresses.

use std::borrow::Borrow;
use std::net::IpAddr;

use clusterip_cluster::evaluator::{Evaluation, Evaluator};
use clusterip_cluster::kinds::State;
use clusterip_cluster::lookups::stored_cluster::{StoredCluster, Subject};
use clusterip_cluster::object::text;
use clusterip_cluster::snapshot::{StoredEndpoints, StoredService, addresses};
use clusterip_cluster::watch::control_plane_services::{MOVE_OPTION, called_by, webhook_remedy};
use clusterip_cluster::watch::stores::Stores;
use clusterip_core::address::Family;
use clusterip_core::annotations::{MOVE_ANNOTATION, Move, OS_ANNOTATION};
use clusterip_core::decision::Report;
use clusterip_core::label_selector::Labels;
use clusterip_core::request::{Change, Request};
use clusterip_core::service_key::ServiceKey;
use clusterip_core::settings::{Explicit, Pool, Settings, Unmatched};
use clusterip_core::workload::OS_LABEL;
use clusterip_failover::claims::Owner;
use clusterip_moves::journal::{Journal, SeamlessOptions};
use clusterip_moves::method::{Method, method};
use clusterip_moves::temporary::Role;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use thiserror::Error;

use crate::service_placement::{Fit, Placement, Skip, as_if_created, fits, merge, skip_reason};
use crate::services::service_metrics::StayReason;
use crate::text::several;

/// Which misplaced Services may be moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allowed {
    /// Whether any are moved. If not, only those move that an administrator asks for.
    pub any: bool,
    /// Whether Services move plainly although they have ready endpoints that can be reached at their present address.
    pub ready: bool,
    /// How Services with ready endpoints move seamlessly, if they can; `None` if all move plainly.
    pub seamless: Option<SeamlessOptions>,
    pub load_balancers: bool,
}

pub enum Inspection {
    /// The Service is in place, or is ignored.
    InPlace,
    /// The Service looks as if its move had begun and not ended. Only a record tells whether that is so.
    HalfMoved,
    Misplaced(Box<Misplaced>),
}

pub struct Misplaced {
    pub uid: String,
    /// The present addresses, primary first.
    pub from: Vec<IpAddr>,
    pub why: String,
    /// The pools that it lies in, if no pool matches it, so that it belongs outside of all pools.
    pub unmatched: Vec<String>,
    pub asked_by: AskedBy,
    pub impact: Impact,
    /// Why the Service stays where it is; `None` if it moves, once [`reserve_targets`] has reserved addresses for it.
    pub stays: Option<(StayReason, String)>,
}

/// An administrator's request to move a Service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MoveRequest {
    pub namespace: String,
    pub name: String,
    /// The UID of the Service. Another Service of the same name is not moved.
    pub uid: String,
    /// Whether to move the Service even if the control plane calls it, unless a webhook of the Service blocks the move.
    #[serde(default)]
    pub control_plane: bool,
    /// `None` for a plain move.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seamless: Option<SeamlessOptions>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AskedBy {
    Controller,
    /// The author of the Service, by the annotation [`MOVE_ANNOTATION`]. The move skips what protects the Service
    /// itself: its cooldown, and its ready endpoints.
    Author,
    /// An administrator, by a [`MoveRequest`] or by `clusterip move`. The move skips every brake, too.
    Administrator,
}

/// What a move by the controller does to the clients of a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Impact {
    /// Nothing: no endpoint is ready.
    Unnoticed,
    /// Nothing: the Service has ready endpoints, and moves seamlessly.
    Seamless,
    /// The Service has ready endpoints, and moves plainly: none of them can be reached, or it moves in spite of them.
    Plain,
}

/// Inspects a Service as the stores show it. `server_namespace` has the records of moves. `request` is an administrator's
/// request to move the Service. Reserves no address.
pub fn inspect(
    evaluator: &Evaluator,
    service: &StoredService,
    allowed: &Allowed,
    server_namespace: &str,
    request: Option<&MoveRequest>,
) -> anyhow::Result<Inspection> {
    let settings = evaluator.settings();
    let settings = &settings.settings;
    match skip_reason(settings, service) {
        Some(Skip::HalfMoved) => return Ok(Inspection::HalfMoved),
        Some(Skip::Unmanaged) => return Ok(Inspection::InPlace),
        None => {}
    }
    let decision = ask(evaluator, service, true)?.decision;
    let cluster = StoredCluster::of(evaluator.stores().snapshot(), service.key());
    let placement = Placement::of(settings, service, &decision, &cluster);
    if matches!(placement.fit, Fit::InPlace | Fit::NotWhereAssumed) {
        return Ok(Inspection::InPlace);
    }
    let (id, annotation) = (service.key(), service.asked_move());
    let is_seamless = request.map_or(&allowed.seamless, |request| &request.seamless).is_some();
    let asked_by = match (request, annotation) {
        (Some(_), _) => AskedBy::Administrator,
        (None, Some(Move::Now)) => AskedBy::Author,
        (None, _) => AskedBy::Controller,
    };
    let endpoints = stored_endpoints(evaluator.stores(), settings, service);
    // Without a pool, the Service belongs outside of all pools.
    let pool = placement.pool.as_deref().and_then(|name| settings.pool(name));
    let to = merge(settings, pool, &placement.addresses, decision.allocated().unwrap_or_default());
    let impact = match endpoints.ready {
        0 => Impact::Unnoticed,
        _ if allowed.seamless.is_some() && method(&service.value(), &to, true) == Method::Seamless => Impact::Seamless,
        _ => Impact::Plain,
    };
    let interrupts = impact == Impact::Plain && endpoints.reachable > 0;
    let stays = if service.is_deleting() {
        Some((StayReason::BeingDeleted, "it is being deleted, and a finalizer keeps it".to_owned()))
    } else if !allowed.any && asked_by != AskedBy::Administrator {
        Some((StayReason::Never, "this server does not move Services (`--move never`)".to_owned()))
    } else if annotation == Some(Move::Never) {
        Some((StayReason::Never, format!("annotation {MOVE_ANNOTATION}: never")))
    } else if service.is_load_balancer() && !allowed.load_balancers {
        let detail = "type LoadBalancer: a cloud provider might remove its load balancer";
        Some((StayReason::LoadBalancer, detail.to_owned()))
    } else if let Some(detail) =
        why_called_service_stays(evaluator, service, request, is_seamless.then_some(server_namespace))
    {
        Some((StayReason::ControlPlane, detail))
    } else if interrupts && !allowed.ready && asked_by == AskedBy::Controller {
        Some((StayReason::ReadyEndpoints, reachable(endpoints.reachable)))
    } else if pool.is_none() && !placement.verdict.is_allocated() {
        let detail = "the policy gives it no address outside of all pools: add a pool that matches it, or set \
                      services.unmatched: outside";
        Some((StayReason::Unmatched, detail.to_owned()))
    } else if pool.is_none()
        && placement.is_admitted
        // Once its workloads are back, another pool may match it.
        && decision.evidence.as_ref().is_some_and(Report::has_assumed_os)
    {
        let remedy = format!("name it in the annotation {OS_ANNOTATION}");
        Some((StayReason::Unmatched, format!("its operating system is only assumed (services.assumeOS): {remedy}")))
    } else if decision.allocated().is_none() {
        Some((StayReason::PoolFull, decision.verdict.reason().unwrap_or_default().to_owned()))
    } else {
        None
    };
    let lies_in = match placement.lies_in.as_slice() {
        [] => "no pool".to_owned(),
        pools => format!("pool {}", pools.join(", ")),
    };
    let belongs = placement.pool.as_ref().map_or("no pool matches it".to_owned(), |it| format!("belongs to pool {it}"));
    Ok(Inspection::Misplaced(Box::new(Misplaced {
        uid: service.uid().into_owned(),
        why: format!("it lies in {lies_in}, and {belongs}: {}", placement.why(id)),
        unmatched: if pool.is_none() { placement.lies_in } else { Vec::new() },
        from: placement.addresses,
        asked_by,
        impact,
        stays,
    })))
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Endpoints {
    /// The endpoints that are ready, or that still serve while they end.
    pub ready: usize,
    /// Those of them that can be reached at the present addresses of the Service: a plain move would interrupt clients.
    pub reachable: usize,
}

pub fn stored_endpoints(stores: &Stores, settings: &Settings, service: &StoredService) -> Endpoints {
    let slices = stores.read_snapshot().endpoints_of(service.key());
    endpoints_of(&slices, stores, settings, service)
}

/// The endpoints in these EndpointSlices of a Service.
///
/// An endpoint can't be reached only if every address of the Service lies in a pool whose `match` asks for other labels
/// than those of the endpoint's node. Everything else may be reachable: an address outside of all pools, an endpoint
/// without a node or on a node without such a label, and a node that the stores do not show as it is now.
pub fn endpoints_of(
    slices: &[impl Borrow<StoredEndpoints>],
    stores: &Stores,
    settings: &Settings,
    service: &StoredService,
) -> Endpoints {
    let pools: Option<Vec<&Pool>> = service.addresses().iter().map(|address| settings.pool_of(*address)).collect();
    // Only a pool with labels of nodes can be a wrong one, so the nodes are looked up for no other.
    let pools = pools.filter(|pools| pools.iter().all(|pool| !pool.matches.node_labels.is_empty()));
    let are_nodes_known = stores.states().get(&("v1".to_owned(), "Node".to_owned())) == Some(&State::Synced);
    let is_out_of_reach = |node: &str| {
        let node = Some(node).filter(|node| are_nodes_known && !node.is_empty());
        let node = node.and_then(|node| stores.read_snapshot().node(node).cloned());
        let Some((pools, node)) = pools.as_ref().zip(node) else { return false };
        pools.iter().all(|pool| contradicts(pool, &node.labels))
    };
    let mut count = Endpoints::default();
    for node in slices.iter().flat_map(|slice| &slice.borrow().nodes) {
        count.ready += 1;
        count.reachable += usize::from(!is_out_of_reach(node));
    }
    count
}

/// Whether a pool asks for other labels than these of a node. A label that the node does not have contradicts nothing:
/// some labels are added after the Node.
fn contradicts(pool: &Pool, node: &Labels) -> bool {
    let differs = |(key, value): (&String, &String)| match node.get(key) {
        // The policy ignores the case of the OS as well.
        Some(found) if key == OS_LABEL => !found.eq_ignore_ascii_case(value),
        Some(found) => found != value,
        None => false,
    };
    pool.matches.node_labels.iter().any(differs)
}

/// Why a Service with this number of endpoints within reach stays, and the remedy.
fn reachable(endpoints: usize) -> String {
    let endpoints = several(endpoints, "ready endpoint");
    format!("{endpoints} can be reached at its present address; `clusterip move --seamless` moves it")
}

/// Why a Service that the control plane calls stays: no administrator's request allows its move, or a webhook of the
/// Service blocks the move. `None` for other Services. `trigger_namespace` is the namespace of the trigger of a
/// seamless move; `None` for a plain move.
fn why_called_service_stays(
    evaluator: &Evaluator,
    service: &StoredService,
    request: Option<&MoveRequest>,
    trigger_namespace: Option<&str>,
) -> Option<String> {
    let (id, stores) = (service.key(), evaluator.stores());
    let called = stores.control_plane_services();
    let is_allowed = request.is_some_and(|request| request.control_plane);
    let callers = match called.callers(&id.namespace, &id.name) {
        Ok(callers) if callers.is_empty() => return None,
        Err(unknown) if !is_allowed => return Some(unknown),
        Ok(callers) => callers,
        Err(_) => called.known_callers(&id.namespace, &id.name),
    };
    let temporary = trigger_namespace.into_iter().flat_map(|trigger| {
        Role::ALL.map(|role| (if role == Role::Trigger { trigger } else { id.namespace.as_str() }, role.labels()))
    });
    let temporary: Vec<(&str, Labels)> = temporary.collect();
    let remedy = match called.blocking_webhooks(service, &stores.read_snapshot(), &temporary) {
        Err(unknown) => return Some(unknown),
        Ok(blocking) if blocking.is_empty() && is_allowed => return None,
        Ok(blocking) if blocking.is_empty() => String::new(),
        Ok(blocking) => format!("{}; then ", webhook_remedy(&blocking)),
    };
    let problem = "the API server could not call it while it moves";
    Some(format!("{}: {problem}; {remedy}`clusterip move {MOVE_OPTION} {id}` moves it", called_by(&callers)))
}

/// Reserves addresses for a Service that moves. Returns all its addresses after the move, and the evaluation.
pub fn reserve_targets(evaluator: &Evaluator, service: &StoredService) -> Result<(Vec<IpAddr>, Evaluation), NoTarget> {
    let evaluation = ask(evaluator, service, false).map_err(|error| NoTarget::Unknown(error.to_string()))?;
    match (place(&evaluation), evaluation.decision.allocated()) {
        (Some((settings, pool)), Some(new)) => Ok((merge(settings, pool, service.addresses(), new), evaluation)),
        _ if let Some(reason) = evaluation.failed_claim() => Err(NoTarget::Unknown(reason)),
        _ => Err(NoTarget::Full(evaluation.decision.verdict.reason().unwrap_or_default().to_owned())),
    }
}

#[derive(Debug, Error)]
pub enum NoTarget {
    /// The pool has no free address. Contains the policy's reason.
    #[error("{0}")]
    Full(String),
    /// Which addresses are free is unknown: the policy, or the API server at the claim of an address, did not answer.
    #[error("{0}")]
    Unknown(String),
}

/// Whether the policy would give these addresses to a Service, given as before its move. `false` without an answer.
pub fn may_have(evaluator: &Evaluator, service: &StoredService, addresses: &[IpAddr]) -> bool {
    let Ok(evaluation) = ask(evaluator, service, true) else { return false };
    let ServiceKey { namespace, name } = service.key();
    let is_open = |pool: &Pool, address: &IpAddr| match pool.reservation(*address) {
        Some(reservation) => reservation.is_for(namespace, name),
        None => !pool.exclude.iter().any(|excluded| excluded.contains(address)),
    };
    place(&evaluation).is_some_and(|(settings, pool)| {
        addresses.iter().all(|address| fits(settings, pool, *address) && pool.is_none_or(|pool| is_open(pool, address)))
    })
}

pub fn check_update(evaluator: &Evaluator, before: &Value, after: &Value) -> Result<(), String> {
    let subject = subject(&ServiceKey::of(after), addresses(after), true);
    let read = || Request::of_service(text(after, &["metadata", "uid"]), after, Some(before));
    let evaluation = evaluator.evaluate_read(read, &subject).map_err(|error| error.to_string())?;
    evaluation.decision.denial().map_or(Ok(()), |denial| Err(denial.message.clone()))
}

/// Reserves addresses of these families for a Service that can have neither addresses of its pool nor its old ones:
/// addresses that no pool contains. If there are none, the API server may pick, which an empty list says, but only where
/// the settings isolate no Services: it may pick an address of any pool.
pub fn last_resort(evaluator: &Evaluator, service: &ServiceKey, families: &[Family]) -> Option<Vec<IpAddr>> {
    if let Some(outside) = evaluator.reserve_outside(families, &subject(service, Vec::new(), false)) {
        return Some(outside);
    }
    let live = evaluator.settings();
    let settings = &live.settings;
    let isolates = settings.unmatched != Unmatched::Unmanaged || settings.explicit == Explicit::Deny;
    let is_exempt = settings.exemption(&service.namespace, &service.name).is_some();
    (!isolates || is_exempt).then(Vec::new)
}

/// Asks the policy. With `dry_run`, no address is reserved.
fn ask(evaluator: &Evaluator, service: &StoredService, dry_run: bool) -> anyhow::Result<Evaluation> {
    let create = |object| Request::of_change(&service.uid(), &service.key().namespace, Change { object, old: None });
    let subject = subject(service.key(), service.addresses().to_vec(), dry_run);
    evaluator.evaluate_read(|| as_if_created(service).map(create), &subject)
}

fn subject(ServiceKey { namespace, name }: &ServiceKey, own: Vec<IpAddr>, dry_run: bool) -> Subject {
    Subject { owner: Owner::new(namespace, name, ""), own, dry_run }
}

/// The settings of an evaluation, and the pool that the Service belongs to, without a pool if it belongs outside of all
/// pools. `None` if the policy has no place for it.
fn place(evaluation: &Evaluation) -> Option<(&Settings, Option<&Pool>)> {
    let (settings, decision) = (&evaluation.settings.settings, &evaluation.decision);
    match &decision.pool {
        Some(name) => Some((settings, Some(settings.pool(name)?))),
        None => decision.allocated().map(|_| (settings, None)),
    }
}

/// The Service as it was before its recorded move began, with its present selector.
pub fn as_it_was(mut service: Value, journal: &Journal) -> Value {
    let mut spec = journal.spec.clone();
    spec.extend(service.pointer("/spec/selector").map(|selector| ("selector".to_owned(), selector.clone())));
    service["spec"] = spec.into();
    // The Service itself may be unknown.
    service["metadata"]["namespace"] = journal.namespace.as_str().into();
    service["metadata"]["name"] = journal.name.as_str().into();
    service
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use clusterip_cluster::kinds;
    use clusterip_moves::step::beginning;
    use serde_json::json;

    use super::*;
    use crate::services::test_support::{ALLOWED, client, evaluator};

    fn service(address: &str, annotations: Value) -> Value {
        json!({
            "metadata": {"namespace": "shop", "name": "web", "uid": "u", "annotations": annotations},
            "spec": {"type": "ClusterIP", "clusterIP": address, "clusterIPs": [address]},
        })
    }

    #[tokio::test]
    async fn service_in_a_pool_that_is_not_for_it_is_misplaced_whatever_the_policy_says() {
        let evaluator = evaluator(
            client(),
            json!({"explicit": "deny", "pools": [
                {"name": "blue", "cidrs": ["10.3.0.0/16"], "match": {"namespaces": ["blue"]}},
                {"name": "gold", "cidrs": ["10.4.0.0/16"], "match": {"namespaceSelector": {"matchLabels": {"a": "b"}}}},
                {"name": "windows", "cidrs": ["10.1.0.0/16"], "match": {"os": "windows"}},
                {"name": "linux", "cidrs": ["10.2.0.0/16"], "match": {"os": "linux"}},
            ]}),
            &["10.0.0.0/8"],
        );
        let pool = |name: &str| json!({"clusterip-policy/pool": name});
        let deleted = |mut service: Value| {
            service["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            service
        };
        struct Case {
            name: &'static str,
            service: Value,
            /// `None` if it is in place, otherwise why it stays, or that it moves.
            expected: Option<&'static str>,
        }
        const DELETED: &str = "being_deleted: it is being deleted, and a finalizer keeps it";
        const UNMATCHED: &str = "unmatched: the policy gives it no address outside of all pools: add a pool that \
                                 matches it, or set services.unmatched: outside";
        let case = |name, service, expected| Case { name, service, expected };
        let windows = || json!({"clusterip-policy/os": "windows"});
        // The look-up of its workloads fails.
        evaluator.stores().snapshot().write().unwrap().remove_api("apps/v1", "Deployment");
        let selecting = |address| {
            let mut service = service(address, json!({}));
            service["spec"]["selector"] = json!({"app": "web"});
            service
        };
        let cases = [
            case("in its pool", service("10.2.0.7", json!({})), None),
            case("in its pool, being deleted", deleted(service("10.2.0.7", json!({}))), None),
            case("outside of all pools, and asks for an unknown one", service("10.9.0.7", pool("nope")), None),
            case("in a pool, and asks for an unknown one", service("10.2.0.7", pool("nope")), Some(UNMATCHED)),
            case(
                "in the pool of others, and asks for an unknown one",
                service("10.3.0.7", pool("nope")),
                Some(UNMATCHED),
            ),
            case("asks for the pool of others", service("10.2.0.7", pool("blue")), Some(UNMATCHED)),
            case("in the pool of others, and asks for it", service("10.3.0.7", pool("blue")), Some(UNMATCHED)),
            case("in the pool of others", service("10.3.0.7", json!({})), Some("moves")),
            case("in a pool for other namespaces by their labels", service("10.4.0.7", json!({})), Some("moves")),
            case("in another pool, and only assumed to be wrong", service("10.1.0.7", json!({})), None),
            case("in another pool", service("10.2.0.7", windows()), Some("moves")),
            case("in another pool, being deleted", deleted(service("10.2.0.7", windows())), Some(DELETED)),
            case("denied and deleted", deleted(service("10.3.0.7", pool("nope"))), Some(DELETED)),
            case("unknown evidence, in a pool", selecting("10.2.0.7"), None),
            case("unknown evidence, in the pool of others", selecting("10.3.0.7"), Some(UNMATCHED)),
            case("unknown evidence, in a pool for other labels", selecting("10.4.0.7"), Some(UNMATCHED)),
        ];
        // Of the kinds that may call Services, only those of webhook configurations are listed: `blocking_webhooks`
        // needs these alone.
        let called = evaluator.stores().control_plane_services();
        kinds::callers().filter(|(_, kind)| kind.ends_with("Configuration")).for_each(|kind| called.listed(&kind));
        let request = MoveRequest {
            namespace: "shop".to_owned(),
            name: "web".to_owned(),
            uid: "u".to_owned(),
            control_plane: true,
            seamless: None,
        };
        for Case { name, service, expected } in cases {
            let found = match inspect(&evaluator, &StoredService::read(&service), &ALLOWED, "clusterip", Some(&request))
                .unwrap()
            {
                Inspection::Misplaced(found) => Some(match found.stays {
                    Some((reason, detail)) => format!("{}: {detail}", reason.as_str()),
                    None => "moves".to_owned(),
                }),
                _ => None,
            };
            assert_eq!(found.as_deref(), expected, "{name}");
        }
    }

    #[tokio::test]
    async fn service_of_a_webhook_that_blocks_the_move_stays() {
        const CALLED: &str = "called by ValidatingWebhookConfiguration hooks: the API server could not call it while it \
                              moves; ";
        const REMEDY: &str = "for the time of the move, set failurePolicy: Ignore and timeoutSeconds: 1 in webhook \
                               hook.example.org of ValidatingWebhookConfiguration hooks, because the API server refuses \
                               the requests of the move without an answer of the webhook; then ";
        const OPTION: &str = "`clusterip move --called-by-control-plane shop/web` moves it";
        const UNKNOWN: &str = "it is not known whether the control plane calls it: MutatingWebhookConfiguration was not \
                               listed; ValidatingWebhookConfiguration was not listed";
        struct Case {
            name: &'static str,
            /// The fields in which the webhook differs from one that blocks the move; `None` if no configuration was
            /// listed.
            webhook: Option<Value>,
            /// Whether the administrator's request allows the move; `None` without a request.
            allowed: Option<bool>,
            seamless: bool,
            expected: Option<[&'static str; 3]>,
        }
        let all = [CALLED, REMEDY, OPTION];
        let selecting = |values: &[&str]| {
            let name = json!({"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": values});
            Some(json!({"namespaceSelector": {"matchExpressions": [name]}}))
        };
        let of_old = || Some(json!({"objectSelector": {"matchLabels": {"clusterip-policy/temporary": "old"}}}));
        let base =
            || Case { name: "", webhook: Some(json!({})), allowed: Some(true), seamless: false, expected: Some(all) };
        let ignored = || Some(json!({"failurePolicy": "Ignore"}));
        let cases = [
            Case { name: "blocking", ..base() },
            Case { name: "blocking, seamless", seamless: true, ..base() },
            Case { name: "blocking, without a request", allowed: None, ..base() },
            Case { name: "blocking, and not allowed", allowed: Some(false), ..base() },
            Case { name: "fails open", webhook: ignored(), expected: None, ..base() },
            Case {
                name: "fails open, without a request",
                webhook: ignored(),
                allowed: None,
                expected: Some([CALLED, "", OPTION]),
                ..base()
            },
            Case { name: "of other Namespaces", webhook: selecting(&["shop"]), expected: None, ..base() },
            Case { name: "with that of the trigger", webhook: selecting(&["shop"]), seamless: true, ..base() },
            Case {
                name: "without that of the trigger",
                webhook: selecting(&["shop", "clusterip"]),
                seamless: true,
                expected: None,
                ..base()
            },
            Case { name: "of a temporary Service", webhook: of_old(), seamless: true, ..base() },
            Case { name: "of a temporary Service, plain", webhook: of_old(), expected: None, ..base() },
            Case { name: "unknown", webhook: None, expected: Some([UNKNOWN, "", ""]), ..base() },
        ];
        let pools = json!([
            {"name": "windows", "cidrs": ["10.1.0.0/16"], "match": {"os": "windows"}},
            {"name": "linux", "cidrs": ["10.2.0.0/16"], "match": {"os": "linux"}},
        ]);
        let validating = ("admissionregistration.k8s.io/v1".to_owned(), "ValidatingWebhookConfiguration".to_owned());
        for Case { name, webhook, allowed, seamless, expected } in cases {
            let evaluator = evaluator(client(), json!({"pools": pools}), &["10.0.0.0/8"]);
            let called = evaluator.stores().control_plane_services();
            for name in ["shop", "clusterip"] {
                let labels = json!({"kubernetes.io/metadata.name": name});
                let metadata = json!({"name": name, "labels": labels});
                let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata});
                evaluator.stores().snapshot().write().unwrap().insert(&namespace);
            }
            if let Some(fields) = webhook {
                kinds::callers().for_each(|kind| called.listed(&kind));
                let mut webhook = json!({
                    "name": "hook.example.org", "failurePolicy": "Fail",
                    "clientConfig": {"service": {"namespace": "shop", "name": "web"}},
                    "rules": [{"apiGroups": [""], "operations": ["UPDATE"], "resources": ["services"]}],
                });
                json_patch::merge(&mut webhook, &fields);
                called.take(&validating, &json!({"metadata": {"name": "hooks"}, "webhooks": [webhook]}));
            }
            let options = Some(SeamlessOptions { grace_period: 1, cluster_domain: "cluster.local".to_owned() });
            let seamless = options.filter(|_| seamless);
            let limits = Allowed { seamless: seamless.clone(), ..ALLOWED };
            let request = allowed.map(|control_plane| MoveRequest {
                namespace: "shop".to_owned(),
                name: "web".to_owned(),
                uid: "u".to_owned(),
                control_plane,
                seamless,
            });
            let service = StoredService::read(&service("10.1.0.7", json!({"clusterip-policy/os": "linux"})));
            let found = inspect(&evaluator, &service, &limits, "clusterip", request.as_ref()).unwrap();
            let stays = match found {
                Inspection::Misplaced(found) => Some(found.stays),
                _ => None,
            };
            let expected = expected.map(|parts| (StayReason::ControlPlane, parts.concat()));
            assert_eq!(stays, Some(expected), "{name}");
        }
    }

    /// As if it could not be read, and is left out of the stores.
    #[test]
    fn unknown_service_has_the_name_of_its_journal() {
        let journal = beginning(&service("10.2.0.7", json!({})), &["10.1.0.7".parse().unwrap()], "why");
        let was = as_it_was(Value::Null, &journal);
        assert_eq!(was["metadata"], json!({"namespace": "shop", "name": "web"}));
        assert_eq!(was["spec"]["clusterIP"], "10.2.0.7");
    }

    #[tokio::test]
    async fn last_resort_is_no_address_of_a_pool() {
        struct Case {
            name: &'static str,
            services: Value,
            ranges: &'static [&'static str],
            families: &'static [Family],
            /// `any` if the API server picks.
            expected: Option<&'static str>,
        }
        let rest = json!([{"name": "most", "cidrs": ["10.0.0.0/25", "10.0.0.128/26", "10.0.0.192/27"]}]);
        let all = json!([{"name": "all", "cidrs": ["10.0.0.0/24"]}]);
        let both: &[&str] = &["10.0.0.0/24", "fd00::/120"];
        let case = |name, services, expected| Case { name, services, ranges: both, families: &[Family::V4], expected };
        let cases = [
            case("outside", json!({"explicit": "deny", "pools": rest}), Some("10.0.0.224/27")),
            case("outside, without isolation", json!({"pools": rest}), Some("10.0.0.224/27")),
            case("outside is nothing", json!({"explicit": "deny", "pools": all}), None),
            case("outside is nothing, without isolation", json!({"pools": all}), Some("any")),
            case("unmatched: unmanaged", json!({"explicit": "deny", "unmatched": "unmanaged", "pools": all}), None),
            case("unmatched: outside", json!({"unmatched": "outside", "pools": all}), None),
            case("exempt", json!({"explicit": "deny", "exemptNamespaces": ["shop"], "pools": all}), Some("any")),
            Case {
                families: &[Family::V6, Family::V4],
                ..case("both families", json!({"explicit": "deny", "pools": rest}), Some("fd00::/120,10.0.0.224/27"))
            },
            Case {
                families: &[Family::V4, Family::V6],
                ..case("one family has none", json!({"explicit": "deny", "pools": all}), None)
            },
            Case { ranges: &[], ..case("unknown ranges", json!({"explicit": "deny", "pools": rest}), None) },
        ];
        for Case { name, services, ranges, families, expected } in cases {
            let evaluator = evaluator(client(), services, ranges);
            let found = last_resort(&evaluator, &ServiceKey::new("shop", "web"), families);
            let found = found.map(|found| match found.as_slice() {
                [] => "any".to_owned(),
                addresses => {
                    let is_in = |range: &str, address| range.parse::<ipnet::IpNet>().unwrap().contains(address);
                    let ranges = ["10.0.0.224/27", "fd00::/120"];
                    let range = |at| ranges.into_iter().find(|range| is_in(range, at)).unwrap_or("a pool");
                    addresses.iter().map(range).collect::<Vec<_>>().join(",")
                }
            });
            assert_eq!(found.as_deref(), expected, "{name}");
        }
    }

    #[tokio::test]
    async fn recorded_address_fits_only_if_the_policy_still_gives_it() {
        let evaluator = evaluator(
            client(),
            json!({"explicit": "deny", "pools": [
                {"name": "blue", "cidrs": ["10.3.0.0/16"], "match": {"namespaces": ["blue"]}},
                {"name": "rest", "cidrs": ["10.2.0.0/16"], "exclude": ["10.2.9.0/24"], "reservations": [
                    {"address": "10.2.0.8", "namespace": "shop", "name": "web"},
                    {"address": "10.2.0.9", "namespace": "shop", "name": "other"},
                ]},
            ]}),
            &["10.0.0.0/8"],
        );
        let rows = [
            ("10.2.0.7", json!({}), true),
            ("10.2.0.8", json!({}), true),
            ("10.2.0.9", json!({}), false),
            ("10.2.9.1", json!({}), false),
            ("10.3.0.7", json!({}), false),
            ("10.9.0.7", json!({}), false),
            ("10.2.0.7", json!({"clusterip-policy/pool": "nope"}), false),
            ("10.3.0.7", json!({"clusterip-policy/pool": "blue"}), false),
        ];
        for (address, annotations, expected) in rows {
            let was = StoredService::read(&service("10.3.0.1", annotations.clone()));
            let fits = may_have(&evaluator, &was, &[address.parse().unwrap()]);
            assert_eq!(fits, expected, "{address} {annotations}");
        }
    }

    #[test]
    fn only_another_value_of_a_label_contradicts_a_pool() {
        struct Case {
            name: &'static str,
            node: Value,
            contradicts: bool,
        }
        let cases = [
            Case { name: "the same labels", node: json!({OS_LABEL: "Windows", "zone": "east"}), contradicts: false },
            Case { name: "another OS", node: json!({OS_LABEL: "linux", "zone": "east"}), contradicts: true },
            Case { name: "another zone", node: json!({OS_LABEL: "windows", "zone": "East"}), contradicts: true },
            Case { name: "no zone yet", node: json!({OS_LABEL: "windows"}), contradicts: false },
            Case { name: "no label", node: json!({}), contradicts: false },
        ];
        let document = json!({"services": {"pools": [
            {"name": "windows", "cidrs": ["10.1.0.0/16"], "match": {"os": "windows", "nodeLabels": {"zone": "east"}}},
        ]}});
        let settings = Settings::from_value(&document).unwrap();
        for Case { name, node, contradicts } in cases {
            let node: Labels = serde_json::from_value(node).unwrap();
            assert_eq!(super::contradicts(&settings.pools[0], &node), contradicts, "{name}");
        }
    }
}
