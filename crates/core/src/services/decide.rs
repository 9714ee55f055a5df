//! Decides about the ClusterIP of a Service.

use std::net::IpAddr;

use super::pool::{Choice, Picker, Second, choose, families, first_mismatch, second};
use crate::address::{Candidates, Family};
use crate::annotations::{self, REASON_ANNOTATION};
use crate::decision::{Decision, Denial, LOOKUP_FAILED, MAX_LINE_LENGTH, Report, Verdict};
use crate::lookups::{Cluster, LazyNamespace, LookupError};
use crate::request::{About, Change, Operation, Request};
use crate::service::{FamilyPolicy, MAX_FAMILIES, Service};
use crate::settings::{Explicit, Pool, Settings, Unmatched, WhenFull};

/// Why a Service keeps the addresses that its author set.
const SET_BY_HAND: &str = "set by hand";

/// Decides about the ClusterIP that a request concerns. [`explain`] completes the decision.
pub(crate) fn decide(
    request: &Request,
    settings: &Settings,
    namespace: &LazyNamespace<'_>,
    cluster: &dyn Cluster,
) -> Decision {
    let outside = (settings.unmatched != Unmatched::Unmanaged).then(|| settings.outside_of_pools());
    let decision = Decision::default();
    let mut case = Case { request, settings, outside: outside.as_ref(), cluster, namespace, choice: None, decision };
    let triage = triage(request, settings);
    if let Triage::Allocate(service) | Triage::AllocateSecond(service, _) | Triage::Keep(service) = triage {
        case.decision.disown = !service.names_cluster_ip;
        case.decision.lists_one = request.operation == Operation::Update;
    }
    let decided = match triage {
        Triage::Leave(reason) => Ok(Verdict::Unchanged(reason)),
        Triage::Keep(_) => Ok(Verdict::Unchanged("no new address".to_owned())),
        Triage::Allocate(service) => case.allocate(service),
        Triage::AllocateSecond(service, address) => {
            case.allocate_second(service, address, "no second address requested")
        }
        Triage::Check(service, addresses) => {
            case.check(service, &addresses).and_then(|()| match service.addresses()[..] {
                // The API server would pick the second address from any range.
                [first] => case.allocate_second(service, first, SET_BY_HAND),
                _ => Ok(Verdict::Unchanged(SET_BY_HAND.to_owned())),
            })
        }
    };
    let verdict = match decided {
        Ok(verdict) | Err(verdict) => verdict.about(&format!("Service {}", request.subject())),
    };
    Decision { verdict, ..case.decision }
}

/// Adds to a decision the warnings about annotations of the Service that have no effect, and the annotation with the
/// reason.
pub(crate) fn explain(request: &Request, settings: &Settings, decision: &mut Decision) {
    if let About::Service(change) = &request.about {
        let before = change.old.as_ref().map(|old| &old.annotations);
        decision.warnings.extend(annotations::ineffective(&change.object.annotations, before));
        decision.note = note(request, settings, &change.object, decision);
    }
}

/// What to do about a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Triage<'r> {
    Leave(String),
    Allocate(&'r Service),
    /// The Service has this address, and requests a second one of the other family.
    AllocateSecond(&'r Service, IpAddr),
    Keep(&'r Service),
    /// The author of the request set these addresses. If it is a single one, the Service may request a second one.
    Check(&'r Service, Vec<IpAddr>),
}

impl Settings {
    /// Why the ClusterIP of the Service with this namespace and name is left alone, whatever the Service contains;
    /// `None` if the settings apply to it.
    pub fn exemption(&self, namespace: &str, name: &str) -> Option<String> {
        if namespace == "default" && name == "kubernetes" {
            return Some("default/kubernetes belongs to the API server".to_owned());
        }
        let is_exempt = self.exempt_namespaces.iter().any(|exempt| exempt == namespace);
        is_exempt.then(|| format!("namespace {namespace} is exempt"))
    }
}

/// Returns the first case that applies.
///
/// The cases follow the rules of the API server: an update can set an address only if the Service leaves `type:
/// ExternalName`, and a second address only if the Service has exactly one. The API server refuses any other change of
/// an address. A `PUT` without `clusterIP` keeps the Service's address, and may add a second one.
pub fn triage<'r>(request: &'r Request, settings: &Settings) -> Triage<'r> {
    let leave = |why: &str| Triage::Leave(why.to_owned());
    let About::Service(change) = &request.about else {
        return leave("not a Service that is created or updated");
    };
    let Change { object: service, old } = &**change;
    if settings.pools.is_empty() {
        return leave("the settings have no pool for Services");
    }
    if let Some(reason) = settings.exemption(&request.namespace, &request.name) {
        return Triage::Leave(reason);
    }
    if service.is_headless() {
        return leave("headless");
    }
    if service.external_name {
        return leave("type ExternalName has no address");
    }
    if service.cluster_ips.len() > MAX_FAMILIES {
        return leave("the API server refuses more than two clusterIPs");
    }
    let new = service.addresses();
    let had = old.as_ref().map(Service::addresses).unwrap_or_default();
    let names_none = service.cluster_ip.is_none() && service.cluster_ips.is_empty();
    match (request.operation, old) {
        (Operation::Create, _) if names_none => Triage::Allocate(service),
        (Operation::Create, _) => Triage::Check(service, new),
        (Operation::Update, Some(old)) => {
            if old.external_name && names_none {
                return Triage::Allocate(service);
            }
            if let [address] = new[..]
                && had == [address]
                && service.gets_second_address(old)
            {
                return Triage::AllocateSecond(service, address);
            }
            let added: Vec<IpAddr> = new.into_iter().filter(|address| !had.contains(address)).collect();
            if added.is_empty() { Triage::Keep(service) } else { Triage::Check(service, added) }
        }
        _ => leave("not a Service that is created or updated"),
    }
}

/// One request and the decision so far.
struct Case<'a> {
    request: &'a Request,
    settings: &'a Settings,
    /// Where the addresses come from that no pool gives to a Service; `None` if Kubernetes picks them.
    outside: Option<&'a Pool>,
    cluster: &'a dyn Cluster,
    namespace: &'a LazyNamespace<'a>,
    /// The pool, once it was chosen.
    choice: Option<Result<Choice<'a>, Denial>>,
    decision: Decision,
}

/// The errors of these methods are verdicts that end the search for addresses. A refusal does not name the Service yet.
impl<'a> Case<'a> {
    fn allocate(&mut self, service: &Service) -> Result<Verdict, Verdict> {
        let (pool, choice) = self.place(service)?;
        let (primary, second) = families(service, pool, self.settings);
        let mut picker = self.picker();
        let Some(first) = self.pick(&mut picker, pool, primary)? else {
            return Err(self.without(pool, primary, &choice));
        };
        let mut addresses = vec![first];
        if let Some(second) = second {
            addresses.extend(self.second_address(&mut picker, pool, second, &choice)?);
        } else if service.family_policy == FamilyPolicy::PreferDualStack && pool.has(primary.other()) {
            self.warn(format!(
                "PreferDualStack: no second address from pool {:?}: serviceCIDRs has no {} range",
                pool.name,
                primary.other()
            ));
        }
        Ok(Verdict::Allocated(addresses))
    }

    /// Adds a second address to the first one, if the Service requests one; `otherwise` is the reason if it does not.
    fn allocate_second(&mut self, service: &Service, first: IpAddr, otherwise: &str) -> Result<Verdict, Verdict> {
        let Some(second) = second(service, Family::of(first).other(), self.settings) else {
            return Ok(Verdict::Unchanged(otherwise.to_owned()));
        };
        let (pool, choice) = self.place(service)?;
        Ok(match self.second_address(&mut self.picker(), pool, second, &choice)? {
            Some(address) => Verdict::Allocated(vec![first, address]),
            None => Verdict::Unchanged(format!("pool {:?} has no {} range", pool.name, second.family)),
        })
    }

    /// Picks the second address; `None` if the pool has no range of the family, and the Service does not require one.
    fn second_address(
        &mut self,
        picker: &mut Picker<'_>,
        pool: &Pool,
        Second { family, required }: Second,
        choice: &Choice<'_>,
    ) -> Result<Option<IpAddr>, Verdict> {
        let from = match self.outside {
            _ if required || pool.has(family) => pool,
            Some(outside) => outside,
            None => {
                self.warn(format!(
                    "pool {:?} has no {family} range: Kubernetes picks the second address from any range",
                    pool.name
                ));
                return Ok(None);
            }
        };
        match self.pick(picker, from, family)? {
            Some(address) => Ok(Some(address)),
            None => Err(self.without(pool, family, choice)),
        }
    }

    /// Picks the address that is reserved for the Service, otherwise any free address of the pool.
    fn pick(&mut self, picker: &mut Picker<'_>, pool: &Pool, family: Family) -> Result<Option<IpAddr>, LookupError> {
        let Request { namespace, name, .. } = self.request;
        if let Some(address) = pool.reserved_address(family, namespace, name) {
            let why = if let Some(range) = self.settings.unusable_range_of(address) {
                range.why.clone()
            } else if picker.pick(&Candidates::of_spans(&[address.into()], &[], family))?.is_some() {
                return Ok(Some(address));
            } else {
                // The answer only warns, so a failed look-up is no reason to deny.
                match picker.holder(address) {
                    Ok(Some(holder)) => format!("Service {holder} has it"),
                    Ok(None) => {
                        "another request has reserved it, or an IPAddress object without a Service has it".to_owned()
                    }
                    Err(error) => error.to_string(),
                }
            };
            self.warn(format!("{address}, which pool {:?} reserves for this Service, is not free: {why}", pool.name));
        }
        picker.pick(&self.settings.candidates(pool, family))
    }

    /// Checks addresses that the author of the request set. Those that the Service may have are noted in the decision,
    /// and the mistakes in others are warnings, or a refusal.
    fn check(&mut self, service: &Service, addresses: &[IpAddr]) -> Result<(), Verdict> {
        let settings = self.settings;
        for &address in addresses {
            if let Some(pool) = settings.pool_of(address)
                && let Some(reservation) = pool.reservation(address)
                && !reservation.is_for(&self.request.namespace, &self.request.name)
            {
                let message = format!(
                    "{address} of pool {:?} is reserved for Service {}; omit clusterIP, use another address, or remove \
                     the reservation from the pool",
                    pool.name, reservation.service
                );
                return Err(Denial { code: 403, message }.into());
            }
        }
        let mut wrong: Vec<String> = Vec::new();
        for &address in addresses {
            let (lies_in, before) = (settings.pool_of(address), wrong.len());
            let mut may_have = settings.external.pool_of(address).is_none();
            if settings.explicit == Explicit::Allow {
                // Any address is accepted, and nothing is looked up: the fence of a pool may refuse it all the same.
                may_have &= lies_in.is_none_or(|pool| {
                    let scope = &pool.matches.scope;
                    scope.namespace_selector.is_empty()
                        && matches!(first_mismatch(scope, service, self.namespace), Ok(None))
                });
            } else if let Err(denial) = self.find_mistakes(service, address, lies_in, &mut wrong) {
                if settings.explicit == Explicit::Deny {
                    return Err(denial.into());
                }
                // With `warn` a mistake only causes a warning, so a failed look-up is no reason to deny.
                wrong.push(format!("clusterIP was not checked: {}", denial.message));
                break;
            }
            if may_have && wrong.len() == before {
                self.decision.chosen.push(address);
            }
        }
        if settings.explicit == Explicit::Deny && !wrong.is_empty() {
            let message = format!("{}; omit clusterIP, or use an address of the Service's pool", wrong.join("; "));
            return Err(Denial { code: 403, message }.into());
        }
        self.decision.warnings.append(&mut wrong);
        Ok(())
    }

    /// Adds to `wrong` why the Service should not have an address that lies in this pool, or in none.
    fn find_mistakes(
        &mut self,
        service: &Service,
        address: IpAddr,
        lies_in: Option<&Pool>,
        wrong: &mut Vec<String>,
    ) -> Result<(), Denial> {
        wrong.extend(self.settings.unusable_range_of(address).map(|range| range.why.clone()));
        match lies_in {
            _ if Some(address) == self.settings.kubernetes_address() => {
                wrong.push(format!("{address} is the address of default/kubernetes"));
            }
            Some(pool)
                if pool.exclude.iter().any(|excluded| excluded.contains(&address))
                    && pool.reservation(address).is_none() =>
            {
                wrong.push(format!("{address} is excluded from pool {:?}", pool.name));
            }
            _ => wrong.extend(misplaced(address, lies_in, &self.choose(service)?)),
        }
        Ok(())
    }

    /// Chooses the pool once, and records pool and evidence for the answer.
    fn choose(&mut self, service: &Service) -> Result<Choice<'a>, Denial> {
        if let Some(choice) = &self.choice {
            return choice.clone();
        }
        let choice = choose(service, self.namespace, self.settings, self.cluster, &mut self.decision.warnings);
        self.decision.unmatched = match &choice {
            Ok(choice) => choice.pool.is_none(),
            // A failed look-up says nothing about the pools.
            Err(denial) => denial.code != LOOKUP_FAILED,
        };
        let choice = self.choice.insert(choice).clone()?;
        self.decision.pool = choice.pool.map(|pool| pool.name.clone());
        self.decision.evidence = choice.report.clone();
        Ok(choice)
    }

    fn picker(&self) -> Picker<'a> {
        let request = self.request;
        Picker::new(self.cluster, self.settings.order, request.hash_key(), (&request.namespace, &request.name))
    }

    fn warn(&mut self, warning: String) {
        self.decision.warnings.push(warning);
    }

    /// Where the Service gets its address: from its pool, or if no pool matches it, from the addresses that no pool
    /// contains.
    fn place(&mut self, service: &Service) -> Result<(&'a Pool, Choice<'a>), Verdict> {
        let choice = self.choose(service)?;
        if let Some(pool) = choice.pool {
            return Ok((pool, choice));
        }
        match self.outside {
            None => {
                let reason = format!("{}: Kubernetes picks the address", no_pool_matches(&choice));
                self.warn(reason.clone());
                Err(Verdict::Unchanged(reason))
            }
            Some(_) if self.settings.unmatched == Unmatched::Deny => Err(unmatched(&choice, "")),
            Some(outside) => {
                self.warn(format!("{}: it gets an address outside of all pools", no_pool_matches(&choice)));
                Ok((outside, choice))
            }
        }
    }

    /// The verdict if the Service's pool has no free address of a family that it needs.
    fn without(&mut self, pool: &Pool, family: Family, choice: &Choice<'_>) -> Verdict {
        if choice.pool.is_none() {
            let why = if self.settings.cluster_has(family) {
                format!(", and no {family} address outside of the pools is free")
            } else {
                format!(", and services.serviceCIDRs has no {family} range to take an address from")
            };
            return unmatched(choice, &why);
        }
        let (why, remedy) = if pool.has(family) {
            let (ranges, count) = (pool.ranges(family), self.settings.candidates(pool, family).count());
            let unusable = self.settings.unusable_ranges_of(pool, family);
            let remedy = "add a range to the pool, delete Services that are not needed, or".to_owned();
            if count == 0 && !unusable.is_empty() {
                let remedy = "add a range to the pool that the API server accepts, or".to_owned();
                (format!("pool {:?} ({ranges}) has no usable address: {unusable}", pool.name), remedy)
            } else {
                let mut used =
                    format!("{count} of {count} addresses used, the first {} of each range reserved", pool.reserved);
                let for_services = pool.reservations.iter().filter(|other| Family::of(other.address) == family).count();
                if for_services > 0 {
                    used += &format!(", {for_services} reserved for Services");
                }
                let more = if unusable.is_empty() { String::new() } else { format!("; {unusable}") };
                (format!("pool {:?} ({ranges}) is full: {used}{more}", pool.name), remedy)
            }
        } else {
            (format!("pool {:?} has no {family} range", pool.name), format!("add an {family} range to the pool, or"))
        };
        if pool.when_full.unwrap_or(self.settings.when_full) == WhenFull::Unmanaged {
            let reason = format!("{why}: Kubernetes picks the address");
            self.warn(reason.clone());
            return Verdict::Unchanged(reason);
        }
        let of_pool = if pool.when_full.is_some() { "pools[]." } else { "" };
        let message =
            format!("{why}; chosen by {}; {remedy} set services.{of_pool}whenFull: unmanaged", choice.describe());
        // The API server uses the same status if a range is full.
        Verdict::Denied(Denial { code: 500, message })
    }
}

/// The new value of [`REASON_ANNOTATION`], see [`Decision::note`]. A value that the author of a new Service wrote never
/// stays, because it could name a pool that the Service is not in.
fn note(request: &Request, settings: &Settings, service: &Service, decision: &Decision) -> Option<String> {
    let Request { operation, namespace, name, .. } = request;
    if !settings.annotate_reason || *operation != Operation::Create || settings.exemption(namespace, name).is_some() {
        return None;
    }
    match (&decision.verdict, &decision.pool, &decision.evidence) {
        (Verdict::Allocated(_), Some(pool), Some(evidence)) => {
            let note = format!("pool {pool}: {}", evidence.describe());
            Some(annotations::cut(&note, MAX_LINE_LENGTH).into_owned())
        }
        _ => service.annotations.has(REASON_ANNOTATION).then(String::new),
    }
}

/// Refuses a Service that no pool matches.
#[inline(never)] // The module has room for one copy.
fn unmatched(choice: &Choice<'_>, why: &str) -> Verdict {
    let remedy = "add a pool that matches it, or set services.unmatched: unmanaged";
    Verdict::Denied(Denial { code: 403, message: format!("{}{why}; {remedy}", no_pool_matches(choice)) })
}

#[inline(never)] // The module has room for one copy.
fn no_pool_matches(choice: &Choice<'_>) -> String {
    format!("no pool matches {}", choice.report.as_ref().map_or("this Service".to_owned(), Report::describe))
}

/// Why an address is wrong that lies in this pool, or in none; `None` if it may stay. An address outside of every pool
/// is wrong if the Service's own pool has addresses of its family.
fn misplaced(address: IpAddr, lies_in: Option<&Pool>, choice: &Choice<'_>) -> Option<String> {
    let place = match (lies_in, choice.pool) {
        (Some(pool), own) if own == Some(pool) => return None,
        (Some(pool), Some(own)) => format!("lies in pool {:?}, expected pool {:?}", pool.name, own.name),
        (Some(pool), None) => format!("lies in pool {:?}, but no pool matches", pool.name),
        (None, Some(own)) if own.has(Family::of(address)) => format!("lies in no pool, expected pool {:?}", own.name),
        (None, _) => return None,
    };
    Some(format!("{address} {place}: {}", choice.describe()))
}
