//! What the configuration of CoreDNS says about a cluster: its domain, and how long an address may be cached.

/// The TTL of the plugin `kubernetes` without a setting, in seconds.
const DEFAULT_TTL: u32 = 5;
/// The longest time that the plugin `cache` keeps an answer without a setting, in seconds.
const DEFAULT_CACHE: u32 = 3600;

/// What a Corefile says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DnsFacts {
    /// The domain of the cluster, such as `cluster.local`.
    pub domain: Option<String>,
    /// For how many seconds an answer about a Service may be cached.
    pub cached_for: Option<u32>,
}

/// Reads a Corefile: the first block of the plugin `kubernetes`, and the first plugin `cache`.
pub fn read(corefile: &str) -> DnsFacts {
    let (mut facts, mut ttl, mut cache) = (DnsFacts::default(), None, None);
    let mut is_in_kubernetes = false;
    for line in corefile.lines() {
        let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
        match words.next() {
            Some("kubernetes") if ttl.is_none() => {
                let zones: Vec<&str> = words.collect();
                is_in_kubernetes = zones.last() == Some(&"{");
                let is_domain = |zone: &&str| !zone.ends_with(".arpa") && !zone.ends_with(".arpa.") && *zone != "{";
                let domain = zones.into_iter().find(is_domain);
                facts.domain = domain.map(|zone| zone.trim_end_matches('.').to_owned());
                ttl = Some(DEFAULT_TTL);
            }
            Some("ttl") if is_in_kubernetes => ttl = words.next().and_then(|word| word.parse().ok()).or(ttl),
            Some("}") => is_in_kubernetes = false,
            Some("cache") if cache.is_none() => {
                cache = Some(words.next().and_then(|word| word.parse().ok()).unwrap_or(DEFAULT_CACHE));
            }
            _ => {}
        }
    }
    // A cached answer expires with its TTL, too, so the longer time is a cautious bound.
    facts.cached_for = ttl.map(|ttl| ttl.max(cache.unwrap_or_default()));
    facts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn domain_and_time_are_those_of_the_corefile() {
        struct Case {
            name: &'static str,
            corefile: &'static str,
            domain: Option<&'static str>,
            cached_for: Option<u32>,
        }
        let usual = ".:53 {\n    errors\n    kubernetes cluster.local in-addr.arpa ip6.arpa {\n        pods insecure\n        \
                     ttl 30\n    }\n    cache 30 {\n        disable success cluster.local\n    }\n    loop\n}\n";
        let cases = [
            Case { name: "of kubeadm", corefile: usual, domain: Some("cluster.local"), cached_for: Some(30) },
            Case {
                name: "a longer cache, and no TTL",
                corefile: ".:53 {\n kubernetes in-addr.arpa example.org. {\n }\n cache 120 # long\n}",
                domain: Some("example.org"),
                cached_for: Some(120),
            },
            Case {
                name: "no block, no cache",
                corefile: ".:53 {\n kubernetes cluster.local\n ttl 900\n}",
                domain: Some("cluster.local"),
                cached_for: Some(5),
            },
            Case { name: "no plugin", corefile: ".:53 {\n cache 30\n}", domain: None, cached_for: None },
            Case { name: "empty", corefile: "", domain: None, cached_for: None },
        ];
        for Case { name, corefile, domain, cached_for } in cases {
            let expected = DnsFacts { domain: domain.map(str::to_owned), cached_for };
            assert_eq!(read(corefile), expected, "{name}");
        }
    }
}
