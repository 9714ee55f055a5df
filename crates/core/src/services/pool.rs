//! Chooses the pool of a Service, and picks a free address of it.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::IpAddr;

use super::evidence::{self, Evidence};
use crate::address::{Band, Candidates, Family, Order, Walk, number};
use crate::annotations::{self, POOL_ANNOTATION};
use crate::decision::{Denial, Report};
use crate::distinct;
use crate::json::quote;
use crate::lookups::{Cluster, LazyNamespace, LookupError, Reserve};
use crate::service::{FamilyPolicy, Service};
use crate::service_key::ServiceKey;
use crate::settings::{AdmissionScope, Pool, Settings};

/// The chosen pool, and why it was chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice<'s> {
    /// The Service's pool; `None` if no pool matches.
    pub pool: Option<&'s Pool>,
    /// The evidence about nodes. Without any, the annotation or the other conditions that led to the pool.
    pub report: Option<Report>,
}

impl Choice<'_> {
    /// The report in one line.
    pub fn describe(&self) -> String {
        self.report.as_ref().map_or("no evidence".to_owned(), Report::describe)
    }
}

/// Chooses the first pool, in the order of the settings, whose `match` matches.
///
/// Nodes are looked up only if a pool that admits the Service matches on node labels. The annotation
/// `clusterip-policy/pool` replaces the evidence about nodes, but no other condition, because those conditions protect
/// the pool of one team from other teams.
pub fn choose<'s>(
    service: &Service,
    namespace: &LazyNamespace<'_>,
    settings: &'s Settings,
    cluster: &dyn Cluster,
    warnings: &mut Vec<String>,
) -> Result<Choice<'s>, Denial> {
    let because = |source: String| Some(Report { source, ..Report::default() });
    if let Some(name) = annotations::pool(&service.annotations) {
        let pool = named(&name, service, namespace, settings)?;
        return Ok(Choice { pool: Some(pool), report: because(format!("annotation {POOL_ANNOTATION}")) });
    }
    let mut admitting: Vec<&Pool> = Vec::new();
    for pool in &settings.pools {
        if first_mismatch(&pool.matches.scope, service, namespace)?.is_none() {
            admitting.push(pool);
            if pool.matches.node_labels.is_empty() {
                // This pool matches, so later pools are never used.
                break;
            }
        }
    }
    let keys = distinct(admitting.iter().flat_map(|pool| pool.matches.node_labels.keys()).map(String::as_str));
    let evidence = if keys.is_empty() {
        Evidence::default()
    } else {
        evidence::gather(service, namespace, &keys, settings, cluster, warnings)?
    };
    let fits =
        |pool: &&Pool| pool.matches.node_labels.iter().all(|(key, value)| evidence.value(key) == Some(value.as_str()));
    let pool = admitting.into_iter().find(fits);
    let otherwise = || because(scope_in_words(&pool?.matches.scope, namespace.name()));
    Ok(Choice { pool, report: evidence.report().or_else(otherwise) })
}

fn named<'s>(
    name: &str,
    service: &Service,
    namespace: &LazyNamespace<'_>,
    settings: &'s Settings,
) -> Result<&'s Pool, Denial> {
    let why = match settings.pool(name) {
        None => {
            let known: Vec<&str> = settings.pools.iter().map(|pool| pool.name.as_str()).collect();
            format!("{}, which is unknown: known are {}", quote(name), known.join(", "))
        }
        Some(pool) => match first_mismatch(&pool.matches.scope, service, namespace)? {
            None => return Ok(pool),
            Some(condition) => format!("{name:?}, which does not admit this Service: {condition} does not match"),
        },
    };
    Err(Denial { code: 403, message: format!("annotation {POOL_ANNOTATION} names pool {why}") })
}

/// The conditions of a pool that do not concern nodes, in words.
fn scope_in_words(scope: &AdmissionScope, namespace: &str) -> String {
    let mut conditions: Vec<String> = Vec::new();
    if !scope.namespaces.is_empty() {
        conditions.push(format!("namespace {namespace}"));
    }
    if !scope.namespace_selector.is_empty() {
        conditions.push(format!("labels of namespace {namespace}"));
    }
    if !scope.service_selector.is_empty() {
        conditions.push("labels of the Service".to_owned());
    }
    if conditions.is_empty() { "default".to_owned() } else { conditions.join(", ") }
}

/// The first condition of `scope` that does not match; `None` if all match.
pub fn first_mismatch(
    scope: &AdmissionScope,
    service: &Service,
    namespace: &LazyNamespace<'_>,
) -> Result<Option<&'static str>, LookupError> {
    /// The API server sets this label on every Namespace.
    const NAME_LABEL: &str = "kubernetes.io/metadata.name";
    if !scope.namespaces.is_empty() && !scope.namespaces.iter().any(|name| name == namespace.name()) {
        return Ok(Some("namespaces"));
    }
    if !scope.service_selector.matches(&service.labels) {
        return Ok(Some("serviceSelector"));
    }
    if !scope.namespace_selector.is_empty() {
        let mut labels = namespace.get()?.map(|meta| meta.labels.clone()).unwrap_or_default();
        labels.insert(NAME_LABEL.to_owned(), namespace.name().to_owned());
        if !scope.namespace_selector.matches(&labels) {
            return Ok(Some("namespaceSelector"));
        }
    }
    Ok(None)
}

/// After this many addresses were found taken, the host is asked which ones are free, or all Services are listed once. In
/// a cluster of some thousand Services a list costs as much as this many look-ups; in a pool that is half full, one pick in
/// 65,000 gets this far.
const LOOKUPS_BEFORE_LIST: u32 = 16;
/// Of more free addresses, a walk soon finds one.
const FEW: usize = 256;

/// What a host knows about the free addresses of a band without a look-up.
enum Known {
    Nothing,
    /// Too many to put them in order.
    Many,
    /// The picked address; `None` if all addresses are taken.
    Picked(Option<IpAddr>),
}

/// Picks free addresses, and keeps what it learned for the next pick.
pub struct Picker<'a> {
    cluster: &'a dyn Cluster,
    order: Order,
    /// The key that the order is hashed from.
    key: String,
    /// The Service that gets the addresses. Its own addresses do not count as used.
    subject: (&'a str, &'a str),
    taken_seen: u32,
    has_ip_address_api: bool,
}

impl<'a> Picker<'a> {
    /// A picker for the Service with this namespace and name. `key` is the key for [`Order::walk`].
    pub fn new(cluster: &'a dyn Cluster, order: Order, key: String, subject: (&'a str, &'a str)) -> Self {
        Self { cluster, order, key, subject, taken_seen: 0, has_ip_address_api: true }
    }

    /// A free address of `candidates`, which are of one family; `None` if all of them are taken.
    ///
    /// If the cluster has `IPAddress` objects, the last check is always a look-up of the address itself, because a list
    /// may be older than the last Service. Therefore `spread` starts without a list, and its cost does not grow with
    /// the cluster. If the host knows which addresses are free, the cost does not grow with the pool, however full it is.
    pub fn pick(&mut self, candidates: &Candidates) -> Result<Option<IpAddr>, LookupError> {
        let mut listed: Option<Vec<u128>> = None;
        for band in &candidates.bands {
            if let Some(address) = self.pick_in(band, candidates, &mut listed)? {
                return Ok(Some(address));
            }
        }
        Ok(None)
    }

    fn pick_in(
        &mut self,
        band: &Band,
        candidates: &Candidates,
        listed: &mut Option<Vec<u128>>,
    ) -> Result<Option<IpAddr>, LookupError> {
        let is_listed = |listed: &Option<Vec<u128>>, address: IpAddr| {
            listed.as_ref().is_some_and(|listed| listed.binary_search(&number(address)).is_ok())
        };
        let mut walk = self.order.walk(&self.key, band.count());
        loop {
            if listed.is_none() && self.must_list() {
                match self.pick_known(band, &walk)? {
                    Known::Nothing => *listed = Some(self.used(candidates)?),
                    Known::Many => self.taken_seen = 0,
                    Known::Picked(address) => return Ok(address),
                }
            }
            let Some(position) = walk.next() else { return Ok(None) };
            let Some(address) = band.address(position) else { continue };
            if is_listed(listed, address) {
                continue;
            }
            if self.has_ip_address_api {
                match self.cluster.reserve(address)? {
                    Reserve::Reserved | Reserve::Free => return Ok(Some(address)),
                    Reserve::Taken => {
                        self.taken_seen += 1;
                        continue;
                    }
                    Reserve::NoSuchApi => self.has_ip_address_api = false,
                }
            }
            // Without `IPAddress` objects, only the list of Services tells which addresses are used.
            if listed.is_none() {
                *listed = Some(self.used(candidates)?);
            }
            if !is_listed(listed, address) {
                return Ok(Some(address));
            }
        }
    }

    /// Picks one of the free addresses that the host knows, in the order of the walk.
    fn pick_known(&self, band: &Band, walk: &Walk) -> Result<Known, LookupError> {
        let (ranges, mut most) = (band.spans(), FEW);
        loop {
            let Some((free, are_all)) = self.cluster.free_addresses(&ranges, most) else { return Ok(Known::Nothing) };
            // The first ones come first only in an ascending walk.
            if !are_all && self.order == Order::Spread {
                return Ok(Known::Many);
            }
            let Some(turn_of) = walk.turns() else { return Ok(Known::Many) };
            let in_turn = |address: &IpAddr| Some((turn_of(band.position(*address)?)?, *address));
            // Usually the first one can be reserved, so a heap is faster than sorting. A namespace may have reserved
            // thousands, which the host does not know to be used.
            let mut rest: BinaryHeap<_> = free.iter().filter_map(in_turn).map(Reverse).collect();
            while let Some(Reverse((_, address))) = rest.pop() {
                // Without `IPAddress` objects, the Services tell which addresses are used.
                if self.cluster.reserve(address)? != Reserve::Taken {
                    return Ok(Known::Picked(Some(address)));
                }
            }
            if are_all {
                return Ok(Known::Picked(None));
            }
            most *= 16;
        }
    }

    /// The other Service that has `address`, the first one by namespace and name; `None` if no Service has it.
    pub fn holder(&self, address: IpAddr) -> Result<Option<ServiceKey>, LookupError> {
        let mut first: Option<ServiceKey> = None;
        self.cluster.service_addresses(&mut |namespace, name, held| {
            if held == address && (namespace, name) != self.subject {
                let holder = ServiceKey::new(namespace, name);
                if first.as_ref().is_none_or(|first| holder < *first) {
                    first = Some(holder);
                }
            }
        })?;
        Ok(first)
    }

    fn must_list(&self) -> bool {
        self.order == Order::Lowest || !self.has_ip_address_api || self.taken_seen >= LOOKUPS_BEFORE_LIST
    }

    /// The candidates that other Services have, as sorted numbers: with thousands of them, sorting once is cheaper than a
    /// sorted set.
    fn used(&self, candidates: &Candidates) -> Result<Vec<u128>, LookupError> {
        let mut used = Vec::new();
        self.cluster.service_addresses(&mut |namespace, name, address| {
            if candidates.contains(address) && (namespace, name) != self.subject {
                used.push(number(address));
            }
        })?;
        used.sort_unstable();
        Ok(used)
    }
}

/// The family of a second address, and whether the Service requires it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Second {
    pub family: Family,
    /// Whether the Service requires it with `RequireDualStack`.
    pub required: bool,
}

/// The primary family in which `service` gets an address from `pool`, and the second one, if any.
///
/// The primary family is the first of `spec.ipFamilies`; otherwise that of the primary Service range; otherwise IPv4 if
/// the pool has an IPv4 range. There is a second family with `RequireDualStack`, and with `PreferDualStack` if the
/// settings name a Service range of it: on a single-stack cluster the API server refuses two addresses.
pub fn families(service: &Service, pool: &Pool, settings: &Settings) -> (Family, Option<Second>) {
    let primary = service
        .families
        .first()
        .copied()
        .or_else(|| settings.service_cidrs.first().map(|cidr| Family::of(cidr.addr())))
        .unwrap_or(if pool.has(Family::V4) { Family::V4 } else { Family::V6 });
    (primary, second(service, primary.other(), settings))
}

/// The second family, if `service` is to have an address of `family` beside its first one.
pub fn second(service: &Service, family: Family, settings: &Settings) -> Option<Second> {
    match service.family_policy {
        FamilyPolicy::SingleStack => None,
        FamilyPolicy::PreferDualStack => settings.cluster_has(family).then_some(Second { family, required: false }),
        FamilyPolicy::RequireDualStack => Some(Second { family, required: true }),
    }
}
