//! The external addresses that Services have or will request, during a plan.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use clusterip_core::external::claim::{claimed, in_use, read_stored, requested, shown};
use clusterip_core::external::{Holder, Sharer};
use clusterip_core::service::Service;
use clusterip_core::service_key::ServiceKey;
use clusterip_core::settings::ExternalSettings;
use serde_json::Value;

/// The external addresses of the pools during a plan, in which the manifests are created in their order. An address
/// that a later manifest names is given only to Services that name it as well: it may be set by hand.
#[derive(Default)]
pub struct PlanState {
    settings: ExternalSettings,
    /// The Services that have each address: first those of the cluster, then those that were planned.
    has: BTreeMap<IpAddr, Vec<ServiceKey>>,
    /// The addresses in `has` by Service: the search for them would take as long as all addresses for each manifest.
    had_by: BTreeMap<ServiceKey, BTreeSet<IpAddr>>,
    /// The manifests that name an address and are yet to be planned, by index, with their Services.
    wants: BTreeMap<IpAddr, BTreeMap<usize, ServiceKey>>,
    wanted_by: BTreeMap<usize, Vec<IpAddr>>,
}

impl PlanState {
    pub fn new(settings: &ExternalSettings) -> Self {
        Self { settings: settings.clone(), ..Self::default() }
    }

    pub fn add_existing(&mut self, owner: &ServiceKey, service: &Value) {
        self.add(owner, in_use(service));
    }

    pub fn add_pending(&mut self, index: usize, owner: &ServiceKey, manifest: &Value) {
        let named = self.named(manifest);
        for address in &named {
            self.wants.entry(*address).or_default().insert(index, owner.clone());
        }
        self.wanted_by.insert(index, named);
    }

    /// The holder of each address as the policy gets it, for a manifest that becomes `object`. `read` returns a Service
    /// of the cluster or one that was planned.
    pub fn holder_of<'a>(
        &'a self,
        object: &Value,
        read: &'a dyn Fn(&ServiceKey) -> Option<Service>,
    ) -> impl Fn(IpAddr, &Sharer<'_>) -> Option<Holder> + 'a {
        let (own, key) = (self.named(object), ServiceKey::of(object));
        move |address, sharer| {
            let wanted = || self.wants.get(&address).filter(|_| !own.contains(&address))?.values().next();
            let owners = self.has.get(&address).map(Vec::as_slice).unwrap_or_default();
            let is_shared = sharer.shares(owners.iter().filter(|owner| **owner != key), read);
            let service = owners.first().filter(|_| !is_shared).or_else(wanted)?.clone();
            Some(Holder { service, in_flight: None })
        }
    }

    /// Records the result of a manifest: its Service as it is `placed`, unless the policy denied it, and was `before`.
    pub fn set_planned(&mut self, index: usize, owner: &ServiceKey, placed: Option<&Value>, before: Option<&Value>) {
        for address in self.wanted_by.remove(&index).into_iter().flatten() {
            self.wants.entry(address).or_default().remove(&index);
        }
        if let Some(placed) = placed {
            for address in self.had_by.remove(owner).into_iter().flatten() {
                self.has.entry(address).or_default().retain(|other| other != owner);
            }
            self.add(owner, in_use(placed));
            self.add(owner, shown(before.and_then(|before| before.pointer("/status/loadBalancer/ingress"))));
        }
    }

    pub fn used(&self) -> Vec<IpAddr> {
        self.has.iter().filter(|(_, owners)| !owners.is_empty()).map(|(address, _)| *address).collect()
    }

    fn add(&mut self, owner: &ServiceKey, addresses: impl IntoIterator<Item = IpAddr>) {
        for address in addresses.into_iter().filter(|address| self.settings.pool_of(*address).is_some()) {
            if self.had_by.entry(owner.clone()).or_default().insert(address) {
                self.has.entry(address).or_default().push(owner.clone());
            }
        }
    }

    /// The addresses of the pools that a manifest names: those that it has recorded, claims or asks for.
    fn named(&self, manifest: &Value) -> Vec<IpAddr> {
        let service = read_stored(manifest);
        let mut named = claimed(&service);
        if self.settings.is_ours(&service) {
            named.extend(requested(&service));
        }
        named.retain(|address| self.settings.pool_of(*address).is_some());
        named
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use clusterip_core::annotations::REQUESTED_ADDRESS_ANNOTATION;
    use clusterip_core::external::Announcer;
    use clusterip_core::settings::Settings;
    use serde_json::json;

    use super::*;

    #[test]
    fn named_addresses_are_kept_for_the_services_that_name_them() {
        let document = json!({"external": {"pools": [{"name": "lan", "cidrs": ["10.0.9.0/24"]}]}});
        let mut planned = PlanState::new(&Settings::from_value(&document).unwrap().external);
        let claiming = |address: &str| {
            json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "x", "namespace": "shop"},
                   "spec": {"externalIPs": [address]}})
        };
        let asks = json!({REQUESTED_ADDRESS_ANNOTATION: "10.0.9.3"});
        let asking = json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": "asks", "namespace": "shop", "annotations": asks},
            "spec": {"type": "LoadBalancer", "loadBalancerClass": "clusterip-policy/external"},
        });
        let key = |text: &str| text.parse::<ServiceKey>().unwrap();
        let plain = json!({"spec": {}});
        let held = |planned: &PlanState, object: &Value| -> Vec<String> {
            let (service, read) = (Service::default(), |_: &ServiceKey| None);
            let sharer = Sharer { service: &service, namespace: "shop", announcer: Announcer::Agents };
            let holder_of = planned.holder_of(object, &read);
            let addresses = ["10.0.9.1", "10.0.9.2", "10.0.9.3", "10.0.9.4", "10.1.0.1"];
            let holder = |address: &str| Some(format!("{address} {}", holder_of(address.parse().unwrap(), &sharer)?));
            addresses.into_iter().filter_map(holder).collect()
        };
        planned.add_existing(&key("shop/old"), &claiming("10.0.9.1"));
        planned.add_existing(&key("shop/far"), &claiming("10.1.0.1"));
        planned.add_pending(0, &key("shop/a"), &claiming("10.0.9.2"));
        planned.add_pending(1, &key("shop/b"), &claiming("10.0.9.2"));
        planned.add_pending(2, &key("shop/asks"), &asking);
        assert_eq!(
            held(&planned, &plain),
            ["10.0.9.1 shop/old", "10.0.9.2 shop/a", "10.0.9.3 shop/asks"],
            "an address that a Service asks for is kept for it"
        );
        assert_eq!(
            held(&planned, &claiming("10.0.9.2")),
            ["10.0.9.1 shop/old", "10.0.9.3 shop/asks"],
            "except for manifests that name it too"
        );
        assert_eq!(planned.used(), ["10.0.9.1".parse::<IpAddr>().unwrap()]);
        planned.set_planned(0, &key("shop/a"), None, None);
        planned.set_planned(1, &key("shop/b"), Some(&claiming("10.0.9.2")), None);
        let expected = ["10.0.9.1 shop/old", "10.0.9.2 shop/b", "10.0.9.3 shop/asks"];
        assert_eq!(held(&planned, &claiming("10.0.9.2")), expected, "a denied manifest keeps no address");
        let shown = json!({"status": {"loadBalancer": {"ingress": [{"ip": "10.0.9.4"}]}}});
        planned.set_planned(3, &key("shop/old"), Some(&plain), Some(&shown));
        let expected = ["10.0.9.2 shop/b", "10.0.9.3 shop/asks", "10.0.9.4 shop/old"];
        assert_eq!(held(&planned, &plain), expected, "the old address is free, and the status counts");
    }
}
