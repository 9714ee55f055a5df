//! The settings about Services: reads `services`, and checks its pools against each other and against the Service
//! ranges.

use ipnet::IpNet;
use serde_json::Value;

use super::pools::{self, Common, PoolPaths};
use super::reader::{Fields, Reader};
use super::{AdmissionScope, Explicit, Lookups, Match, Mistake, Pool, Reservation, Settings, Unmatched, WhenFull};
use crate::address::Order;
use crate::field_mask::Mask;
use crate::json::{Located, quote, unknown_name_message};
use crate::label_selector::{LabelSelector, includes};
use crate::service_key::ServiceKey;
use crate::workload::{OS_LABEL, WorkloadKind};

impl Reader {
    /// Reads `services`. Without a list of pools, there are the default ones, or none if `others` have settings.
    pub(super) fn services(&mut self, at: &Located<'_>, settings: &mut Settings, others: bool) -> Vec<PoolPaths> {
        let paths;
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
        let Some(fields) = self.fields(at, &KEYS) else { return Vec::new() };
        let default = if others || fields.get("pools").is_some() { Value::Null } else { default_pools() };
        let default = Located::new(&default, "services.pools");
        let pools = fields.get("pools").or(Some(&default).filter(|pools| !pools.value.is_null()));
        (settings.pools, paths) = pools.map(|at| self.list(at, Self::pool)).unwrap_or_default().into_iter().unzip();
        if let Some(evidence) = fields.get("evidence") {
            self.evidence(evidence, settings);
        }
        if let Some(os) = fields.get("assumeOS").and_then(|at| self.os(at)) {
            settings.assume_os = os;
        }
        settings.order = self.field(&fields, "order", |reader, at| {
            reader.choice(at, &["spread", "lowest"], &[Order::Spread, Order::Lowest])
        });
        settings.explicit = self.field(&fields, "explicit", Self::explicit);
        settings.when_full = self.field(&fields, "whenFull", Self::when_full);
        // An administrator who denies addresses set by hand keeps the addresses of a pool for the Services that the
        // pool admits.
        let default = if settings.explicit == Explicit::Deny { Unmatched::Outside } else { Unmatched::Unmanaged };
        let values = [Unmatched::Unmanaged, Unmatched::Outside, Unmatched::Deny];
        let read = |at| self.choice(at, &["unmanaged", "outside", "deny"], &values);
        settings.unmatched = fields.get("unmatched").and_then(read).unwrap_or(default);
        settings.annotate_reason = self.field(&fields, "annotateReason", Self::flag);
        if fields.get("exemptNamespaces").is_some() {
            settings.exempt_namespaces = self.located(&fields, "exemptNamespaces", Self::dns_label).1;
        }
        settings.service_cidrs = self.located(&fields, "serviceCIDRs", Self::service_cidr).1;
        settings.unusable_service_cidrs =
            self.field(&fields, "unusableServiceCIDRs", |reader, at| Some(reader.unusable_ranges(at)));
        paths
    }

    fn pool(&mut self, at: &Located<'_>) -> Option<(Pool, PoolPaths)> {
        const KEYS: [&str; 8] = ["name", "cidrs", "reserved", "exclude", "bands", "match", "reservations", "whenFull"];
        let mut fields = self.pool_fields(at, &KEYS)?;
        let mut pool = Pool {
            name: self.pool_name(&fields),
            cidrs: self.pool_ranges(&mut fields, Self::cidr),
            reserved: self.field(&fields.fields, "reserved", Self::count),
            exclude: self.pool_exclude(&mut fields, Self::cidr_or_address),
            bands: self.field(&fields.fields, "bands", Self::flag),
            matches: self.pool_match(&mut fields, Self::service_match),
            reservations: Vec::new(),
            when_full: fields.fields.get("whenFull").and_then(|at| self.when_full(at)),
        };
        (fields.paths.reservations, pool.reservations) = self.reservations(&fields.fields);
        Some((pool, fields.paths))
    }

    fn when_full(&mut self, at: &Located<'_>) -> Option<WhenFull> {
        self.choice(at, &["deny", "unmanaged"], &[WhenFull::Deny, WhenFull::Unmanaged])
    }

    fn reservations(&mut self, fields: &Fields<'_>) -> (Vec<String>, Vec<Reservation>) {
        const MOST: usize = 256;
        match fields.get("reservations").and_then(|at| Some((at, at.value.as_array()?.len()))) {
            Some((at, count)) if count > MOST => {
                self.mistake(at.path.clone(), format!("{count} reservations: a pool has at most {MOST}"));
                Default::default()
            }
            _ => self.located(fields, "reservations", Self::reservation),
        }
    }

    fn reservation(&mut self, at: &Located<'_>) -> Option<Reservation> {
        const KEYS: [&str; 3] = ["address", "namespace", "name"];
        let fields = self.fields(at, &KEYS)?;
        for key in KEYS.into_iter().filter(|key| fields.get(key).is_none()) {
            self.mistake(at.key_path(key), "missing: a reservation needs an address, a namespace and a name");
        }
        let address = fields.get("address").and_then(|at| self.address(at));
        let mut label = |key: &str| fields.get(key).and_then(|at| self.dns_label(at));
        let (namespace, name) = (label("namespace"), label("name"));
        Some(Reservation { address: address?, service: ServiceKey::new(namespace?, name?) })
    }

    fn service_match(&mut self, at: &Located<'_>) -> Option<Match> {
        let fields = self.fields(at, &["os", "nodeLabels", "namespaces", "namespaceSelector", "serviceSelector"])?;
        Some(Match { node_labels: self.node_labels(&fields), scope: self.scope(&fields) })
    }

    /// Reads the conditions of a `match` that do not concern nodes.
    pub(super) fn scope(&mut self, fields: &Fields<'_>) -> AdmissionScope {
        AdmissionScope {
            namespaces: self.located(fields, "namespaces", Self::dns_label).1,
            namespace_selector: self.field(fields, "namespaceSelector", Self::selector),
            service_selector: self.field(fields, "serviceSelector", Self::selector),
        }
    }

    fn evidence(&mut self, at: &Located<'_>, settings: &mut Settings) {
        let Some(fields) = self.fields(at, &["kinds", "lookups"]) else { return };
        settings.lookups = self.field(&fields, "lookups", |reader, at| {
            reader.choice(at, &["cluster", "namespace"], &[Lookups::Cluster, Lookups::Namespace])
        });
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
        self.parse(at, |text| {
            WorkloadKind::parse(text).ok_or_else(|| {
                let known: Vec<&str> = WorkloadKind::known_names().collect();
                let reason = unknown_name_message("kind", text, &known);
                format!("{reason}; write a custom resource as group/version/Kind")
            })
        })
    }
}

/// The pools of the K2s distribution, which settings without any pools have. The first 50 addresses of each are kept for
/// addresses set by hand.
pub fn default_pools() -> Value {
    let pools = br#"[
        {"name": "windows", "cidrs": ["172.21.1.0/24"], "reserved": 50, "match": {"os": "windows"}},
        {"name": "linux", "cidrs": ["172.21.0.0/24"], "reserved": 50, "match": {"os": "linux"}}
    ]"#;
    Mask::read_all(pools).unwrap_or_default()
}

/// The mistakes in pools of Services that contradict each other or the other settings. `paths` has one entry for each
/// pool.
pub(super) fn mistakes(settings: &Settings, paths: &[PoolPaths]) -> Vec<Mistake> {
    let pools = &settings.pools;
    let all: Vec<Common<'_>> = pools.iter().map(|pool| Common::new(&pool.name, &pool.cidrs, &pool.exclude)).collect();
    let of_range = |pool: usize, range: usize| {
        let cidr = pools[pool].cidrs[range];
        [outside(cidr, &settings.service_cidrs), has_no_address(settings, &pools[pool], cidr)]
    };
    let covers = |pool: usize, other: usize| pools[pool].matches.covers(&pools[other].matches);
    let mut mistakes = pools::mistakes(&all, paths, &of_range, &covers);
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

fn has_no_address(settings: &Settings, pool: &Pool, cidr: IpNet) -> Option<String> {
    // A range may also be for reservations only. Unusable ranges count as usable, because a range that is unusable for a
    // while is not a mistake of the settings.
    let is_used = pool.reservations.iter().any(|reservation| cidr.contains(&reservation.address))
        || settings.candidates_in(pool, &[cidr], &[]).count() > 0;
    let reason = "has no usable address: all are network or broadcast address, reserved or excluded";
    (!is_used).then(|| format!("{cidr} {reason}"))
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
        self.scope.covers(&other.scope) && includes(&other.node_labels, &self.node_labels)
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
