//! What the configuration of CoreDNS says: how long clients may know an old address, and the domain of the cluster.
//!
//! The plugins `kubernetes` and `cache` decide this. The plugin `cache` keeps an answer for its TTL, at most for the
//! time that is set, and at least for a minimum. With `serve_stale`, it still answers with an expired entry, and only
//! then refreshes the entry. With `serve_stale … verify`, it first asks the plugin `kubernetes`, which knows the new
//! address.
//!
//! # Caveats
//! - Files that the configuration imports are not read, and environment variables are not replaced.

use clusterip_moves::journal::SeamlessOptions;
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client};

pub const CONFIGURATION: (&str, &str) = ("kube-system", "coredns");
/// The grace period if the configuration can't be read, in seconds.
pub const DEFAULT_GRACE_PERIOD: u32 = 60;
/// The longest grace period in seconds: one day.
pub const MAX_GRACE_PERIOD: u32 = 86_400;
/// How much longer the grace period is than the time of the caches, in seconds.
const MARGIN: u32 = 5;
const DEFAULT_DOMAIN: &str = "cluster.local";
/// The TTL of the plugin `kubernetes` without a setting, in seconds.
const DEFAULT_TTL: u32 = 5;
/// For how long `serve_stale` answers with an expired entry without a setting, in seconds.
const DEFAULT_STALE: u32 = 3600;

#[derive(Debug, Default, PartialEq, Eq)]
struct DnsFacts {
    domain: Option<String>,
    /// For how many seconds DNS may still answer with an address that a Service had.
    cached_for: Option<u32>,
}

/// The options of seamless moves: those that are given, and otherwise what the configuration of CoreDNS says.
pub async fn options(client: &Client, grace_period: Option<u32>, domain: Option<&str>) -> SeamlessOptions {
    let facts = match (grace_period, domain) {
        (Some(_), Some(_)) => DnsFacts::default(),
        _ => read(&corefile(client).await),
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

/// Reads a Corefile: the first server block with the plugin `kubernetes`.
fn read(corefile: &str) -> DnsFacts {
    server_blocks(corefile).iter().find_map(|block| facts(block)).unwrap_or_default()
}

struct Plugin<'c> {
    name: &'c str,
    arguments: Vec<&'c str>,
    /// The lines of its own block, as words.
    properties: Vec<Vec<&'c str>>,
}

impl<'c> Plugin<'c> {
    /// The words after the name of each property with this name.
    fn properties(&self, name: &str) -> impl Iterator<Item = &[&'c str]> {
        let named = self.properties.iter().filter_map(|words| words.split_first());
        named.filter(move |(first, _)| **first == name).map(|(_, rest)| rest)
    }

    fn property(&self, name: &str) -> Option<&[&'c str]> {
        self.properties(name).next()
    }
}

fn server_blocks(corefile: &str) -> Vec<Vec<Plugin<'_>>> {
    let mut blocks: Vec<Vec<Plugin<'_>>> = Vec::new();
    let mut depth = 0_usize;
    for line in corefile.lines() {
        let mut words: Vec<&str> = line.split('#').next().unwrap_or_default().split_whitespace().collect();
        let Some(first) = words.first().copied() else { continue };
        if first == "}" {
            depth = depth.saturating_sub(1);
            continue;
        }
        let opens = words.last() == Some(&"{");
        if opens && words.len() > 1 {
            words.pop();
        }
        if depth == 0 {
            blocks.push(Vec::new());
        } else if let Some(block) = blocks.last_mut() {
            if depth == 1 {
                block.push(Plugin { name: first, arguments: words.split_off(1), properties: Vec::new() });
            } else if depth == 2
                && let Some(plugin) = block.last_mut()
            {
                plugin.properties.push(words);
            }
        }
        depth += usize::from(opens);
    }
    blocks
}

/// What a server block says; `None` if it does not answer for a cluster.
fn facts(block: &[Plugin<'_>]) -> Option<DnsFacts> {
    let plugin = |name: &str| block.iter().find(|plugin| plugin.name == name);
    let kubernetes = plugin("kubernetes")?;
    let mut zones = kubernetes.arguments.iter().map(|zone| zone.trim_end_matches('.'));
    let domain = zones.find(|zone| !zone.ends_with(".arpa"));
    let ttl = kubernetes.property("ttl").and_then(|words| seconds(words.first()?)).unwrap_or(DEFAULT_TTL);
    let cache = plugin("cache").filter(|cache| domain.is_none_or(|domain| keeps(cache, domain)));
    let cached_for = cache.map_or(ttl, |cache| cache_time(cache, ttl));
    Some(DnsFacts { domain: domain.map(str::to_owned), cached_for: Some(cached_for) })
}

/// Whether a plugin `cache` keeps answers about Services of this domain.
fn keeps(cache: &Plugin<'_>, domain: &str) -> bool {
    let covers = |zones: &[&str]| zones.is_empty() || zones.iter().any(|zone| is_in_zone(domain, zone));
    let zones = match cache.arguments.split_first() {
        Some((first, rest)) if seconds(first).is_some() => rest,
        _ => &cache.arguments[..],
    };
    let mut disabled = cache.properties("disable").filter_map(|words| words.split_first());
    let is_disabled = disabled.any(|(kind, zones)| *kind == "success" && covers(zones));
    covers(zones) && !is_disabled
}

fn is_in_zone(domain: &str, zone: &str) -> bool {
    let zone = zone.trim_end_matches('.');
    let rest = domain.strip_suffix(zone);
    rest.is_some_and(|rest| zone.is_empty() || rest.is_empty() || rest.ends_with('.'))
}

/// For how long the answers of this cache may contain an old address. An entry expires with its TTL, so a longer
/// maximum is a cautious bound.
fn cache_time(cache: &Plugin<'_>, ttl: u32) -> u32 {
    let success = cache.property("success").unwrap_or_default();
    let number = |word: Option<&&str>| word.and_then(|word| seconds(word)).unwrap_or_default();
    let maximum = number(cache.arguments.first()).max(number(success.get(1)));
    let minimum = number(success.get(2));
    let stale = match cache.property("serve_stale") {
        None | Some([_, "verify", ..]) => 0,
        Some(words) => words.first().and_then(|word| duration(word)).unwrap_or(DEFAULT_STALE),
    };
    ttl.max(maximum).max(minimum).saturating_add(stale)
}

fn seconds(word: &str) -> Option<u32> {
    word.parse().ok()
}

/// The seconds of a duration such as `1h30m`, rounded up.
fn duration(text: &str) -> Option<u32> {
    let duration: SignedDuration = text.parse().ok()?;
    u32::try_from(duration.as_secs() + i64::from(duration.subsec_nanos() > 0)).ok()
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

    #[test]
    fn domain_and_time_are_those_of_the_corefile() {
        struct Case {
            name: &'static str,
            corefile: String,
            domain: Option<&'static str>,
            cached_for: Option<u32>,
        }
        let case =
            |name, corefile: &str, domain, cached_for| Case { name, corefile: corefile.to_owned(), domain, cached_for };
        // A Corefile with one block.
        let block = |name, plugins: &str, domain, cached_for| {
            case(name, &format!(".:53 {{\n{plugins}\n}}"), domain, cached_for)
        };
        let usual = "    errors\n    kubernetes cluster.local in-addr.arpa ip6.arpa {\n        pods insecure\n        ttl 30\n    \
                     }\n    cache 30 {\n        disable success cluster.local\n    }\n    loop";
        let two = "example.org {\n cache 900\n}\n.:53 {\n kubernetes cluster.local\n}\n";
        let successful = " kubernetes cluster.local\n cache {\n  success 9984 90 300\n  denial 9984 900\n }";
        let other_zone = " kubernetes cluster.local\n cache 900 example.org uster.local";
        let without_ttl = " kubernetes in-addr.arpa example.org. {\n }\n cache 120 # long";
        let without_maximum = " cache\n kubernetes cluster.local {\n  ttl 60\n }";
        let local = Some("cluster.local");
        let cases = [
            block("of kubeadm", usual, local, Some(30)),
            block("a longer cache, and no TTL", without_ttl, Some("example.org"), Some(120)),
            block("no block, no cache", " kubernetes cluster.local\n ttl 900", local, Some(5)),
            block("a cache without a maximum", without_maximum, local, Some(60)),
            block("times of successful answers", successful, local, Some(300)),
            case("a cache of another server block", two, local, Some(5)),
            block("a cache of another zone", other_zone, local, Some(5)),
            block("a cache of a zone above", " kubernetes cluster.local\n cache 900 local", local, Some(900)),
            block("no plugin", " cache 30", None, None),
            case("a block that does not end", ".:53 {\n kubernetes {\n {\n ttl 7", None, Some(5)),
            case("closed too often", "}\n}\n.:53 {\n kubernetes cluster.local\n}", local, Some(5)),
            case("empty", "", None, None),
        ];
        for Case { name, corefile, domain, cached_for } in cases {
            let expected = DnsFacts { domain: domain.map(str::to_owned), cached_for };
            assert_eq!(read(&corefile), expected, "{name}");
        }
    }

    #[test]
    fn expired_answers_that_are_served_count() {
        struct Case {
            cache: &'static str,
            cached_for: u32,
        }
        let case = |cache, cached_for| Case { cache, cached_for };
        let cases = [
            case("serve_stale", 30 + 3600),
            case("serve_stale 1h30m", 30 + 5400),
            case("serve_stale 24h immediate", 30 + 86400),
            case("serve_stale 1.5s", 30 + 2),
            case("serve_stale 0s", 30),
            case("serve_stale soon", 30 + 3600),
            case("serve_stale 1h verify", 30),
            case("serve_stale\n disable success", 5),
            case("serve_stale\n disable denial", 30 + 3600),
            case("serve_stale\n disable success example.org", 30 + 3600),
            case("serve_stale\n disable denial\n disable success cluster.local", 5),
        ];
        for Case { cache, cached_for } in cases {
            let corefile = format!(".:53 {{\n kubernetes cluster.local\n cache 30 {{\n {cache}\n }}\n}}");
            assert_eq!(read(&corefile).cached_for, Some(cached_for), "{cache}");
        }
    }
}
