//! For random requests in random order: no external address has two holders, and none is held by a Service that its
//! pool does not admit.

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::{Value, json};

use crate::support::{FakeCluster, answer_in_use, cases, request};

const ASKED: &str = "clusterip-policy/external-address";
const RECORD: &str = "clusterip-policy/external-addresses";
const SERVICES: [(&str, &str); 5] = [("a", "one"), ("a", "two"), ("a", "three"), ("b", "four"), ("b", "five")];
/// Addresses of every kind: usable, excluded, network and broadcast address, and in no pool.
const ADDRESSES: [&str; 14] = [
    "10.0.9.0",
    "10.0.9.1",
    "10.0.9.2",
    "10.0.9.3",
    "10.0.9.4",
    "10.0.9.5",
    "10.0.9.6",
    "10.0.9.7",
    "10.0.8.1",
    "10.0.8.2",
    "10.0.7.9",
    "10.0.7.8",
    "192.0.2.1",
    "10.0.9.8",
];

fn settings() -> Value {
    json!({"external": {"pools": [
        {"name": "team", "cidrs": ["10.0.9.0/29"], "exclude": ["10.0.9.3"], "match": {"namespaces": ["a"]}},
        {"name": "gold", "cidrs": ["10.0.8.1-10.0.8.2"], "match": {"serviceSelector": {"matchLabels": {"tier": "gold"}}}},
        {"name": "all", "cidrs": ["10.0.7.9/32"]},
    ]}})
}

/// The same settings as data: the addresses of a pool, the usable ones, and the namespace and class that may have them.
struct Pool {
    all: &'static [&'static str],
    usable: &'static [&'static str],
    is_for: fn(namespace: &str, gold: bool) -> bool,
}

const POOLS: [Pool; 3] = [
    Pool {
        all: &["10.0.9.0", "10.0.9.1", "10.0.9.2", "10.0.9.3", "10.0.9.4", "10.0.9.5", "10.0.9.6", "10.0.9.7"],
        usable: &["10.0.9.1", "10.0.9.2", "10.0.9.4", "10.0.9.5", "10.0.9.6"],
        is_for: |namespace, _| namespace == "a",
    },
    Pool { all: &["10.0.8.1", "10.0.8.2"], usable: &["10.0.8.1", "10.0.8.2"], is_for: |_, gold| gold },
    Pool { all: &["10.0.7.9"], usable: &["10.0.7.9"], is_for: |_, _| true },
];

/// A Service as its author writes it.
#[derive(Clone, Debug, Default, PartialEq)]
struct Wanted {
    ours: bool,
    gold: bool,
    asked: Option<&'static str>,
    external_ip: Option<&'static str>,
    record: Option<String>,
}

#[derive(Clone, Debug)]
enum Action {
    Delete,
    Apply {
        wanted: Wanted,
        /// Whether the author sends the recorded addresses back.
        keeps_record: bool,
    },
}

#[derive(Clone, Debug)]
struct Step {
    /// The index in `SERVICES`.
    service: usize,
    action: Action,
    /// Whether the host sends the held addresses, or they are looked up.
    sent: bool,
}

fn step() -> impl Strategy<Value = Step> {
    let address = || prop::option::weighted(0.4, prop::sample::select(ADDRESSES.to_vec()));
    let forged = prop::option::weighted(0.15, prop::sample::select(ADDRESSES.to_vec()).prop_map(str::to_owned));
    let wanted = (prop::bool::weighted(0.8), any::<bool>(), address(), address(), forged)
        .prop_map(|(ours, gold, asked, external_ip, record)| Wanted { ours, gold, asked, external_ip, record });
    let apply = (wanted, any::<bool>()).prop_map(|(wanted, keeps_record)| Action::Apply { wanted, keeps_record });
    (0..SERVICES.len(), prop_oneof![1 => Just(Action::Delete), 6 => apply], prop::bool::weighted(0.7))
        .prop_map(|(service, action, sent)| Step { service, action, sent })
}

fn object((namespace, name): (&str, &str), wanted: &Wanted) -> Value {
    let kind = if wanted.ours { "LoadBalancer" } else { "ClusterIP" };
    let class = wanted.ours.then_some("clusterip-policy/external");
    let mut object = json!({
        "metadata": {"name": name, "namespace": namespace, "labels": {}, "annotations": {}},
        "spec": {"type": kind, "loadBalancerClass": class, "clusterIP": "10.96.0.7", "ipFamilies": ["IPv4"],
                 "externalIPs": wanted.external_ip.iter().collect::<Vec<_>>()},
    });
    if wanted.gold {
        object["metadata"]["labels"]["tier"] = "gold".into();
    }
    for (key, value) in [(ASKED, wanted.asked), (RECORD, wanted.record.as_deref())] {
        if let Some(value) = value {
            object["metadata"]["annotations"][key] = value.into();
        }
    }
    object
}

type State = BTreeMap<usize, Wanted>;

/// The addresses of the pools that a Service has.
fn had(wanted: &Wanted) -> Vec<&str> {
    let all = wanted.record.as_deref().into_iter().chain(wanted.external_ip);
    all.filter(|address| POOLS.iter().any(|pool| pool.all.contains(address))).collect()
}

fn is_held_by_another(state: &State, service: usize, address: &str) -> bool {
    state.iter().any(|(other, wanted)| *other != service && had(wanted).contains(&address))
}

/// Whether the Service may have an address of a pool; `None` if no pool contains it.
fn may_have(state: &State, service: usize, gold: bool, address: &str) -> Option<bool> {
    let pool = POOLS.iter().find(|pool| pool.all.contains(&address))?;
    let is_right = pool.usable.contains(&address) && (pool.is_for)(SERVICES[service].0, gold);
    Some(is_right && !is_held_by_another(state, service, address))
}

/// The allowed outcomes of a request: `None` for a refusal, otherwise the allowed records.
fn expected(state: &State, service: usize, new: &Wanted, sent: bool) -> Option<Vec<Option<String>>> {
    let old = state.get(&service);
    let before = old.filter(|old| old.ours);
    let may_have = |address: &str| may_have(state, service, new.gold, address);
    let claims_new = new.external_ip.filter(|ip| old.and_then(|old| old.external_ip) != Some(*ip));
    if claims_new.and_then(may_have) == Some(false) {
        return None;
    }
    if !new.ours {
        return Some(vec![None]);
    }
    let asks_new = new.asked.filter(|asked| before.and_then(|old| old.asked) != Some(*asked));
    let old_record = before.and_then(|old| old.record.as_deref());
    let records_new = new.record.as_deref().filter(|record| old_record != Some(*record));
    if asks_new.into_iter().chain(records_new).any(|address| may_have(address) != Some(true)) {
        return None;
    }
    if !sent {
        return Some(vec![new.record.as_deref().or(old_record).map(str::to_owned)]);
    }
    let wishes = [new.asked, new.record.as_deref(), old_record];
    if let Some(wish) = wishes.into_iter().flatten().find(|wish| may_have(wish) == Some(true)) {
        return Some(vec![Some(wish.to_owned())]);
    }
    let own = POOLS.iter().find(|pool| (pool.is_for)(SERVICES[service].0, new.gold)).unwrap();
    let free: Vec<Option<String>> = own
        .usable
        .iter()
        .filter(|address| may_have(address) == Some(true))
        .map(|&free| Some(free.to_owned()))
        .collect();
    Some(if free.is_empty() { vec![None] } else { free })
}

proptest! {
    #![proptest_config(cases(1024))]

    #[test]
    fn no_address_has_two_holders(steps in prop::collection::vec(step(), 1..25)) {
        let mut state = State::new();
        for Step { service, action, sent } in steps {
            let (mut new, keeps_record) = match action {
                Action::Delete => {
                    state.remove(&service);
                    continue;
                }
                Action::Apply { wanted, keeps_record } => (wanted, keeps_record),
            };
            let old = state.get(&service).cloned();
            if keeps_record && let Some(old) = &old {
                new.record.clone_from(&old.record);
            }
            let (namespace, name) = SERVICES[service];
            let before = old.as_ref().map_or(Value::Null, |old| object((namespace, name), old));
            let operation = if old.is_some() { "UPDATE" } else { "CREATE" };
            let mut payload = json!({
                "request": request(operation, object((namespace, name), &new), before),
                "settings": settings(),
            });
            let mut cluster = FakeCluster::default();
            let mut held = Vec::new();
            for (other, wanted) in &state {
                let by = format!("{}/{}", SERVICES[*other].0, SERVICES[*other].1);
                for address in had(wanted) {
                    held.push(json!({"address": address, "by": by}));
                    cluster = cluster.external(&by, address);
                }
            }
            if sent {
                payload["external"] = json!({ "held": held });
                cluster = FakeCluster::default();
            }
            let answer = answer_in_use(&payload, &cluster);
            let Some(expected) = expected(&state, service, &new, sent) else {
                prop_assert_eq!(answer.code, Some(403), "{}: {:?}", payload, answer);
                continue;
            };
            prop_assert!(answer.accepted, "{}: {:?}", payload, answer);
            if let Some(object) = answer.mutated_object {
                let record = &object["metadata"]["annotations"][RECORD];
                prop_assert_ne!(record.as_str(), new.record.as_deref(), "nothing is changed in vain");
                new.record = record.as_str().map(str::to_owned);
            }
            prop_assert!(expected.contains(&new.record), "{}: {:?} of {:?}", payload, new.record, expected);
            state.insert(service, new);
            let mut all: Vec<(&str, usize)> =
                state.iter().flat_map(|(service, wanted)| had(wanted).into_iter().map(move |ip| (ip, *service))).collect();
            all.sort_unstable();
            all.dedup();
            let count = all.len();
            all.dedup_by_key(|(ip, _)| *ip);
            prop_assert_eq!(all.len(), count, "had twice: {:?}", state);
        }
    }
}
