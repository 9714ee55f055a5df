use super::*;

#[test]
fn settings_are_taken_out_of_objects() {
    struct Case {
        name: &'static str,
        text: &'static str,
        expected: Result<Value, &'static str>,
    }
    let settings = || Ok(json!({"services": {"order": "lowest"}}));
    let cases = [
        Case { name: "the settings themselves", text: "services: {order: lowest}", expected: settings() },
        Case { name: "nothing", text: "", expected: Err("the file is empty: write {} for the pools of K2s") },
        Case { name: "only comments", text: "# services: {}\n", expected: Err("the file is empty: write {}") },
        Case { name: "null", text: "null", expected: Err("the file is empty: write {}") },
        Case { name: "the defaults", text: "{}", expected: Ok(json!({})) },
        Case {
            name: "a ConfigMap with an empty key",
            text: "apiVersion: v1\nkind: ConfigMap\ndata: {settings.yaml: ''}",
            expected: Ok(Value::Null),
        },
        Case {
            name: "a ClusterAdmissionPolicy",
            text: "apiVersion: policies.kubewarden.io/v1\nkind: ClusterAdmissionPolicy\n\
                   spec: {mode: protect, settings: {services: {order: lowest}}}",
            expected: settings(),
        },
        Case {
            name: "an AdmissionPolicy of another version",
            text: "apiVersion: policies.kubewarden.io/v1alpha2\nkind: AdmissionPolicy\n\
                   spec: {settings: {services: {order: lowest}}}",
            expected: settings(),
        },
        Case {
            name: "a policy without settings",
            text: "apiVersion: policies.kubewarden.io/v1\nkind: ClusterAdmissionPolicy\nspec: {settings: null}",
            expected: Ok(json!({})),
        },
        Case {
            name: "a group of policies",
            text: "apiVersion: policies.kubewarden.io/v1\nkind: AdmissionPolicyGroup",
            expected: Err("AdmissionPolicyGroup: its settings are below spec.policies"),
        },
        Case {
            name: "a ConfigMap",
            text: "apiVersion: v1\nkind: ConfigMap\ndata:\n  settings.yaml: |\n    services:\n      order: lowest\n",
            expected: settings(),
        },
        Case {
            name: "a ConfigMap with broken settings",
            text: "apiVersion: v1\nkind: ConfigMap\ndata: {settings.yaml: '['}",
            expected: Err("data[\"settings.yaml\"]: line "),
        },
        Case {
            name: "a ConfigMap with another key",
            text: "apiVersion: v1\nkind: ConfigMap\ndata: {pools.yaml: x}",
            expected: Err("the ConfigMap has no key settings.yaml: it has pools.yaml"),
        },
        Case {
            name: "a ConfigMap with several other keys",
            text: "apiVersion: v1\nkind: ConfigMap\ndata: {settings.yml: x, a: x}",
            expected: Err("the ConfigMap has no key settings.yaml: it has a, settings.yml"),
        },
        Case {
            name: "a ConfigMap without keys",
            text: "apiVersion: v1\nkind: ConfigMap\ndata: {}",
            expected: Err("the ConfigMap has no key settings.yaml: it has no keys"),
        },
        Case {
            name: "a ConfigMap without data",
            text: "apiVersion: v1\nkind: ConfigMap",
            expected: Err("the ConfigMap has no key settings.yaml: it has no keys"),
        },
        Case {
            name: "a ConfigMap of the wrong shape",
            text: "apiVersion: v1\nkind: ConfigMap\ndata: []",
            expected: Err("invalid type"),
        },
        Case {
            name: "another object",
            text: "apiVersion: apps/v1\nkind: Deployment",
            expected: Err("apps/v1 Deployment has no settings: pass the settings themselves"),
        },
        Case {
            name: "a policy of another project",
            text: "apiVersion: example.com/v1\nkind: ClusterAdmissionPolicy",
            expected: Err("example.com/v1 ClusterAdmissionPolicy has no settings"),
        },
        Case {
            name: "objects, with the ServiceCIDR that one selects",
            text: "apiVersion: clusterip-policy.io/v1alpha1\nkind: ServicePool\nmetadata: {name: a}\n\
                   spec: {serviceCIDRSelector: {matchLabels: {team: a}}}\n---\n\
                   apiVersion: networking.k8s.io/v1\nkind: ServiceCIDR\n\
                   metadata: {name: a, labels: {team: a}}\nspec: {cidrs: [10.96.1.0/24]}",
            expected: Ok(json!({"services": {"pools": [{"name": "a", "cidrs": ["10.96.1.0/24"]}]}})),
        },
        Case {
            name: "an object with a mistake",
            text: "apiVersion: clusterip-policy.io/v1alpha1\nkind: ServicePool\nmetadata: {name: a}\n\
                   spec: {cidrs: [10.96.1.1/24]}",
            expected: Err("ServicePool a: Invalid: spec.cidrs[0]: 10.96.1.1/24 has host bits set"),
        },
        Case {
            name: "another object beside objects",
            text: "apiVersion: clusterip-policy.io/v1alpha1\nkind: ServicePool\nmetadata: {name: a}\n\
                   ---\napiVersion: v1\nkind: Service\n",
            expected: Err("v1 Service has no settings: pass the settings themselves, objects of "),
        },
        Case {
            name: "a document beside objects",
            text: "apiVersion: clusterip-policy.io/v1alpha1\nkind: ServicePool\nmetadata: {name: a}\n\
                   ---\nservices: {order: lowest}\n",
            expected: Err("the file has objects of clusterip-policy.io and a document without apiVersion"),
        },
        Case { name: "two documents", text: "services: {}\n---\nnodes: {}", expected: Err("line 3: more than") },
        Case { name: "no YAML", text: "services: [", expected: Err("line 2: ") },
    ];
    for Case { name, text, expected } in cases {
        let found = SettingsFile::read(text).and_then(|file| file.document(&ServiceRanges::default()));
        let found = found.map(|written| written.document);
        match (found.map_err(|error| error.to_string()), expected) {
            (Err(reason), Err(begin)) => assert!(reason.starts_with(begin), "{name}: {reason}"),
            (found, expected) => assert_eq!(found, expected.map_err(str::to_owned), "{name}"),
        }
    }
}

const LINUX: &str = "apiVersion: clusterip-policy.io/v1alpha1\nkind: ServicePool\nmetadata: {name: linux}\n";
const TEAM: &str = "apiVersion: clusterip-policy.io/v1alpha1\nkind: ServicePool\nmetadata: {name: team}\n\
                    spec: {serviceCIDRSelector: {matchLabels: {team: a}}}\n";

fn document_in(text: &str, cluster: &ServiceRanges) -> Result<Value, String> {
    let written = document_of_objects(&in_text(text).unwrap().unwrap(), &[], cluster);
    written.map(|written| written.document).map_err(|error| error.to_string())
}

fn document(text: &str) -> Result<Value, String> {
    document_in(text, &ServiceRanges::default())
}

#[test]
fn objects_are_found_in_documents_and_lists() {
    struct Case {
        name: &'static str,
        text: String,
        /// The kinds of the objects; `None` if none is of the API.
        expected: Option<&'static str>,
    }
    let item = r#"{"apiVersion": "clusterip-policy.io/v1alpha1", "kind": "ServicePool"}"#;
    let cases = [
        Case { name: "nothing", text: String::new(), expected: None },
        Case { name: "a document", text: "services: {} # for clusterip-policy.io\n".to_owned(), expected: None },
        Case { name: "one", text: LINUX.to_owned(), expected: Some("ServicePool") },
        Case {
            name: "several, an empty document, and another object",
            text: format!("---\n{LINUX}---\n---\n{TEAM}---\napiVersion: v1\nkind: Service\n"),
            expected: Some("ServicePool ServicePool Service"),
        },
        Case {
            name: "a list",
            text: format!(r#"{{"apiVersion": "v1", "kind": "List", "items": [{item}, {item}]}}"#),
            expected: Some("ServicePool ServicePool"),
        },
        Case {
            name: "a list whose items have no type",
            text: "apiVersion: clusterip-policy.io/v1alpha1\nkind: ExternalPoolList\n\
                   items: [{metadata: {name: a}}]\n"
                .to_owned(),
            expected: Some("ExternalPool"),
        },
    ];
    for Case { name, text, expected } in cases {
        let found = in_text(&text).unwrap();
        let kinds = found.map(|objects| objects.iter().map(kind).collect::<Vec<_>>().join(" "));
        assert_eq!(kinds.as_deref(), expected, "{name}");
    }
    assert!(in_text("clusterip-policy.io: [").is_err(), "no YAML");
}

#[test]
fn objects_must_be_usable_beside_those_of_the_cluster() {
    struct Case {
        name: &'static str,
        given: Value,
        expected: Result<usize, &'static str>,
    }
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
    let cases = [
        Case { name: "a new pool", given: pool("c", "10.96.2.0/24", of("c")), expected: Ok(3) },
        Case { name: "the same pool", given: pool("a", "10.96.0.0/24", of("a")), expected: Ok(2) },
        Case { name: "another range", given: pool("a", "10.96.4.0/24", of("a")), expected: Ok(2) },
        Case {
            name: "a new pool that overlaps one of the cluster",
            given: pool("c", "10.96.1.128/25", of("c")),
            expected: Err("ServicePool c: Overlaps: spec.cidrs[0]: 10.96.1.128/25 overlaps 10.96.1.0/24 of pool \"b\""),
        },
        Case {
            name: "an edit that overlaps another pool",
            given: pool("a", "10.96.1.0/25", of("a")),
            expected: Err("ServicePool a: Overlaps: this pool conflicts with pool \"b\": spec.cidrs[0]: "),
        },
        Case {
            name: "a pool that would be tried first and match everything",
            given: pool("0", "10.96.2.0/24", json!({})),
            expected: Err("ServicePool 0: NeverUsed: "),
        },
        Case {
            name: "a pool outside of the Service ranges",
            given: pool("c", "10.97.0.0/24", of("c")),
            expected: Err(
                "ServicePool c: OutsideServiceCIDRs: spec.cidrs[0]: 10.97.0.0/24 lies outside of the Service",
            ),
        },
    ];
    for Case { name, given, expected } in cases {
        let written = document_of_objects(&[given], &there, &vec!["10.96.0.0/16".to_owned()].into());
        let pools = written.map(|written| written.document["services"]["pools"].as_array().unwrap().len());
        match (pools.map_err(|error| error.to_string()), expected) {
            (Err(reason), Err(begin)) => assert!(reason.starts_with(begin), "{name}: {reason}"),
            (found, expected) => assert_eq!(found, expected.map_err(str::to_owned), "{name}"),
        }
    }
}

#[test]
fn objects_of_a_file_must_all_be_usable() {
    struct Case {
        name: &'static str,
        text: String,
        expected: Result<Value, &'static str>,
    }
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
    let cidr = "---\napiVersion: networking.k8s.io/v1\nkind: ServiceCIDR\n\
                metadata: {name: a, labels: {team: a}}\nspec: {cidrs: [10.97.0.0/24]}\n";
    let cases = [
        Case {
            name: "a pool and settings",
            text: pool("all", "{cidrs: [10.96.1.0/24], fence: Deny, priority: 3}") + &policy("default"),
            expected: Ok(json!({"services": {
                "order": "lowest", "pools": [{"name": "all", "cidrs": ["10.96.1.0/24"]}],
            }})),
        },
        Case {
            name: "a labelled ServiceCIDR in the same file",
            text: TEAM.to_owned() + cidr,
            expected: Ok(json!({"services": {"pools": [{"name": "team", "cidrs": ["10.97.0.0/24"]}]}})),
        },
        Case {
            name: "no such ServiceCIDR",
            text: TEAM.to_owned(),
            expected: Err("ServicePool team: NoRanges: spec.serviceCIDRSelector: no ServiceCIDR object has these \
                           labels: label one with kubectl label servicecidr, or list cidrs; in files, add \
                           the ServiceCIDR objects beside the pool"),
        },
        Case {
            name: "mistakes of several objects, in the order of the file",
            text: pool("b", "{cidrs: [10.96.1.7/24]}") + &pool("a", "{cidrs: [10.96.2.0/24], fence: Denny}"),
            expected: Err("ServicePool b: Invalid: spec.cidrs[0]: 10.96.1.7/24 has host bits set: did you mean \
                           10.96.1.0/24?\nServicePool a: Invalid: spec.fence: unknown value \"Denny\": did you \
                           mean Deny?"),
        },
        Case {
            name: "overlapping pools",
            text: pool("a", "{cidrs: [10.96.1.0/24], match: {os: linux}}") + &pool("b", "{cidrs: [10.96.1.128/25]}"),
            expected: Err("ServicePool b: Overlaps: spec.cidrs[0]: 10.96.1.128/25 overlaps 10.96.1.0/24 of pool \
                           \"a\""),
        },
        Case {
            name: "another name of the settings",
            text: policy("other"),
            expected: Err("ClusterIPPolicy other: Invalid: the name must be default"),
        },
        Case {
            name: "two pools of one name",
            text: pool("a", "{cidrs: [10.96.1.0/24]}") + &pool("a", "{cidrs: [10.96.2.0/24]}"),
            expected: Err("ServicePool a: Invalid: there is another object of this kind and name: remove one"),
        },
        Case {
            name: "no name",
            text: "apiVersion: clusterip-policy.io/v1alpha1\nkind: ExternalPool\n".to_owned(),
            expected: Err("ExternalPool: Invalid: metadata.name is missing"),
        },
        Case {
            name: "an unknown kind",
            text: "apiVersion: clusterip-policy.io/v1alpha1\nkind: Pool\nmetadata: {name: a}\n".to_owned(),
            expected: Err("clusterip-policy.io/v1alpha1: Invalid: unknown kind \"Pool\": known are ServicePool, \
                           ExternalPool, NodeBlockPool, ClusterIPPolicy"),
        },
    ];
    for Case { name, text, expected } in cases {
        assert_eq!(document(&text), expected.map_err(str::to_owned), "{name}");
    }
}

#[test]
fn objects_of_a_file_are_compared_with_the_cluster() {
    struct Case {
        name: &'static str,
        text: String,
        cluster: Vec<Value>,
        expected: Result<Value, &'static str>,
    }
    let cidr = |name: &str, cidr: &str, labels: Value| {
        json!({"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR",
               "metadata": {"name": name, "labels": labels}, "spec": {"cidrs": [cidr]}})
    };
    let kubernetes = || cidr("kubernetes", "10.96.0.0/16", json!({}));
    let far = LINUX.to_owned() + "spec: {cidrs: [10.97.1.0/24]}\n";
    let cases = [
        Case {
            name: "a ServiceCIDR of the cluster",
            text: TEAM.to_owned(),
            cluster: vec![kubernetes(), cidr("a", "10.97.0.0/24", json!({"team": "a"}))],
            expected: Ok(json!({"services": {"pools": [{"name": "team", "cidrs": ["10.97.0.0/24"]}]}})),
        },
        Case {
            name: "no such ServiceCIDR in the cluster",
            text: TEAM.to_owned(),
            cluster: vec![kubernetes()],
            expected: Err("ServicePool team: NoRanges: spec.serviceCIDRSelector: no ServiceCIDR object has these \
                           labels: label one with kubectl label servicecidr, or list cidrs"),
        },
        Case {
            name: "outside of the cluster",
            text: far.clone(),
            cluster: vec![kubernetes()],
            expected: Err("ServicePool linux: OutsideServiceCIDRs: spec.cidrs[0]: 10.97.1.0/24 lies outside of \
                           the Service ranges of the cluster (10.96.0.0/16): the API server would refuse its \
                           addresses"),
        },
        Case {
            name: "the ranges of the cluster are unknown",
            text: far,
            cluster: vec![],
            expected: Ok(json!({"services": {"pools": [{"name": "linux", "cidrs": ["10.97.1.0/24"]}]}})),
        },
    ];
    for Case { name, text, cluster, expected } in cases {
        let found = document_in(&text, &ServiceRanges::of(&cluster));
        assert_eq!(found, expected.map_err(str::to_owned), "{name}");
    }
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
    let cidr = json!({"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR",
                      "metadata": {"name": "kubernetes"}, "spec": {"cidrs": ["10.96.0.0/16"]}});
    let compiled = compiled_as_in_cluster(&[good, bad, cidr]).unwrap();
    let expected = json!({"services": {"pools": [{"name": "good", "cidrs": ["10.96.1.0/24"]}]}});
    assert_eq!(compiled.document, expected);
    assert_eq!(compiled.states.len(), 2);
}
