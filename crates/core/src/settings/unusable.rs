//! Service ranges that the API server gives no address of at the moment.
//!
//! The API server refuses every address of a ServiceCIDR that is being deleted or is not ready. The pools keep
//! such a range, so that the settings stay valid, and hand out addresses of their other ranges.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;

use super::reader::Reader;
use super::{Mistake, Pool, Settings};
use crate::address::{Family, overlap};
use crate::json::At;

/// A range of a ServiceCIDR that the API server gives no address of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnusableRange {
    /// The name of the ServiceCIDR.
    pub name: String,
    /// The range.
    pub cidr: IpNet,
    /// What is the matter with the ServiceCIDR, as in `is being deleted`.
    pub reason: String,
}

impl fmt::Display for UnusableRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, cidr, reason } = self;
        write!(f, "ServiceCIDR {name} ({cidr}) {reason}: addresses of it are refused by the API server")
    }
}

impl Reader {
    /// Reads an item of `unusableServiceCIDRs`.
    pub(super) fn unusable_range(&mut self, at: &At<'_>) -> Option<UnusableRange> {
        let fields = self.fields(at, &["name", "cidr", "reason"])?;
        let Some(cidr) = fields.get("cidr") else {
            self.mistake(at.key_path("cidr"), "missing: the range that the API server gives no address of");
            return None;
        };
        let cidr = self.cidr(cidr)?;
        let mut text = |key: &str, default: &str| match fields.get(key) {
            Some(at) => self.ok(at.text()).map(str::to_owned),
            None => Some(default.to_owned()),
        };
        Some(UnusableRange { name: text("name", "?")?, cidr, reason: text("reason", "is not ready")? })
    }
}

impl Settings {
    /// The unusable range that an address lies in.
    pub fn unusable_range_of(&self, address: IpAddr) -> Option<&UnusableRange> {
        self.unusable_service_cidrs.iter().find(|range| range.cidr.contains(&address))
    }

    /// The unusable ranges that a pool has addresses of, in words; empty where there are none.
    pub(crate) fn unusable_ranges_of(&self, pool: &Pool, family: Family) -> String {
        let of_pool = |range: &&UnusableRange| pool.cidrs_of(family).any(|cidr| overlap(cidr, range.cidr));
        let unusable = self.unusable_service_cidrs.iter().filter(of_pool);
        unusable.map(ToString::to_string).collect::<Vec<_>>().join("; ")
    }
}

/// Names each range of a pool that the API server gives no address of, or not of all of it.
pub(super) fn warnings(settings: &Settings) -> Vec<Mistake> {
    let mut warnings = Vec::new();
    for (number, pool) in settings.pools.iter().enumerate() {
        for (place, cidr) in pool.cidrs.iter().enumerate() {
            for range in settings.unusable_service_cidrs.iter().filter(|range| overlap(range.cidr, *cidr)) {
                let path = format!("services.pools[{number}].cidrs[{place}]");
                let reason = format!("none of them is handed out meanwhile to Services of pool {:?}", pool.name);
                warnings.push(Mistake { path, reason: format!("{range}, and {reason}") });
            }
        }
    }
    warnings
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

    #[test]
    fn an_unusable_range_has_no_candidates() {
        struct Row {
            name: &'static str,
            unusable: Value,
            candidates: u128,
            words: &'static str,
        }
        let deleted = |cidr: &str| json!({"name": "team-a", "cidr": cidr, "reason": "is being deleted"});
        let rows = [
            Row { name: "none", unusable: json!([]), candidates: 490, words: "" },
            Row { name: "null", unusable: json!(null), candidates: 490, words: "" },
            Row {
                name: "around one range of the pool",
                unusable: json!([deleted("10.2.0.0/16")]),
                candidates: 245,
                words: "ServiceCIDR team-a (10.2.0.0/16) is being deleted: addresses of it are refused by the API server",
            },
            Row {
                name: "a part of a range of the pool",
                unusable: json!([{"name": "b", "cidr": "10.2.0.128/25"}]),
                candidates: 245 + 118,
                words: "ServiceCIDR b (10.2.0.128/25) is not ready: addresses of it are refused by the API server",
            },
            Row { name: "elsewhere", unusable: json!([deleted("10.3.0.0/16")]), candidates: 490, words: "" },
            Row { name: "another family", unusable: json!([deleted("fd00::/108")]), candidates: 490, words: "" },
            Row {
                name: "all ranges of the pool",
                unusable: json!([deleted("10.2.0.0/16"), {"name": "kubernetes", "cidr": "10.0.0.0/16"}]),
                candidates: 0,
                words: "ServiceCIDR team-a (10.2.0.0/16) is being deleted: addresses of it are refused by the API \
                        server; ServiceCIDR kubernetes (10.0.0.0/16) is not ready: addresses of it are refused by the \
                        API server",
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
    fn each_range_of_a_pool_gets_a_warning() {
        let settings = settings(json!([{"name": "team-a", "cidr": "10.2.0.0/16", "reason": "is being deleted"}]));
        let warnings: Vec<String> = settings.warnings().iter().map(ToString::to_string).collect();
        let expected = "services.pools[0].cidrs[1]: ServiceCIDR team-a (10.2.0.0/16) is being deleted: addresses of it \
                        are refused by the API server, and none of them is handed out meanwhile to Services of pool \
                        \"team-a\"";
        assert_eq!(warnings, [expected]);
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        let rows = [
            (json!({"a": 1}), "services.unusableServiceCIDRs: expected a list"),
            (json!([{"name": "a"}]), "services.unusableServiceCIDRs[0].cidr: missing"),
            (json!([{"cidr": "10.0.0.1/24"}]), "services.unusableServiceCIDRs[0].cidr: 10.0.0.1/24 has host bits set"),
            (json!([{"cidr": "10.0.0.0/24", "why": ""}]), "services.unusableServiceCIDRs[0].why: unknown key"),
            (json!([{"cidr": "10.0.0.0/24", "name": 1}]), "services.unusableServiceCIDRs[0].name: expected"),
        ];
        for (unusable, expected) in rows {
            let document = json!({"services": {"unusableServiceCIDRs": unusable}});
            let mistakes = Settings::from_value(&document).unwrap_err().to_string();
            assert!(mistakes.starts_with(expected), "{document}: {mistakes}");
        }
    }
}
