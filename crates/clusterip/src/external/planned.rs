//! Who has which external address while a plan is made, and who is going to want which.

use std::collections::BTreeMap;
use std::net::IpAddr;

use clusterip_core::annotations::{ASKED_ANNOTATION, recorded_addresses};
use clusterip_core::external::Held;
use clusterip_core::settings::ExternalSettings;
use serde_json::Value;

use super::mentioned::{claimed, mentioned};
use super::recorded::{is_served, shown};
use crate::cluster::object::text;

/// The external addresses of the pools, as a plan goes on.
///
/// Whoever is planned first gets what he wants, as he would who is created first. But what a manifest further
/// down names is given to nobody who does not name it himself: addresses set by hand stay where they are
/// wanted.
pub struct Planned {
    settings: ExternalSettings,
    /// Who has each: those of the cluster first, then those that were planned.
    has: BTreeMap<IpAddr, Vec<String>>,
    /// The manifests that are yet to be planned and name it, by index, and whose they are.
    wants: BTreeMap<IpAddr, BTreeMap<usize, String>>,
}

impl Planned {
    /// Nobody has any.
    pub fn new(settings: &ExternalSettings) -> Self {
        Self { settings: settings.clone(), has: BTreeMap::new(), wants: BTreeMap::new() }
    }

    /// A Service of the cluster has what it mentions.
    pub fn is_there(&mut self, owner: &str, service: &Value) {
        self.add(owner, mentioned(service));
    }

    /// The manifest of this index wants what it names.
    pub fn is_wanted(&mut self, index: usize, owner: &str, manifest: &Value) {
        for address in self.named(manifest) {
            self.wants.entry(address).or_default().insert(index, owner.to_owned());
        }
    }

    /// Who has what, for a manifest that becomes `object`.
    pub fn held(&self, object: &Value) -> Held {
        let mut held = Held::default();
        for (address, owners) in &self.has {
            for owner in owners {
                held.add(*address, owner.clone());
            }
        }
        let own = self.named(object);
        for (address, owners) in self.wants.iter().filter(|(address, _)| !own.contains(address)) {
            for owner in owners.values() {
                held.add(*address, owner.clone());
            }
        }
        held
    }

    /// The manifest of this index is planned: its Service becomes `placed`, or is refused. What `before` shows
    /// in its status it keeps.
    pub fn is_planned(&mut self, index: usize, owner: &str, placed: Option<&Value>, before: Option<&Value>) {
        for owners in self.wants.values_mut() {
            owners.remove(&index);
        }
        if let Some(placed) = placed {
            for owners in self.has.values_mut() {
                owners.retain(|other| other != owner);
            }
            self.add(owner, mentioned(placed));
            self.add(owner, before.map(shown).into_iter().flatten());
        }
    }

    /// The addresses that somebody has.
    pub fn used(&self) -> Vec<IpAddr> {
        self.has.iter().filter(|(_, owners)| !owners.is_empty()).map(|(address, _)| *address).collect()
    }

    fn add(&mut self, owner: &str, addresses: impl IntoIterator<Item = IpAddr>) {
        for address in addresses.into_iter().filter(|address| self.settings.pool_of(*address).is_some()) {
            let owners = self.has.entry(address).or_default();
            if !owners.iter().any(|other| other == owner) {
                owners.push(owner.to_owned());
            }
        }
    }

    /// The addresses of the pools that a manifest names: those that it has recorded, claims or asks for.
    fn named(&self, manifest: &Value) -> Vec<IpAddr> {
        let mut named = claimed(manifest);
        if is_served(manifest, &self.settings) {
            named.extend(recorded_addresses(text(manifest, &["metadata", "annotations", ASKED_ANNOTATION])));
        }
        named.retain(|address| self.settings.pool_of(*address).is_some());
        named
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use clusterip_core::settings::Settings;
    use serde_json::json;

    use super::*;

    #[test]
    fn who_has_what() {
        let document = json!({"external": {"pools": [{"name": "lan", "cidrs": ["10.0.9.0/24"]}]}});
        let mut planned = Planned::new(&Settings::from_value(&document).unwrap().external);
        let claiming = |address: &str| {
            json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "x", "namespace": "shop"},
                   "spec": {"externalIPs": [address]}})
        };
        let asking = json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": "asks", "namespace": "shop", "annotations": {ASKED_ANNOTATION: "10.0.9.3"}},
            "spec": {"type": "LoadBalancer", "loadBalancerClass": "clusterip-policy/external"},
        });
        let plain = json!({"spec": {}});
        let held = |planned: &Planned, object: &Value| -> Vec<String> {
            let held = planned.held(object).to_value();
            let text = |item: &Value, key: &str| item[key].as_str().unwrap().to_owned();
            let line = |item: &Value| format!("{} {}", text(item, "address"), text(item, "by"));
            held["held"].as_array().unwrap().iter().map(line).collect()
        };
        planned.is_there("shop/old", &claiming("10.0.9.1"));
        planned.is_there("shop/far", &claiming("10.1.0.1"));
        planned.is_wanted(0, "shop/a", &claiming("10.0.9.2"));
        planned.is_wanted(1, "shop/b", &claiming("10.0.9.2"));
        planned.is_wanted(2, "shop/asks", &asking);
        assert_eq!(
            held(&planned, &plain),
            ["10.0.9.1 shop/old", "10.0.9.2 shop/a", "10.0.9.3 shop/asks"],
            "what is named further down is kept for it"
        );
        assert_eq!(
            held(&planned, &claiming("10.0.9.2")),
            ["10.0.9.1 shop/old", "10.0.9.3 shop/asks"],
            "but for who names it, too"
        );
        assert_eq!(planned.used(), ["10.0.9.1".parse::<IpAddr>().unwrap()]);
        planned.is_planned(0, "shop/a", None, None);
        planned.is_planned(1, "shop/b", Some(&claiming("10.0.9.2")), None);
        let expected = ["10.0.9.1 shop/old", "10.0.9.2 shop/b", "10.0.9.3 shop/asks"];
        assert_eq!(held(&planned, &claiming("10.0.9.2")), expected, "who was refused has none");
        let shown = json!({"status": {"loadBalancer": {"ingress": [{"ip": "10.0.9.4"}]}}});
        planned.is_planned(3, "shop/old", Some(&plain), Some(&shown));
        let expected = ["10.0.9.2 shop/b", "10.0.9.3 shop/asks", "10.0.9.4 shop/old"];
        assert_eq!(held(&planned, &plain), expected, "what it had is free, but for what its status shows");
    }
}
