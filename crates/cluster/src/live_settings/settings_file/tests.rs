use super::*;

const LINUX: &str = "apiVersion: clusterip-policy.io/v1alpha1\nkind: ServicePool\nmetadata: {name: linux}\n";
const TEAM: &str = "apiVersion: clusterip-policy.io/v1alpha1\nkind: ServicePool\nmetadata: {name: team}\n\
                    spec: {serviceCIDRSelector: {matchLabels: {team: a}}}\n";

fn service_cidr(name: &str, cidr: &str, labels: Value) -> Value {
    json!({"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR",
           "metadata": {"name": name, "labels": labels}, "spec": {"cidrs": [cidr]}})
}

/// The document in a text, or the error: how it begins, if it ends with `…`.
struct Case {
    name: &'static str,
    text: String,
    /// The ServiceCIDR objects of the cluster.
    cluster: Vec<Value>,
    expected: Result<Value, &'static str>,
}

impl Case {
    fn new(name: &'static str, text: impl Into<String>, expected: Result<Value, &'static str>) -> Self {
        Self { name, text: text.into(), cluster: Vec::new(), expected }
    }
}

#[track_caller]
fn check(cases: impl IntoIterator<Item = Case>) {
    for Case { name, text, cluster, expected } in cases {
        let found = SettingsFile::read(&text).and_then(|file| file.document(&ServiceRanges::of(&cluster)));
        assert_result(name, found.map(|written| written.document), expected);
    }
}

#[track_caller]
fn assert_result<T: PartialEq + std::fmt::Debug>(name: &str, found: Result<T, String>, expected: Result<T, &str>) {
    if let (Err(error), Err(Some(begin))) = (&found, expected.as_ref().map_err(|error| error.strip_suffix('…'))) {
        return assert!(error.starts_with(begin), "{name}: {error}");
    }
    assert_eq!(found, expected.map_err(str::to_owned), "{name}");
}

#[test]
fn settings_are_taken_out_of_objects() {
    let policy = |version: &str, kind: &str, spec: &str| {
        format!("apiVersion: policies.kubewarden.io/{version}\nkind: {kind}\nspec: {spec}")
    };
    let config_map = |data: &str| format!("apiVersion: v1\nkind: ConfigMap\n{data}");
    let settings = || Ok(json!({"services": {"order": "lowest"}}));
    const IN_SPEC: &str = "{mode: protect, settings: {services: {order: lowest}}}";
    check([
        Case::new("the settings themselves", "services: {order: lowest}", settings()),
        Case::new("nothing", "# services: {}\n", Err("the file is empty: write {} for the pools of K2s")),
        Case::new("the defaults", "{}", Ok(json!({}))),
        Case::new("a policy of Kubewarden", policy("v1", "ClusterAdmissionPolicy", IN_SPEC), settings()),
        Case::new("another policy and version", policy("v1alpha2", "AdmissionPolicy", IN_SPEC), settings()),
        Case::new("without settings", policy("v1", "ClusterAdmissionPolicy", "{settings: null}"), Ok(json!({}))),
        Case::new(
            "a group of policies",
            policy("v1", "AdmissionPolicyGroup", "{}"),
            Err("AdmissionPolicyGroup: its settings are below spec.policies…"),
        ),
        Case::new("a ConfigMap", config_map("data: {settings.yaml: 'services: {order: lowest}'}"), settings()),
        Case::new("an empty key", config_map("data: {settings.yaml: ''}"), Ok(Value::Null)),
        Case::new("a broken key", config_map("data: {settings.yaml: '['}"), Err("data[\"settings.yaml\"]: line …")),
        Case::new(
            "a ConfigMap with other keys",
            config_map("data: {settings.yml: x, a: x}"),
            Err("the ConfigMap has no key settings.yaml: it has a, settings.yml"),
        ),
        Case::new(
            "a ConfigMap without data",
            config_map(""),
            Err("the ConfigMap has no key settings.yaml: it has no keys"),
        ),
        Case::new("a ConfigMap of the wrong shape", config_map("data: []"), Err("invalid type…")),
        Case::new(
            "another object",
            "apiVersion: apps/v1\nkind: Deployment",
            Err("apps/v1 Deployment has no settings: pass the settings themselves…"),
        ),
        Case::new(
            "a policy of another project",
            "apiVersion: example.com/v1\nkind: ClusterAdmissionPolicy",
            Err("example.com/v1 ClusterAdmissionPolicy has no settings…"),
        ),
        Case::new(
            "another object beside objects",
            format!("{LINUX}---\napiVersion: v1\nkind: Service\n"),
            Err("v1 Service has no settings: pass the settings themselves, objects of …"),
        ),
        Case::new(
            "a document beside objects",
            format!("{LINUX}---\nservices: {{order: lowest}}\n"),
            Err("the file has objects of clusterip-policy.io and a document without apiVersion…"),
        ),
        Case::new("two documents", "services: {}\n---\nnodes: {}", Err("line 3: more than…")),
        Case::new("no YAML", "services: [", Err("line 2: …")),
        Case::new("no YAML of objects", "clusterip-policy.io: [", Err("line 2: …")),
    ]);
}

#[test]
fn objects_are_found_in_documents_and_lists() {
    let item = r#"{"apiVersion": "clusterip-policy.io/v1alpha1", "kind": "ServicePool"}"#;
    let items = "apiVersion: clusterip-policy.io/v1alpha1\nkind: ExternalPoolList\nitems: [{metadata: {name: a}}]\n";
    for (name, text, kinds) in [
        ("a document", "services: {} # for clusterip-policy.io\n".to_owned(), None),
        (
            "several, an empty document, and another object",
            format!("---\n{LINUX}---\n---\n{TEAM}---\napiVersion: v1\nkind: Service\n"),
            Some("ServicePool ServicePool Service"),
        ),
        (
            "a list",
            format!(r#"{{"apiVersion": "v1", "kind": "List", "items": [{item}, {item}]}}"#),
            Some("ServicePool ServicePool"),
        ),
        ("a list whose items have no type", items.to_owned(), Some("ExternalPool")),
    ] {
        let found = in_text(&text).unwrap();
        let found = found.map(|objects| objects.iter().map(kind).collect::<Vec<_>>().join(" "));
        assert_eq!(found.as_deref(), kinds, "{name}");
    }
}

#[test]
fn objects_must_be_usable_beside_those_of_the_cluster() {
    let pool = |name: &str, cidr: &str, match_: Value| {
        json!({"apiVersion": "clusterip-policy.io/v1alpha1", "kind": "ServicePool", "metadata": {"name": name},
               "spec": {"cidrs": [cidr], "match": match_}})
    };
    let of = |namespace: &str| json!({"namespaces": [namespace]});
    let in_cluster = |name: &str, cidr: &str| {
        let mut pool = pool(name, cidr, of(name));
        pool["metadata"]["generation"] = json!(1);
        let ready = json!([{"type": "Ready", "status": "True"}]);
        pool["status"] = json!({"observedGeneration": 1, "conditions": ready, "ranges": [cidr]});
        pool
    };
    let there = [in_cluster("a", "10.96.0.0/24"), in_cluster("b", "10.96.1.0/24")];
    for (name, given, expected) in [
        ("a new pool", pool("c", "10.96.2.0/24", of("c")), Ok(3)),
        ("another range", pool("a", "10.96.4.0/24", of("a")), Ok(2)),
        (
            "a new pool that overlaps one of the cluster",
            pool("c", "10.96.1.128/25", of("c")),
            Err("ServicePool c: Overlaps: spec.cidrs[0]: 10.96.1.128/25 overlaps 10.96.1.0/24 of pool \"b\""),
        ),
        (
            "an edit that overlaps another pool",
            pool("a", "10.96.1.0/25", of("a")),
            Err("ServicePool a: Overlaps: this pool conflicts with pool \"b\": spec.cidrs[0]: …"),
        ),
    ] {
        let written = document_of_objects(&[given], &there, &vec!["10.96.0.0/16".to_owned()].into());
        let pools = written.map(|written| written.document["services"]["pools"].as_array().unwrap().len());
        assert_result(name, pools, expected);
    }
}

#[test]
fn objects_of_a_file_must_all_be_usable() {
    let pool = |name: &str, spec: &str| {
        format!(
            "---\napiVersion: clusterip-policy.io/v1alpha1\nkind: ServicePool\nmetadata: {{name: {name}}}\n\
             spec: {spec}\n"
        )
    };
    let policy = |name: &str| {
        format!(
            "---\napiVersion: clusterip-policy.io/v1alpha1\nkind: ClusterIPPolicy\nmetadata: {{name: {name}}}\n\
             spec: {{order: Lowest}}\n"
        )
    };
    let document = |name: &str, cidr: &str| json!({"services": {"pools": [{"name": name, "cidrs": [cidr]}]}});
    let kubernetes = || service_cidr("kubernetes", "10.96.0.0/16", json!({}));
    let of_team = || service_cidr("a", "10.97.0.0/24", json!({"team": "a"}));
    let far = || pool("far", "{cidrs: [10.97.1.0/24]}");
    check([
        Case::new(
            "a pool and settings",
            pool("all", "{cidrs: [10.96.1.0/24], fence: Deny, priority: 3}") + &policy("default"),
            Ok(json!({"services": {"order": "lowest", "pools": [{"name": "all", "cidrs": ["10.96.1.0/24"]}]}})),
        ),
        Case::new(
            "a labelled ServiceCIDR in the same file",
            format!("{TEAM}---\n{}\n", of_team()),
            Ok(document("team", "10.97.0.0/24")),
        ),
        Case {
            cluster: vec![kubernetes(), of_team()],
            ..Case::new("a ServiceCIDR of the cluster", TEAM, Ok(document("team", "10.97.0.0/24")))
        },
        Case::new(
            "no such ServiceCIDR",
            TEAM,
            Err("ServicePool team: NoRanges: spec.serviceCIDRSelector: no ServiceCIDR object has these labels: label \
                 one with kubectl label servicecidr, or list cidrs; in files, add the ServiceCIDR objects beside the \
                 pool"),
        ),
        Case {
            cluster: vec![kubernetes()],
            ..Case::new(
                "outside of the cluster",
                far(),
                Err("ServicePool far: OutsideServiceCIDRs: spec.cidrs[0]: 10.97.1.0/24 lies outside of the Service \
                     ranges of the cluster (10.96.0.0/16): the API server would refuse its addresses"),
            )
        },
        Case::new("the ranges of the cluster are unknown", far(), Ok(document("far", "10.97.1.0/24"))),
        Case::new(
            "mistakes of several objects, in the order of the file",
            pool("b", "{cidrs: [10.96.1.7/24]}") + &pool("a", "{cidrs: [10.96.2.0/24], fence: Denny}"),
            Err("ServicePool b: Invalid: spec.cidrs[0]: 10.96.1.7/24 has host bits set: did you mean 10.96.1.0/24?\n\
                 ServicePool a: Invalid: spec.fence: unknown value \"Denny\": did you mean Deny?"),
        ),
        Case::new("another name", policy("other"), Err("ClusterIPPolicy other: Invalid: the name must be default")),
        Case::new(
            "two pools of one name",
            pool("a", "{cidrs: [10.96.1.0/24]}") + &pool("a", "{cidrs: [10.96.2.0/24]}"),
            Err("ServicePool a: Invalid: there is another object of this kind and name: remove one"),
        ),
        Case::new(
            "no name",
            "apiVersion: clusterip-policy.io/v1alpha1\nkind: ExternalPool\n",
            Err("ExternalPool: Invalid: metadata.name is missing"),
        ),
        Case::new(
            "an unknown kind",
            "apiVersion: clusterip-policy.io/v1alpha1\nkind: Pool\nmetadata: {name: a}\n",
            Err("clusterip-policy.io/v1alpha1: Invalid: unknown kind \"Pool\": known are ServicePool, ExternalPool, \
                 NodeBlockPool, ClusterIPPolicy"),
        ),
    ]);
    let in_cluster = SettingsFile::read(TEAM).unwrap().document(&ServiceRanges::of(&[kubernetes()]));
    assert!(!in_cluster.unwrap_err().contains("in files"), "the cluster has no such ServiceCIDR");
}

#[test]
fn objects_of_a_cluster_that_can_not_be_used_are_left_out() {
    assert_eq!(compiled_as_in_cluster(&[json!({"apiVersion": "v1", "kind": "Service"})]), None);
    let good = json!({
        "apiVersion": "clusterip-policy.io/v1alpha1", "kind": "ServicePool", "metadata": {"name": "good"},
        "spec": {"cidrs": ["10.96.1.0/24"]},
    });
    let mut bad = good.clone();
    bad["metadata"]["name"] = json!("bad");
    bad["spec"]["cidrs"] = json!(["10.97.0.0/24"]);
    let compiled = compiled_as_in_cluster(&[good, bad, service_cidr("kubernetes", "10.96.0.0/16", json!({}))]).unwrap();
    let expected = json!({"services": {"pools": [{"name": "good", "cidrs": ["10.96.1.0/24"]}]}});
    assert_eq!(compiled.document, expected);
    assert_eq!(compiled.states.len(), 2);
}
