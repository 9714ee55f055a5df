//! The Service ranges of a cluster, and the parts of them that the API server does not allocate from.
//!
//! The API server allocates addresses of a ServiceCIDR unless the ServiceCIDR has a condition `Ready` that is not
//! `True`, or is being deleted. A ServiceCIDR without that condition counts as ready: it has none if no controller
//! manager runs, and until a controller manager has processed it. Where ServiceCIDRs overlap, one usable ServiceCIDR is
//! enough.

use std::borrow::Borrow;

use clusterip_api::LabelledRanges;
use clusterip_core::settings::UnusableRange;
use ipnet::IpNet;
use serde_json::Value;

use crate::object::{items, kind, map, name, texts};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceRanges {
    /// All ranges, those of the ServiceCIDR `kubernetes` first: the API server creates it from its own flag. Empty if
    /// the ranges are not known.
    pub all: Vec<String>,
    /// Of the ServiceCIDRs of the ranges, in the same order.
    names: Vec<String>,
    /// The parts of the ranges that the API server does not allocate from.
    pub unusable: Vec<UnusableRange>,
    pub labelled: Vec<LabelledRanges>,
}

impl From<Vec<String>> for ServiceRanges {
    fn from(all: Vec<String>) -> Self {
        Self { all, ..Self::default() }
    }
}

impl ServiceRanges {
    /// The ranges of the `ServiceCIDR` objects among these objects.
    pub fn of<O: Borrow<Value>>(objects: impl IntoIterator<Item = O>) -> Self {
        let read = |object: O| (kind(object.borrow()) == "ServiceCIDR").then(|| ServiceCidr::read(object.borrow()));
        Self::of_service_cidrs(objects.into_iter().filter_map(read))
    }

    pub(crate) fn of_service_cidrs(service_cidrs: impl Iterator<Item = ServiceCidr>) -> Self {
        let (mut primary, mut others) = (Vec::<(String, String)>::new(), Vec::new());
        let mut labelled = Vec::new();
        let (mut usable, mut refused): (Vec<IpNet>, Vec<Refused>) = (Vec::new(), Vec::new());
        for ServiceCidr { name, ranges, unusable } in service_cidrs {
            let nets = ranges.cidrs.iter().filter_map(|cidr| cidr.parse().ok()).map(|net: IpNet| net.trunc());
            match unusable {
                None => usable.extend(nets),
                Some(reason) => refused.extend(nets.map(|cidr| Refused { name: name.clone(), cidr, reason })),
            }
            let list = if name == "kubernetes" { &mut primary } else { &mut others };
            list.extend(ranges.cidrs.iter().map(|cidr| (cidr.clone(), name.clone())));
            labelled.push(ranges);
        }
        primary.append(&mut others);
        let (all, names) = primary.into_iter().unzip();
        let unusable = refused.iter().flat_map(|range| range.parts_beside(&usable));
        Self { all, names, unusable: unusable.collect(), labelled }
    }

    /// Only the ServiceCIDRs that pools may select: settings are not compared with these ranges.
    pub fn only_labels(&self) -> Self {
        Self { labelled: self.labelled.clone(), ..Self::default() }
    }

    /// Adds the ranges that were known before and are gone, as unusable: settings with pools in them stay valid, and no
    /// address of these ranges is handed out.
    pub(crate) fn with_gone(mut self, before: &Self) -> Self {
        let nets = self.nets();
        for (place, cidr) in before.all.iter().enumerate() {
            let Ok(net) = cidr.parse::<IpNet>() else { continue };
            let name = before.names.get(place).cloned().unwrap_or_default();
            let gone = Refused { name: name.clone(), cidr: net.trunc(), reason: "is gone" }.parts_beside(&nets);
            if !gone.is_empty() {
                self.unusable.extend(gone);
                self.all.push(cidr.clone());
                self.names.push(name);
            }
        }
        self
    }

    pub fn nets(&self) -> Vec<IpNet> {
        self.all.iter().filter_map(|range| range.parse().ok()).collect()
    }

    pub(crate) fn unusable_document(&self) -> Value {
        self.unusable.iter().map(|range| (range.cidr.to_string(), range.why.as_str())).collect()
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceCidr {
    name: String,
    ranges: LabelledRanges,
    /// Why the API server does not allocate addresses of the ranges; `None` if it does.
    unusable: Option<&'static str>,
}

impl ServiceCidr {
    pub fn read(object: &Value) -> Self {
        let cidrs = texts(object, "/spec/cidrs").map(str::to_owned).collect();
        let ranges = LabelledRanges { labels: map(object, &["metadata", "labels"]), cidrs };
        Self { name: name(object).to_owned(), ranges, unusable: why_unusable(object) }
    }
}

/// A range of a ServiceCIDR that is itself unusable. Other ServiceCIDRs may contain the same addresses.
struct Refused {
    name: String,
    cidr: IpNet,
    reason: &'static str,
}

impl Refused {
    fn parts_beside(&self, usable: &[IpNet]) -> Vec<UnusableRange> {
        let Self { name, reason, .. } = self;
        let unusable = |cidr| {
            let why = format!("ServiceCIDR {name} ({cidr}) {reason}: addresses of it are refused by the API server");
            UnusableRange { cidr, why }
        };
        without(self.cidr, usable).into_iter().map(unusable).collect()
    }
}

/// Why the API server does not allocate addresses of a ServiceCIDR; `None` if it does.
fn why_unusable(service_cidr: &Value) -> Option<&'static str> {
    if service_cidr.pointer("/metadata/deletionTimestamp").is_some_and(|time| !time.is_null()) {
        return Some("is being deleted");
    }
    let conditions = items(service_cidr, "/status/conditions");
    let mut ready = conditions.filter(|condition| condition.get("type").and_then(Value::as_str) == Some("Ready"));
    let status = ready.next()?.get("status").and_then(Value::as_str);
    (status != Some("True")).then_some("is not ready")
}

/// As the smallest possible number of ranges.
fn without(range: IpNet, others: &[IpNet]) -> Vec<IpNet> {
    if others.iter().any(|other| other.contains(&range)) {
        return Vec::new();
    }
    let inside: Vec<IpNet> = others.iter().copied().filter(|other| range.contains(other)).collect();
    if inside.is_empty() {
        return vec![range];
    }
    match range.subnets(range.prefix_len() + 1) {
        Ok(halves) => halves.flat_map(|half| without(half, &inside)).collect(),
        // A single address can't be split, and only the address itself is inside of it.
        Err(_) => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn service_cidr(name: &str, cidrs: &[&str], more: Value) -> Value {
        let mut object = json!({"kind": "ServiceCIDR", "metadata": {"name": name}, "spec": {"cidrs": cidrs}});
        json_patch::merge(&mut object, &more);
        object
    }

    fn deleted() -> Value {
        json!({"metadata": {"deletionTimestamp": "2026-01-02T03:04:05Z"}})
    }

    fn ready(status: &str) -> Value {
        json!({"status": {"conditions": [{"type": "Other", "status": "x"}, {"type": "Ready", "status": status}]}})
    }

    #[test]
    fn ranges_of_deleted_service_cidrs_stay_known_as_unusable() {
        let kubernetes = || service_cidr("kubernetes", &["10.0.0.0/16"], ready("True"));
        let team = |more: Value| service_cidr("team", &["10.2.0.0/16"], more);
        let with_gone = |now: Vec<Value>, before: Vec<Value>| {
            let ranges = ServiceRanges::of(now).with_gone(&ServiceRanges::of(before));
            (ranges.all.join(" "), ranges.unusable.iter().map(|range| range.why.clone()).collect::<Vec<_>>().join("; "))
        };
        let both = "10.0.0.0/16 10.2.0.0/16".to_owned();
        let refused = "addresses of it are refused by the API server";
        let gone = format!("ServiceCIDR team (10.2.0.0/16) is gone: {refused}");
        assert_eq!(with_gone(vec![kubernetes()], vec![kubernetes(), team(json!({}))]), (both.clone(), gone.clone()));
        assert_eq!(with_gone(vec![kubernetes()], vec![kubernetes(), team(deleted())]), (both.clone(), gone));
        let still = format!("ServiceCIDR team (10.2.0.0/16) is being deleted: {refused}");
        let there = || vec![kubernetes(), team(deleted())];
        assert_eq!(with_gone(there(), there()), (both, still), "one that is still there");
        let wider = service_cidr("wider", &["10.0.0.0/8"], json!({}));
        assert_eq!(with_gone(vec![wider], there()), ("10.0.0.0/8".to_owned(), String::new()), "under another name");
    }

    #[test]
    fn ranges_of_service_cidrs_not_ready_or_being_deleted_are_unusable() {
        let kubernetes = || service_cidr("kubernetes", &["10.0.0.0/16", "fd00::/112"], ready("True"));
        let team = |more: Value| service_cidr("a-team", &["10.2.0.0/16"], more);
        let (being_deleted, not_ready) = ("is being deleted", "is not ready");
        // Besides the primary ranges there are those of the team and perhaps another one.
        for (name, more, another, unusable) in [
            ("ready", ready("True"), None, &[][..]),
            ("without conditions, as without a controller manager", json!({}), None, &[]),
            (
                "conditions without Ready",
                json!({"status": {"conditions": [{"type": "A", "status": "False"}]}}),
                None,
                &[],
            ),
            ("not ready", ready("False"), None, &[("10.2.0.0/16", not_ready)]),
            ("not known whether ready", ready("Unknown"), None, &[("10.2.0.0/16", not_ready)]),
            ("being deleted", deleted(), None, &[("10.2.0.0/16", being_deleted)]),
            (
                "being deleted, as it is kept in the stores",
                json!({"metadata": {"deletionTimestamp": true}}),
                None,
                &[("10.2.0.0/16", being_deleted)],
            ),
            ("being deleted, while another one has the range", deleted(), Some("10.2.0.0/15"), &[]),
            (
                "being deleted, while another one has a part of the range",
                deleted(),
                Some("10.2.64.0/18"),
                &[("10.2.0.0/18", being_deleted), ("10.2.128.0/17", being_deleted)],
            ),
        ] {
            let other = another.map(|range| service_cidr("other", &[range], json!({})));
            // The primary ranges come first, whatever the order of the objects.
            let found = ServiceRanges::of([Some(team(more)), other, Some(kubernetes())].into_iter().flatten());
            let all = ["10.0.0.0/16", "fd00::/112", "10.2.0.0/16"].into_iter().chain(another);
            assert_eq!(found.all, all.collect::<Vec<_>>(), "{name}");
            let why = |(range, is): &(&str, &str)| {
                format!("ServiceCIDR a-team ({range}) {is}: addresses of it are refused by the API server")
            };
            let found: Vec<String> = found.unusable.into_iter().map(|range| range.why).collect();
            assert_eq!(found, unusable.iter().map(why).collect::<Vec<_>>(), "{name}");
        }
        assert_eq!(ServiceRanges::of([json!({"kind": "Service"})]), ServiceRanges::default());
    }
}
