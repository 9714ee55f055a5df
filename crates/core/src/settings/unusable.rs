//! The Service ranges from which the API server allocates no addresses at the moment.
//!
//! The API server refuses every address of a ServiceCIDR that is being deleted or is not ready. The pools keep such a
//! range, so that the settings stay valid, and hand out addresses of their other ranges.

use std::net::IpAddr;

use ipnet::IpNet;

use super::reader::Reader;
use super::{Mistake, Pool, Settings};
use crate::address::{Family, overlap};
use crate::json::Located;

/// A range of a ServiceCIDR from which the API server allocates no addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnusableRange {
    pub cidr: IpNet,
    /// The reason, which names the ServiceCIDR.
    pub why: String,
}

impl Reader {
    pub(super) fn unusable_ranges(&mut self, at: &Located<'_>) -> Vec<UnusableRange> {
        let mut ranges = Vec::new();
        let Some(object) = self.ok(at.object()) else { return ranges };
        for (key, why) in object {
            let path = at.key_path(key);
            let cidr = self.cidr(&Located::new(&key.as_str().into(), path.clone()));
            let why = self.ok(Located::new(why, path).text());
            ranges.extend(cidr.zip(why).map(|(cidr, why)| UnusableRange { cidr, why: why.to_owned() }));
        }
        ranges
    }
}

impl Settings {
    pub fn unusable_range_of(&self, address: IpAddr) -> Option<&UnusableRange> {
        self.unusable_service_cidrs.iter().find(|range| range.cidr.contains(&address))
    }

    /// The reasons of the unusable ranges that overlap a pool; empty if there are none.
    pub(crate) fn unusable_ranges_of(&self, pool: &Pool, family: Family) -> String {
        let of_pool = |range: &&UnusableRange| pool.cidrs_of(family).any(|cidr| overlap(cidr, range.cidr));
        let unusable = self.unusable_service_cidrs.iter().filter(of_pool);
        unusable.map(|range| range.why.as_str()).collect::<Vec<_>>().join("; ")
    }

    /// A warning for each range of a pool that overlaps an unusable range.
    pub fn unusable_warnings(&self) -> Vec<Mistake> {
        let mut warnings = Vec::new();
        for (number, pool) in self.pools.iter().enumerate() {
            for (place, cidr) in pool.cidrs.iter().enumerate() {
                for range in self.unusable_service_cidrs.iter().filter(|range| overlap(range.cidr, *cidr)) {
                    let path = format!("services.pools[{number}].cidrs[{place}]");
                    let reason = format!("{}, and pool {:?} assigns none of them meanwhile", range.why, pool.name);
                    warnings.push(Mistake { path, reason });
                }
            }
        }
        warnings
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn settings(unusable: Value) -> Settings {
        Settings::from_value(&json!({"services": {
            "pools": [{"name": "team-a", "cidrs": ["10.0.1.0/24", "10.2.0.0/24"], "reserved": 10}],
            "serviceCIDRs": ["10.0.0.0/16", "10.2.0.0/16"],
            "unusableServiceCIDRs": unusable,
        }}))
        .unwrap()
    }

    const DELETED: &str = "ServiceCIDR team-a (10.2.0.0/16) is being deleted";

    #[test]
    fn unusable_range_has_no_candidates() {
        struct Row {
            name: &'static str,
            unusable: Value,
            candidates: u128,
            words: &'static str,
        }
        let rows = [
            Row { name: "none", unusable: json!({}), candidates: 490, words: "" },
            Row { name: "null", unusable: json!(null), candidates: 490, words: "" },
            Row {
                name: "around one range of the pool",
                unusable: json!({"10.2.0.0/16": DELETED}),
                candidates: 245,
                words: DELETED,
            },
            Row {
                name: "a part of a range of the pool",
                unusable: json!({"10.2.0.128/25": "b is not ready"}),
                candidates: 245 + 118,
                words: "b is not ready",
            },
            Row {
                name: "in no range of the pool",
                unusable: json!({"10.3.0.0/16": DELETED}),
                candidates: 490,
                words: "",
            },
            Row { name: "another family", unusable: json!({"fd00::/108": DELETED}), candidates: 490, words: "" },
            Row {
                name: "all ranges of the pool",
                unusable: json!({"10.0.0.0/16": "kubernetes is not ready", "10.2.0.0/16": DELETED}),
                candidates: 0,
                words: "kubernetes is not ready; ServiceCIDR team-a (10.2.0.0/16) is being deleted",
            },
        ];
        for row in rows {
            let settings = settings(row.unusable);
            let pool = &settings.pools[0];
            assert_eq!(settings.candidates(pool, Family::V4).count(), row.candidates, "{}", row.name);
            assert_eq!(settings.unusable_ranges_of(pool, Family::V4), row.words, "{}", row.name);
        }
    }

    #[test]
    fn each_unusable_range_of_a_pool_gets_a_warning() {
        let settings = settings(json!({"10.2.0.0/16": DELETED}));
        let warnings: Vec<String> = settings.unusable_warnings().iter().map(ToString::to_string).collect();
        let expected = "services.pools[0].cidrs[1]: ServiceCIDR team-a (10.2.0.0/16) is being deleted, and pool \
                        \"team-a\" assigns none of them meanwhile";
        assert_eq!(warnings, [expected]);
    }

    #[test]
    fn unreadable_range_is_a_mistake_with_its_path() {
        let rows = [
            (json!([1]), "services.unusableServiceCIDRs: expected"),
            (
                json!({"10.0.0.1/24": "x"}),
                "services.unusableServiceCIDRs[\"10.0.0.1/24\"]: 10.0.0.1/24 has host bits set",
            ),
            (json!({"10.0.0.0/24": 1}), "services.unusableServiceCIDRs[\"10.0.0.0/24\"]: expected a string"),
        ];
        for (unusable, expected) in rows {
            let document = json!({"services": {"unusableServiceCIDRs": unusable}});
            let mistakes = Settings::from_value(&document).unwrap_err().to_string();
            assert!(mistakes.starts_with(expected), "{document}: {mistakes}");
        }
    }
}
