//! What is observed of a cluster that is renumbered.

use std::collections::BTreeMap;
use std::fmt;

use ipnet::IpNet;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// The ServiceCIDRs, by their names.
    pub service_cidrs: BTreeMap<String, ServiceCidr>,
    /// The reports of API servers whose flag differs from the present default ServiceCIDR.
    pub other_flags: Names,
    /// The Pods of API servers whose flag is not the new one.
    pub old_flags: Vec<String>,
    /// The API servers whose certificates do not name the new address of `default/kubernetes`.
    pub old_certificates: Vec<String>,
    /// Whether a pool has addresses of the old, and of the new ranges.
    pub has_old_pools: bool,
    pub has_new_pools: bool,
    /// The state of each swap, in the order of the record.
    pub swaps: Vec<SwapState>,
    pub has_trigger: bool,
    /// The Services that have addresses of the old and of the new ranges, without those of swaps.
    pub left_old: Names,
    pub left_new: Names,
    /// What still uses the old addresses.
    pub users_of_old: Vec<String>,
    /// Whether this run of the command has moved the Services, and has replaced the default ServiceCIDR.
    pub has_moved: bool,
    pub has_replaced_default: bool,
}

/// The first few texts about objects, and how many others there are: users can make any number of objects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names {
    first: Vec<String>,
    more: usize,
}

impl Names {
    /// How many texts are kept for a message.
    pub const MOST: usize = 20;

    pub fn add(&mut self, text: String) {
        if self.first.len() < Self::MOST { self.first.push(text) } else { self.more += 1 }
    }

    pub fn is_empty(&self) -> bool {
        self.first.is_empty()
    }

    pub fn first(&self) -> Option<&String> {
        self.first.first()
    }

    /// The texts that are kept, and one about the others.
    pub fn texts(&self) -> Vec<String> {
        let more = (self.more > 0).then(|| format!("and {} more", self.more));
        self.first.iter().cloned().chain(more).collect()
    }
}

impl FromIterator<String> for Names {
    fn from_iter<T: IntoIterator<Item = String>>(texts: T) -> Self {
        let mut names = Self::default();
        texts.into_iter().for_each(|text| names.add(text));
        names
    }
}

impl fmt::Display for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.texts().join(", "))
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceCidr {
    pub cidrs: Vec<IpNet>,
    pub is_being_deleted: bool,
    /// Whether every API server has had the time to compare it with its flag.
    pub is_settled: bool,
}

/// Which addresses the Service of a swap, or one of its aliases, holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Held {
    #[default]
    Absent,
    Old,
    New,
    /// None of those that change. The name of the Service points to an alias, or to the first address if that stays.
    Released,
    /// Other addresses, or another client has created a Service with the name of the alias.
    Other,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SwapState {
    pub service: Held,
    pub old_alias: Held,
    pub new_alias: Held,
    /// Whether the control plane lists the endpoints of the aliases. Otherwise they are copied.
    pub has_selector: bool,
    /// Whether the copied EndpointSlices of the aliases equal those of the Service.
    pub has_equal_copies: bool,
    pub has_copies: bool,
    /// Whether the control plane lists ready endpoints of the alias with the old addresses, if the copies have any.
    pub has_own_endpoints: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_names_are_kept_and_the_others_counted() {
        let text = |count: usize| (1..=count).map(|nth| nth.to_string()).collect::<Names>().to_string();
        let twenty = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20";
        let cases = [
            (0, String::new()),
            (2, "1, 2".to_owned()),
            (20, twenty.to_owned()),
            (1000, format!("{twenty}, and 980 more")),
        ];
        for (count, expected) in cases {
            assert_eq!(text(count), expected, "{count}");
        }
    }
}
