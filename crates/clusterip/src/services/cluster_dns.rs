//! How long clients may know an old address from DNS, and under which domain Services have names.

use clusterip_moves::seamless::dns;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client};

use super::mover::SeamlessOptions;

/// The namespace and name of the ConfigMap with the configuration of CoreDNS.
pub const CONFIGURATION: (&str, &str) = ("kube-system", "coredns");
/// The grace period if the configuration can't be read, in seconds.
pub const DEFAULT_GRACE_PERIOD: u32 = 60;
/// How much longer the grace period is than the time of the caches, in seconds.
const MARGIN: u32 = 5;
/// The domain if the configuration can't be read.
const DEFAULT_DOMAIN: &str = "cluster.local";

/// The options of seamless moves: those that are given, and otherwise what the configuration of CoreDNS says.
pub async fn options(client: &Client, grace_period: Option<u32>, domain: Option<&str>) -> SeamlessOptions {
    let facts = match (grace_period, domain) {
        (Some(_), Some(_)) => dns::DnsFacts::default(),
        _ => dns::read(&corefile(client).await),
    };
    let from_dns = facts.cached_for.map(|seconds| seconds.saturating_add(MARGIN));
    SeamlessOptions {
        grace_period: grace_period.or(from_dns).unwrap_or(DEFAULT_GRACE_PERIOD),
        cluster_domain: domain.map(str::to_owned).or(facts.domain).unwrap_or_else(|| DEFAULT_DOMAIN.to_owned()),
    }
}

/// The configuration of CoreDNS; empty if it can't be read.
async fn corefile(client: &Client) -> String {
    let (namespace, name) = CONFIGURATION;
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let found = maps.get_opt(name).await.inspect_err(|error| tracing::debug!(%error, "CoreDNS is not known"));
    let data = found.ok().flatten().and_then(|map| map.data);
    data.and_then(|mut data| data.remove("Corefile")).unwrap_or_default()
}
