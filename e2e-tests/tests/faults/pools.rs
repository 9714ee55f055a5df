//! The settings of the load: its pools before and after a change.

use std::net::IpAddr;

use super::load::Planned;

pub const WINDOWS: &str = "172.21.16.0/20";
const LINUX: &str = "172.21.32.0/20";

/// The Windows pool after it was shrunk, and a pool that was added for some of the other Services.
pub const SHRUNK: &str = "172.21.16.0/24";
pub const ADDED: &str = "172.21.48.0/20";

pub fn settings(windows: &str, more: &str) -> String {
    format!(
        "{{services: {{pools: [{{name: windows, cidrs: [{windows}], match: {{os: windows}}}}, {more}\
         {{name: linux, cidrs: [{LINUX}], match: {{os: linux}}}}]}}}}"
    )
}

/// The pools in use.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Pools {
    First,
    /// One pool was added, and one was shrunk.
    Changed,
}

impl Pools {
    pub fn of(self, address: IpAddr) -> &'static str {
        let within = |range: &str| range.parse::<ipnet::IpNet>().unwrap().contains(&address);
        let ranges: &[(&str, &str)] = match self {
            Self::First => &[(WINDOWS, "windows"), (LINUX, "linux")],
            Self::Changed => &[(SHRUNK, "windows"), (ADDED, "added"), (LINUX, "linux")],
        };
        ranges.iter().find(|(range, _)| within(range)).map_or("no pool", |(_, pool)| pool)
    }

    pub fn wanted(self, planned: &Planned) -> &'static str {
        match (self, planned.os, planned.replica) {
            (Self::Changed, "linux", 2) => "added",
            _ => planned.os,
        }
    }
}
