//! The facts behind starter settings: the Service ranges of a cluster, and the operating systems of its Nodes.

use std::collections::BTreeSet;
use std::net::IpAddr;

use anyhow::{anyhow, ensure};
use clap::ValueEnum;
use clusterip_cluster::api_error::failed;
use clusterip_cluster::snapshot::service_ranges::ServiceRanges;
use clusterip_cluster::watch::api_server_lists;
use clusterip_cluster::yaml;
use clusterip_core::address::{Family, overlap};
use clusterip_core::workload::OS_LABEL;
use ipnet::IpNet;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Service};
use kube::api::ListParams;
use kube::{Api, Client};
use serde_json::Value;

use crate::text::joined;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Os {
    /// Linux
    Linux,
    /// Windows
    Windows,
}

impl Os {
    pub fn label(self) -> &'static str {
        match self {
            Self::Linux => "linux",
            Self::Windows => "windows",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ranges {
    /// All ranges of the cluster, the primary first.
    pub all: Vec<IpNet>,
    /// The first usable range of each family.
    pub chosen: Vec<IpNet>,
    /// What the settings say about their origin. It is empty if they are the ServiceCIDRs of the cluster, which
    /// `clusterip serve` reads, too.
    pub origin: &'static str,
}

impl Ranges {
    /// `minor` is the minor version of Kubernetes, if it is known.
    pub fn of(ranges: &ServiceRanges, origin: &'static str, minor: Option<u32>) -> anyhow::Result<Self> {
        let all: Vec<IpNet> = ranges.nets().iter().map(IpNet::trunc).collect();
        let mut chosen: Vec<IpNet> = Vec::new();
        for range in all.iter().map(|range| used_part(*range, minor)) {
            let family = Family::of(range.addr());
            let is_usable = !ranges.unusable.iter().any(|unusable| overlap(unusable.cidr, range));
            if is_usable && !chosen.iter().any(|other| Family::of(other.addr()) == family) {
                chosen.push(range);
            }
        }
        ensure!(
            !chosen.is_empty(),
            "the API server allocates addresses of no Service range at the moment: {}",
            joined(ranges.unusable.iter().map(|range| &range.why), "; ")
        );
        Ok(Self { all, chosen, origin })
    }
}

/// Before Kubernetes 1.34, the API server uses only the first 65,536 addresses of an IPv6 range.
fn used_part(range: IpNet, minor: Option<u32>) -> IpNet {
    const LONGEST: u8 = 112;
    let is_cut = Family::of(range.addr()) == Family::V6 && range.prefix_len() < LONGEST;
    match IpNet::new(range.addr(), LONGEST) {
        Ok(part) if is_cut && minor.is_none_or(|minor| minor < 34) => part.trunc(),
        _ => range,
    }
}

pub async fn ranges(client: &Client) -> anyhow::Result<Ranges> {
    let minor = minor_version(client).await;
    let ranges = api_server_lists::service_ranges(client).await?;
    if !ranges.all.is_empty() {
        return Ranges::of(&ranges, "", minor);
    }
    let config_maps: Api<ConfigMap> = Api::namespaced(client.clone(), "kube-system");
    // Many users may not read it, and most clusters do not have it.
    let kubeadm = config_maps.get_opt("kubeadm-config").await.ok().flatten();
    let subnets = kubeadm.as_ref().map(service_subnets).unwrap_or_default();
    if !subnets.is_empty() {
        return Ranges::of(&subnets.into(), " (from the ConfigMap kube-system/kubeadm-config)", minor);
    }
    let services: Api<Service> = Api::namespaced(client.clone(), "default");
    let kubernetes = services.get_opt("kubernetes").await.ok().flatten();
    let address = kubernetes.and_then(|service| service.spec?.cluster_ip?.parse().ok());
    Err(unknown_ranges(address))
}

fn service_subnets(config: &ConfigMap) -> Vec<String> {
    let text = config.data.as_ref().and_then(|data| data.get("ClusterConfiguration"));
    let document = text.and_then(|text| yaml::single(text).ok()).unwrap_or_default();
    let subnets = document.pointer("/networking/serviceSubnet").and_then(Value::as_str).unwrap_or_default();
    let is_range = |part: &&str| part.parse::<IpNet>().is_ok();
    subnets.split(',').map(str::trim).filter(is_range).map(str::to_owned).collect()
}

/// The address of `default/kubernetes` is the first one of the range.
fn unknown_ranges(kubernetes: Option<IpAddr>) -> anyhow::Error {
    let hint = kubernetes.map(|address| {
        let usual = match address.to_string().as_str() {
            "10.96.0.1" => "; the default of kubeadm is 10.96.0.0/12",
            "10.43.0.1" => "; the default of k3s is 10.43.0.0/16",
            "172.21.0.1" => "; the default of K2s is 172.21.0.0/16",
            _ => "",
        };
        format!(" (default/kubernetes has its first address, {address}{usual})")
    });
    anyhow!(
        "the cluster does not show its Service ranges, which Kubernetes does since 1.33: use --service-cidr, with the \
         value of --service-cluster-ip-range of the API server{}",
        hint.unwrap_or_default()
    )
}

async fn minor_version(client: &Client) -> Option<u32> {
    let version = client.apiserver_version().await.ok()?;
    // Some distributions write `36+`.
    version.minor.trim_end_matches('+').parse().ok()
}

/// The operating systems of the Nodes. Nodes without a known one do not count.
pub async fn systems(client: &Client) -> anyhow::Result<BTreeSet<Os>> {
    let nodes = Api::<Node>::all(client.clone()).list_metadata(&ListParams::default()).await;
    let nodes = nodes.map_err(|error| {
        let failed = failed("Nodes can't be listed", &error);
        let text = format!("{failed}; name the operating systems with --os");
        failed.context(text)
    })?;
    let labels = nodes.items.iter().filter_map(|node| node.metadata.labels.as_ref()?.get(OS_LABEL));
    Ok(labels.filter_map(|os| Os::from_str(os, true).ok()).collect())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use serde_json::json;

    use super::*;

    fn service_cidr(name: &str, cidrs: &[&str], deleted: bool) -> Value {
        let metadata = json!({"name": name, "deletionTimestamp": deleted.then_some("2026-01-02T03:04:05Z")});
        json!({"kind": "ServiceCIDR", "metadata": metadata, "spec": {"cidrs": cidrs}})
    }

    #[test]
    fn first_usable_range_of_each_family_is_chosen() {
        struct Case {
            name: &'static str,
            objects: Vec<Value>,
            minor: Option<u32>,
            chosen: &'static [&'static str],
        }
        let case = |name, objects, minor, chosen| Case { name, objects, minor, chosen };
        let both = || service_cidr("kubernetes", &["10.96.0.0/12", "fd00::/108"], false);
        let deleted = || service_cidr("kubernetes", &["10.96.0.0/12"], true);
        let other = |name| service_cidr(name, &["10.2.0.0/16"], false);
        let reversed = service_cidr("kubernetes", &["fd00::/120", "10.96.0.0/12"], false);
        let cases = [
            case("dual stack", vec![both()], Some(36), &["10.96.0.0/12", "fd00::/108"]),
            case("dual stack before 1.34", vec![both()], Some(33), &["10.96.0.0/12", "fd00::/112"]),
            case("an unknown version", vec![both()], None, &["10.96.0.0/12", "fd00::/112"]),
            case("IPv6 first", vec![reversed], None, &["fd00::/120", "10.96.0.0/12"]),
            case("two ServiceCIDRs", vec![other("a"), both()], Some(36), &["10.96.0.0/12", "fd00::/108"]),
            case("the first is being deleted", vec![deleted(), other("new")], Some(36), &["10.2.0.0/16"]),
        ];
        for Case { name, objects, minor, chosen } in cases {
            let found = Ranges::of(&ServiceRanges::of(objects), "", minor).unwrap().chosen;
            assert_eq!(found.iter().map(ToString::to_string).collect::<Vec<_>>(), chosen, "{name}");
        }
        let Err(error) = Ranges::of(&ServiceRanges::of([deleted()]), "", Some(36)) else { panic!("it is chosen") };
        let expected = "the API server allocates addresses of no Service range at the moment: ServiceCIDR kubernetes \
                        (10.96.0.0/12) is being deleted: addresses of it are refused by the API server";
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn service_subnets_of_kubeadm_are_found() {
        let single =
            "kind: ClusterConfiguration\nnetworking: {dnsDomain: cluster.local, serviceSubnet: 10.96.0.0/12}\n";
        let dual = "networking:\n  serviceSubnet: 10.96.0.0/16, fd00::/112\n";
        for (name, text, expected) in [
            ("single stack", Some(single), &["10.96.0.0/12"][..]),
            ("dual stack", Some(dual), &["10.96.0.0/16", "fd00::/112"]),
            ("no subnet", Some("networking: {}\n"), &[]),
            ("no range", Some("networking: {serviceSubnet: auto}\n"), &[]),
            ("no YAML", Some("["), &[]),
            ("no key", None, &[]),
        ] {
            let data = text.map(|text| [("ClusterConfiguration".to_owned(), text.to_owned())].into());
            assert_eq!(service_subnets(&ConfigMap { data, ..ConfigMap::default() }), expected, "{name}");
        }
    }

    #[test]
    fn error_about_unknown_ranges_shows_what_default_kubernetes_says() {
        let text = |address: &str| unknown_ranges(Some(address.parse().unwrap())).to_string();
        assert!(text("10.96.0.1").ends_with(
            "of the API server (default/kubernetes has its first address, 10.96.0.1; the default of kubeadm is \
             10.96.0.0/12)"
        ));
        assert!(text("10.43.0.1").contains("the default of k3s is 10.43.0.0/16"));
        assert!(text("10.9.0.1").ends_with("(default/kubernetes has its first address, 10.9.0.1)"));
    }
}
