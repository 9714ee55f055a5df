//! Answers the look-ups of a decision from a snapshot, and reserves addresses for its Service.

use std::cell::{Cell, RefCell};
use std::net::IpAddr;
use std::sync::{Arc, RwLock, RwLockReadGuard};
use std::time::Duration;

use clusterip_core::address::{Span, overlap};
use clusterip_core::annotations::recorded_addresses;
use clusterip_core::external::{Holder, Sharer};
use clusterip_core::json::TypeMismatch;
use clusterip_core::label_selector::Labels;
use clusterip_core::lookups::{Cluster, LookupError, NamespaceMeta, Reserve, Selected};
use clusterip_core::service_key::ServiceKey;
use clusterip_core::settings::{Lookups, Settings};
use clusterip_core::workload::WorkloadKind;
use clusterip_failover::claims::Owner;
use ipnet::IpNet;
use kube::api::ListParams;
use kube::{Api, Client};
use serde::Serialize;
use serde_json::Value;
use tokio::runtime::Handle;
use tokio::task::block_in_place;
use tokio::time::timeout;

use crate::api_error::error_message;
use crate::kinds::regular;
use crate::object;
use crate::reservations::ledger::{Ledger, NamespaceShare, RESERVATION_TIME};
use crate::reservations::replica_claims::Claims;
use crate::snapshot::{self, MAX_STEPS, Missing, Snapshot};
use crate::watch::partial_object::PartialObject;

/// How many Services with which the subject can't share an address are compared with it for one decision. Services with
/// one sharing key begin their search at the same address. A tenant may have thousands of them with the same port, each
/// at an address of its own.
const MAX_COMPARED: usize = 256;

/// What a decision looked up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Asked {
    /// A kind of workload, or an object by its name.
    pub what: String,
    pub found: usize,
}

/// The Service or Node that a decision is about.
#[derive(Clone, Debug)]
pub struct Subject {
    pub owner: Owner,
    /// Addresses that the Service already has: they don't count as used.
    pub own: Vec<IpAddr>,
    pub dry_run: bool,
}

/// The cluster, as the decision about one Service or Node sees it: the objects of a snapshot, and the addresses in
/// flight. Each look-up locks the snapshot and unlocks it. The API server is called only to claim an address that was
/// found free, with several replicas, and to read a Namespace that the watch has not shown yet.
///
/// When this is dropped, the addresses that were reserved are released, except for those that [`Self::commit`] keeps.
pub struct StoredCluster {
    snapshot: Arc<RwLock<Snapshot>>,
    subject: Subject,
    ledger: Ledger,
    claims: Option<Claims>,
    client: Option<Client>,
    kept: Vec<IpAddr>,
    /// Whether no address counts as used.
    pub all_are_free: bool,
    left: Cell<usize>,
    /// How many Services were compared with the subject to refuse an address. Those of an address that it may share do
    /// not count, so that a Service keeps the address that it shares.
    compared: Cell<usize>,
    reserved: RefCell<Vec<IpAddr>>,
    /// External addresses that are reserved for a Service with which the subject may share them.
    shared: RefCell<Vec<(IpAddr, ServiceKey)>>,
    failed_claim: RefCell<Option<String>>,
    /// The look-ups so far, except those of addresses and blocks, if `clusterip audit --service` explains a decision; otherwise `None`.
    pub asked: RefCell<Option<Vec<Asked>>>,
}

impl StoredCluster {
    /// The cluster for a decision about `object`, a Service or a Node. No address is in flight, and none is reserved.
    pub fn new(snapshot: &Arc<RwLock<Snapshot>>, object: &Value) -> Self {
        Self::of(snapshot, &ServiceKey::of(object))
    }

    /// As [`Self::new`], for the object with this namespace and name.
    pub fn of(snapshot: &Arc<RwLock<Snapshot>>, ServiceKey { namespace, name }: &ServiceKey) -> Self {
        let owner = Owner::new(namespace, name, "");
        Self::about(snapshot, Subject { owner, own: Vec::new(), dry_run: true })
    }

    /// The cluster for a decision with `settings`, which may keep addresses for the Service. The Service gets such an
    /// address also while the address is reserved for the Service itself: a create that fails after the review leaves
    /// its reservation behind. No other Service gets the address meanwhile. A dry run sees the reservations and makes
    /// none.
    pub fn reserving(
        snapshot: &Arc<RwLock<Snapshot>>,
        subject: Subject,
        settings: &Settings,
        ledger: &Ledger,
        claims: Option<&Claims>,
    ) -> Self {
        let reservations = settings.pools.iter().flat_map(|pool| &pool.reservations);
        let own = reservations.filter(|reservation| reservation.service == subject.owner.service);
        let kept = own.map(|reservation| reservation.address).collect();
        let mut cluster = Self::about(snapshot, subject);
        (cluster.kept, cluster.ledger, cluster.claims) = (kept, ledger.clone(), claims.cloned());
        cluster
    }

    fn about(snapshot: &Arc<RwLock<Snapshot>>, subject: Subject) -> Self {
        Self {
            snapshot: Arc::clone(snapshot),
            subject,
            ledger: Ledger::default(),
            claims: None,
            client: None,
            kept: Vec::new(),
            all_are_free: false,
            left: Cell::new(MAX_STEPS),
            compared: Cell::default(),
            reserved: RefCell::default(),
            shared: RefCell::default(),
            failed_claim: RefCell::default(),
            asked: RefCell::default(),
        }
    }

    /// The same for a Service that exists or is being created, so its Namespace exists too: one that the snapshot lacks
    /// was created just now, and is read with this client.
    pub(crate) fn asking(mut self, client: &Client) -> Self {
        self.client = Some(client.clone());
        self
    }

    /// The Service that has this external address or gets it; `None` if there is none. Others may have claimed it while
    /// it was in no pool: of several Services, the one that has it recorded comes first, and the subject last. Services
    /// that let `sharer` share the address do not count, until [`MAX_COMPARED`] were compared in vain.
    pub(crate) fn external_holder(&self, address: IpAddr, sharer: &Sharer<'_>) -> Option<Holder> {
        // A reservation may end after its Service is seen, so the ledger comes first.
        let mut in_flight = self.ledger.owner(address);
        let snapshot = self.snapshot();
        let rank = |owner: &&ServiceKey| {
            let rank = match snapshot.service(owner) {
                Some(it) if !recorded_addresses(it.record()).contains(&address) => 3,
                // It is left out, and may have the address recorded.
                None => 2,
                Some(it) if !it.shown().contains(&address) => 1,
                Some(_) => 0,
            };
            (rank, self.subject.owner.service == **owner)
        };
        let mut owners: Vec<&ServiceKey> = snapshot.external_owners(address).collect();
        let others: Vec<_> = owners.iter().copied().filter(|owner| self.subject.owner.service != **owner).collect();
        let compared = Cell::new(self.compared.get());
        let read = |owner: &ServiceKey| {
            compared.update(|count| count + 1);
            snapshot.service(owner)?.in_request(|_| true).ok()
        };
        if self.compared.get() < MAX_COMPARED && sharer.shares(others.iter().copied(), read) {
            owners.retain(|owner| self.subject.owner.service == **owner);
            // It is seen with its ports, so its reservation need not keep the address from this Service.
            let is_shared = |it: &mut Owner| {
                others.contains(&&it.service) && self.ledger.is_external_given_to(address, &it.service)
            };
            let shared = in_flight.take_if(is_shared).map(|it| (address, it.service));
            self.shared.borrow_mut().extend(shared);
        } else {
            self.compared.set(compared.get());
        }
        let stored = match owners[..] {
            [only] => Some(only),
            _ => owners.into_iter().min_by_key(rank),
        };
        if let Some(service) = stored {
            return Some(Holder { service: service.clone(), in_flight: None });
        }
        Some(Holder { service: in_flight?.service, in_flight: Some(RESERVATION_TIME) })
    }

    pub(crate) fn snapshot(&self) -> RwLockReadGuard<'_, Snapshot> {
        Snapshot::read(&self.snapshot)
    }

    /// Of the addresses that were reserved, keeps those in `used` reserved, and releases all others. A namespace that
    /// now has more than its share of a pool of `settings` loses its oldest reservations.
    pub fn commit(&self, used: &[IpAddr], settings: &Settings) {
        let reserved = self.reserved.take();
        let shares = |address| NamespaceShare::of(settings, address, &self.subject.owner.service.namespace);
        let mut released = self.ledger.commit(&self.subject.owner, &reserved, used, &shares);
        if let Some(claims) = &self.claims {
            released.extend(reserved.into_iter().filter(|address| !used.contains(address)));
            claims.release(&released);
        }
    }

    /// Releases everything that was reserved, for another decision with as many steps.
    pub fn release(&self) {
        self.left.set(MAX_STEPS);
        self.compared.set(0);
        if !self.reserved.borrow().is_empty() {
            // No address is used, so the shares of the settings are not consulted.
            self.commit(&[], &Settings::default());
        }
    }

    /// Reserves an external address if it is not reserved for another Service. An address that was given to this
    /// Service before is its own. `is_recorded` says whether the request brings it in its record.
    pub(crate) fn reserve_external(
        &self,
        address: IpAddr,
        is_recorded: bool,
        settings: &Settings,
    ) -> Result<bool, String> {
        let owner = &self.subject.owner;
        for (_, from) in self.shared.borrow().iter().filter(|(shared, _)| *shared == address) {
            self.ledger.share_external(address, from, owner);
        }
        // A claim for a name that is not generated yet may be for another Service.
        let may_replace = is_recorded || !owner.service.name.is_empty();
        if self.ledger.renew_external(address, owner, is_recorded) {
            return self.claims.as_ref().map_or(Ok(true), |claims| claims.renew(address, owner, may_replace));
        }
        if self.ledger.is_reserved_for(address, owner, is_recorded) {
            // Another replica has claimed it, for an answer that may be in progress. That claim is replaced.
            self.ledger.release_claimed(address);
        }
        let reserved = {
            let (snapshot, namespace) = (self.snapshot(), &owner.service.namespace);
            let is_shown = |address| snapshot.external_owners(address).any(|shown| shown.namespace == *namespace);
            let share = NamespaceShare::of(settings, address, namespace);
            self.ledger.reserve_external(address, owner, &share, is_shown)?
        };
        Ok(reserved && self.claim(address, may_replace)?)
    }

    /// Claims a reserved address towards other replicas, see [`Claims::claim`]. If another replica was faster or the claim
    /// fails, the reservation is released.
    fn claim(&self, address: IpAddr, may_replace: bool) -> Result<bool, String> {
        let owner = &self.subject.owner;
        let claimed = self.claims.as_ref().map_or(Ok(true), |claims| claims.claim(address, owner, may_replace));
        if let Err(error) = &claimed {
            self.failed_claim.replace(Some(error.clone()));
        }
        if matches!(claimed, Ok(true)) {
            self.reserved.borrow_mut().push(address);
        } else {
            self.ledger.release(&[address], owner);
            if let Some(claims) = &self.claims {
                claims.reserve_again(address);
            }
        }
        claimed
    }

    pub(crate) fn failed_claim(&self) -> Option<String> {
        self.failed_claim.borrow().clone()
    }

    /// The objects of the cluster, if it has the kind and the objects of the kind are known.
    fn snapshot_with(&self, api_version: &str, kind: &str) -> Result<RwLockReadGuard<'_, Snapshot>, LookupError> {
        let snapshot = self.snapshot();
        let resource = || format!("{api_version}/{kind}");
        Err(match snapshot.missing(api_version, kind) {
            None => return Ok(snapshot),
            Some(Missing::Absent) => {
                LookupError::NoSuchApi { detail: format!("Cannot find resource {}", resource()), resource: resource() }
            }
            Some(Missing::Unlisted(reason)) => LookupError::Failed { resource: resource(), detail: reason.clone() },
        })
    }

    /// Reserves and claims an address if it is free, unless it is the Service's own or the request is a dry run.
    fn try_reserve(&self, address: IpAddr) -> Result<Reserve, String> {
        if self.all_are_free || self.subject.own.contains(&address) {
            return Ok(Reserve::Free);
        }
        let is_used = || self.snapshot().is_used(address);
        let is_kept = self.kept.contains(&address);
        let (is_free, free) = if is_kept && self.ledger.is_reserved_for(address, &self.subject.owner, false) {
            (!is_used(), Reserve::Reserved)
        } else if self.subject.dry_run {
            (self.ledger.is_free(address, is_used), Reserve::Free)
        } else {
            let reserved = self.ledger.reserve(address, &self.subject.owner, is_used);
            (reserved && self.claim(address, is_kept)?, Reserve::Reserved)
        };
        Ok(if is_free { free } else { Reserve::Taken })
    }

    /// A copy of what `find` finds by this name, unless it can't be read.
    fn look_up<T: Clone>(
        &self,
        api_version: &str,
        kind: &str,
        name: &str,
        find: impl for<'s> FnOnce(&'s Snapshot) -> Option<Result<&'s T, &'s TypeMismatch>>,
    ) -> Result<Option<T>, LookupError> {
        let found = self.snapshot_with(api_version, kind).and_then(|snapshot| {
            let found = find(&snapshot).transpose().map(|found| found.cloned());
            found.map_err(|mismatch| LookupError::Malformed {
                resource: format!("{api_version}/{kind}"),
                detail: mismatch.to_string(),
            })
        });
        self.note(|| format!("{kind} {name}"), usize::from(matches!(found, Ok(Some(_)))));
        found
    }

    fn note(&self, what: impl FnOnce() -> String, found: usize) {
        if let Some(asked) = &mut *self.asked.borrow_mut() {
            asked.push(Asked { what: what(), found });
        }
    }
}

impl Drop for StoredCluster {
    fn drop(&mut self) {
        self.release();
    }
}

impl Cluster for StoredCluster {
    fn workloads(
        &self,
        kind: &WorkloadKind,
        namespace: &str,
        lookups: Lookups,
        selector: &Labels,
    ) -> Result<Selected, LookupError> {
        let selected = self.snapshot_with(&kind.api_version, &kind.kind).and_then(|snapshot| {
            if !object::is_namespaced(&kind.kind) && lookups == Lookups::Namespace {
                let detail = format!("{} is cluster wide, so it has no objects in a namespace", kind.resource());
                return Err(LookupError::Failed { resource: kind.resource(), detail });
            }
            let found = snapshot.selected(kind, namespace, selector, &self.left);
            found.map_err(|(name, mismatch)| {
                let detail = format!("{namespace}/{name}: {mismatch}");
                LookupError::Malformed { resource: kind.resource(), detail }
            })
        });
        let what = || match lookups {
            Lookups::Cluster => kind.kind.clone(),
            Lookups::Namespace => format!("{kind} of namespace {namespace}"),
        };
        self.note(what, selected.as_ref().map_or(0, |selected| selected.workloads.len()));
        selected
    }

    fn namespace(&self, name: &str) -> Result<Option<NamespaceMeta>, LookupError> {
        let stored = self
            .look_up("v1", "Namespace", name, |snapshot| snapshot.namespace(name).map(|meta| meta.as_ref().as_ref()))?;
        let Some(client) = self.client.as_ref().filter(|_| stored.is_none()) else { return Ok(stored) };
        let failed = |detail| LookupError::Failed { resource: format!("v1/Namespace {name}"), detail };
        read_namespace(client, name).map_err(failed)
    }

    fn node_labels(&self, name: &str) -> Result<Option<Labels>, LookupError> {
        self.look_up("v1", "Node", name, |snapshot| snapshot.node_labels(name))
    }

    fn runtime_class_nodes(&self, name: &str) -> Result<Option<Labels>, LookupError> {
        self.look_up("node.k8s.io/v1", "RuntimeClass", name, |all| all.runtime_class_nodes(name).map(Result::as_ref))
    }

    fn service_addresses(&self, visit: &mut dyn FnMut(&str, &str, IpAddr)) -> Result<(), LookupError> {
        if !self.all_are_free {
            let visit = &mut |(address, key): (IpAddr, &ServiceKey)| visit(&key.namespace, &key.name, address);
            self.snapshot().service_addresses().for_each(visit);
        }
        for (address, owner) in self.ledger.reservations() {
            visit(&owner.service.namespace, &owner.service.name, address);
        }
        Ok(())
    }

    fn free_addresses(&self, ranges: &[Span], most: usize) -> Option<(Vec<IpAddr>, bool)> {
        let free = |of: &Snapshot| Some(of.free_addresses(&self.subject.owner.service, ranges, most));
        if self.all_are_free { free(&Snapshot::default()) } else { free(&self.snapshot()) }
    }

    fn external_addresses(&self, visit: &mut dyn FnMut(&str, &str, IpAddr)) -> Result<(), LookupError> {
        for (address, ServiceKey { namespace, name }) in self.snapshot().external_addresses() {
            visit(namespace, name, address);
        }
        Ok(())
    }

    fn node_blocks(&self, blocks: &[IpNet], visit: &mut dyn FnMut(&str, IpNet)) -> Result<(), LookupError> {
        for node in self.snapshot().nodes() {
            let overlapping = node.blocks.iter().filter(|block| blocks.iter().any(|other| overlap(*other, **block)));
            overlapping.for_each(|block| visit(&node.name, *block));
        }
        Ok(())
    }

    fn reserve(&self, address: IpAddr) -> Result<Reserve, LookupError> {
        let resource = || format!("networking.k8s.io/v1/IPAddress {address}");
        self.try_reserve(address).map_err(|detail| LookupError::Failed { resource: resource(), detail })
    }
}

/// Reads a Namespace as a list of one object, because the server may not get Namespaces. Blocks for at most a second.
fn read_namespace(client: &Client, name: &str) -> Result<Option<NamespaceMeta>, String> {
    const TIME: Duration = Duration::from_secs(1);
    let kind = ("v1".to_owned(), "Namespace".to_owned());
    let namespaces: Api<PartialObject> = Api::all_with(client.clone(), &regular(&kind));
    let one = ListParams::default().fields(&format!("metadata.name={name}")).limit(1);
    let runtime = Handle::try_current().map_err(|error| error.to_string())?;
    // An evaluation may also run on a thread of the runtime.
    let listed = block_in_place(|| runtime.block_on(async { timeout(TIME, namespaces.list(&one)).await }));
    let listed = listed.map_err(|_| format!("the API server did not answer within {TIME:?}"))?;
    let mut listed = listed.map_err(|error| error_message(&error))?.items.into_iter();
    let found = listed.find(|namespace| namespace.metadata.name.as_deref() == Some(name));
    let found = found.and_then(|namespace| namespace.value(&kind)).map(|object| snapshot::namespace_of(&object));
    found.transpose().map_err(|mismatch| mismatch.to_string())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::LazyLock;

    use clusterip_core::annotations::RECORD_ANNOTATION;
    use clusterip_core::external::Announcer;
    use clusterip_core::service::Service;
    use serde_json::json;

    use super::*;

    const KEPT: &str = "10.0.0.4";

    /// A Service that shares no address.
    fn alone() -> Sharer<'static> {
        static ALONE: LazyLock<Service> = LazyLock::new(Service::default);
        Sharer { service: &ALONE, namespace: "shop", announcer: Announcer::Agents }
    }

    #[test]
    fn service_that_lets_another_one_share_its_address_holds_it_no_longer_than_its_request_is_seen() {
        let (snapshot, ledger) = (Arc::<RwLock<Snapshot>>::default(), Ledger::default());
        let address = IpAddr::from([10, 0, 9, 7]);
        let object = |name: &str, port: u16| {
            json!({
                "apiVersion": "v1", "kind": "Service",
                "metadata": {"namespace": "shop", "name": name, "annotations": {
                    RECORD_ANNOTATION: address.to_string(), "metallb.io/allow-shared-ip": "front",
                }},
                "spec": {"type": "LoadBalancer", "ports": [{"port": port}]},
            })
        };
        let holder = |name: &str, port: u16| {
            let service = Service::read(&object(name, port), "").unwrap();
            let sharer = Sharer { service: &service, namespace: "shop", announcer: Announcer::MetalLb };
            let holder = addresses(&snapshot, &ledger, name, false).external_holder(address, &sharer);
            holder.map(|holder| holder.service.name)
        };
        snapshot.write().unwrap().insert(&object("web", 80));
        assert_eq!(holder("tls", 443), None);
        assert_eq!(holder("other", 80).as_deref(), Some("web"), "the port is taken");
        assert_eq!(holder("web", 80).as_deref(), Some("web"), "its own");
        let document = json!({"external": {"pools": [{"name": "lan", "cidrs": ["10.0.9.0/24"]}]}});
        let settings = Settings::from_value(&document).unwrap();
        // The reservation of an answer about the first Service becomes one of the second, and stays.
        let web = addresses(&snapshot, &ledger, "web", false);
        assert!(web.reserve_external(address, false, &settings).unwrap());
        web.commit(&[address], &settings);
        let service = Service::read(&object("tls", 443), "").unwrap();
        let sharer = Sharer { service: &service, namespace: "shop", announcer: Announcer::MetalLb };
        let tls = addresses(&snapshot, &ledger, "tls", false);
        assert_eq!(tls.external_holder(address, &sharer), None);
        assert!(tls.reserve_external(address, false, &settings).unwrap());
        drop(tls);
        assert_eq!(ledger.owner(address).unwrap().service.name, "tls");
        assert_eq!(holder("third", 25).as_deref(), Some("tls"), "its ports are not known yet");
        snapshot.write().unwrap().insert(&object("tls", 443));
        assert_eq!(holder("third", 25), None);
    }

    #[test]
    fn services_compared_in_vain_for_one_decision_are_bounded() {
        struct Case {
            name: &'static str,
            /// How many addresses with one Service were tried, of which each has the port of the subject.
            refused: usize,
            compared: usize,
            shares: bool,
        }
        let (snapshot, ledger) = (Arc::<RwLock<Snapshot>>::default(), Ledger::default());
        let object = |name: &str, address: IpAddr, port: u16| {
            json!({
                "apiVersion": "v1", "kind": "Service",
                "metadata": {"namespace": "shop", "name": name, "annotations": {
                    RECORD_ANNOTATION: address.to_string(), "metallb.io/allow-shared-ip": "front",
                }},
                "spec": {"type": "LoadBalancer", "ports": [{"port": port}]},
            })
        };
        let insert = |object: &Value| {
            snapshot.write().unwrap().insert(object);
        };
        let nth = |index: usize| IpAddr::from(u32::to_be_bytes(0x0a00_0000 + u32::try_from(index).unwrap()));
        for index in 0..2 * MAX_COMPARED {
            insert(&object(&format!("refused-{index}"), nth(index), 443));
        }
        let full = IpAddr::from([10, 1, 0, 0]);
        for port in 1..=32 {
            insert(&object(&format!("full-{port}"), full, port));
        }
        // As many as may share an address with the subject.
        let shared = IpAddr::from([10, 2, 0, 0]);
        for port in 1..=31 {
            insert(&object(&format!("shared-{port}"), shared, port));
        }
        let service = Service::read(&object("web", shared, 443), "").unwrap();
        let sharer = Sharer { service: &service, namespace: "shop", announcer: Announcer::MetalLb };
        let cluster = addresses(&snapshot, &ledger, "web", false);
        for Case { name, refused, compared, shares } in [
            Case { name: "a shared address", refused: 0, compared: 0, shares: true },
            Case { name: "after some refusals", refused: MAX_COMPARED - 1, compared: MAX_COMPARED - 1, shares: true },
            Case { name: "after all of them", refused: MAX_COMPARED, compared: MAX_COMPARED, shares: false },
            Case { name: "after more", refused: 2 * MAX_COMPARED, compared: MAX_COMPARED, shares: false },
        ] {
            cluster.release();
            assert!(cluster.external_holder(full, &sharer).is_some(), "{name}: a full address");
            for index in 0..refused {
                let holder = cluster.external_holder(nth(index), &sharer).map(|holder| holder.service.name);
                assert_eq!(holder, Some(format!("refused-{index}")), "{name}");
            }
            let is_shared = cluster.external_holder(shared, &sharer).is_none();
            assert_eq!((cluster.compared.get(), is_shared), (compared, shares), "{name}");
        }
    }

    /// The addresses for `shop/name` under settings that keep [`KEPT`] for `shop/web`.
    fn addresses(snapshot: &Arc<RwLock<Snapshot>>, ledger: &Ledger, name: &str, dry_run: bool) -> StoredCluster {
        let settings = Settings::from_value(&json!({"services": {"pools": [{
            "name": "shop", "cidrs": ["10.0.0.0/29"],
            "reservations": [{"address": KEPT, "namespace": "shop", "name": "web"}],
        }]}}));
        let subject = Subject { owner: Owner::new("shop", name, "uid"), own: Vec::new(), dry_run };
        StoredCluster::reserving(snapshot, subject, &settings.unwrap(), ledger, None)
    }

    #[test]
    fn service_with_the_record_holds_an_address_that_others_claim() {
        let (snapshot, ledger) = (Arc::<RwLock<Snapshot>>::default(), Ledger::default());
        let insert = |name: &str, record: &str, shown: &str| {
            let ingress = if shown.is_empty() { json!([]) } else { json!([{"ip": shown}]) };
            snapshot.write().unwrap().insert(&json!({
                "apiVersion": "v1", "kind": "Service",
                "metadata": {"namespace": "shop", "name": name, "annotations": {RECORD_ANNOTATION: record}},
                "spec": {"type": "LoadBalancer", "loadBalancerClass": "clusterip-policy/external", "loadBalancerIP": "192.0.2.7"},
                "status": {"loadBalancer": {"ingress": ingress}},
            }));
        };
        let holder = || {
            let holder =
                addresses(&snapshot, &ledger, "web", false).external_holder(IpAddr::from([192, 0, 2, 7]), &alone());
            holder.map(|holder| holder.to_string())
        };
        insert("web", "", "");
        assert_eq!(holder().as_deref(), Some("shop/web"));
        insert("z-claims", "", "");
        assert_eq!(holder().as_deref(), Some("shop/z-claims"), "the subject comes last");
        insert("a-claims", "", "");
        assert_eq!(holder().as_deref(), Some("shop/a-claims"));
        insert("c-recorded", "192.0.2.7", "");
        assert_eq!(holder().as_deref(), Some("shop/c-recorded"));
        insert("b-recorded", "192.0.2.7", "");
        assert_eq!(holder().as_deref(), Some("shop/b-recorded"));
        insert("c-recorded", "192.0.2.7", "192.0.2.7");
        assert_eq!(holder().as_deref(), Some("shop/c-recorded"));
    }

    #[test]
    fn service_gets_its_kept_address_again_after_a_create_that_failed() {
        struct Case {
            name: &'static str,
            address: &'static str,
            before: &'static str,
            after: &'static str,
            is_used: bool,
            expected: bool,
        }
        let retry =
            Case { name: "a retry", address: KEPT, before: "web", after: "web", is_used: false, expected: true };
        let refused = Case { expected: false, ..retry };
        let cases = [
            retry,
            Case { name: "it exists", is_used: true, ..refused },
            Case { name: "reserved for another Service", before: "db", ..refused },
            Case { name: "kept for another Service", after: "db", ..refused },
            Case { name: "an address that is not kept", address: "10.0.0.2", ..refused },
        ];
        for Case { name, address, before, after, is_used, expected } in cases {
            for dry_run in [false, true] {
                let (snapshot, ledger) = (Arc::default(), Ledger::default());
                let address: IpAddr = address.parse().unwrap();
                let failed = addresses(&snapshot, &ledger, before, false);
                assert_eq!(failed.try_reserve(address), Ok(Reserve::Reserved), "{name}");
                failed.commit(&[address], &Settings::default());
                drop(failed);
                if is_used {
                    snapshot.write().unwrap().insert(&json!({
                        "apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "shop", "name": "other"},
                        "spec": {"clusterIP": address, "clusterIPs": [address]},
                    }));
                }
                let again = addresses(&snapshot, &ledger, after, dry_run);
                if dry_run {
                    let other = "10.0.0.3".parse().unwrap();
                    assert_eq!(again.try_reserve(other), Ok(Reserve::Free), "{name}: a dry run reserves nothing");
                }
                let expected = if expected { Reserve::Reserved } else { Reserve::Taken };
                assert_eq!(again.try_reserve(address), Ok(expected), "{name}, dry run: {dry_run}");
                drop(again);
                assert_eq!(ledger.reservations().len(), 1, "{name}: the reservation stays");
            }
        }
    }

    #[test]
    fn external_address_is_given_only_with_a_reservation_of_its_own() {
        let document = json!({"external": {"pools": [{"name": "edge", "cidrs": ["10.9.0.0/28"]}]}});
        let settings = Settings::from_value(&document).unwrap();
        let (snapshot, ledger): (Arc<RwLock<Snapshot>>, _) = (Arc::default(), Ledger::default());
        let address: IpAddr = "10.9.0.5".parse().unwrap();
        let of = |name| {
            let subject = Subject { owner: Owner::new("shop", name, "uid"), own: Vec::new(), dry_run: false };
            StoredCluster::reserving(&snapshot, subject, &settings, &ledger, None)
        };
        let (first, second) = (of("web"), of("web"));
        assert_eq!(first.reserve_external(address, false, &settings), Ok(true));
        assert_eq!(second.reserve_external(address, false, &settings), Ok(false), "the first may still release it");
        drop(first);
        assert_eq!(second.reserve_external(address, false, &settings), Ok(true));
        second.commit(&[address], &settings);
        let third = of("web");
        assert_eq!(third.reserve_external(address, false, &settings), Ok(true), "given to this Service");
        drop(third);
        let other = of("db");
        assert_eq!(other.reserve_external(address, false, &settings), Ok(false));
        let in_progress = "shop/web (its request may still be in progress, for up to 65 s)";
        let holder = || other.external_holder(address, &alone()).map(|holder| holder.to_string());
        assert_eq!(holder().as_deref(), Some(in_progress));
        snapshot.write().unwrap().insert(&json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "shop", "name": "web"},
            "spec": {"externalIPs": [address]},
        }));
        assert_eq!(holder().as_deref(), Some("shop/web"));
    }
}
