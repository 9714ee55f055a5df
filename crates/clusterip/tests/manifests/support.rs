//! Plans manifests, and fills the addresses in.

use clusterip::planner::{Plan, PlannedObject, Planner};
use clusterip::report::filled_manifests;
use clusterip_cluster::manifests::{self, Manifest, ManifestText};
use clusterip_core::settings::Settings;
use serde_json::{Value, json};

/// One pool with both families, whose first addresses are 10.0.0.2 and fd00::1.
pub fn settings() -> Value {
    json!({"services": {
        "order": "lowest",
        "serviceCIDRs": ["10.0.0.0/24", "fd00::/120"],
        "pools": [{"name": "all", "cidrs": ["10.0.0.0/24", "fd00::/120"]}],
    }})
}

/// The settings of [`settings`], and pools of Nodes: one with both families for Windows, one with only IPv4.
pub fn settings_with_nodes() -> Value {
    let mut settings = settings();
    settings["nodes"] = json!({"pools": [
        {"name": "both", "cidrs": ["10.1.0.0/16", "fd01::/48"], "match": {"os": "windows"}},
        {"name": "v4", "cidrs": ["10.2.0.0/16"]},
    ]});
    settings
}

/// The settings of [`settings`], and a pool with one external address of each family.
pub fn settings_with_external() -> Value {
    let mut settings = settings();
    settings["external"] = json!({"pools": [{"name": "lan", "cidrs": ["10.9.0.1-10.9.0.1", "fd09::1-fd09::1"]}]});
    settings
}

/// A file with manifests.
pub fn source(name: &str, text: &str) -> ManifestText {
    ManifestText { name: name.to_owned(), text: text.to_owned() }
}

/// All objects of these texts.
pub fn parse(sources: &[ManifestText], namespace: &str) -> Vec<Manifest> {
    let mut manifests = Vec::new();
    manifests::each(sources, namespace, &mut |manifest, _| manifests.push(manifest)).unwrap();
    manifests
}

/// Plans these texts, and fills the addresses in.
pub fn plan(sources: &[ManifestText]) -> (Plan, Result<String, String>) {
    plan_with(settings(), sources)
}

/// The same with these settings.
pub fn plan_with(document: Value, sources: &[ManifestText]) -> (Plan, Result<String, String>) {
    let planned = |Manifest { object, origin }| Manifest { object: PlannedObject::new(object), origin };
    let mut manifests: Vec<_> = parse(sources, "default").into_iter().map(planned).collect();
    let settings = Settings::from_value(&document).unwrap();
    let plan = Planner::new(settings, Vec::new()).plan(&mut manifests, |_| true, || ());
    let filled = filled_manifests::manifests(sources, &manifests, &plan).map_err(|error| error.to_string());
    (plan, filled)
}
