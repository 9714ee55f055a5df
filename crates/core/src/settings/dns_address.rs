//! Warns of a pool that may hand out the tenth address of the Service range, which kubeadm and others give to DNS.

use std::net::IpAddr;

use ipnet::IpNet;

use super::{Mistake, Pool, Settings};
use crate::address::{Blocks, Family};

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
        struct Row {
            name: &'static str,
            pool: Value,
            service_cidrs: Value,
            expected: Option<&'static str>,
        }
        let pool = |more: Value| {
            let mut pool = json!({"name": "linux", "cidrs": ["10.96.0.0/24"]});
            pool.as_object_mut().unwrap().append(&mut more.as_object().unwrap().clone());
            pool
        };
        let primary = || json!(["10.96.0.0/12"]);
        let dns = Some("10.96.0.10");
        let rows = [
            Row { name: "the tenth address is free", pool: pool(json!({})), service_cidrs: primary(), expected: dns },
            Row {
                name: "the Service ranges are not known",
                pool: pool(json!({})),
                service_cidrs: json!([]),
                expected: None,
            },
            Row { name: "ten reserved", pool: pool(json!({"reserved": 10})), service_cidrs: primary(), expected: dns },
            Row {
                name: "eleven reserved",
                pool: pool(json!({"reserved": 11})),
                service_cidrs: primary(),
                expected: None,
            },
            Row {
                name: "the tenth address is excluded",
                pool: pool(json!({"exclude": ["10.96.0.10"]})),
                service_cidrs: primary(),
                expected: None,
            },
            Row {
                name: "the tenth address is in the static band, which is used last",
                pool: pool(json!({"bands": true})),
                service_cidrs: primary(),
                expected: dns,
            },
            Row {
                name: "the pool begins after the tenth address",
                pool: pool(json!({"cidrs": ["10.96.1.0/24"]})),
                service_cidrs: primary(),
                expected: None,
            },
            Row {
                name: "IPv6",
                pool: pool(json!({"cidrs": ["fd00::/112"]})),
                service_cidrs: json!(["fd00::/108"]),
                expected: Some("fd00::a"),
            },
            Row {
                name: "the tenth address of a secondary range",
                pool: pool(json!({"cidrs": ["10.2.0.0/24"]})),
                service_cidrs: json!(["10.96.0.0/12", "10.2.0.0/16"]),
                expected: None,
            },
            Row {
                name: "a range without a tenth address",
                pool: pool(json!({"cidrs": ["10.96.0.0/29"]})),
                service_cidrs: json!(["10.96.0.0/29"]),
                expected: None,
            },
        ];
        for row in rows {
            let settings = json!({"services": {"pools": [row.pool], "serviceCIDRs": row.service_cidrs}});
            let settings = Settings::from_value(&settings).unwrap();
            let found = settings.pool_with_dns_address().map(|dns| dns.address.to_string());
            assert_eq!(found.as_deref(), row.expected, "{}", row.name);
        }
    }

    #[test]
    fn default_pools_reserve_the_dns_address() {
        let settings = json!({"services": {"serviceCIDRs": ["172.21.0.0/16"]}});
        assert_eq!(Settings::from_value(&settings).unwrap().pool_with_dns_address(), None);
    }
}
