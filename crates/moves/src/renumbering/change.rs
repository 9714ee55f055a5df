//! Which range replaces which, and what becomes of the addresses in texts: an address keeps its distance from the first
//! one of its range.

use std::net::{IpAddr, SocketAddr};

use clusterip_core::address::{Family, number, overlap};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A range, and the range of the same family that replaces it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pair {
    pub from: IpNet,
    pub to: IpNet,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    Forward,
    Back,
}

/// The ranges that change, the primary one first. A range of the cluster that stays is not among them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Change(pub Vec<Pair>);

impl Change {
    /// The change of the ranges `from`, the primary one first, into the ranges `to`, at most one for each family.
    pub fn new(from: &[IpNet], to: &[IpNet]) -> Result<Self, String> {
        let is_v4 = |range: &IpNet| range.addr().is_ipv4();
        let mut pairs: Vec<Pair> = Vec::new();
        for to in to {
            if pairs.iter().any(|pair| is_v4(&pair.to) == is_v4(to)) {
                return Err(format!("{to} is the second new range of its family: give one for each family"));
            }
            let Some(from) = from.iter().find(|from| is_v4(from) == is_v4(to)).map(IpNet::trunc) else {
                return Err(format!(
                    "the cluster has no Service range of the family of {to}: a renumbering changes ranges, and adds \
                     none"
                ));
            };
            if overlap(from, *to) {
                return Err(format!(
                    "the new range {to} overlaps with the present one, {from}: choose another range, or add a \
                     ServiceCIDR if the cluster only needs more addresses"
                ));
            }
            pairs.push(Pair { from, to: *to });
        }
        if let ([Pair { to, .. }, _], Some(from)) = (pairs.as_slice(), from.first())
            && is_v4(to) != is_v4(from)
        {
            return Err(format!(
                "{to} is the first new range, but the primary family of the cluster is that of {from}. The primary \
                 family can't change: Services that exist keep the order of their families, and an API server needs \
                 the family of its own address first. Name the ranges in the order of the cluster"
            ));
        }
        Ok(Self(pairs))
    }

    /// The change, or its inverse.
    pub fn directed(&self, direction: Direction) -> Self {
        match direction {
            Direction::Forward => self.clone(),
            Direction::Back => Self(self.0.iter().map(|Pair { from, to }| Pair { from: *to, to: *from }).collect()),
        }
    }

    /// The ranges of a cluster after the change, in the same order.
    pub fn applied(&self, ranges: &[IpNet]) -> Vec<IpNet> {
        let changed = |range: &IpNet| self.0.iter().find(|pair| pair.from == range.trunc()).map_or(*range, |it| it.to);
        ranges.iter().map(changed).collect()
    }

    pub fn is_old(&self, address: IpAddr) -> bool {
        self.0.iter().any(|pair| pair.from.contains(&address))
    }

    pub fn is_new(&self, address: IpAddr) -> bool {
        self.0.iter().any(|pair| pair.to.contains(&address))
    }

    /// The first address of each range: that of `default/kubernetes`.
    pub fn firsts(&self) -> impl Iterator<Item = (IpAddr, IpAddr)> {
        self.0.iter().map(|pair| (after(pair.from.network(), 1), after(pair.to.network(), 1)))
    }

    /// The new address of `default/kubernetes`, which has one of the first of these ranges; `None` if that one stays.
    pub fn new_kubernetes(&self, ranges: &[IpNet]) -> Option<IpAddr> {
        let primary = ranges.first()?.trunc();
        self.0.iter().find(|pair| pair.from == primary).map(|pair| after(pair.to.network(), 1))
    }

    /// The address with the same distance from the beginning of its range; `None` if the new range is too small. An
    /// address outside of the ranges stays.
    pub fn address(&self, address: IpAddr) -> Option<IpAddr> {
        let Some(Pair { from, to }) = self.0.iter().find(|pair| pair.from.contains(&address)) else {
            return Some(address);
        };
        let moved = after(to.network(), number(address) - number(from.network()));
        to.contains(&moved).then_some(moved)
    }

    /// Those of the addresses that change, each with the new one, if the new range has one for it.
    pub fn changed(&self, addresses: &[IpAddr]) -> Vec<(IpAddr, IpAddr)> {
        let old = addresses.iter().filter(|address| self.is_old(**address));
        old.filter_map(|old| Some((*old, self.address(*old)?))).collect()
    }

    /// A text with an address or a range, changed if that lies inside of an old range; `None` if the new range is too
    /// small for it.
    fn text(&self, text: &str) -> Option<String> {
        if let Ok(range) = text.parse::<IpNet>()
            && let Some(pair) = self.0.iter().find(|pair| pair.from.contains(&range))
        {
            let moved = IpNet::new(self.address(range.network())?, range.prefix_len()).ok()?;
            return (pair.to.contains(&moved) && moved.trunc() == moved).then(|| moved.to_string());
        }
        match text.parse() {
            Ok(address) if self.is_old(address) => Some(self.address(address)?.to_string()),
            _ => Some(text.to_owned()),
        }
    }

    /// The spec of a pool with its addresses and ranges changed. An error names the text that has no place in the new
    /// range.
    pub fn spec(&self, spec: &Value) -> Result<Value, String> {
        Ok(match spec {
            Value::String(text) => self.text(text).ok_or_else(|| text.clone())?.into(),
            Value::Array(items) => items.iter().map(|item| self.spec(item)).collect::<Result<Vec<_>, _>>()?.into(),
            Value::Object(fields) => {
                let fields = fields.iter().map(|(name, value)| Ok((name.clone(), self.spec(value)?)));
                Value::Object(fields.collect::<Result<_, String>>()?)
            }
            other => other.clone(),
        })
    }

    /// The first address or range in a text that belongs to an old range. A range that contains the new range, too,
    /// such as that of a proxy's exceptions, serves as well afterwards.
    pub fn old_in<'t>(&self, text: &'t str) -> Option<&'t str> {
        let words = text.split(|c: char| !c.is_ascii_hexdigit() && !matches!(c, '.' | ':' | '/'));
        let mut words = words.map(|word| word.trim_matches(['.', ':', '/'])).filter(|word| word.contains(['.', ':']));
        words.find_map(|word| {
            if let Ok(range) = word.parse::<IpNet>() {
                let is_old = |pair: &Pair| overlap(range, pair.from) && !range.contains(&pair.to);
                return self.0.iter().any(is_old).then_some(word);
            }
            // A path may follow.
            std::iter::once(word).chain(word.split('/')).find(|part| {
                let address = part.parse().or_else(|_| part.parse::<SocketAddr>().map(|it| it.ip()));
                address.is_ok_and(|address| self.is_old(address))
            })
        })
    }
}

/// The address at this distance. The first address of the family follows the last one, outside of every range.
fn after(address: IpAddr, distance: u128) -> IpAddr {
    Family::of(address).address(number(address).wrapping_add(distance))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    fn nets(ranges: &[&str]) -> Vec<IpNet> {
        ranges.iter().map(|range| range.parse().unwrap()).collect()
    }

    fn change(pairs: &[(&str, &str)]) -> Change {
        let (from, to): (Vec<_>, Vec<_>) = pairs.iter().copied().unzip();
        Change::new(&nets(&from), &nets(&to)).unwrap()
    }

    #[test]
    fn ranges_are_paired_by_family_and_primary_first() {
        struct Case {
            name: &'static str,
            from: &'static [&'static str],
            to: &'static [&'static str],
            expected: Result<&'static [&'static str], &'static str>,
        }
        const DUAL: &[&str] = &["10.96.0.0/16", "fd00::/112"];
        let case = |name, from, to, expected| Case { name, from, to, expected };
        let cases = [
            case("one", &["10.96.0.0/16"], &["10.100.0.0/16"], Ok(&["10.100.0.0/16"])),
            case("both", DUAL, &["10.100.0.0/16", "fd01::/112"], Ok(&["10.100.0.0/16", "fd01::/112"])),
            case(
                "both, reversed",
                DUAL,
                &["fd01::/112", "10.100.0.0/16"],
                Err("fd01::/112 is the first new range, but the primary family of the cluster is that of \
                     10.96.0.0/16. The primary family can't change: Services that exist keep the order of their \
                     families, and an API server needs the family of its own address first. Name the ranges in the \
                     order of the cluster"),
            ),
            case("only the second", DUAL, &["fd01::/112"], Ok(&["10.96.0.0/16", "fd01::/112"])),
            case(
                "another family",
                &["10.96.0.0/16"],
                &["fd01::/112"],
                Err("the cluster has no Service range of the family of fd01::/112: a renumbering changes ranges, and \
                     adds none"),
            ),
            case(
                "two of a family",
                DUAL,
                &["10.100.0.0/16", "10.101.0.0/16"],
                Err("10.101.0.0/16 is the second new range of its family: give one for each family"),
            ),
            case(
                "larger",
                &["10.96.0.0/16"],
                &["10.96.0.0/12"],
                Err(
                    "the new range 10.96.0.0/12 overlaps with the present one, 10.96.0.0/16: choose another range, or \
                     add a ServiceCIDR if the cluster only needs more addresses",
                ),
            ),
        ];
        for Case { name, from, to, expected } in cases {
            let applied = Change::new(&nets(from), &nets(to)).map(|change| change.applied(&nets(from)));
            assert_eq!(applied, expected.map(nets).map_err(str::to_owned), "{name}");
        }
    }

    #[test]
    fn addresses_and_ranges_keep_their_distance() {
        let change = change(&[("10.96.0.0/16", "10.100.0.0/24"), ("fd00::/112", "fd01::/112")]);
        let spec = |value: Value| change.spec(&value);
        struct Case {
            name: &'static str,
            spec: Value,
            expected: Result<Value, &'static str>,
        }
        let cases = [
            Case {
                name: "all kinds of addresses",
                spec: json!({"cidrs": ["10.96.0.64/26", "fd00::100/120", "192.0.2.0/24"], "reserved": 50,
                    "reservations": [{"address": "10.96.0.70", "name": "10-96"}], "fence": "Deny"}),
                expected: Ok(json!({"cidrs": ["10.100.0.64/26", "fd01::100/120", "192.0.2.0/24"], "reserved": 50,
                    "reservations": [{"address": "10.100.0.70", "name": "10-96"}], "fence": "Deny"})),
            },
            Case { name: "too large", spec: json!({"cidrs": ["10.96.0.0/20"]}), expected: Err("10.96.0.0/20") },
            Case { name: "too far", spec: json!({"exclude": ["10.96.1.0/30"]}), expected: Err("10.96.1.0/30") },
            Case { name: "an address too far", spec: json!("10.96.2.1"), expected: Err("10.96.2.1") },
        ];
        for Case { name, spec: before, expected } in cases {
            let after = spec(before.clone());
            assert_eq!(after, expected.map_err(str::to_owned), "{name}");
            if let Ok(after) = after {
                assert_eq!(change.directed(Direction::Back).spec(&after), Ok(before), "{name}: back");
                assert_eq!(change.spec(&after), Ok(after.clone()), "{name}: again");
            }
        }
        let end = super::tests::change(&[("10.96.0.0/16", "255.255.255.0/24")]);
        assert_eq!(end.address("10.96.1.5".parse().unwrap()), None, "beyond the last address");
    }

    #[test]
    fn old_addresses_are_found_in_texts() {
        let change = change(&[("10.96.0.0/16", "10.100.0.0/16"), ("fd00::/112", "fd01::/112")]);
        for (text, expected) in [
            ("10.96.0.10", Some("10.96.0.10")),
            ("https://10.96.0.10:8443/cafe", Some("10.96.0.10:8443")),
            ("https://[fd00::a]:443/", Some("fd00::a")),
            (".:53 {\n  forward . 10.96.0.10\n}", Some("10.96.0.10")),
            ("--service-cluster-ip-range=10.96.0.0/16", Some("10.96.0.0/16")),
            ("localhost,10.96.0.0/15,.svc", Some("10.96.0.0/15")),
            ("localhost,10.96.0.0/12,.svc", None),
            ("localhost,10.0.0.0/8,.svc", None),
            ("0.0.0.0/0", None),
            ("10.100.0.10 10.97.0.1 1.10.96 v10.96.0", None),
            ("fd01::a fd00:1::", None),
            ("dead.beef:cafe a:b /10.96.0.300", None),
        ] {
            assert_eq!(change.old_in(text), expected, "{text}");
        }
    }

    #[test]
    fn first_addresses_are_those_of_the_api_servers() {
        let change = change(&[("10.96.0.0/16", "10.100.0.0/16")]);
        let firsts: Vec<_> = change.firsts().map(|(from, to)| format!("{from} {to}")).collect();
        assert_eq!(firsts, ["10.96.0.1 10.100.0.1"]);
        let of = |ranges: &[&str]| change.new_kubernetes(&nets(ranges));
        assert_eq!(of(&["10.96.0.0/16", "fd00::/112"]), Some("10.100.0.1".parse().unwrap()));
        assert_eq!(of(&["fd00::/112", "10.96.0.0/16"]), None, "the primary range stays");
    }
}
