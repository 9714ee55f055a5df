//! The pools of the programs that announce external addresses: IPAddressPools of MetalLB, CiliumLoadBalancerIPPools of
//! Cilium, and the ConfigMap of kube-vip-cloud-provider. `clusterip audit` compares them with the pools of the
//! settings, and `clusterip init` finds out which of these programs a cluster has.

use std::net::IpAddr;

use clusterip_cluster::api_error::error_message;
use clusterip_cluster::kinds::{self, Kind};
use clusterip_core::address::{Family, Span};
use clusterip_core::external::Announcer;
use clusterip_core::field_mask::Mask;
use clusterip_core::settings::{self, ExternalSettings};
use ipnet::IpNet;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DynamicObject, ListParams};
use kube::{Api, Client};
use serde_json::{Value, json, to_value};

use crate::audit::model::{Finding, Kind as FindingKind};
use crate::text::joined;

/// A pool of a program that announces external addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnnouncerPool {
    pub announcer: Announcer,
    /// Its kind and name, such as `IPAddressPool metallb-system/lan`.
    pub object: String,
    pub ranges: Vec<Span>,
    /// Whether the program chooses addresses of the pool itself.
    assigns: bool,
}

/// The kinds, and for each program the newest version first.
const KINDS: [(Announcer, &str, &str); 3] = [
    (Announcer::MetalLb, "metallb.io/v1beta1", "IPAddressPool"),
    (Announcer::Cilium, "cilium.io/v2", "CiliumLoadBalancerIPPool"),
    (Announcer::Cilium, "cilium.io/v2alpha1", "CiliumLoadBalancerIPPool"),
];

impl AnnouncerPool {
    /// `None` if the object is no such pool.
    pub fn read(object: &Value) -> Option<Self> {
        let text = |path: &str| object.pointer(path).and_then(Value::as_str);
        let (version, kind) = (text("/apiVersion")?, text("/kind")?);
        let announcer = match KINDS.iter().find(|known| (known.1, known.2) == (version, kind)) {
            Some((announcer, ..)) => *announcer,
            None if (version, kind, text("/metadata/namespace"), text("/metadata/name"))
                == ("v1", "ConfigMap", Some("kube-system"), Some("kubevip")) =>
            {
                Announcer::KubeVip
            }
            None => return None,
        };
        let list = |path: &str| object.pointer(path).and_then(Value::as_array).into_iter().flatten();
        let texts = |path: &str| list(path).filter_map(Value::as_str).filter_map(parse_span).collect();
        let flag = |path: &str| object.pointer(path).and_then(Value::as_bool);
        let (ranges, assigns) = match announcer {
            Announcer::MetalLb => (texts("/spec/addresses"), flag("/spec/autoAssign") != Some(false)),
            Announcer::Cilium => {
                let block = |block: &Value| {
                    let text = |key: &str| block.get(key).and_then(Value::as_str);
                    let (start, stop) = (text("start").unwrap_or_default(), text("stop").or(text("start")));
                    text("cidr")
                        .map_or_else(|| parse_span(&format!("{start}-{}", stop.unwrap_or_default())), parse_span)
                };
                (list("/spec/blocks").filter_map(block).collect(), flag("/spec/disabled") != Some(true))
            }
            _ => {
                let data = object.get("data").and_then(Value::as_object).into_iter().flatten();
                let ranges = data.filter(|(key, _)| key.starts_with("cidr-") || key.starts_with("range-"));
                let texts = ranges.filter_map(|(_, text)| text.as_str()).flat_map(|text| text.split(','));
                (texts.filter_map(parse_span).collect(), true)
            }
        };
        let place = text("/metadata/namespace").map(|namespace| format!("{namespace}/")).unwrap_or_default();
        let name = text("/metadata/name").unwrap_or_default();
        Some(Self { announcer, object: format!("{kind} {place}{name}"), ranges, assigns })
    }
}

/// Parses a CIDR, an address, or the first and the last address.
pub fn parse_span(text: &str) -> Option<Span> {
    let address = |text: &str| text.trim().parse::<IpAddr>().ok();
    match text.split_once('-') {
        Some((first, last)) => Span::new(address(first)?, address(last)?),
        None => {
            text.trim().parse::<IpNet>().ok().or_else(|| address(text).map(IpNet::from)).map(|it| it.trunc().into())
        }
    }
}

/// The objects of the cluster that are such pools, with the fields that are read, and their kinds. The ConfigMap of
/// kube-vip-cloud-provider is among them if it can be read: most clusters have none, and many users may not read it.
pub async fn objects(client: &Client) -> Result<(Vec<Kind>, Vec<Value>), String> {
    let (mut found, mut objects): (Vec<Kind>, Vec<Value>) = Default::default();
    let fields = Mask::new(["apiVersion", "kind", "metadata.name", "metadata.namespace", "spec"]);
    for (_, version, kind) in KINDS {
        // Both versions have the same objects.
        if found.iter().any(|(_, other)| other == kind) {
            continue;
        }
        let kind = (version.to_owned(), kind.to_owned());
        let failed = |error: kube::Error| format!("{}s can't be listed: {}", kind.1, error_message(&error));
        let Some(resource) = kinds::discovered(client, &kind).await.map_err(failed)? else { continue };
        let pools: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
        for pool in pools.list(&ListParams::default()).await.map_err(failed)? {
            let mut object = to_value(&pool).unwrap_or_default();
            (object["apiVersion"], object["kind"]) = (json!(kind.0), json!(kind.1));
            fields.prune(&mut object);
            objects.push(object);
        }
        found.push(kind);
    }
    let config_maps: Api<ConfigMap> = Api::namespaced(client.clone(), "kube-system");
    if let Ok(Some(map)) = config_maps.get_opt("kubevip").await {
        let metadata = json!({"namespace": "kube-system", "name": "kubevip"});
        objects.push(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": map.data}));
    }
    Ok((found, objects))
}

/// What is wrong between the pools of the settings and those of the programs that announce addresses.
pub fn findings(settings: &ExternalSettings, others: &[AnnouncerPool]) -> Vec<Finding> {
    settings.pools.iter().flat_map(|pool| of_pool(pool, others)).collect()
}

fn of_pool(pool: &settings::ExternalPool, others: &[AnnouncerPool]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let (name, announcer) = (&pool.name, pool.announcer.name());
    let mut found =
        |message, remedy: &str| findings.push(Finding::of_pool(FindingKind::AnnouncerPool, name, message, remedy));
    let own: Vec<&AnnouncerPool> = others.iter().filter(|other| other.announcer == pool.announcer).collect();
    if matches!(pool.announcer, Announcer::MetalLb | Announcer::Cilium) {
        let mut lacking = pool.clone();
        lacking.exclude.extend(own.iter().flat_map(|other| &other.ranges));
        let first = |family| {
            let bands = lacking.candidates(family).bands;
            bands.iter().find_map(|band| band.address(0))
        };
        if let Some(address) = [Family::V4, Family::V6].into_iter().find_map(first) {
            let objects = joined(own.iter().map(|other| &other.object), ", ");
            let among = if objects.is_empty() { "it has none".to_owned() } else { objects };
            let message =
                format!("external pool {name}: {address} is in no pool of {announcer}, its announcer: {among}");
            let remedy = "add the addresses to a pool of the announcer: it refuses Services with other addresses";
            found(message, remedy);
        }
    }
    for other in
        others.iter().filter(|other| other.ranges.iter().any(|range| pool.ranges.iter().any(|own| own.meets(range))))
    {
        let AnnouncerPool { announcer, object, ranges, assigns } = other;
        let shared = joined(ranges, ", ");
        if *announcer != pool.announcer {
            let own = pool.announcer.name();
            let message =
                format!("external pool {name}: {object} ({shared}) has addresses of it, but its announcer is {own}");
            found(message, "remove the addresses from one of the pools: two programs would announce them");
        } else if *assigns {
            let message = format!(
                "external pool {name}: {} also chooses addresses of it, from {object} ({shared})",
                announcer.name()
            );
            found(
                message,
                match announcer {
                    Announcer::MetalLb => "set autoAssign: false in the IPAddressPool",
                    Announcer::KubeVip => "do not run kube-vip-cloud-provider for Services of the pool",
                    _ => {
                        "let its serviceSelector select only the namespaces of the pool, by the label \
                     io.kubernetes.service.namespace: Cilium assigns to each Service that it selects"
                    }
                },
            );
        }
    }
    findings
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use clusterip_core::settings::Settings;

    use super::*;

    fn metallb(addresses: &[&str], more: Value) -> Value {
        let mut pool = json!({
            "apiVersion": "metallb.io/v1beta1", "kind": "IPAddressPool",
            "metadata": {"namespace": "metallb-system", "name": "lan"}, "spec": {"addresses": addresses},
        });
        json_patch::merge(&mut pool["spec"], &more);
        pool
    }

    fn cilium(blocks: Value) -> Value {
        json!({
            "apiVersion": "cilium.io/v2", "kind": "CiliumLoadBalancerIPPool", "metadata": {"name": "lan"},
            "spec": {"blocks": blocks},
        })
    }

    #[test]
    fn pools_of_the_announcer_are_compared_with_those_of_the_settings() {
        let by_hand = || json!({"autoAssign": false});
        let kube_vip = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": "kube-system", "name": "kubevip"},
            "data": {"range-global": "10.0.9.10-10.0.9.40", "interface-global": "eth0"},
        });
        let lacks = |address: &str, announcer: &str, among: &str| {
            format!("external pool lan: {address} is in no pool of {announcer}, its announcer: {among}")
        };
        let of_metallb = "IPAddressPool metallb-system/lan";
        for (name, announcer, others, expected) in [
            ("the same range", "metallb", vec![metallb(&["10.0.9.8/30", "10.0.9.12 - 10.0.9.40"], by_hand())], vec![]),
            ("no pool", "metallb", vec![], vec![lacks("10.0.9.10", "metallb", "it has none")]),
            (
                "a smaller range",
                "metallb",
                vec![metallb(&["10.0.9.10-10.0.9.39"], by_hand())],
                vec![lacks("10.0.9.40", "metallb", of_metallb)],
            ),
            (
                "it assigns itself",
                "metallb",
                vec![metallb(&["10.0.9.0/24"], json!({}))],
                vec![format!(
                    "external pool lan: metallb also chooses addresses of it, from {of_metallb} (10.0.9.0/24)"
                )],
            ),
            (
                "Cilium assigns always",
                "cilium",
                vec![cilium(
                    json!([{"cidr": "10.0.9.0/27"}, {"start": "10.0.9.32", "stop": "10.0.9.40"}, {"start": "10.0.8.1"}]),
                )],
                vec![
                    "external pool lan: cilium also chooses addresses of it, from CiliumLoadBalancerIPPool lan \
                     (10.0.9.0/27, 10.0.9.32-10.0.9.40, 10.0.8.1)"
                        .to_owned(),
                ],
            ),
            (
                "kube-vip-cloud-provider",
                "kube-vip",
                vec![kube_vip],
                vec![
                    "external pool lan: kube-vip also chooses addresses of it, from ConfigMap kube-system/kubevip \
                     (10.0.9.10-10.0.9.40)"
                        .to_owned(),
                ],
            ),
            ("kube-vip needs no pool", "kube-vip", vec![], vec![]),
            (
                "of another program",
                "agents",
                vec![metallb(&["10.0.9.40-10.0.9.50"], by_hand())],
                vec![format!(
                    "external pool lan: {of_metallb} (10.0.9.40-10.0.9.50) has addresses of it, but its announcer is agents"
                )],
            ),
            ("elsewhere", "agents", vec![metallb(&["10.0.8.0/24"], json!({}))], vec![]),
        ] {
            let document = json!({"external": {"pools": [
                {"name": "lan", "cidrs": ["10.0.9.10-10.0.9.40"], "exclude": ["10.0.9.20"], "announcer": announcer},
            ]}});
            let settings = Settings::from_value(&document).unwrap().external;
            let others: Vec<AnnouncerPool> = others.iter().map(|other| AnnouncerPool::read(other).unwrap()).collect();
            let found: Vec<String> = findings(&settings, &others).into_iter().map(|finding| finding.message).collect();
            assert_eq!(found, expected, "{name}");
        }
    }
}
