//! Evaluates requests on a live cluster, with the settings in force, the watched stores and the ledger.

use std::net::IpAddr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::anyhow;
use clusterip_core::address::Family;
use clusterip_core::external::claim::{claimed, claims, recorded};
use clusterip_core::external::without_pools;
use clusterip_core::json::TypeMismatch;
use clusterip_core::request::{About, Change, Request};
use clusterip_core::service::Service;
use clusterip_core::service_key::ServiceKey;
use clusterip_core::services::Picker;
use clusterip_core::settings::{ExternalSettings, Settings};
use clusterip_core::{Decision, InUse};
use clusterip_failover::claims::Owner;
use serde_json::Value;
use tokio::sync::watch;

use crate::external::ExternalPolicy;
use crate::host_metrics::EvaluationMetrics;
use crate::live_settings::LiveSettings;
use crate::lookups::stored_cluster::{StoredCluster, Subject};
use crate::panics;
use crate::reservations::ledger::{Ledger, NamespaceShare};
use crate::reservations::replica_claims::Claims;
use crate::watch::stores::{MAX_STALENESS_OF_EXTERNAL, Stores};

#[derive(Clone)]
pub struct Evaluator {
    settings: watch::Receiver<Arc<LiveSettings>>,
    stores: Stores,
    ledger: Ledger,
    /// Without them, no other replica knows of the addresses that it reserves.
    pub claims: Option<Claims>,
    metrics: EvaluationMetrics,
}

/// A decision, and the addresses that are reserved for it. They are released when this is dropped, except for those
/// that [`Self::commit`] keeps.
pub struct Evaluation {
    pub decision: Decision,
    pub settings: Arc<LiveSettings>,
    cluster: StoredCluster,
    external: Vec<IpAddr>,
}

impl Evaluator {
    pub fn new(
        settings: watch::Receiver<Arc<LiveSettings>>,
        stores: Stores,
        ledger: Ledger,
        metrics: EvaluationMetrics,
    ) -> Self {
        Self { settings, stores, ledger, claims: None, metrics }
    }

    /// Whether the policy chose this address as the ClusterIP of this Service, here or in another replica. The API server
    /// may have to be asked about the claims of the others.
    pub fn is_given_to(&self, address: IpAddr, service: &ServiceKey) -> bool {
        let is_claimed = |claims: &Claims| claims.is_claimed_for(address, service);
        self.settings().settings.external.pool_of(address).is_none()
            && (self.ledger.is_given_to(address, service) || self.claims.as_ref().is_some_and(is_claimed))
    }

    pub fn settings(&self) -> Arc<LiveSettings> {
        Arc::clone(&self.settings.borrow())
    }

    pub fn stores(&self) -> &Stores {
        &self.stores
    }

    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// The policy for external addresses alone. Its panics count as those of evaluations.
    pub fn external_policy(&self, settings: &ExternalSettings) -> ExternalPolicy {
        ExternalPolicy::counting(settings, &self.metrics.errors)
    }

    /// Reserves an address that the author of a request chose for the Service `owner`, unless the address is reserved
    /// already.
    pub fn reserve_chosen_by_hand(&self, address: IpAddr, owner: &Owner) {
        let settings = self.settings();
        let shares = |address| NamespaceShare::of(&settings.settings, address, &owner.service.namespace);
        let released = self.ledger.reserve_chosen_by_hand(address, owner, &shares);
        if let Some(claims) = &self.claims {
            claims.release(&released);
        }
    }

    /// Evaluates a request, without a request to the API server unless an address is claimed, or the labels or
    /// annotations of a Namespace are needed that the watch has not shown yet. A panic of the core is
    /// counted and logged. After an error, nothing is reserved.
    pub fn evaluate(&self, request: &Value, subject: &Subject) -> anyhow::Result<Evaluation> {
        // A subject that must not reserve a ClusterIP may still get external addresses.
        let dry_run = request.get("dryRun").and_then(Value::as_bool).unwrap_or_default();
        let evaluate = || self.evaluate_unguarded(Request::read(request), dry_run, subject);
        guarded(&self.metrics, &subject.owner, evaluate)
    }

    /// As [`Self::evaluate`], for a request that `read` makes.
    pub fn evaluate_read(
        &self,
        read: impl FnOnce() -> Result<Request, TypeMismatch>,
        subject: &Subject,
    ) -> anyhow::Result<Evaluation> {
        let evaluate = || self.evaluate_unguarded(read(), subject.dry_run, subject);
        guarded(&self.metrics, &subject.owner, evaluate)
    }

    /// Reserves a free address of each of these families that no pool contains, as the policy gives them to a Service that
    /// no pool matches. They stay reserved until they are seen. `None` if there are none, or if that is unknown.
    pub fn reserve_outside(&self, families: &[Family], subject: &Subject) -> Option<Vec<IpAddr>> {
        let live = self.settings();
        let (settings, claims) = (&live.settings, self.claims.as_ref());
        let cluster = StoredCluster::reserving(self.stores.snapshot(), subject.clone(), settings, &self.ledger, claims);
        let (outside, service) = (settings.outside_of_pools(), &subject.owner.service);
        let key = service.to_string();
        let mut picker = Picker::new(&cluster, settings.order, key, (&service.namespace, &service.name));
        let picked = families.iter().map(|family| picker.pick(&settings.candidates(&outside, *family)));
        let picked = picked.collect::<Result<Option<Vec<IpAddr>>, _>>().ok()??;
        cluster.commit(&picked, settings);
        Some(picked)
    }

    fn evaluate_unguarded(
        &self,
        request: Result<Request, TypeMismatch>,
        dry_run: bool,
        subject: &Subject,
    ) -> anyhow::Result<Evaluation> {
        let live = self.settings();
        let settings = &live.settings;
        let (snapshot, claims) = (self.stores.snapshot(), self.claims.as_ref());
        let cluster = StoredCluster::reserving(snapshot, subject.clone(), settings, &self.ledger, claims);
        let cluster = cluster.asking(self.stores.client());
        let (decision, external) = match request {
            Err(mismatch) => (Decision::unreadable(&mismatch), Vec::new()),
            Ok(request) if may_be_external(&settings.external, &request) => {
                decide_external(&request, settings, &cluster, dry_run).map_err(not_reserved)?
            }
            Ok(request) => {
                let mut decision = clusterip_core::decide(&request, settings, InUse::default(), &cluster);
                if settings.external.pools.is_empty() && decision.denial().is_none() {
                    decision.external = without_pools(&request);
                }
                (decision, Vec::new())
            }
        };
        if let Some(since) = self.stores.services_stale_since().filter(|_| !external.is_empty())
            && since.elapsed() > MAX_STALENESS_OF_EXTERNAL
        {
            let seconds = since.elapsed().as_secs();
            return Err(not_reserved(format!("Services could not be watched for {seconds} s")));
        }
        Ok(Evaluation { decision: live.worded(decision), settings: live, cluster, external })
    }
}

fn guarded<T>(
    metrics: &EvaluationMetrics,
    owner: &Owner,
    evaluate: impl FnOnce() -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let begin = Instant::now();
    let evaluation = panics::catch_about(&owner.service, evaluate);
    metrics.duration.observe(begin.elapsed().as_secs_f64());
    evaluation.unwrap_or_else(|failure| {
        metrics.errors.inc();
        Err(anyhow!("{failure}; see the log of clusterip"))
    })
}

fn not_reserved(reason: String) -> anyhow::Error {
    anyhow!("external addresses can't be reserved: {reason}")
}

/// How many times a decision about external addresses is made, if another request is faster each time.
const TRIES: usize = 32;
/// The pause before the next try. The other request may be about the same Service, which then needs the same address.
const PAUSE: Duration = Duration::from_millis(50);

/// Whether a request may be about external addresses. If so, the decision needs the held addresses.
pub fn may_be_external(settings: &ExternalSettings, request: &Request) -> bool {
    let concerns = |service: &Service| service.load_balancer || !claimed(service).is_empty();
    let About::Service(change) = &request.about else { return false };
    !settings.pools.is_empty() && (concerns(&change.object) || change.old.as_ref().is_some_and(concerns))
}

/// Decides about a request that may be about external addresses. Reserves and returns the addresses that the Service
/// newly gets or claims, unless the request is a dry run.
fn decide_external(
    request: &Request,
    settings: &Settings,
    cluster: &StoredCluster,
    dry_run: bool,
) -> Result<(Decision, Vec<IpAddr>), String> {
    // Another request may reserve an external address between the decision and its reservation.
    for _ in 0..TRIES {
        let in_use =
            InUse { blocks: None, external: Some(&|address, sharer| cluster.external_holder(address, sharer)) };
        let decision = clusterip_core::decide(request, settings, in_use, cluster);
        if decision.denial().is_some() || dry_run {
            return Ok((decision, Vec::new()));
        }
        let new = newly_claimed(&settings.external, request, &decision);
        // Ascending, and only up to the first address that is taken: of two requests, one gets all of them.
        let reserve = |all, address: &IpAddr| {
            Ok::<_, String>(all && cluster.reserve_external(*address, is_recorded(request, *address), settings)?)
        };
        if new.iter().try_fold(true, reserve)? {
            return Ok((decision, new));
        }
        cluster.release();
        thread::sleep(PAUSE);
    }
    Err(format!("other requests took them first, {TRIES} times in a row; try again"))
}

/// Whether the Service of a request brings the record of this address.
fn is_recorded(request: &Request, address: IpAddr) -> bool {
    matches!(&request.about, About::Service(change) if recorded(&change.object).contains(&address))
}

/// The addresses of the pools that are new to the Service of a request: after the decision, the Service claims them or
/// has recorded them, and the old object did not.
fn newly_claimed(settings: &ExternalSettings, request: &Request, decision: &Decision) -> Vec<IpAddr> {
    let About::Service(change) = &request.about else { return Vec::new() };
    let Change { object, old } = &**change;
    let recorded = match decision.external.as_ref().filter(|external| external.changes()) {
        Some(external) => external.addresses.clone(),
        None => recorded(object),
    };
    let mut all: Vec<IpAddr> = claims(object).into_iter().map(|(_, address)| address).chain(recorded).collect();
    all.sort_unstable();
    all.dedup();
    let before = old.as_ref().map(claimed).unwrap_or_default();
    all.retain(|address| settings.pool_of(*address).is_some() && !before.contains(address));
    all
}

impl Evaluation {
    /// Why the claim of an address failed, if one did: the decision does not show then which addresses are free.
    pub fn failed_claim(&self) -> Option<String> {
        self.cluster.failed_claim()
    }

    /// Keeps these addresses reserved until they are seen, and releases all others. A namespace that then has reserved
    /// more than its share of a pool loses its oldest reservations there.
    pub fn commit(self, used: &[IpAddr]) {
        self.cluster.commit(&[used, &self.external].concat(), &self.settings.settings);
    }

    /// As [`Self::commit`], before the controller itself writes the external addresses into the Service.
    pub fn commit_written(self, ledger: &Ledger) {
        ledger.written_by_controller(&self.external);
        self.commit(&[]);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use serde_json::json;

    use crate::host_metrics::ClusterMetrics;
    use crate::kinds::State;
    use crate::live_settings::check_settings;
    use crate::metrics::Exposition;
    use crate::snapshot::service_ranges::ServiceRanges;
    use crate::watch::stores::tests::client;

    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn namespace_that_the_watch_has_not_shown_yet_is_read_if_a_pool_asks_for_it() {
        struct Case {
            name: &'static str,
            selector: Value,
            /// The labels of the Namespace in the store, if it is there.
            stored: Option<Value>,
            /// What the API server answers, and with which status.
            listed: (u16, Value),
            requests: usize,
            /// The pool, or a part of the refusal.
            expected: Result<&'static str, &'static str>,
        }
        let gold = || json!({"team": "gold"});
        let namespace = |labels: Value| json!({"metadata": {"name": "shop", "labels": labels}});
        let list = |items: Value| json!({"metadata": {}, "items": items});
        let refusal = json!({"kind": "Status", "metadata": {}, "code": 403, "message": "no", "reason": "Forbidden"});
        let base = || Case {
            name: "just created",
            selector: json!({"namespaceSelector": {"matchLabels": gold()}}),
            stored: None,
            listed: (200, list(json!([namespace(gold())]))),
            requests: 1,
            expected: Ok("selected"),
        };
        let absent = || (200, list(json!([])));
        let cases = [
            base(),
            Case { name: "it does not exist", listed: absent(), expected: Ok("default"), ..base() },
            Case {
                name: "it can't be read",
                listed: (403, refusal),
                expected: Err("looking up v1/Namespace shop failed: no"),
                ..base()
            },
            Case { name: "in the store", stored: Some(gold()), listed: absent(), requests: 0, ..base() },
            Case {
                name: "no pool asks",
                selector: json!({"namespaces": ["shop"]}),
                listed: absent(),
                requests: 0,
                ..base()
            },
        ];
        for Case { name, selector, stored, listed, requests, expected } in cases {
            let asked = Arc::new(AtomicUsize::new(0));
            let count = Arc::clone(&asked);
            let client = client(move |path, _| {
                assert_eq!(path, "/api/v1/namespaces");
                count.fetch_add(1, Ordering::Relaxed);
                (listed.0, listed.1.to_string())
            });
            let pools = json!([
                {"name": "selected", "cidrs": ["10.0.1.0/24"], "match": selector},
                {"name": "default", "cidrs": ["10.0.2.0/24"]},
            ]);
            let document = json!({"services": {"pools": pools}});
            let live = check_settings(document, &ServiceRanges::default()).unwrap();
            let stores = Stores::new(client, ClusterMetrics::default(), |_| (), |_| ());
            if let Some(labels) = stored {
                let mut object = namespace(labels);
                (object["apiVersion"], object["kind"]) = ("v1".into(), "Namespace".into());
                stores.snapshot().write().unwrap().insert(&object);
            }
            let (_, settings) = watch::channel(Arc::new(live));
            let evaluator = Evaluator::new(settings, stores, Ledger::default(), EvaluationMetrics::default());
            let request = json!({
                "uid": "7", "kind": {"version": "v1", "kind": "Service"}, "operation": "CREATE",
                "namespace": "shop", "name": "web", "object": {},
            });
            let subject = Subject { owner: Owner::new("shop", "web", "7"), own: Vec::new(), dry_run: false };
            let decision = evaluator.evaluate(&request, &subject).unwrap().decision.clone();
            match expected {
                Ok(pool) => assert_eq!(decision.pool.as_deref(), Some(pool), "{name}: {decision:?}"),
                Err(part) => assert!(decision.denial().unwrap().message.contains(part), "{name}: {decision:?}"),
            }
            assert_eq!(asked.load(Ordering::Relaxed), requests, "{name}");
        }
    }

    #[tokio::test]
    async fn external_addresses_are_given_only_while_services_are_watched() {
        let document = json!({"external": {"pools": [{"name": "lan", "cidrs": ["10.9.0.1-10.9.0.9"]}]}});
        let live = check_settings(document, &ServiceRanges::default()).unwrap();
        let (_, settings) = watch::channel(Arc::new(live));
        for (name, kind, failing_for, external_ips, is_given) in [
            ("lately", "Service", 7, json!(["10.9.0.5"]), true),
            ("for a while", "Service", 9, json!(["10.9.0.5"]), false),
            ("another kind", "Node", 9, json!(["10.9.0.5"]), true),
            ("no address of a pool", "Service", 9, json!(["10.8.0.5"]), true),
        ] {
            let client = client(|_, _| (500, String::new()));
            let stores = Stores::new(client, ClusterMetrics::default(), |_| (), |_| ());
            let since = Instant::now().checked_sub(Duration::from_secs(failing_for)).unwrap();
            let failing = State::Failing { since, reason: String::new(), usable: true };
            stores.states().insert(("v1".to_owned(), kind.to_owned()), failing);
            let ledger = Ledger::default();
            let evaluator = Evaluator::new(settings.clone(), stores, ledger.clone(), EvaluationMetrics::default());
            let service = json!({
                "metadata": {"namespace": "shop", "name": "web"}, "spec": {"externalIPs": external_ips},
            });
            let subject = Subject { owner: Owner::new("shop", "web", ""), own: Vec::new(), dry_run: false };
            let evaluated = evaluator.evaluate_read(|| Request::of_service("", &service, None), &subject).map(drop);
            assert_eq!(evaluated.is_ok(), is_given, "{name}: {evaluated:?}");
            assert_eq!(ledger.reservations(), [], "{name}: released");
        }
    }

    #[test]
    fn a_panic_is_caught_and_counted() {
        let metrics = EvaluationMetrics::default();
        let mut exposition = Exposition::default();
        exposition.add(&metrics);
        let panics = || -> anyhow::Result<()> { std::panic::panic_any(7) };
        let said = guarded(&metrics, &Owner::new("shop", "web", ""), panics).unwrap_err().to_string();
        assert_eq!(said, "the decision failed: for an unknown reason; see the log of clusterip");
        let text = exposition.encode();
        for line in ["clusterip_evaluation_errors_total 1", "clusterip_evaluation_duration_seconds_count 1"] {
            assert!(text.lines().any(|other| other == line), "{line} is not in\n{text}");
        }
    }
}
