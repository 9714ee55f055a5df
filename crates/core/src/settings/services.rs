//! The settings about Services: reads `services`, and checks its pools against each other and against the Service
//! ranges.

use ipnet::IpNet;

use super::pools::{self, Common, Kind, PoolPaths};
use super::reader::{Fields, Reader};
use super::{AdmissionScope, Explicit, Lookups, Match, Mistake, Pool, Reservation, Settings, Unmatched, WhenFull};
use crate::address::Order;
use crate::json::{Located, quote, unknown_name_message};
use crate::label_selector::LabelSelector;
use crate::service_key::ServiceKey;
use crate::workload::OS_LABEL;
use crate::workload::WorkloadKind;

impl Reader {
    /// Reads `services`.
    pub(super) fn services(&mut self, at: &Located<'_>, settings: &mut Settings) -> Vec<PoolPaths> {
        let mut paths = Vec::new();
        const KEYS: [&str; 11] = [
            "pools",
            "evidence",
            "assumeOS",
            "order",
            "explicit",
            "whenFull",
            "unmatched",
            "annotateReason",
            "exemptNamespaces",
            "serviceCIDRs",
            "unusableServiceCIDRs",
        ];
        let Some(fields) = self.fields(at, &KEYS) else { return paths };
        if let Some(pools) = fields.get("pools") {
            (settings.pools, paths) = self.list(pools, Self::pool).into_iter().unzip();
        }
        if let Some(evidence) = fields.get("evidence") {
            self.evidence(evidence, settings);
        }
        if let Some(os) = fields.get("assumeOS").and_then(|at| self.os(at)) {
            settings.assume_os = os;
        }
        if let Some(at) = fields.get("order") {
            settings.order =
                self.choice(at, &["spread", "lowest"], &[Order::Spread, Order::Lowest]).unwrap_or_default();
        }
        if let Some(at) = fields.get("explicit") {
            settings.explicit = self.explicit(at);
        }
        if let Some(at) = fields.get("whenFull") {
            settings.when_full =
                self.choice(at, &["deny", "unmanaged"], &[WhenFull::Deny, WhenFull::Unmanaged]).unwrap_or_default();
        }
        // An administrator who denies addresses set by hand keeps the addresses of a pool for the Services that the
        // pool admits.
        let default = if settings.explicit == Explicit::Deny { Unmatched::Outside } else { Unmatched::Unmanaged };
        let values = [Unmatched::Unmanaged, Unmatched::Outside, Unmatched::Deny];
        let read = |at| self.choice(at, &["unmanaged", "outside", "deny"], &values);
        settings.unmatched = fields.get("unmatched").and_then(read).unwrap_or(default);
        settings.annotate_reason = fields.get("annotateReason").and_then(|at| self.flag(at)).unwrap_or_default();
        if let Some(at) = fields.get("exemptNamespaces") {
            settings.exempt_namespaces = self.list(at, Self::dns_label);
        }
        if let Some(at) = fields.get("serviceCIDRs") {
            settings.service_cidrs = self.list(at, Self::service_cidr);
        }
        if let Some(at) = fields.get("unusableServiceCIDRs") {
            settings.unusable_service_cidrs = self.unusable_ranges(at);
        }
        paths
    }

    fn pool(&mut self, at: &Located<'_>) -> Option<(Pool, PoolPaths)> {
        const KEYS: [&str; 7] = ["name", "cidrs", "reserved", "exclude", "bands", "match", "reservations"];
        let before = self.mistakes.len();
        let fields = self.fields(at, &KEYS)?;
        let unknown_keys = self.mistakes.len() > before;
        let name = self.pool_name(at, &fields);
        let (cidr_paths, cidrs) = self.pool_ranges(at, &fields, Self::cidr);
        let reserved = fields.get("reserved").and_then(|at| self.count(at)).unwrap_or_default();
        let (exclude_paths, exclude) = self.pool_exclude(&fields, Self::cidr_or_address);
        let bands = fields.get("bands").and_then(|at| self.flag(at)).unwrap_or_default();
        let before_match = self.mistakes.len();
        let matches = fields.get("match").and_then(|at| self.pool_match(at)).unwrap_or_default();
        let match_is_whole = !unknown_keys && self.mistakes.len() == before_match;
        let (reservation_paths, reservations) =
            fields.get("reservations").map(|at| self.reservations(at)).unwrap_or_default().into_iter().unzip();
        let pool_paths = PoolPaths {
            path: at.path.clone(),
            cidrs: cidr_paths,
            exclude: exclude_paths,
            reservations: reservation_paths,
            match_is_whole,
        };
        Some((Pool { name, cidrs, reserved, exclude, bands, matches, reservations }, pool_paths))
    }

    fn reservations(&mut self, at: &Located<'_>) -> Vec<(String, Reservation)> {
        const MOST: usize = 256;
        match at.value.as_array() {
            Some(list) if list.len() > MOST => {
                self.mistake(at.path.clone(), format!("{} reservations: a pool has at most {MOST}", list.len()));
                Vec::new()
            }
            _ => self.list(at, Self::reservation),
        }
    }

    fn reservation(&mut self, at: &Located<'_>) -> Option<(String, Reservation)> {
        const KEYS: [&str; 3] = ["address", "namespace", "name"];
        let fields = self.fields(at, &KEYS)?;
        for key in KEYS.into_iter().filter(|key| fields.get(key).is_none()) {
            self.mistake(at.key_path(key), "missing: a reservation needs an address, a namespace and a name");
        }
        let address = fields.get("address").and_then(|at| self.address(at));
        let mut label = |key: &str| fields.get(key).and_then(|at| self.dns_label(at));
        let (namespace, name) = (label("namespace"), label("name"));
        Some((at.path.clone(), Reservation { address: address?, service: ServiceKey::new(namespace?, name?) }))
    }

    fn pool_match(&mut self, at: &Located<'_>) -> Option<Match> {
        let fields = self.fields(at, &["os", "nodeLabels", "namespaces", "namespaceSelector", "serviceSelector"])?;
        let node_labels = self.node_labels(&fields);
        Some(Match { node_labels, scope: self.scope(&fields) })
    }

    /// Reads the conditions of a `match` that do not concern nodes.
    pub(super) fn scope(&mut self, fields: &Fields<'_>) -> AdmissionScope {
        AdmissionScope {
            namespaces: fields.get("namespaces").map(|at| self.list(at, Self::dns_label)).unwrap_or_default(),
            namespace_selector: fields.get("namespaceSelector").and_then(|at| self.selector(at)).unwrap_or_default(),
            service_selector: fields.get("serviceSelector").and_then(|at| self.selector(at)).unwrap_or_default(),
        }
    }

    fn evidence(&mut self, at: &Located<'_>, settings: &mut Settings) {
        let Some(fields) = self.fields(at, &["kinds", "lookups"]) else { return };
        if let Some(at) = fields.get("lookups") {
            settings.lookups =
                self.choice(at, &["cluster", "namespace"], &[Lookups::Cluster, Lookups::Namespace]).unwrap_or_default();
        }
        if let Some(kinds) = fields.get("kinds") {
            let mut read: Vec<WorkloadKind> = Vec::new();
            self.list(kinds, |reader, at| {
                let kind = reader.kind(at)?;
                if read.contains(&kind) {
                    reader.mistake(at.path.clone(), format!("{} is already in the list", quote(at.value.as_str()?)));
                } else {
                    read.push(kind);
                }
                Some(())
            });
            settings.kinds = read;
        }
    }

    fn kind(&mut self, at: &Located<'_>) -> Option<WorkloadKind> {
        let text = self.ok(at.text())?;
        let kind = WorkloadKind::parse(text);
        if kind.is_none() {
            let known: Vec<&str> = WorkloadKind::known_names().collect();
            let reason = unknown_name_message("kind", text, &known);
            self.mistake(at.path.clone(), format!("{reason}; write a custom resource as group/version/Kind"));
        }
        kind
    }
}

/// The mistakes in pools of Services that contradict each other or the other settings. `paths` has one entry for each
/// pool.
pub(super) fn mistakes(settings: &Settings, paths: &[PoolPaths]) -> Vec<Mistake> {
    let all = settings.pools.iter();
    let all: Vec<Common<'_>> = all.map(|pool| Common::new(&pool.name, &pool.cidrs, &pool.exclude)).collect();
    let mut mistakes = pools::mistakes(&all, paths, &OfServices(settings));
    for (pool, pool_paths) in settings.pools.iter().zip(paths) {
        for (index, path) in pool_paths.reservations.iter().enumerate() {
            let reason = wrong_reservation(settings, pool, index);
            mistakes.extend(reason.map(|reason| Mistake { path: path.clone(), reason }));
        }
    }
    mistakes
}

/// What is wrong with a reservation of a pool. No other pool can have a reservation of the same address, because the
/// ranges of pools do not overlap.
fn wrong_reservation(settings: &Settings, pool: &Pool, index: usize) -> Option<String> {
    let Reservation { address, service } = &pool.reservations[index];
    let Some(cidr) = pool.cidrs.iter().find(|cidr| cidr.contains(address)) else {
        return Some(format!("{address} is in no range of the pool"));
    };
    if *address == cidr.network() || (address.is_ipv4() && *address == cidr.broadcast()) {
        return Some(format!("{address} is the network or broadcast address of {cidr}"));
    }
    if Some(*address) == settings.kubernetes_address() {
        return Some(format!("{address} is the address of default/kubernetes"));
    }
    let is_same = |other: &&Reservation| {
        other.address == *address || (other.service == *service && other.address.is_ipv4() == address.is_ipv4())
    };
    let other = pool.reservations[..index].iter().find(is_same)?;
    Some(format!(
        "{} is already reserved for Service {}: reserve an address for one Service, and one address of each family for a \
         Service",
        other.address, other.service
    ))
}

struct OfServices<'s>(&'s Settings);

impl Kind for OfServices<'_> {
    fn of_range(&self, pool: usize, range: usize, say: &mut dyn FnMut(String)) {
        let pool = &self.0.pools[pool];
        let cidr = pool.cidrs[range];
        if let Some(reason) = outside(cidr, &self.0.service_cidrs) {
            say(reason);
        }
        // A range may also be for reservations only.
        if !pool.reservations.iter().any(|reservation| cidr.contains(&reservation.address))
            && self.0.candidates_in(pool, &[cidr], &[]).count() == 0
        {
            // Unusable ranges count as usable, because a range that is unusable for a while is not a mistake of the
            // settings.
            let reason = "has no usable address: all are network or broadcast address, reserved or excluded";
            say(format!("{cidr} {reason}"));
        }
    }

    fn covers(&self, pool: usize, other: usize) -> bool {
        self.0.pools[pool].matches.covers(&self.0.pools[other].matches)
    }
}

pub(super) fn warnings(settings: &Settings) -> Vec<Mistake> {
    let mut warnings = Vec::new();
    if !settings.pools.iter().any(|pool| pool.matches.node_labels.contains_key(OS_LABEL)) {
        return warnings;
    }
    let mut warn = |path: &str, reason: String| warnings.push(Mistake { path: path.into(), reason });
    if settings.when_full == WhenFull::Unmanaged {
        warn("services.whenFull", "unmanaged with pools by os: Kubernetes may pick an address of any pool".into());
    }
    let mut rest = Match::default();
    rest.node_labels.insert(OS_LABEL.into(), settings.assume_os.clone());
    if settings.unmatched == Unmatched::Unmanaged && !settings.pools.iter().any(|pool| pool.matches.covers(&rest)) {
        let reason = format!(
            "no pool matches Services without evidence (assumeOS {:?}): Kubernetes may pick an address of any pool",
            settings.assume_os
        );
        warn("services.pools", reason);
    }
    warnings
}

impl Match {
    /// Whether it certainly matches everything that `other` matches: each of its conditions follows from a condition of
    /// `other`. Selectors are compared for equality only.
    fn covers(&self, other: &Self) -> bool {
        // The namespaces first: of many pools, most are for different namespaces.
        self.scope.covers(&other.scope)
            && self.node_labels.iter().all(|(key, value)| other.node_labels.get(key) == Some(value))
    }
}

impl AdmissionScope {
    fn covers(&self, other: &Self) -> bool {
        let namespaces = self.namespaces.is_empty()
            || (!other.namespaces.is_empty() && other.namespaces.iter().all(|name| self.namespaces.contains(name)));
        let follows = |mine: &LabelSelector, theirs| mine.is_empty() || mine == theirs;
        namespaces
            && follows(&self.namespace_selector, &other.namespace_selector)
            && follows(&self.service_selector, &other.service_selector)
    }
}

/// Whether the API server would refuse addresses of `cidr`, because the range lies in none of these Service ranges.
/// Without Service ranges this is unknown, and `cidr` does not lie outside.
pub fn is_outside_service_ranges(cidr: IpNet, service_cidrs: &[IpNet]) -> bool {
    !service_cidrs.is_empty() && !service_cidrs.iter().any(|range| range.contains(&cidr))
}

/// What a mistake says about a range outside of `serviceCIDRs`.
const OUTSIDE: &str = "lies outside serviceCIDRs";

/// Mistakes of settings whose `serviceCIDRs` the host has filled in from the cluster, in the words of a user who did
/// not write that field.
pub fn with_ranges_of_cluster(mistakes: &str) -> String {
    mistakes.replace(OUTSIDE, "lies outside of the Service ranges of the cluster")
}

fn outside(cidr: IpNet, service_cidrs: &[IpNet]) -> Option<String> {
    if !is_outside_service_ranges(cidr, service_cidrs) {
        return None;
    }
    let ranges: Vec<String> = service_cidrs.iter().map(ToString::to_string).collect();
    Some(format!("{cidr} {OUTSIDE} ({}): the API server would refuse its addresses", ranges.join(", ")))
}
