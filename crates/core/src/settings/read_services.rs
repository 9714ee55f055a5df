//! Reads the pools of Services and the other fields of `services`. Single values are checked here, relations between
//! values in `check_services`.

use super::read::PoolPaths;
use super::reader::{Fields, Reader};
use super::{AdmissionScope, Explicit, Lookups, Match, Pool, Reservation, Settings, Unmatched, WhenFull};
use crate::address::Order;
use crate::json::{Located, quote, unknown_name_message};
use crate::service_key::ServiceKey;
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
