//! Chooses the pool of a Service, and picks a free address of it.

use std::net::IpAddr;

use super::evidence::{self, Evidence};
use super::object::Service;
use crate::address::{Candidates, Order, Span, number};
use crate::annotations::{self, POOL_ANNOTATION};
use crate::decision::{Denial, Report};
use crate::distinct;
use crate::json::quote;
use crate::lookups::{Cluster, LazyNamespace, LookupError, Reserve};
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
///
/// # Errors
/// [`LookupError`] if the labels of the namespace are needed, and can't be looked up.
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

/// After this many addresses were found taken, all Services are listed once. In a cluster of some thousand Services a
/// list costs as much as this many look-ups; in a pool that is half full, one pick in 65,000 gets this far.
const LOOKUPS_BEFORE_LIST: u32 = 16;

/// Picks free addresses, and keeps what it learned for the next pick.
pub struct Picker<'a> {
    cluster: &'a dyn Cluster,
    order: Order,
    /// The key that the order is hashed from.
    key: &'a str,
    /// The Service that gets the addresses. Its own addresses do not count as used.
    subject: (&'a str, &'a str),
    taken_seen: u32,
    has_ip_address_api: bool,
}

impl<'a> Picker<'a> {
    /// A picker for the Service with this namespace and name. `key` is the key for [`Order::walk`].
    pub fn new(cluster: &'a dyn Cluster, order: Order, key: &'a str, subject: (&'a str, &'a str)) -> Self {
        Self { cluster, order, key, subject, taken_seen: 0, has_ip_address_api: true }
    }

    /// A free address of `candidates`, which are of one family; `None` if all of them are taken.
    ///
    /// If the cluster has `IPAddress` objects, the last check is always a look-up of the address itself, because a list
    /// may be older than the last Service. Therefore `spread` starts without a list, and its cost does not grow with
    /// the cluster. `lowest` starts without a list if the host sent the addresses in use with the request.
    pub fn pick(&mut self, candidates: &Candidates) -> Result<Option<IpAddr>, LookupError> {
        let mut listed: Option<Vec<u128>> = None;
        let is_listed = |listed: &Option<Vec<u128>>, address: IpAddr| {
            listed.as_ref().is_some_and(|listed| listed.binary_search(&number(address)).is_ok())
        };
        for band in &candidates.bands {
            let mut walk = self.order.walk(self.key, band.count());
            while let Some(position) = walk.next() {
                let Some(address) = band.address(position) else { continue };
                if let Some(used) = self.known_used().iter().find(|used| used.contains(address)) {
                    let rest = number(used.last()) - number(address);
                    walk.skip_ascending(rest.min(band.positions_without_gap(position)));
                    continue;
                }
                if listed.is_none() && self.must_list() {
                    listed = Some(self.used(candidates)?);
                }
                if is_listed(&listed, address) {
                    continue;
                }
                if self.has_ip_address_api {
                    match self.cluster.reserve(address)? {
                        Reserve::Reserved => return Ok(Some(address)),
                        Reserve::Taken => {
                            self.taken_seen += 1;
                            continue;
                        }
                        Reserve::NoSuchApi => self.has_ip_address_api = false,
                    }
                }
                // Without `IPAddress` objects, only the list of Services tells which addresses are used.
                if listed.is_none() {
                    listed = Some(self.used(candidates)?);
                }
                if !is_listed(&listed, address) {
                    return Ok(Some(address));
                }
            }
        }
        Ok(None)
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

    /// The addresses that need no look-up, because the host says that they are used. Only an ascending walk can skip
    /// them.
    fn known_used(&self) -> &'a [Span] {
        let used = if self.order == Order::Lowest { self.cluster.known_used() } else { None };
        used.unwrap_or_default()
    }

    fn must_list(&self) -> bool {
        let starts_with_list = self.order == Order::Lowest && self.cluster.known_used().is_none();
        starts_with_list || !self.has_ip_address_api || self.taken_seen >= LOOKUPS_BEFORE_LIST
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
