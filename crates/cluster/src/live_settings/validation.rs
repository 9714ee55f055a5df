//! Completes a settings document with what the host knows, and checks it.

use std::collections::BTreeSet;
use std::hash::Hasher;

use clusterip_api::mistakes_of_objects;
use clusterip_core::json::unknown_name_message;
use clusterip_core::settings::{Mistake, Settings, is_outside_service_ranges, with_ranges_of_cluster};
use clusterip_core::workload::OS_LABEL;
use ipnet::IpNet;
use serde_json::{Value, json};
use siphasher::sip128::{Hasher128, SipHasher24};

use super::{LiveSettings, WrittenSettings};
use crate::panics;
use crate::snapshot::service_ranges::ServiceRanges;

/// As [`check_settings`], on a thread that may block: hundreds of large pools take a while.
pub(super) async fn check_in_background(
    written: WrittenSettings,
    ranges: ServiceRanges,
) -> Result<LiveSettings, String> {
    let checked = panics::catch_blocking(move || check_settings(written, &ranges)).await;
    checked.map_err(|cause| format!("checking the settings failed: {cause}"))?
}

pub fn check_settings(written: impl Into<WrittenSettings>, ranges: &ServiceRanges) -> Result<LiveSettings, String> {
    let WrittenSettings { document: written, objects } = written.into();
    let are_objects = objects.is_some();
    let version = self::version(&written);
    let has_own_ranges = written.pointer("/services/serviceCIDRs").is_some_and(|cidrs| !is_empty(cidrs));
    let document = complete(if written.is_null() { json!({}) } else { written }, ranges);
    let worded = |mistakes: String| if are_objects { mistakes_of_objects(&mistakes, &document) } else { mistakes };
    let settings = Settings::from_value(&document).map_err(|invalid| {
        let mut mistakes = invalid.to_string();
        if !has_own_ranges && !ranges.all.is_empty() {
            mistakes = with_ranges_of_cluster(&mistakes);
        }
        if let Some(reason) = why_default_pools_do_not_fit(&document) {
            mistakes = format!("{mistakes}\n{reason}");
        }
        worded(mistakes)
    })?;
    let cluster: Vec<IpNet> = ranges.nets().iter().map(IpNet::trunc).collect();
    let outside = pools_outside(&settings, &cluster);
    if !outside.is_empty() {
        return Err(outside.into_iter().map(worded).collect::<Vec<_>>().join("\n"));
    }
    let mut warnings = settings.warnings();
    warnings.extend(unknown_systems(&document));
    warnings.extend(settings.unusable_warnings());
    warnings.extend(contradiction(&settings.service_cidrs, &cluster));
    let hash = self::version(&document);
    let mut live = LiveSettings { hash, version, settings, document, warnings: Vec::new(), are_objects };
    live.warnings = warnings.into_iter().map(|mistake| live.warning(mistake)).collect();
    Ok(live)
}

/// Completes settings with what the program knows, unless they say something else: look-ups by namespace, the Service
/// ranges of the cluster, and the ranges that are not usable.
pub fn complete(mut settings: Value, ranges: &ServiceRanges) -> Value {
    let Some(document) = settings.as_object_mut() else { return settings };
    let services = document.entry("services").or_insert(Value::Null);
    if services.is_null() {
        *services = json!({});
    }
    let Some(services) = services.as_object_mut() else { return settings };
    let learned = [("serviceCIDRs", json!(ranges.all)), ("unusableServiceCIDRs", ranges.unusable_document())];
    for (key, known) in learned {
        if !is_empty(&known) && services.get(key).is_none_or(is_empty) {
            services.insert(key.to_owned(), known);
        }
    }
    let evidence = services.entry("evidence").or_insert(Value::Null);
    if evidence.is_null() {
        *evidence = json!({});
    }
    if let Some(evidence) = evidence.as_object_mut() {
        evidence.entry("lookups").or_insert(json!("namespace"));
    }
    settings
}

/// Whether the document is to be completed here: an empty list is as good as none.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        other => other.is_null(),
    }
}

/// A warning for each operating system in the document that Kubernetes does not know. The policy accepts it, because
/// any Node may have such a label.
fn unknown_systems(document: &Value) -> Vec<Mistake> {
    /// The operating systems of Nodes that Kubernetes knows, as the label `kubernetes.io/os` names them.
    const SYSTEMS: [&str; 2] = ["linux", "windows"];
    let mut named: Vec<(String, Option<&Value>)> = Vec::new();
    for section in ["services", "nodes"] {
        let pools = document.pointer(&format!("/{section}/pools")).and_then(Value::as_array);
        for (index, pool) in pools.into_iter().flatten().enumerate() {
            let path = format!("{section}.pools[{index}].match");
            named.push((format!("{path}.os"), pool.pointer("/match/os")));
            let label = pool.pointer("/match/nodeLabels").and_then(|labels| labels.get(OS_LABEL));
            named.push((format!("{path}.nodeLabels[{OS_LABEL:?}]"), label));
        }
    }
    named.push(("services.assumeOS".to_owned(), document.pointer("/services/assumeOS")));
    let unknown = |(path, os): (String, Option<&Value>)| {
        let os = os?.as_str().filter(|os| !SYSTEMS.contains(&os.to_lowercase().as_str()))?;
        Some(Mistake { path, reason: unknown_name_message("operating system", os, &SYSTEMS) })
    };
    named.into_iter().filter_map(unknown).collect()
}

/// The hash of a document in 32 hexadecimal digits: the same for the same document in every process, because `serde_json`
/// sorts the keys of objects. An empty document is `{}`.
pub fn version(document: &Value) -> String {
    let mut hasher = SipHasher24::new();
    hasher.write(if document.is_null() { "{}".to_owned() } else { document.to_string() }.as_bytes());
    format!("{:032x}", hasher.finish128().as_u128())
}

/// Why the default pools, which a document without pools has, do not fit the Service ranges in the document, with the
/// remedy; `None` if they fit, or if the document has pools or no Service ranges.
fn why_default_pools_do_not_fit(document: &Value) -> Option<&'static str> {
    let has = |path: &str| document.pointer(path).is_some_and(|value| !value.is_null());
    if ["/services/pools", "/nodes", "/external"].into_iter().any(has) {
        return None;
    }
    let ranges = document.pointer("/services/serviceCIDRs")?.as_array()?.iter();
    let ranges: Vec<IpNet> = ranges.filter_map(|range| range.as_str()?.parse().ok()).collect();
    let pools = Settings::default().pools;
    let mut cidrs = pools.iter().flat_map(|pool| &pool.cidrs);
    let is_misfit = cidrs.any(|cidr| is_outside_service_ranges(*cidr, &ranges));
    is_misfit.then_some(
        "these are the default pools, those of K2s, and they do not fit the cluster: `clusterip init` prints settings \
         that do",
    )
}

/// The ranges of pools that lie outside of the cluster's Service ranges, one mistake for each. The policy has compared
/// the pools only with `services.serviceCIDRs`, which may contradict the cluster.
fn pools_outside(settings: &Settings, cluster: &[IpNet]) -> Vec<String> {
    let (ranges, written) = (list(cluster), list(&settings.service_cidrs));
    let cidrs = settings.pools.iter().enumerate().flat_map(|(index, pool)| {
        pool.cidrs
            .iter()
            .enumerate()
            .map(move |(place, cidr)| (format!("services.pools[{index}].cidrs[{place}]"), cidr))
    });
    let outside = cidrs.filter(|(_, cidr)| is_outside_service_ranges(**cidr, cluster)).map(|(path, cidr)| {
        format!(
            "{path}: {cidr} lies outside the Service ranges of the cluster ({ranges}), which services.serviceCIDRs \
             ({written}) contradicts: the API server would refuse its addresses; remove services.serviceCIDRs, and \
             choose pools inside the ranges of the cluster"
        )
    });
    outside.collect()
}

fn list(nets: &[IpNet]) -> String {
    nets.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// A warning if the settings contain Service ranges other than those of the cluster.
fn contradiction(written: &[IpNet], cluster: &[IpNet]) -> Option<Mistake> {
    let sorted = |nets: &[IpNet]| nets.iter().copied().collect::<BTreeSet<_>>();
    // Only the position of the first range has a meaning.
    if cluster.is_empty() || (written.first() == cluster.first() && sorted(written) == sorted(cluster)) {
        return None;
    }
    let reason = format!(
        "the settings have {}, but the cluster has {}: remove the key to use the ranges of the cluster",
        list(written),
        list(cluster)
    );
    Some(Mistake { path: "services.serviceCIDRs".to_owned(), reason })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used)]
mod tests {
    use super::*;
    use crate::yaml::single as parse;

    fn checked(yaml: &str, ranges: &[&str]) -> Result<LiveSettings, String> {
        let ranges: Vec<_> = ranges.iter().map(|&range| range.to_owned()).collect();
        let written = parse(yaml).map_err(|error| error.to_string())?;
        check_settings(written, &ranges.into()).map_err(|error| error.to_string())
    }

    #[test]
    fn settings_are_completed_with_cluster_ranges() {
        let live = checked("", &["172.21.0.0/16"]).unwrap();
        let document = json!({"services": {"serviceCIDRs": ["172.21.0.0/16"], "evidence": {"lookups": "namespace"}}});
        assert_eq!(live.document, document);
        assert_eq!(live.settings, Settings::from_value(&document).unwrap());
        assert_eq!(live.warnings, Vec::new());
    }

    #[test]
    fn all_mistakes_in_settings_are_listed() {
        let yaml =
            "services: {pools: [{name: a, cidrs: [10.0.0.1/24]}, {name: a, cidrs: [10.1.0.0/33]}], oder: lowest}";
        let mistakes = checked(yaml, &[]).unwrap_err();
        let direct = Settings::from_value(&complete(parse(yaml).unwrap(), &ServiceRanges::default())).unwrap_err();
        assert_eq!(mistakes, direct.to_string(), "as the policy words them");
        assert!(mistakes.lines().count() >= 3, "{mistakes}");
        assert!(checked("services: [", &[]).unwrap_err().starts_with("line 2: "), "no YAML");
    }

    #[test]
    fn pool_outside_of_the_cluster_is_a_mistake_whatever_the_settings_say() {
        struct Case {
            name: &'static str,
            yaml: &'static str,
            ranges: &'static [&'static str],
            /// The ranges of pools that are refused.
            refused: &'static [&'static str],
            warnings: usize,
        }
        const OWN: &str = "services: {serviceCIDRs: [10.0.0.0/16], pools: [{name: a, cidrs: [10.0.0.0/24]}]}";
        const TWO: &str = "services: {serviceCIDRs: [10.0.0.0/8], pools: [{name: a, cidrs: [10.0.0.0/24, 10.1.0.0/24], \
                           match: {os: windows}}, {name: b, cidrs: [10.2.0.0/24], match: {os: linux}}]}";
        const NODES: &str =
            "{services: {serviceCIDRs: [10.0.0.0/16]}, nodes: {pools: [{name: a, cidrs: [10.9.0.0/16]}]}}";
        let case = |name, yaml, ranges, refused, warnings| Case { name, yaml, ranges, refused, warnings };
        let cases = [
            case("the ranges are not known", OWN, &[], &[], 0),
            case("the same ranges", OWN, &["10.0.0.0/16"], &[], 0),
            case("the pool lies inside", OWN, &["10.0.0.0/8"], &[], 1),
            case("the pool lies outside", OWN, &["172.21.0.0/16"], &["10.0.0.0/24"], 0),
            case("some ranges lie outside", TWO, &["10.0.0.0/16"], &["10.1.0.0/24", "10.2.0.0/24"], 0),
            case("no pools of Services", NODES, &["172.21.0.0/16"], &[], 1),
        ];
        for Case { name, yaml, ranges, refused, warnings } in cases {
            match checked(yaml, ranges) {
                Ok(live) => {
                    assert!(refused.is_empty(), "{name}: not refused");
                    let about = live
                        .warnings
                        .iter()
                        .filter(|warning| warning.mistake.reason.contains(", but the cluster has "));
                    assert_eq!(about.count(), warnings, "{name}: {:?}", live.warnings);
                }
                Err(mistakes) => {
                    let found: Vec<&str> = mistakes.lines().filter_map(|line| line.split(' ').nth(1)).collect();
                    assert_eq!(found, refused, "{name}: {mistakes}");
                    assert!(mistakes.contains("the Service ranges of the cluster (1"), "{name}: {mistakes}");
                }
            }
        }
    }

    #[test]
    fn mistake_in_the_default_pools_names_clusterip_init() {
        struct Case {
            name: &'static str,
            yaml: &'static str,
            ranges: &'static [&'static str],
            mistakes: usize,
            names_init: bool,
        }
        const KUBEADM: &[&str] = &["10.96.0.0/12"];
        const K2S: &[&str] = &["172.21.0.0/16"];
        let case = |name, yaml, ranges, mistakes, names_init| Case { name, yaml, ranges, mistakes, names_init };
        let cases = [
            case("K2s", "", K2S, 0, false),
            case("unknown ranges", "", &[], 0, false),
            case("kubeadm", "", KUBEADM, 3, true),
            case("written ranges", "services: {serviceCIDRs: [10.43.0.0/16]}", &[], 3, true),
            case("one pool is outside", "", &["172.21.0.0/24"], 2, true),
            case("beside another mistake", "services: {order: fastest, pools: null}", KUBEADM, 4, true),
            case("another mistake alone", "services: {order: fastest}", K2S, 1, false),
            case("own pools", "services: {pools: [{name: a, cidrs: [10.0.0.0/24]}]}", KUBEADM, 1, false),
            case("no pools of Services", "nodes: {pools: [{name: a, cidrs: [10.9.0.0/16]}]}", KUBEADM, 0, false),
        ];
        for Case { name, yaml, ranges, mistakes, names_init } in cases {
            let found = checked(yaml, ranges).err().unwrap_or_default();
            assert_eq!(found.lines().count(), mistakes, "{name}: {found}");
            let last = found.lines().last().unwrap_or_default();
            assert_eq!(last.contains("`clusterip init`"), names_init, "{name}: {found}");
        }
    }

    #[test]
    fn equal_settings_have_equal_hashes() {
        let one = checked("services: {order: lowest, explicit: deny}", &[]).unwrap();
        for (name, yaml, same) in [
            ("other order, comment", "# so\nservices:\n  explicit: deny\n  order: lowest\n", true),
            ("json", r#"{"services": {"order": "lowest", "explicit": "deny"}}"#, true),
            ("other value", "services: {order: spread, explicit: deny}", false),
        ] {
            assert_eq!(checked(yaml, &[]).unwrap().hash == one.hash, same, "{name}");
        }
        assert_ne!(checked("services: {order: lowest, explicit: deny}", &["172.21.0.0/16"]).unwrap().hash, one.hash);
        // Processes of different versions must agree on the hash.
        assert_eq!(one.hash, "60e8521bbf43618a73e43c1ddda4078f");
    }

    #[test]
    fn version_of_settings_does_not_depend_on_service_ranges() {
        let yaml = "services: {order: lowest, explicit: deny}";
        let one = checked(yaml, &[]).unwrap();
        assert_eq!(checked(yaml, &["172.21.0.0/16"]).unwrap().version, one.version);
        assert_eq!(version(&parse(yaml).unwrap()), one.version);
        assert_ne!(checked("services: {order: spread, explicit: deny}", &[]).unwrap().version, one.version);
        assert_eq!(version(&Value::Null), version(&json!({})), "an empty key of a ConfigMap");
    }

    #[test]
    fn differing_service_ranges_give_a_warning() {
        struct Case {
            name: &'static str,
            written: &'static [&'static str],
            ranges: &'static [&'static str],
            expected: Option<&'static str>,
        }
        let case = |name, written, ranges, expected| Case { name, written, ranges, expected };
        let cases = [
            case(
                "secondary ranges in another order",
                &["10.0.0.0/16", "fd00::/108", "10.9.0.0/16"],
                &["10.0.0.0/16", "10.9.0.0/16", "fd00::/108"],
                None,
            ),
            case(
                "another range",
                &["10.0.0.0/16"],
                &["172.21.0.0/16"],
                Some("10.0.0.0/16, but the cluster has 172.21.0.0/16"),
            ),
            case(
                "another primary range",
                &["fd00::/108", "10.0.0.0/16"],
                &["10.0.0.0/16", "fd00::/108"],
                Some("fd00::/108, 10.0.0.0/16, but the cluster has 10.0.0.0/16, fd00::/108"),
            ),
            case(
                "a range is missing",
                &["10.0.0.0/16"],
                &["10.0.0.0/16", "fd00::/108"],
                Some("10.0.0.0/16, but the cluster has 10.0.0.0/16, fd00::/108"),
            ),
        ];
        for Case { name, written, ranges, expected } in cases {
            let written: Vec<IpNet> = written.iter().map(|net| net.parse().unwrap()).collect();
            let ranges: Vec<IpNet> = ranges.iter().map(|range| range.parse().unwrap()).collect();
            let expected = expected.map(|words| {
                format!(
                    "services.serviceCIDRs: the settings have {words}: remove the key to use the ranges of the cluster"
                )
            });
            assert_eq!(contradiction(&written, &ranges).map(|mistake| mistake.to_string()), expected, "{name}");
        }
    }
}
