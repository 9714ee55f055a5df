//! Starter settings for a cluster, which `clusterip init` prints as YAML with comments.
//!
//! [`facts`] are read from the cluster, and [`starter_pools`] divides its Service ranges.

pub mod facts;
pub mod starter_pools;

use std::collections::BTreeSet;
use std::fmt::Write as _;

use clusterip_core::address::static_band_len;
use ipnet::IpNet;

use self::facts::{Ranges, RangesOrigin};
use self::starter_pools::{Os, StarterPool, THROUGH_DNS, is_k2s};
use crate::text::joined;

/// The settings with these pools, for a cluster whose Nodes have these operating systems.
pub fn document(ranges: &Ranges, systems: &BTreeSet<Os>, pools: &[StarterPool]) -> String {
    let mut text = head(ranges, systems, pools);
    for pool in pools {
        text.push_str(&of_pool(ranges, pool));
    }
    text.push_str(
        "  # Services of these namespaces keep their addresses. Name the namespace of clusterip here, too: the API\n  \
         # server does not call the webhook for it.\n  \
         exemptNamespaces: [kube-system, clusterip-policy]\n",
    );
    let list = list(&ranges.all);
    text.push_str(&match ranges.origin {
        RangesOrigin::ServiceCidrs => format!(
            "  # The Service ranges of the cluster. Kubewarden can't read them: remove the # there.\n  \
             # serviceCIDRs: {list}\n"
        ),
        RangesOrigin::Kubeadm | RangesOrigin::User => {
            format!("  # The Service ranges of the cluster, the primary one first.\n  serviceCIDRs: {list}\n")
        }
    });
    text
}

fn head(ranges: &Ranges, systems: &BTreeSet<Os>, pools: &[StarterPool]) -> String {
    let systems = match systems.len() {
        0 => "one pool for all Services, because no Node has a known operating system",
        1 => "one pool for all Services, because all Nodes have the same operating system",
        _ => "a pool for each operating system of the Nodes",
    };
    let known = match ranges.origin {
        RangesOrigin::ServiceCidrs => "",
        RangesOrigin::Kubeadm => " (from the ConfigMap kube-system/kubeadm-config)",
        RangesOrigin::User => " (as given with --service-cidr)",
    };
    let mut text = format!(
        "# Starter settings of clusterip: {systems}.\n# Service ranges of the cluster: {}{known}\n",
        joined(&ranges.all, ", ")
    );
    let unused: Vec<IpNet> = ranges.all.iter().copied().filter(|range| !covers(&ranges.chosen, *range)).collect();
    if !unused.is_empty() {
        let _ = writeln!(
            text,
            "# Not in a pool, except the first 65,536 addresses of a large range: {}",
            joined(&unused, ", ")
        );
    }
    if is_k2s(&ranges.chosen) && pools.len() > 1 {
        text.push_str("# These are the pools of the K2s distribution: the routes of its nodes depend on them.\n");
    }
    text.push_str(
        "# `clusterip validate --cluster FILE` checks these settings, and `clusterip audit --settings FILE`\n\
         # shows which Services would be misplaced.\n\
         services:\n  \
         # The first pool whose `match` fits serves a Service. A `match` may also name namespaces and labels.\n  \
         pools:\n",
    );
    text
}

fn of_pool(ranges: &Ranges, pool: &StarterPool) -> String {
    let StarterPool { name, os, cidrs, reserved, bands } = pool;
    let mut text = format!("  - name: {name}\n    cidrs: {}\n", list(cidrs));
    if *reserved > 0 {
        let why = if *reserved == THROUGH_DNS {
            "up to the tenth one, which many installers give to the cluster's DNS".to_owned()
        } else if !bands {
            "as in K2s".to_owned()
        } else {
            let band = ranges.chosen.iter().map(|range| static_band_len(*range)).max().unwrap_or_default();
            format!("the static band of the Service range, {band} addresses, with the usual one of the cluster's DNS")
        };
        let _ = write!(
            text,
            "    # The first {reserved} addresses of each range are kept for addresses set by hand:\n    # {why}.\n    \
             reserved: {reserved}\n"
        );
    }
    if *bands {
        text.push_str("    # Like Kubernetes, use the static band of each range (KEP-3070) last.\n    bands: true\n");
    }
    if let Some(os) = os {
        let _ = writeln!(text, "    match: {{os: {}}}", os.label());
    }
    text
}

/// Whether one of these ranges contains the whole of `range`.
fn covers(ranges: &[IpNet], range: IpNet) -> bool {
    ranges.iter().any(|other| other.contains(&range))
}

/// A list of YAML. A range that begins with a colon, such as `::/64`, is quoted.
fn list(ranges: &[IpNet]) -> String {
    let item = |range: &IpNet| {
        let text = range.to_string();
        if text.starts_with(':') { format!("\"{text}\"") } else { text }
    };
    format!("[{}]", joined(ranges.iter().map(item), ", "))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests;
