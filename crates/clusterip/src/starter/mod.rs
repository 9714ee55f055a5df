//! Starter settings for a cluster: divides its Service ranges into pools, one for each operating system of its Nodes,
//! and writes them as YAML with comments, which `clusterip init` prints. [`facts`] are read from the cluster.

pub mod facts;

use std::collections::BTreeSet;

use anyhow::anyhow;
use askama::Template;
use clusterip_core::address::{Span, static_band_len};
use clusterip_core::settings::{Match, Pool, Settings};
use clusterip_core::workload::OS_LABEL;
use ipnet::IpNet;

use self::facts::{Os, Ranges};
use crate::announcer_pools::AnnouncerPool;
use crate::text::joined;

/// The settings with these pools, for a cluster whose Nodes have these operating systems.
#[derive(Template)]
#[template(path = "starter.yml")]
struct Document<'a> {
    systems: &'static str,
    ranges: &'a Ranges,
    /// The ranges of the cluster that are in no pool.
    unused: Vec<IpNet>,
    is_k2s: bool,
    pools: &'a [Pool],
    /// The pools of programs that announce external addresses.
    announcers: &'a [AnnouncerPool],
}

pub fn document(
    ranges: &Ranges,
    systems: &BTreeSet<Os>,
    pools: &[Pool],
    announcers: &[AnnouncerPool],
) -> anyhow::Result<String> {
    let is_in_pools = |range: &IpNet| ranges.chosen.iter().any(|chosen| chosen.contains(range));
    let document = Document {
        systems: match systems.len() {
            0 => "one pool for all Services, because no Node has a known operating system",
            1 => "one pool for all Services, because all Nodes have the same operating system",
            _ => "a pool for each operating system of the Nodes",
        },
        ranges,
        unused: ranges.all.iter().copied().filter(|range| !is_in_pools(range)).collect(),
        is_k2s: is_k2s(&ranges.chosen) && pools.len() > 1,
        pools,
        announcers,
    };
    Ok(document.render()?)
}

fn why_reserved(ranges: &Ranges, pool: &Pool) -> String {
    if pool.reserved == THROUGH_DNS {
        "up to the tenth one, which many installers give to the cluster's DNS".to_owned()
    } else if !pool.bands {
        "as in K2s".to_owned()
    } else {
        let band = ranges.chosen.iter().map(|range| static_band_len(*range)).max().unwrap_or_default();
        format!("the static band of the Service range, {band} addresses, with the usual one of the cluster's DNS")
    }
}

/// A list of YAML. A range that begins with a colon, such as `::/64`, is quoted.
fn list(ranges: &[IpNet]) -> String {
    let item = |range: &IpNet| {
        let text = range.to_string();
        if text.starts_with(':') { format!("\"{text}\"") } else { text }
    };
    format!("[{}]", joined(ranges.iter().map(item), ", "))
}

/// The operating system of a pool's Services; `None` for a pool that is for every Service.
fn os(pool: &Pool) -> Option<&String> {
    pool.matches.node_labels.get(OS_LABEL)
}

const K2S: &str = "172.21.0.0/16";
const FEWEST: u128 = 8;
/// The fewest addresses of a Service range of which each half has a static band.
const FEWEST_TO_DIVIDE: u128 = 64;
/// The fewest addresses of a Service range with a tenth address that other Services can do without.
const FEWEST_WITH_DNS: u128 = 16;
/// How many addresses to reserve so that the tenth one is among them, which many installers give to the cluster's DNS.
pub const THROUGH_DNS: u64 = 11;

/// The pools of a cluster with these Service ranges, one of each family, and these operating systems.
///
/// - One operating system: one pool with the whole ranges, for every Service.
/// - Two: the lower half of each range for Linux, because the address of `default/kubernetes` and that of the cluster's
///   DNS are there, and the upper half for Windows.
/// - Two in a cluster with the Service range of K2s: the pools of K2s. The routes of its nodes depend on them.
///
/// The static band of a Service range (KEP-3070) is used last, as in Kubernetes. Where the band of the lower half is
/// smaller than that of the whole range, the latter is reserved.
pub fn pools(ranges: &[IpNet], systems: &BTreeSet<Os>) -> anyhow::Result<Vec<Pool>> {
    let is_divided = systems.len() > 1;
    let (pools, fewest) = if is_divided { ("two pools", FEWEST_TO_DIVIDE) } else { ("one pool", FEWEST) };
    let count = |range: IpNet| Span::from(range).count();
    let too_small = |range: IpNet| {
        let addresses = count(range);
        anyhow!(
            "the Service range {range} has only {addresses} addresses: too few for {pools}; write the pools by hand"
        )
    };
    if let Some(range) = ranges.iter().find(|range| count(**range) < fewest) {
        return Err(too_small(*range));
    }
    if is_divided && is_k2s(ranges) {
        return Ok(Settings::default().pools);
    }
    let pool =
        |name: &str, cidrs, reserved| Pool { name: name.to_owned(), cidrs, reserved, bands: true, ..Pool::default() };
    let (first, second) = if is_divided { halves(ranges) } else { (ranges.to_vec(), Vec::new()) };
    let parts = || ranges.iter().copied().zip(first.iter().copied());
    let reserved = parts().map(|(range, part)| reserved_of(range, part)).max().unwrap_or_default();
    // The broadcast address can't be used either.
    if let Some((range, _)) = parts().find(|(_, part)| count(*part) <= u128::from(reserved) + 2) {
        return Err(too_small(range));
    }
    if !is_divided {
        return Ok(vec![pool("all", first, reserved)]);
    }
    let of = |os: Os, cidrs, reserved| {
        let node_labels = [(OS_LABEL.to_owned(), os.label().to_owned())].into();
        Pool { matches: Match { node_labels, ..Match::default() }, ..pool(os.label(), cidrs, reserved) }
    };
    Ok(vec![of(Os::Linux, first, reserved), of(Os::Windows, second, 0)])
}

/// The lower and the upper halves of ranges. A single address has none.
fn halves(ranges: &[IpNet]) -> (Vec<IpNet>, Vec<IpNet>) {
    let pair = |range: &IpNet| {
        let mut halves = range.subnets(range.prefix_len() + 1).ok()?;
        Some((halves.next()?, halves.next()?))
    };
    ranges.iter().filter_map(pair).unzip()
}

pub fn is_k2s(ranges: &[IpNet]) -> bool {
    matches!(ranges, [range] if range.to_string() == K2S)
}

/// How many addresses at the start of `part`, the first part of a Service range, must be reserved.
fn reserved_of(range: IpNet, part: IpNet) -> u64 {
    let band = static_band_len(range);
    if static_band_len(part) < band {
        // The network address is not a part of the band. A band has at most 256 addresses.
        return u64::try_from(band + 1).unwrap_or(u64::MAX);
    }
    if Span::from(range).count() < FEWEST_WITH_DNS { 0 } else { THROUGH_DNS }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests;
