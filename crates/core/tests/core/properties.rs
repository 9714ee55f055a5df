//! Properties of every assigned address, for random Services, pools and clusters.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::support::{FakeCluster, addresses, answer_of, cases, created, ip, json_with, net};
use ipnet::IpNet;
use proptest::prelude::*;
use serde_json::{Value, json};

/// Small pools of one or two CIDRs, in both families, for all Services.
#[derive(Clone, Debug)]
struct Scene {
    cidrs: Vec<IpNet>,
    reserved: u64,
    exclude: Vec<IpNet>,
    bands: bool,
    order: &'static str,
    /// For every address of the ranges, by its position: whether it is free, and which objects know that it is not.
    used: Vec<Used>,
    has_ip_address_api: bool,
    name: String,
    /// Addresses reserved for other Services.
    for_others: Vec<IpAddr>,
    /// The address reserved for the Service.
    for_itself: Option<IpAddr>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Used {
    Free,
    /// A Service has the address, and its `IPAddress` exists.
    Service,
    /// A Service has the address without an `IPAddress`, for example while it moves.
    ServiceAlone,
    /// The `IPAddress` exists, but not yet its Service.
    IpAddressAlone,
}

impl Scene {
    fn settings(&self) -> Value {
        let text = |ranges: &[IpNet]| ranges.iter().map(ToString::to_string).collect::<Vec<_>>();
        json!({"services": {
            "order": self.order,
            "serviceCIDRs": ["10.0.0.0/8", "fd00::/64"],
            "pools": [{
                "name": "all",
                "cidrs": text(&self.cidrs),
                "reserved": self.reserved,
                "exclude": text(&self.exclude),
                "bands": self.bands,
                "reservations": self.reservations(),
            }],
        }})
    }

    fn reservations(&self) -> Vec<Value> {
        let others = self.for_others.iter().enumerate();
        let others = others
            .map(|(index, address)| json!({"address": address, "namespace": "other", "name": format!("s-{index}")}));
        let own =
            self.for_itself.iter().map(|address| json!({"address": address, "namespace": "shop", "name": self.name}));
        others.chain(own).collect()
    }

    fn all(&self) -> impl Iterator<Item = (IpAddr, Used)> {
        let every = self.cidrs.iter().flat_map(|cidr| addresses(*cidr));
        every.zip(self.used.iter().copied().cycle())
    }

    fn cluster(&self) -> FakeCluster {
        let mut cluster = FakeCluster::default();
        for (address, used) in self.all() {
            let text = address.to_string();
            cluster = match used {
                Used::Free => cluster,
                Used::Service => cluster.service("x/y", &text),
                Used::ServiceAlone => cluster.service_without_ip_address("x/y", &text),
                Used::IpAddressAlone => cluster.ip_address(&text),
            };
        }
        if self.has_ip_address_api { cluster } else { cluster.without_ip_address_api() }
    }

    /// The free addresses that may be handed out, found by checking each.
    fn free(&self) -> BTreeSet<IpAddr> {
        let mut free = BTreeSet::new();
        let mut used = self.all();
        for cidr in &self.cidrs {
            let addresses = addresses(*cidr);
            for (index, address) in addresses.iter().enumerate() {
                let (_, used) = used.next().unwrap();
                let broadcast = address.is_ipv4() && index == addresses.len() - 1;
                let withheld = index == 0
                    || broadcast
                    || (index as u64) < self.reserved
                    || self.exclude.iter().any(|range| range.contains(address))
                    || *address == ip("10.0.0.1");
                let reserved = self.for_others.contains(address) || self.for_itself == Some(*address);
                if !withheld && !reserved && self.is_unused(used) {
                    free.insert(*address);
                }
            }
        }
        free
    }

    /// Without the API, an IPAddress can't be known.
    fn is_unused(&self, used: Used) -> bool {
        match used {
            Used::Free => true,
            Used::IpAddressAlone => !self.has_ip_address_api,
            Used::Service | Used::ServiceAlone => false,
        }
    }

    /// The address reserved for the Service, if no other Service has it.
    fn own(&self) -> Option<IpAddr> {
        let unused = |own: &IpAddr| self.all().any(|(address, used)| address == *own && self.is_unused(used));
        self.for_itself.filter(unused)
    }
}

fn scene() -> impl Strategy<Value = Scene> {
    let ranges = prop::sample::select(vec![
        vec!["10.0.0.0/28"],
        vec!["10.0.0.0/27", "10.9.0.0/29"],
        vec!["10.3.0.0/26"],
        vec!["fd00::/123"],
        vec!["fd00::8/125", "fd00::100/124"],
    ]);
    let used = prop_oneof![
        2 => Just(Used::Free),
        12 => Just(Used::Service),
        2 => Just(Used::IpAddressAlone),
    ];
    // An address that only a Service knows is found only by a list, and `spread` does not start with one.
    let listed = prop_oneof![
        2 => Just(Used::Free),
        8 => Just(Used::Service),
        4 => Just(Used::ServiceAlone),
        2 => Just(Used::IpAddressAlone),
    ];
    let lists = prop_oneof![
        (Just("spread"), prop::collection::vec(used, 1..70)),
        (Just("lowest"), prop::collection::vec(listed, 1..70)),
    ];
    let reservations = (prop::collection::btree_set(0_u8..64, 0..4), any::<bool>());
    (
        ranges,
        0_u64..7,
        prop::collection::vec(0_u8..64, 0..4),
        any::<bool>(),
        lists,
        any::<bool>(),
        "[a-z]{1,8}",
        reservations,
    )
        .prop_map(|(cidrs, reserved, exclude, bands, (order, used), has_ip_address_api, name, (kept, has_own))| {
            let cidrs: Vec<IpNet> = cidrs.into_iter().map(net).collect();
            let first = addresses(cidrs[0]);
            // Neither the network nor the broadcast address, nor that of default/kubernetes.
            let kept: BTreeSet<IpAddr> =
                kept.into_iter().map(|index| first[2 + usize::from(index) % (first.len() - 3)]).collect();
            let mut for_others: Vec<IpAddr> = kept.into_iter().collect();
            let for_itself = if has_own { for_others.pop() } else { None };
            // The last usable addresses are never excluded, so that the range keeps an address.
            let exclude = exclude
                .into_iter()
                .map(|index| first[usize::from(index) % (first.len() - 3)])
                .filter(|address| *address != first[7] && *address != first[6])
                .map(IpNet::from)
                .collect();
            Scene { cidrs, reserved, exclude, bands, order, used, has_ip_address_api, name, for_others, for_itself }
        })
}

/// A Service with random other fields, but without an address.
fn plain_service() -> impl Strategy<Value = Value> {
    // Quarters are parsed and written exactly. (A Service has no fractions; serde_json may change the last digit of
    // others, which is not worth its slower parser.)
    let quarters = || any::<i32>().prop_map(|number| f64::from(number) / 4.0);
    let more = || prop::collection::btree_map("[a-z]{1,4}X", json_with(quarters()), 0..3);
    (more(), more(), prop::option::of(Just(Value::Null))).prop_map(|(top, spec, empty)| {
        let mut object = json!({"metadata": {"namespace": "shop"}, "spec": {}});
        object.as_object_mut().unwrap().extend(top);
        object["spec"].as_object_mut().unwrap().extend(spec);
        if let Some(empty) = empty {
            object["spec"]["clusterIP"] = empty;
        }
        object
    })
}

proptest! {
    #![proptest_config(cases(512))]

    #[test]
    fn assigned_address_is_free_and_full_means_none_is_free(scene in scene()) {
        let object = json!({
            "metadata": {"name": scene.name, "namespace": "shop"},
            "spec": {"ipFamilies": [if scene.cidrs[0].addr().is_ipv4() { "IPv4" } else { "IPv6" }]},
        });
        let answer = answer_of(&created(object), &scene.settings(), &scene.cluster());
        let free = scene.free();
        match answer["mutated_object"]["spec"]["clusterIP"].as_str() {
            Some(address) if scene.own().is_some() => prop_assert_eq!(Some(ip(address)), scene.own()),
            Some(address) => prop_assert!(free.contains(&ip(address)), "{} of {:?}", address, free),
            None => {
                let message = answer["message"].as_str().unwrap();
                prop_assert!(message.contains(" is full: "), "{}", message);
                prop_assert!(free.is_empty(), "refused, though these are free: {:?}", free);
                prop_assert_eq!(scene.own(), None);
            }
        }
    }

    #[test]
    fn reservation_changes_no_other_address(scene in scene()) {
        let scene = Scene { for_itself: None, ..scene };
        let without = Scene { for_others: Vec::new(), ..scene.clone() };
        let family = if scene.cidrs[0].addr().is_ipv4() { "IPv4" } else { "IPv6" };
        let object =
            json!({"metadata": {"name": scene.name, "namespace": "shop"}, "spec": {"ipFamilies": [family]}});
        let given = |scene: &Scene| {
            let answer = answer_of(&created(object.clone()), &scene.settings(), &scene.cluster());
            answer["mutated_object"]["spec"]["clusterIP"].as_str().map(ip)
        };
        if let Some(before) = given(&without).filter(|before| !scene.for_others.contains(before)) {
            prop_assert_eq!(given(&scene), Some(before));
        }
    }

    #[test]
    fn addresses_that_the_host_knows_change_no_answer(scene in scene()) {
        let object = json!({
            "metadata": {"name": scene.name, "namespace": "shop"},
            "spec": {"ipFamilies": [if scene.cidrs[0].addr().is_ipv4() { "IPv4" } else { "IPv6" }]},
        });
        let cluster = scene.cluster().knowing_free_addresses();
        let answered = answer_of(&created(object.clone()), &scene.settings(), &cluster);
        prop_assert_eq!(answered, answer_of(&created(object), &scene.settings(), &scene.cluster()));
    }

    #[test]
    fn only_the_address_of_the_object_changes(object in plain_service(), dual: bool) {
        let mut object = object;
        if dual {
            object["spec"]["ipFamilyPolicy"] = "RequireDualStack".into();
        }
        let settings = json!({"services": {"pools": [{"name": "all", "cidrs": ["10.0.0.0/24", "fd00::/120"]}]}});
        let answer = answer_of(&created(object.clone()), &settings, &FakeCluster::default());
        let mutated = &answer["mutated_object"];
        let address = |value: &Value| value.as_str().map(|text| text.parse::<IpAddr>().unwrap());
        let primary = address(&mutated["spec"]["clusterIP"]).expect("an address");
        object["spec"]["clusterIP"] = primary.to_string().into();
        if dual {
            let second = address(&mutated["spec"]["clusterIPs"][1]).expect("a second address");
            prop_assert!(primary.is_ipv4() && second.is_ipv6());
            object["spec"]["clusterIPs"] = json!([primary, second]);
        }
        prop_assert_eq!(mutated, &object);
    }
}
