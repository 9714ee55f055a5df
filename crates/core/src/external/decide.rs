//! Decides about a Service's external addresses: checks those that it newly claims, and assigns those that it gets. The
//! ClusterIP is decided separately.

use std::cell::OnceCell;
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use super::announcer::{Announcement, Announcer, Sharer};
use super::claim::{EXTERNAL_IPS, LOAD_BALANCER_IP, MAX_EXTERNAL_IPS, claim_fields, claims, recorded};
use crate::address::{Family, Order, parse_address};
use crate::annotations::{
    MAX_ADDRESSES, RECORD_ANNOTATION, REQUESTED_ADDRESS_ANNOTATION, TOO_LONG_FOR_ADDRESSES, in_record,
    is_too_long_for_addresses, parts, recorded_addresses,
};
use crate::decision::{Decision, Denial, External, RecordChange};
use crate::distinct;
use crate::json::quote;
use crate::lookups::{Cluster, LazyNamespace, LookupError};
use crate::request::{About, Change, Request};
use crate::service::{FamilyPolicy, Service};
use crate::service_key::ServiceKey;
use crate::services::{first_mismatch, second};
use crate::settings::{ExternalPool, ExternalSettings, Settings};

/// The decision about the external addresses of a Service, beside `decision` about its cluster IPs, which is no
/// refusal; `None` if the request concerns none. A refusal does not name the Service yet.
///
/// New claims are always checked. An address is assigned only if the host says which addresses are in use. A
/// request that newly claims an address that the Service may not have is refused. Claims that the Service had before
/// are never refused, because its other fields must stay changeable.
pub(crate) fn decide(
    request: &Request,
    settings: &Settings,
    host: Option<&HolderOf<'_>>,
    namespace: &LazyNamespace<'_>,
    cluster: &dyn Cluster,
    decision: &mut Decision,
) -> Result<Option<External>, Denial> {
    let external = &settings.external;
    let About::Service(change) = &request.about else { return Ok(None) };
    if external.pools.is_empty() {
        return Ok(None);
    }
    let Change { object: service, old } = &**change;
    let subject = (request.namespace.as_str(), request.name.as_str());
    let class = service.load_balancer_class.as_deref();
    let announcer = if service.load_balancer { external.announcer_of(class) } else { None };
    let is_ours = announcer.is_some();
    let claimant =
        Claimant { service, subject, external, announcer, namespace, cluster, host, listed: OnceCell::new() };
    let before = old.as_ref().filter(|old| external.is_ours(old));
    let families = families(service, old.as_ref(), decision.allocated().unwrap_or_default(), settings);
    let warnings = &mut decision.warnings;

    let mut new = claims(service);
    if let Some(old) = old {
        let had = claims(old);
        new.retain(|claim| !had.contains(claim));
    }
    if new.iter().any(|(field, _)| *field == EXTERNAL_IPS) {
        warnings.push(format!(
            "spec.externalIPs is deprecated (KEP-5707): use type LoadBalancer, loadBalancerClass {}",
            external.load_balancer_class
        ));
    }
    // Other programs assign the addresses of these fields. One that lies in no pool is ignored.
    let mut wrong = Vec::new();
    for (field, address) in new {
        if let Right::Refused(why) = claimant.right_to(address)? {
            wrong.push(format!("{}: {address} {why}", field_label(field)));
        }
    }
    wrong.extend(check_unknown(&claimant, old.as_ref()));
    if is_ours {
        wrong.extend(check_requested(&claimant, before, &families)?);
    }
    if !wrong.is_empty() {
        let message = format!(
            "{}; use an address of a pool that matches this Service, or get one with type: LoadBalancer and \
             loadBalancerClass: {}",
            wrong.join("; "),
            external.load_balancer_class
        );
        return Err(Denial { code: 403, message });
    }

    let record = service.annotations.get(RECORD_ANNOTATION);
    if !is_ours {
        // A record counts as held, so no other Service may have one.
        let reason = "not of type LoadBalancer with the class of external addresses";
        let announcement = Announcement::of(service, None, &[]);
        let outcome = if record.is_some() { RecordChange::Removed } else { RecordChange::Unchanged };
        let decided = External { announcement, ..External::new(outcome, reason) };
        return Ok(Some(decided).filter(External::changes));
    }
    if service.deleting {
        return Ok(Some(External::new(RecordChange::Unchanged, "being deleted")));
    }
    // The module has no host: without the code behind this, it is smaller.
    if host.is_none() || cfg!(target_family = "wasm") {
        return Ok(Some(without_assignment(record, before)));
    }
    // Services that may share an address begin their search at the same one.
    let sharing_key = announcer.and_then(|announcer| announcer.sharing_key(service));
    let key = sharing_key.map_or_else(|| request.hash_key(), |key| format!("{}/{key}", request.namespace));
    match assign(&claimant, before, &families, &key, warnings) {
        Ok(decided) => {
            let announcement = Announcement::of(service, announcer, &decided.addresses);
            Ok(Some(External { announcement, ..decided }))
        }
        Err(error) => {
            // The request need not be refused: the Service can wait for an address.
            let reason = format!("no external address is assigned: {error}; {}", error.remedy());
            warnings.push(reason.clone());
            let announcement = match old {
                None => Announcement::of(service, announcer, &[]),
                Some(_) => Announcement::default(),
            };
            Ok(Some(External { announcement, ..External::new(RecordChange::Unchanged, &reason) }))
        }
    }
}

/// The decision of a host that assigns external addresses, while it has no pools. Nothing checks an address then, and a
/// new text in the record would count when a pool comes back, also if it is the address of another Service. So the old
/// record stays.
pub fn without_pools(request: &Request) -> Option<External> {
    let About::Service(change) = &request.about else { return None };
    let record = |service: &Service| service.annotations.get(RECORD_ANNOTATION).cloned().unwrap_or_default();
    let (new, old) = (record(&change.object), change.old.as_ref().map(record).unwrap_or_default());
    if new.is_empty() || new == old {
        return None;
    }
    let addresses = recorded_addresses(&old);
    let outcome = if addresses.is_empty() { RecordChange::Removed } else { RecordChange::Recorded };
    let reason = "there are no external pools, so a new record is not accepted";
    Some(External { addresses, ..External::new(outcome, reason) })
}

/// The outcome if the host does not say which addresses are in use: an existing record stays.
fn without_assignment(record: Option<&String>, before: Option<&Service>) -> External {
    if let Some(record) = record.filter(|record| !record.is_empty()) {
        return External {
            addresses: recorded_addresses(record),
            ..External::new(RecordChange::Unchanged, "already recorded")
        };
    }
    let had = before.and_then(|before| before.annotations.get(RECORD_ANNOTATION));
    let addresses = had.map(|text| recorded_addresses(text)).unwrap_or_default();
    if addresses.is_empty() {
        let reason = "external addresses are assigned by the controller of `clusterip serve`, not in admission";
        return External::new(RecordChange::Unchanged, reason);
    }
    External { addresses, reason: None, ..External::new(RecordChange::Recorded, "") }
}

/// The Service's families, the primary one first; empty if they are unknown.
fn families(service: &Service, old: Option<&Service>, given: &[IpAddr], settings: &Settings) -> Vec<Family> {
    let mut families = service.families.clone();
    if let Some(old) = old.filter(|_| families.is_empty()) {
        families.clone_from(&old.families);
    }
    let primary = settings.service_cidrs.first().map(|cidr| cidr.addr());
    for addresses in [given, &service.addresses(), primary.as_slice()] {
        if families.is_empty() {
            families.extend(addresses.iter().copied().map(Family::of));
        }
    }
    families.dedup();
    if let [only] = families[..] {
        families.extend(second(service, only.other(), settings).map(|second| second.family));
    }
    families
}

/// Assigns one address of each of the Service's families: an address that it requests or already has, otherwise a free
/// one of its pool, tried in an order that is derived from `key`. `before` is the old Service, if it already got its
/// external addresses from this policy.
fn assign(
    claimant: &Claimant<'_>,
    before: Option<&Service>,
    families: &[Family],
    key: &str,
    warnings: &mut Vec<String>,
) -> Result<External, LookupError> {
    let requested = requested_addresses(claimant, before);
    let mut found: Vec<(IpAddr, &ExternalPool)> = Vec::new();
    for address in requested {
        let family = Family::of(address);
        let is_wanted = families.is_empty() || families.contains(&family);
        if !is_wanted || found.iter().any(|(other, _)| Family::of(*other) == family) {
            continue;
        }
        let why = match claimant.right_to(address)? {
            Right::Free(pool) => {
                found.push((address, pool));
                continue;
            }
            Right::Refused(why) => why,
            Right::Outside => OUTSIDE.to_owned(),
        };
        warnings.push(format!("{address} {why}: the Service can't have it"));
    }
    let pool = match found.first() {
        Some((_, pool)) => *pool,
        None => {
            let any = [Family::V4, Family::V6];
            let wanted = if families.is_empty() { &any } else { families };
            let Some(pool) = claimant.own_pool(wanted)? else {
                let names: Vec<String> = families.iter().map(ToString::to_string).collect();
                let of = if names.is_empty() { String::new() } else { format!(" of {}", names.join(" or ")) };
                let reason = format!("no pool of external addresses{of} matches this Service");
                return Ok(nothing(claimant, None, &reason));
            };
            pool
        }
    };
    let mut families = families.to_vec();
    if families.is_empty() {
        families.extend(found.iter().map(|(address, _)| Family::of(*address)));
        if families.is_empty() {
            families.push(if pool.has(Family::V4) { Family::V4 } else { Family::V6 });
        }
        if claimant.service.family_policy == FamilyPolicy::SingleStack {
            families.truncate(1);
        }
    }
    let mut given = Vec::new();
    for family in families {
        let address = match found.iter().find(|(address, _)| Family::of(*address) == family) {
            Some((address, _)) => Some(*address),
            None if pool.has(family) => pick(claimant, pool, family, key, warnings)?,
            None => None,
        };
        given.extend(address);
    }
    if given.is_empty() {
        return Ok(nothing(claimant, Some(pool), &format!("no address of pool {:?} is free", pool.name)));
    }
    let is_recorded = claimant.service.annotations.get(RECORD_ANNOTATION) == Some(&in_record(&given));
    let (outcome, reason) = match is_recorded {
        true => (RecordChange::Unchanged, Some("already recorded".to_owned())),
        false => (RecordChange::Recorded, None),
    };
    Ok(External { pool: Some(pool.name.clone()), addresses: given, reason, ..External::new(outcome, "") })
}

/// The addresses that the Service requests or already has, the most important first.
fn requested_addresses(claimant: &Claimant<'_>, before: Option<&Service>) -> Vec<IpAddr> {
    let (service, announcer) = (claimant.service, claimant.announcer.unwrap_or_default());
    let field = service.load_balancer_ip.as_ref();
    let changed = |key: &&str| {
        let now = service.annotations.get(key);
        now.filter(|_| before.and_then(|before| before.annotations.get(key)) != now)
    };
    let texts = [
        service.annotations.get(REQUESTED_ADDRESS_ANNOTATION),
        field.filter(|_| before.and_then(|before| before.load_balancer_ip.as_ref()) != field),
        announcer.annotations().iter().find_map(changed),
        service.annotations.get(RECORD_ANNOTATION),
        // A manifest that replaces the Service without our annotation is not meant to drop its address.
        before.and_then(|before| before.annotations.get(RECORD_ANNOTATION)),
        field,
    ];
    let is_no_address = |address: &IpAddr| announcer.is_no_address(&address.to_string());
    let requested = texts.into_iter().flatten().flat_map(|text| recorded_addresses(text));
    // The program may have chosen this address before the pool was configured. Agents choose none.
    let shown = before.filter(|_| announcer != Announcer::Agents).map_or(&[][..], |before| &before.shown);
    distinct(requested.filter(|address| !is_no_address(address)).chain(shown.iter().take(MAX_ADDRESSES).copied()))
}

/// The first address of the pool, in the Service's own order, that no other Service has. If all are taken, adds a
/// warning.
fn pick(
    claimant: &Claimant<'_>,
    pool: &ExternalPool,
    family: Family,
    key: &str,
    warnings: &mut Vec<String>,
) -> Result<Option<IpAddr>, LookupError> {
    let candidates = pool.candidates(family);
    for band in &candidates.bands {
        for address in Order::Spread.walk(key, band.count()).filter_map(|position| band.address(position)) {
            if claimant.other_holder(address)?.is_none() {
                return Ok(Some(address));
            }
        }
    }
    let ranges = pool.ranges.iter().filter(|range| range.family() == family).map(ToString::to_string);
    let (ranges, count) = (ranges.collect::<Vec<_>>().join(", "), candidates.count());
    warnings.push(format!(
        "pool {:?} ({ranges}) is full: all {count} external addresses are used; the Service waits for one",
        pool.name
    ));
    Ok(None)
}

/// The outcome if the Service gets no address: its record goes.
fn nothing(claimant: &Claimant<'_>, pool: Option<&ExternalPool>, reason: &str) -> External {
    let has_record = claimant.service.annotations.get(RECORD_ANNOTATION).is_some();
    let outcome = if has_record { RecordChange::Removed } else { RecordChange::Unchanged };
    External { pool: pool.map(|pool| pool.name.clone()), ..External::new(outcome, reason) }
}

/// Lists the newly claimed addresses that would not count as held, so that another Service could get them too, the new
/// host names, and the new texts that are too long to be read: at most one of each for each field.
fn check_unknown(claimant: &Claimant<'_>, before: Option<&Service>) -> Vec<String> {
    let had = before.map(claim_fields).unwrap_or_default();
    let mut wrong = Vec::new();
    for field in claim_fields(claimant.service) {
        if had.contains(&field) {
            continue;
        }
        // A text of any length must not take long to read.
        if let Some(text) = field.texts.iter().find(|text| is_too_long_for_addresses(text)) {
            wrong.push(too_long(field.name, text));
            continue;
        }
        let in_a_pool = |address: IpAddr| claimant.external.pool_of(address).is_some();
        if let Some(address) = field.beyond(&in_a_pool) {
            let most = if field.name == EXTERNAL_IPS { MAX_EXTERNAL_IPS } else { MAX_ADDRESSES };
            wrong.push(format!(
                "{}: {address} is one too many: at most {most} addresses count",
                field_label(field.name)
            ));
        }
        if let Some(name) = field.new_name(had.iter().find(|old| old.name == field.name)) {
            let (label, name) = (field_label(field.name), quote(name));
            wrong.push(format!("{label}: {name} is not an IP address, and kube-vip would look up a name"));
        }
    }
    wrong
}

fn too_long(field: &str, text: &str) -> String {
    // `quote` cuts the text.
    let (text, longest) = (quote(text), TOO_LONG_FOR_ADDRESSES - 1);
    format!("{}: {text} is longer than {longest} characters", field_label(field))
}

/// The name of a field or an annotation in messages.
fn field_label(field: &str) -> String {
    if field.contains('/') { format!("annotation {field}") } else { field.to_owned() }
}

/// Lists the mistakes in the addresses that the Service newly requests from this policy. `families` are those of the
/// Service, empty if they are unknown.
fn check_requested(
    claimant: &Claimant<'_>,
    before: Option<&Service>,
    families: &[Family],
) -> Result<Vec<String>, LookupError> {
    let mut wrong = Vec::new();
    let announcer = claimant.announcer.unwrap_or_default();
    for key in [REQUESTED_ADDRESS_ANNOTATION, RECORD_ANNOTATION].into_iter().chain(announcer.request_fields()) {
        let of = |service: &'_ Service| match key {
            LOAD_BALANCER_IP => service.load_balancer_ip.clone().unwrap_or_default(),
            _ => service.annotations.get(key).cloned().unwrap_or_default(),
        };
        let (now, old) = (of(claimant.service), before.map(of).unwrap_or_default());
        if now == old {
            continue;
        }
        if is_too_long_for_addresses(&now) {
            wrong.push(too_long(key, &now));
            continue;
        }
        // Of the addresses that the old text lists, another Service may have been given those that did not count as held.
        let had = recorded_addresses(&old);
        let mut seen: Vec<Family> = Vec::new();
        for text in parts(&now) {
            let address = parse_address(text);
            let is_duplicate = address.is_some_and(|address| seen.contains(&Family::of(address)));
            seen.extend(address.map(Family::of));
            let is_old = parts(&old).any(|other| other == text) && address.is_none_or(|it| had.contains(&it));
            if is_old && !is_duplicate || announcer.is_no_address(text) {
                continue;
            }
            let why = match address {
                None => Some("is not an IP address".to_owned()),
                Some(_) if is_duplicate => Some("is one too many: a Service has one of each family".to_owned()),
                Some(address) => refused(claimant, address, families)?,
            };
            // A parsed address is short and harmless, so it is not quoted.
            let text = address.map_or_else(|| quote(text), |address| address.to_string());
            wrong.extend(why.map(|why| format!("{}: {text} {why}", field_label(key))));
        }
    }
    Ok(wrong)
}

fn refused(claimant: &Claimant<'_>, address: IpAddr, families: &[Family]) -> Result<Option<String>, LookupError> {
    let family = Family::of(address);
    if !families.is_empty() && !families.contains(&family) {
        return Ok(Some(format!("is {family}, which is not a family of the Service")));
    }
    Ok(match claimant.right_to(address)? {
        Right::Free(_) => None,
        Right::Refused(why) => Some(why),
        Right::Outside => Some(OUTSIDE.to_owned()),
    })
}

/// The Service that has an external address, or gets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    pub service: ServiceKey,
    /// How long the address is in flight at most; `None` if the Service was seen with it.
    pub in_flight: Option<Duration>,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.service)?;
        let Some(time) = self.in_flight else { return Ok(()) };
        write!(f, " (its request may still be in progress, for up to {} s)", time.as_secs())
    }
}

/// The answer of a host that assigns external addresses: the holder of an address of a pool; `None` if the address is
/// free. If an address has several holders, the first one counts.
///
/// A Service that may share the address counts as no holder: [`Sharer`] knows the Service that is to get the address.
///
/// The host must know each address of the external pools that a Service has or claims, see [`in_use`](super::claim::in_use),
/// and each address in flight. It remembers the addresses that it gets back.
pub type HolderOf<'a> = dyn Fn(IpAddr, &Sharer<'_>) -> Option<Holder> + 'a;

/// A Service, and the information that decides which addresses it may have.
struct Claimant<'a> {
    service: &'a Service,
    /// Namespace and name of the Service.
    subject: (&'a str, &'a str),
    external: &'a ExternalSettings,
    /// The program that announces its addresses; `None` if the Service gets none from this policy.
    announcer: Option<Announcer>,
    namespace: &'a LazyNamespace<'a>,
    cluster: &'a dyn Cluster,
    /// The holders of addresses, if the host knows them.
    host: Option<&'a HolderOf<'a>>,
    /// The addresses that other Services have, otherwise: the Services are listed once, and only if needed.
    listed: OnceCell<Vec<(IpAddr, ServiceKey)>>,
}

/// The reason for refusing an address of [`Right::Outside`] that the Service requests from this policy.
const OUTSIDE: &str = "lies in no pool of external addresses";

/// Whether a Service may have an address.
enum Right<'a> {
    /// The address is in no pool.
    Outside,
    /// The address is in this pool, and the Service may have it.
    Free(&'a ExternalPool),
    /// The Service may not have the address. The text continues a sentence that begins with the address.
    Refused(String),
}

impl<'a> Claimant<'a> {
    fn right_to(&self, address: IpAddr) -> Result<Right<'a>, LookupError> {
        let Some(pool) = self.external.pool_of(address) else { return Ok(Right::Outside) };
        let name = &pool.name;
        if !pool.candidates(Family::of(address)).contains(address) {
            let excluded = pool.exclude.iter().any(|range| range.contains(address));
            let why = if excluded { "is excluded from" } else { "is the network or broadcast address of a range of" };
            return Ok(Right::Refused(format!("{why} pool {name:?}")));
        }
        if self.announcer.is_some() && !self.serves(pool) {
            let reason = format!("lies in pool {name:?}, which is for Services of another loadBalancerClass");
            return Ok(Right::Refused(reason));
        }
        if let Some(condition) = first_mismatch(&pool.scope, self.service, self.namespace)? {
            let reason =
                format!("lies in pool {name:?}, which does not admit this Service: {condition} does not match");
            return Ok(Right::Refused(reason));
        }
        Ok(match self.other_holder(address)? {
            Some(holder) => Right::Refused(format!("of pool {name:?} is held by {holder}")),
            None => Right::Free(pool),
        })
    }

    fn serves(&self, pool: &ExternalPool) -> bool {
        self.external.serves(pool, self.service.load_balancer_class.as_deref())
    }

    /// The first pool, in the order of the settings, that admits the Service and has one of `families`.
    fn own_pool(&self, families: &[Family]) -> Result<Option<&'a ExternalPool>, LookupError> {
        for pool in self.external.pools.iter().filter(|pool| families.iter().any(|family| pool.has(*family))) {
            if self.serves(pool) && first_mismatch(&pool.scope, self.service, self.namespace)?.is_none() {
                return Ok(Some(pool));
            }
        }
        Ok(None)
    }

    /// The other Service that has `address`; `None` if there is none.
    fn other_holder(&self, address: IpAddr) -> Result<Option<Holder>, LookupError> {
        let (namespace, name) = self.subject;
        let is_other = |holder: &Holder| {
            let service = (holder.service.namespace.as_str(), holder.service.name.as_str());
            // Services whose names are not generated yet differ only by the record that an earlier review wrote.
            service != (namespace, name) || name.is_empty() && !recorded(self.service).contains(&address)
        };
        if let Some(holder_of) = self.host {
            let announcer = self.announcer.unwrap_or_default();
            let sharer = Sharer { service: self.service, namespace, announcer };
            return Ok(holder_of(address, &sharer).filter(is_other));
        }
        let listed = match self.listed.get() {
            Some(listed) => listed,
            None => {
                let listed = self.list()?;
                self.listed.get_or_init(|| listed)
            }
        };
        let holders = listed.iter().filter(|(held, _)| *held == address).map(|(_, service)| service);
        // The first holder as it is displayed counts, so that the order of the list does not matter.
        let first = holders.min_by_key(ToString::to_string);
        Ok(first.map(|service| Holder { service: service.clone(), in_flight: None }).filter(is_other))
    }

    /// The addresses of the pools that other Services have.
    fn list(&self) -> Result<Vec<(IpAddr, ServiceKey)>, LookupError> {
        let mut listed = Vec::new();
        self.cluster.external_addresses(&mut |namespace, name, address| {
            if (namespace, name) != self.subject && self.external.pool_of(address).is_some() {
                listed.push((address, ServiceKey::new(namespace, name)));
            }
        })?;
        Ok(listed)
    }
}
