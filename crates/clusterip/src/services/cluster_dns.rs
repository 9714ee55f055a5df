//! How long clients may know an old address from DNS, and under which domain Services have names.

use clusterip_moves::corefile;
use clusterip_moves::journal::SeamlessOptions;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client};

/// The namespace and name of the ConfigMap with the configuration of CoreDNS.
pub const CONFIGURATION: (&str, &str) = ("kube-system", "coredns");
/// The grace period if the configuration can't be read, in seconds.
pub const DEFAULT_GRACE_PERIOD: u32 = 60;
/// The longest grace period in seconds: one day.
pub const MAX_GRACE_PERIOD: u32 = 86_400;
/// How much longer the grace period is than the time of the caches, in seconds.
const MARGIN: u32 = 5;
/// The domain if the configuration can't be read.
const DEFAULT_DOMAIN: &str = "cluster.local";

/// The options of seamless moves: those that are given, and otherwise what the configuration of CoreDNS says.
pub async fn options(client: &Client, grace_period: Option<u32>, domain: Option<&str>) -> SeamlessOptions {
    let facts = match (grace_period, domain) {
        (Some(_), Some(_)) => corefile::DnsFacts::default(),
        _ => corefile::read(&corefile(client).await),
    };
    SeamlessOptions {
        grace_period: grace_period.unwrap_or_else(|| default_grace_period(facts.cached_for)),
        cluster_domain: domain.map(str::to_owned).or(facts.domain).unwrap_or_else(|| DEFAULT_DOMAIN.to_owned()),
    }
}

/// The grace period in seconds if DNS may answer with an old address for this time; `None` if the time is not known.
fn default_grace_period(cached_for: Option<u32>) -> u32 {
    cached_for.map_or(DEFAULT_GRACE_PERIOD, |seconds| seconds.saturating_add(MARGIN).min(MAX_GRACE_PERIOD))
}

/// The configuration of CoreDNS; empty if it can't be read.
async fn corefile(client: &Client) -> String {
    let (namespace, name) = CONFIGURATION;
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let found = maps.get_opt(name).await.inspect_err(|error| tracing::debug!(%error, "CoreDNS is not known"));
    let data = found.ok().flatten().and_then(|map| map.data);
    data.and_then(|mut data| data.remove("Corefile")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_grace_period_is_longer_than_dns_answers_and_never_above_the_maximum() {
        struct Case {
            name: &'static str,
            cached_for: Option<u32>,
            expected: u32,
        }
        let cases = [
            Case { name: "not known", cached_for: None, expected: 60 },
            Case { name: "not cached", cached_for: Some(0), expected: 5 },
            Case { name: "of kubeadm", cached_for: Some(30), expected: 35 },
            Case { name: "the longest TTL", cached_for: Some(3600), expected: 3605 },
            Case { name: "stale for a day", cached_for: Some(86_430), expected: 86_400 },
            Case { name: "no limit", cached_for: Some(u32::MAX), expected: 86_400 },
        ];
        for Case { name, cached_for, expected } in cases {
            assert_eq!(default_grace_period(cached_for), expected, "{name}");
        }
    }
}
