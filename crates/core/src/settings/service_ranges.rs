//! What the pools of Services must not use of the Service ranges: the ranges from which the API server allocates no
//! addresses at the moment, and the tenth address, which kubeadm and others give to DNS.
//!
//! The API server refuses every address of a ServiceCIDR that is being deleted or is not ready. The pools keep such a
//! range, so that the settings stay valid, and hand out addresses of their other ranges.

use std::net::IpAddr;

use ipnet::IpNet;

use super::reader::Reader;
use super::{Mistake, Pool, Settings};
use crate::address::{Blocks, Family, overlap};
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

const TENTH: u128 = 10;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnsAddress {
    pub pool_index: usize,
    pub pool: String,
    pub address: IpAddr,
    pub service_cidr: IpNet,
}

impl From<&DnsAddress> for Mistake {
    fn from(dns: &DnsAddress) -> Self {
        let reason = format!("{}; {}", dns.problem(), DnsAddress::REMEDY);
        Self { path: format!("services.pools[{}]", dns.pool_index), reason }
    }
}

impl DnsAddress {
    /// What the user can do about the problem.
    pub const REMEDY: &str = "exclude it from the pool, or reserve it";

    /// What is wrong, without its place in the settings and without the remedy.
    pub fn problem(&self) -> String {
        let Self { pool, address, service_cidr, .. } = self;
        format!(
            "pool {pool:?} may hand out {address}, the tenth address of the Service range {service_cidr}: many installers \
             give it to the cluster's DNS"
        )
    }
}

impl Settings {
    /// As [`Self::pool_with_dns_address`]; `None` also if the address is in use already, as `is_used` tells.
    pub fn unused_dns_address(&self, is_used: impl FnOnce(IpAddr) -> bool) -> Option<DnsAddress> {
        self.pool_with_dns_address().filter(|dns| !is_used(dns.address))
    }

    /// The first pool that may hand out the tenth address of the primary Service range; `None` if there is none. An
    /// address that is already in use is not handed out, but this is not known here.
    pub fn pool_with_dns_address(&self) -> Option<DnsAddress> {
        let service_cidr = *self.service_cidrs.first()?;
        let address = Blocks::addresses(service_cidr).address(TENTH)?;
        let may = |(_, pool): &(usize, &Pool)| self.candidates(pool, Family::of(address)).contains(address);
        let (pool_index, pool) = self.pools.iter().enumerate().find(may)?;
        Some(DnsAddress { pool_index, pool: pool.name.clone(), address, service_cidr })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn pool_with_the_tenth_address_is_found() {
        let (v4, primary) = (json!(["10.96.0.0/24"]), json!(["10.96.0.0/12"]));
        let dns = Some("10.96.0.10");
        for (pool, service_cidrs, expected) in [
            (json!({"cidrs": v4}), &primary, dns),
            (json!({"cidrs": v4}), &json!([]), None),
            (json!({"cidrs": v4, "reserved": 10}), &primary, dns),
            (json!({"cidrs": v4, "reserved": 11}), &primary, None),
            (json!({"cidrs": v4, "exclude": ["10.96.0.10"]}), &primary, None),
            // It is in the static band, which is used last.
            (json!({"cidrs": v4, "bands": true}), &primary, dns),
            (json!({"cidrs": ["10.96.1.0/24"]}), &primary, None),
            (json!({"cidrs": ["fd00::/112"]}), &json!(["fd00::/108"]), Some("fd00::a")),
            // A secondary range, and one without a tenth address.
            (json!({"cidrs": ["10.2.0.0/24"]}), &json!(["10.96.0.0/12", "10.2.0.0/16"]), None),
            (json!({"cidrs": ["10.96.0.0/29"]}), &json!(["10.96.0.0/29"]), None),
        ] {
            let mut settings = json!({"services": {"pools": [pool], "serviceCIDRs": service_cidrs}});
            settings["services"]["pools"][0]["name"] = "linux".into();
            let settings = Settings::from_value(&settings).unwrap();
            let found = settings.pool_with_dns_address().map(|dns| dns.address.to_string());
            assert_eq!(found.as_deref(), expected, "{pool}, {service_cidrs}");
        }
        let settings = json!({"services": {"pools": [{"name": "linux", "cidrs": v4}], "serviceCIDRs": primary}});
        let dns = Settings::from_value(&settings).unwrap().pool_with_dns_address().unwrap();
        let expected = "services.pools[0]: pool \"linux\" may hand out 10.96.0.10, the tenth address of the Service range \
                        10.96.0.0/12: many installers give it to the cluster's DNS; exclude it from the pool, or reserve it";
        assert_eq!(Mistake::from(&dns).to_string(), expected);
    }

    #[test]
    fn default_pools_reserve_the_dns_address() {
        let settings = json!({"services": {"serviceCIDRs": ["172.21.0.0/16"]}});
        assert_eq!(Settings::from_value(&settings).unwrap().pool_with_dns_address(), None);
    }

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
        let both = "kubernetes is not ready; ServiceCIDR team-a (10.2.0.0/16) is being deleted";
        for (unusable, candidates, words) in [
            (json!({}), 490, ""),
            (json!(null), 490, ""),
            (json!({"10.2.0.0/16": DELETED}), 245, DELETED),
            (json!({"10.2.0.128/25": "b is not ready"}), 245 + 118, "b is not ready"),
            // In no range of the pool.
            (json!({"10.3.0.0/16": DELETED}), 490, ""),
            (json!({"fd00::/108": DELETED}), 490, ""),
            (json!({"10.0.0.0/16": "kubernetes is not ready", "10.2.0.0/16": DELETED}), 0, both),
        ] {
            let settings = settings(unusable.clone());
            let pool = &settings.pools[0];
            assert_eq!(settings.candidates(pool, Family::V4).count(), candidates, "{unusable}");
            assert_eq!(settings.unusable_ranges_of(pool, Family::V4), words, "{unusable}");
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
