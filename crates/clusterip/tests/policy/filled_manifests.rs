//! `plan -o yaml` fills the addresses in and changes no other character.

use std::sync::LazyLock;

use clusterip::cluster::manifests::{self, Source};
use clusterip::manifest_planner::{Plan, Planner};
use clusterip::policy::module::{EMBEDDED, Module};
use clusterip::report::filled;
use clusterip_core::answer::Outcome;
use clusterip_core::settings::Settings;
use proptest::prelude::*;
use serde_json::{Value, json};

static MODULE: LazyLock<Module> = LazyLock::new(|| Module::new(EMBEDDED).unwrap());

/// One pool with both families, whose first addresses are 10.0.0.2 and fd00::1.
fn settings() -> Value {
    json!({"services": {
        "order": "lowest",
        "serviceCIDRs": ["10.0.0.0/24", "fd00::/120"],
        "pools": [{"name": "all", "cidrs": ["10.0.0.0/24", "fd00::/120"]}],
    }})
}

/// The same, and pools of Nodes: one with both families for Windows, one with only IPv4.
fn settings_with_nodes() -> Value {
    let mut settings = settings();
    settings["nodes"] = json!({"pools": [
        {"name": "both", "cidrs": ["10.1.0.0/16", "fd01::/48"], "match": {"os": "windows"}},
        {"name": "v4", "cidrs": ["10.2.0.0/16"]},
    ]});
    settings
}

fn source(name: &str, text: &str) -> Source {
    Source { name: name.to_owned(), text: text.to_owned() }
}

/// Plans these texts, and fills the addresses in.
fn plan(sources: &[Source]) -> (Plan, Result<String, String>) {
    plan_with(settings(), sources)
}

fn plan_with(document: Value, sources: &[Source]) -> (Plan, Result<String, String>) {
    let manifests = manifests::parse(sources, "default").unwrap();
    let settings = Settings::from_value(&document).unwrap();
    let planner = Planner::new(&MODULE, document, settings, Vec::new());
    let plan = planner.plan(&manifests, |_| {}).unwrap();
    let filled = filled::manifests(sources, &manifests, &plan).map_err(|error| error.to_string());
    (plan, filled)
}

#[track_caller]
fn fill(text: &str) -> String {
    plan(&[source("in.yaml", text)]).1.unwrap()
}

const HEAD: &str = "apiVersion: v1\nkind: Service\nmetadata: {name: web}\n";

#[test]
fn address_is_filled_into_every_notation_of_spec() {
    struct Case {
        name: &'static str,
        spec: &'static str,
        expected: &'static str,
    }
    let rows = [
        Case {
            name: "a block",
            spec: "spec:\n  ports:\n  - port: 80\n",
            expected: "spec:\n  clusterIP: 10.0.0.2\n  ports:\n  - port: 80\n",
        },
        Case {
            name: "a deep block",
            spec: "spec:\n        type: ClusterIP\n",
            expected: "spec:\n        clusterIP: 10.0.0.2\n        type: ClusterIP\n",
        },
        Case {
            name: "comments everywhere",
            spec: "spec: # the spec\n  # ports of «web» 🕸\n  ports: [] # none\n  # the end\n",
            expected: "spec: # the spec\n  # ports of «web» 🕸\n  clusterIP: 10.0.0.2\n  ports: [] # none\n  \
                       # the end\n",
        },
        Case {
            name: "no line end at the end",
            spec: "spec:\n  ports: []",
            expected: "spec:\n  clusterIP: 10.0.0.2\n  ports: []",
        },
        Case {
            name: "Windows line ends",
            spec: "spec:\r\n  ports: []\r\n",
            expected: "spec:\r\n  clusterIP: 10.0.0.2\r\n  ports: []\r\n",
        },
        Case {
            name: "blank lines",
            spec: "spec:\n\n\n  ports: []\n\n",
            expected: "spec:\n\n\n  clusterIP: 10.0.0.2\n  ports: []\n\n",
        },
        Case {
            name: "a quoted key",
            spec: "spec:\n  \"ports\": []\n",
            expected: "spec:\n  clusterIP: 10.0.0.2\n  \"ports\": []\n",
        },
        Case {
            name: "braces",
            spec: "spec: {ports: []}\n",
            expected: "spec: {\"clusterIP\": \"10.0.0.2\", ports: []}\n",
        },
        Case {
            name: "braces with room",
            spec: "spec: { ports: [] }\n",
            expected: "spec: { \"clusterIP\": \"10.0.0.2\", ports: [] }\n",
        },
        Case {
            name: "a comma too many",
            spec: "spec: {ports: [],}\n",
            expected: "spec: {\"clusterIP\": \"10.0.0.2\", ports: [],}\n",
        },
        Case {
            name: "braces on lines",
            spec: "spec: {\n  ports: []\n}\n",
            expected: "spec: {\n  \"clusterIP\": \"10.0.0.2\",\n  ports: []\n}\n",
        },
        Case { name: "nothing in braces", spec: "spec: {}\n", expected: "spec: {\"clusterIP\": \"10.0.0.2\"}\n" },
        Case {
            name: "nothing in braces, no line end",
            spec: "spec: {}",
            expected: "spec: {\"clusterIP\": \"10.0.0.2\"}",
        },
        Case {
            name: "nothing in wide braces",
            spec: "spec:\n  { }\n",
            expected: "spec:\n  { \"clusterIP\": \"10.0.0.2\"}\n",
        },
        Case {
            name: "empty",
            spec: "spec:\n  clusterIP: \"\"\n  ports: []\n",
            expected: "spec:\n  clusterIP: 10.0.0.2\n  ports: []\n",
        },
        Case {
            name: "empty in other quotes",
            spec: "spec:\n  clusterIP: ''\n",
            expected: "spec:\n  clusterIP: 10.0.0.2\n",
        },
        Case {
            name: "empty on the next line",
            spec: "spec:\n  clusterIP:\n    \"\"\n",
            expected: "spec:\n  clusterIP:\n    10.0.0.2\n",
        },
        Case {
            name: "nothing",
            spec: "spec:\n  ports: []\n  clusterIP:\n",
            expected: "spec:\n  ports: []\n  clusterIP: 10.0.0.2\n",
        },
        Case { name: "nothing at the end", spec: "spec:\n  clusterIP:", expected: "spec:\n  clusterIP: 10.0.0.2" },
        Case {
            name: "nothing but a comment",
            spec: "spec:\n  clusterIP: # any\n",
            expected: "spec:\n  clusterIP: 10.0.0.2 # any\n",
        },
        Case {
            name: "nothing, and a blank",
            spec: "spec:\n  clusterIP :\n  ports: []\n",
            expected: "spec:\n  clusterIP : 10.0.0.2\n  ports: []\n",
        },
        Case {
            name: "null",
            spec: "spec:\n  clusterIP: null # any\n",
            expected: "spec:\n  clusterIP: 10.0.0.2 # any\n",
        },
        Case { name: "a tilde", spec: "spec:\n  clusterIP: ~\n", expected: "spec:\n  clusterIP: 10.0.0.2\n" },
        Case {
            name: "empty in braces",
            spec: "spec: {clusterIP: ''}\n",
            expected: "spec: {clusterIP: \"10.0.0.2\"}\n",
        },
        Case {
            name: "nothing in braces behind a key",
            spec: "spec: {clusterIP: , ports: []}\n",
            expected: "spec: {clusterIP: \"10.0.0.2\" , ports: []}\n",
        },
        Case {
            name: "an empty list of addresses",
            spec: "spec:\n  clusterIP: ''\n  clusterIPs: []\n",
            expected: "spec:\n  clusterIP: 10.0.0.2\n  clusterIPs: []\n",
        },
        Case {
            name: "an anchor",
            spec: "spec: &spec\n  ports: []\n",
            expected: "spec: &spec\n  clusterIP: 10.0.0.2\n  ports: []\n",
        },
        Case {
            name: "an anchor on braces",
            spec: "spec: &spec {}\n",
            expected: "spec: &spec {\"clusterIP\": \"10.0.0.2\"}\n",
        },
        Case {
            name: "IPv6",
            spec: "spec:\n  ipFamilies: [IPv6]\n",
            expected: "spec:\n  clusterIP: \"fd00::1\"\n  ipFamilies: [IPv6]\n",
        },
        Case {
            name: "two families",
            spec: "spec:\n  ipFamilyPolicy: RequireDualStack\n",
            expected: "spec:\n  clusterIP: 10.0.0.2\n  clusterIPs: [\"10.0.0.2\", \"fd00::1\"]\n  \
                       ipFamilyPolicy: RequireDualStack\n",
        },
        Case {
            name: "two families in braces",
            spec: "spec: {ipFamilyPolicy: RequireDualStack}\n",
            expected: "spec: {\"clusterIP\": \"10.0.0.2\", \"clusterIPs\": [\"10.0.0.2\", \"fd00::1\"], \
                       ipFamilyPolicy: RequireDualStack}\n",
        },
        Case {
            name: "two families beside empty fields",
            spec: "spec:\n  clusterIPs: # both\n  clusterIP: ''\n  ipFamilies: [IPv6, IPv4]\n  \
                   ipFamilyPolicy: PreferDualStack\n",
            expected: "spec:\n  clusterIPs: [\"fd00::1\", \"10.0.0.2\"] # both\n  clusterIP: \"fd00::1\"\n  \
                       ipFamilies: [IPv6, IPv4]\n  \
                       ipFamilyPolicy: PreferDualStack\n",
        },
        Case { name: "headless", spec: "spec:\n  clusterIP: None\n", expected: "spec:\n  clusterIP: None\n" },
        Case {
            name: "set by hand",
            spec: "spec:\n  clusterIP: 10.0.0.9\n",
            expected: "spec:\n  clusterIP: 10.0.0.9\n",
        },
        Case {
            name: "another name",
            spec: "spec: {type: ExternalName, externalName: a.b}\n",
            expected: "spec: {type: ExternalName, externalName: a.b}\n",
        },
    ];
    for Case { name, spec, expected } in rows {
        assert_eq!(fill(&format!("{HEAD}{spec}")), format!("{HEAD}{expected}"), "{name}");
    }
}

#[test]
fn merged_fields_are_left_unchanged() {
    struct Case {
        name: &'static str,
        spec: &'static str,
        expected: &'static str,
    }
    let rows = [
        Case {
            name: "before",
            spec: "spec:\n  <<: *base\n  type: ClusterIP\n",
            expected: "spec:\n  <<: *base\n  clusterIP: 10.0.0.2\n  type: ClusterIP\n",
        },
        Case {
            name: "behind",
            spec: "spec:\n  type: ClusterIP\n  <<: *base\n",
            expected: "spec:\n  clusterIP: 10.0.0.2\n  type: ClusterIP\n  <<: *base\n",
        },
        Case {
            name: "in braces",
            spec: "spec: {<<: *base, type: ClusterIP}\n",
            expected: "spec: {<<: *base, \"clusterIP\": \"10.0.0.2\", type: ClusterIP}\n",
        },
    ];
    for base in ["{ports: []}", "{clusterIP: ''}"] {
        for Case { name, spec, expected } in &rows {
            let head = format!("base: &base {base}\n{HEAD}");
            assert_eq!(fill(&format!("{head}{spec}")), format!("{head}{expected}"), "{name}, {base}");
        }
    }
}

#[test]
fn only_addresses_change_in_a_text() {
    struct Case {
        name: &'static str,
        text: &'static str,
        expected: &'static str,
    }
    let rows = [
        Case {
            name: "JSON on one line",
            text: r#"{"apiVersion":"v1","kind":"Service","metadata":{"name":"web"},"spec":{"ports":[]}}"#,
            expected: r#"{"apiVersion":"v1","kind":"Service","metadata":{"name":"web"},"spec":{"clusterIP": "10.0.0.2", "ports":[]}}"#,
        },
        Case {
            name: "JSON on lines",
            text: "{\n  \"kind\": \"Service\",\n  \"apiVersion\": \"v1\",\n  \"metadata\": {\"name\": \"web\"},\n  \
                   \"spec\": {\n    \"ports\": []\n  }\n}\n",
            expected: "{\n  \"kind\": \"Service\",\n  \"apiVersion\": \"v1\",\n  \
                       \"metadata\": {\"name\": \"web\"},\n  \"spec\": {\n    \
                       \"clusterIP\": \"10.0.0.2\",\n    \"ports\": []\n  }\n}\n",
        },
        Case {
            name: "the items of a List, block and flow",
            text: "kind: List\napiVersion: v1\nitems:\n- kind: Service\n  apiVersion: v1\n  metadata: {name: a}\n  \
                   spec:\n    ports: []\n\
                   - {kind: Service, apiVersion: v1, metadata: {name: b}, spec: {}}\n",
            expected: "kind: List\napiVersion: v1\nitems:\n- kind: Service\n  apiVersion: v1\n  \
                       metadata: {name: a}\n  spec:\n    \
                       clusterIP: 10.0.0.2\n    ports: []\n\
                       - {kind: Service, apiVersion: v1, metadata: {name: b}, spec: {\"clusterIP\": \"10.0.0.3\"}}\n",
        },
        Case {
            name: "the items of a typed list",
            text: "kind: ServiceList\napiVersion: v1\nitems:\n- metadata: {name: a}\n  spec: {}\n",
            expected: "kind: ServiceList\napiVersion: v1\nitems:\n- metadata: {name: a}\n  \
                       spec: {\"clusterIP\": \"10.0.0.2\"}\n",
        },
        Case {
            name: "several documents, marks, comments and directives",
            text: "# one\n%YAML 1.2\n---\nkind: Service\napiVersion: v1\nmetadata: {name: a}\nspec: {}\n...\n# two\n\
                   ---\n---\n\
                   kind: Service\napiVersion: v1\nmetadata: {name: b}\nspec:\n  ports: []\n--- # three\n\
                   {kind: Service, apiVersion: v1, metadata: {name: c}, spec: {}}\n---\n",
            expected: "# one\n%YAML 1.2\n---\nkind: Service\napiVersion: v1\nmetadata: {name: a}\n\
                       spec: {\"clusterIP\": \"10.0.0.2\"}\n...\n# two\n---\n---\n\
                       kind: Service\napiVersion: v1\nmetadata: {name: b}\nspec:\n  clusterIP: 10.0.0.3\n  ports: []\n\
                       --- # three\n\
                       {kind: Service, apiVersion: v1, metadata: {name: c}, spec: {\"clusterIP\": \"10.0.0.4\"}}\n\
                       ---\n",
        },
        Case {
            name: "a text in a text, and a CustomResource that is called Service",
            text: "kind: ConfigMap\napiVersion: v1\nmetadata: {name: a}\ndata:\n  b: |\n    kind: Service\n    \
                   spec:\n      clusterIP: ''\n---\n\
                   kind: Service\napiVersion: serving.knative.dev/v1\nmetadata: {name: a}\nspec:\n  clusterIP: ''\n",
            expected: "kind: ConfigMap\napiVersion: v1\nmetadata: {name: a}\ndata:\n  b: |\n    kind: Service\n    \
                       spec:\n      clusterIP: ''\n---\n\
                       kind: Service\napiVersion: serving.knative.dev/v1\nmetadata: {name: a}\nspec:\n  \
                       clusterIP: ''\n",
        },
        Case { name: "nothing at all", text: "", expected: "" },
        Case { name: "comments alone", text: "# nothing\n", expected: "# nothing\n" },
    ];
    for Case { name, text, expected } in rows {
        assert_eq!(fill(text), expected, "{name}");
    }
}

#[test]
fn blocks_are_filled_into_every_notation_of_a_node() {
    struct Case {
        name: &'static str,
        text: String,
        expected: String,
    }
    struct Refused {
        name: &'static str,
        text: String,
        reason: &'static str,
    }
    const HEAD: &str = "apiVersion: v1\nkind: Node\nmetadata: {name: n}\n";
    let windows = "metadata: {name: n, labels: {kubernetes.io/os: windows}}\n";
    let rows = [
        Case {
            name: "no spec",
            text: HEAD.to_owned(),
            expected: "apiVersion: v1\nkind: Node\nspec: {\"podCIDR\": \"10.2.0.0/24\", \"podCIDRs\": \
                       [\"10.2.0.0/24\"]}\nmetadata: {name: n}\n"
                .to_owned(),
        },
        Case {
            name: "no spec, in JSON",
            text: "{\"apiVersion\": \"v1\", \"kind\": \"Node\", \"metadata\": {\"name\": \"n\"}}".to_owned(),
            expected: "{\"apiVersion\": \"v1\", \"kind\": \"Node\", \"spec\": {\"podCIDR\": \"10.2.0.0/24\", \
                       \"podCIDRs\": [\"10.2.0.0/24\"]}, \
                       \"metadata\": {\"name\": \"n\"}}"
                .to_owned(),
        },
        Case {
            name: "no spec, in an item of a List",
            text: "kind: List\napiVersion: v1\nitems:\n- kind: Node\n  apiVersion: v1\n  metadata:\n    name: n\n"
                .to_owned(),
            expected: "kind: List\napiVersion: v1\nitems:\n- kind: Node\n  apiVersion: v1\n  \
                       spec: {\"podCIDR\": \"10.2.0.0/24\", \"podCIDRs\": \
                       [\"10.2.0.0/24\"]}\n  metadata:\n    name: n\n"
                .to_owned(),
        },
        Case {
            name: "no spec, Windows line ends",
            text: "apiVersion: v1\r\nkind: Node\r\nmetadata: {name: n}\r\n".to_owned(),
            expected: "apiVersion: v1\r\nkind: Node\r\nspec: {\"podCIDR\": \"10.2.0.0/24\", \"podCIDRs\": \
                       [\"10.2.0.0/24\"]}\r\nmetadata: {name: n}\r\n"
                .to_owned(),
        },
        Case {
            name: "a block",
            text: format!("{HEAD}spec:\n  providerID: p\n"),
            expected: format!("{HEAD}spec:\n  podCIDR: 10.2.0.0/24\n  podCIDRs: [\"10.2.0.0/24\"]\n  providerID: p\n"),
        },
        Case {
            name: "nothing in braces",
            text: format!("{HEAD}spec: {{}}\n"),
            expected: format!("{HEAD}spec: {{\"podCIDR\": \"10.2.0.0/24\", \"podCIDRs\": [\"10.2.0.0/24\"]}}\n"),
        },
        Case {
            name: "empty fields",
            text: format!("{HEAD}spec:\n  podCIDRs: []\n  podCIDR: ''\n"),
            expected: format!("{HEAD}spec:\n  podCIDRs: [\"10.2.0.0/24\"]\n  podCIDR: 10.2.0.0/24\n"),
        },
        Case {
            name: "two families",
            text: format!("apiVersion: v1\nkind: Node\n{windows}spec:\n  providerID: p\n"),
            expected: format!(
                "apiVersion: v1\nkind: Node\n{windows}spec:\n  podCIDR: 10.1.0.0/24\n  \
                 podCIDRs: [\"10.1.0.0/24\", \"fd01::/64\"]\n  \
                 providerID: p\n"
            ),
        },
        Case {
            name: "set by hand",
            text: format!("{HEAD}spec: {{podCIDR: 10.2.9.0/24, podCIDRs: [10.2.9.0/24]}}\n"),
            expected: format!("{HEAD}spec: {{podCIDR: 10.2.9.0/24, podCIDRs: [10.2.9.0/24]}}\n"),
        },
    ];
    for Case { name, text, expected } in rows {
        assert_eq!(plan_with(settings_with_nodes(), &[source("in.yaml", &text)]).1, Ok(expected), "{name}");
        assert_eq!(plan(&[source("in.yaml", &text)]).1, Ok(text), "{name}: without pools for Nodes");
    }
    let refused = [
        Refused {
            name: "a null spec",
            text: format!("{HEAD}spec: null\n"),
            reason: "its spec is missing, or an alias or merge key brings it in; write it out",
        },
        Refused {
            name: "a list of nothing",
            text: format!("{HEAD}spec:\n  podCIDR: ''\n  podCIDRs:\n  - ''\n"),
            reason: "the text around it is too unusual; set podCIDR and podCIDRs by hand",
        },
    ];
    for Refused { name, text, reason } in refused {
        let expected = format!("in.yaml: document 1, line 1: the block can't be filled in: {reason}");
        assert_eq!(plan_with(settings_with_nodes(), &[source("in.yaml", &text)]).1, Err(expected), "{name}");
    }
}

#[test]
fn record_is_filled_into_every_notation_of_metadata() {
    struct Case {
        name: &'static str,
        metadata: &'static str,
        expected: String,
    }
    struct Refused {
        name: &'static str,
        text: String,
        reason: &'static str,
    }
    // One address of each family.
    let mut settings = settings();
    settings["external"] = json!({"pools": [{"name": "lan", "cidrs": ["10.9.0.1-10.9.0.1", "fd09::1-fd09::1"]}]});
    const SPEC: &str =
        "spec: {type: LoadBalancer, loadBalancerClass: clusterip-policy/external, clusterIP: 10.0.0.9}\n";
    const BOTH: &str = "spec: {type: LoadBalancer, loadBalancerClass: clusterip-policy/external, clusterIP: 10.0.0.9, \
                        clusterIPs: [10.0.0.9, 'fd00::9'], ipFamilies: [IPv4, IPv6], ipFamilyPolicy: RequireDualStack}\n";
    let key = "clusterip-policy/external-addresses";
    let rows = [
        Case {
            name: "a block without annotations",
            metadata: "metadata:\n  name: web\n",
            expected: format!("metadata:\n  annotations:\n    {key}: 10.9.0.1\n  name: web\n"),
        },
        Case {
            name: "a block with annotations, and comments",
            metadata: "metadata: # what it is\n  name: web\n  annotations: # «notes»\n      # the first\n      a: b\n",
            expected: format!(
                "metadata: # what it is\n  name: web\n  annotations: # «notes»\n      # the first\n      \
                 {key}: 10.9.0.1\n      a: b\n"
            ),
        },
        Case {
            name: "braces",
            metadata: "metadata: {name: web}\n",
            expected: format!("metadata: {{\"annotations\": {{\"{key}\": \"10.9.0.1\"}}, name: web}}\n"),
        },
        Case {
            name: "annotations in braces",
            metadata: "metadata: {name: web, annotations: {a: b}}\n",
            expected: format!("metadata: {{name: web, annotations: {{\"{key}\": \"10.9.0.1\", a: b}}}}\n"),
        },
        Case {
            name: "none in braces",
            metadata: "metadata: {name: web, annotations: {}}\n",
            expected: format!("metadata: {{name: web, annotations: {{\"{key}\": \"10.9.0.1\"}}}}\n"),
        },
        Case {
            name: "null",
            metadata: "metadata:\n  annotations: null # none\n  name: web\n",
            expected: format!("metadata:\n  annotations: {{\"{key}\": \"10.9.0.1\"}} # none\n  name: web\n"),
        },
        Case {
            name: "not written out",
            metadata: "metadata:\n  annotations:\n  name: web\n",
            expected: format!("metadata:\n  annotations: {{\"{key}\": \"10.9.0.1\"}}\n  name: web\n"),
        },
        Case {
            name: "an empty record",
            metadata: "metadata:\n  name: web\n  annotations:\n    clusterip-policy/external-addresses: \"\" # any\n",
            expected: format!("metadata:\n  name: web\n  annotations:\n    {key}: 10.9.0.1 # any\n"),
        },
        Case {
            name: "a record that is written in another way",
            metadata: "metadata:\n  name: web\n  annotations:\n    clusterip-policy/external-addresses: ' 10.9.0.1 ' \
                       # any\n    a: b\n",
            expected: format!("metadata:\n  name: web\n  annotations:\n    {key}: 10.9.0.1 # any\n    a: b\n"),
        },
        Case {
            name: "a record without quotes",
            metadata: "metadata:\n  name: web\n  annotations:\n    clusterip-policy/external-addresses: 10.9.0.001 # \
                       any\n",
            expected: format!("metadata:\n  name: web\n  annotations:\n    {key}: 10.9.0.1 # any\n"),
        },
        Case {
            name: "the right record",
            metadata: "metadata: {name: web, annotations: {clusterip-policy/external-addresses: 10.9.0.1}}\n",
            expected: "metadata: {name: web, annotations: {clusterip-policy/external-addresses: 10.9.0.1}}\n"
                .to_owned(),
        },
        Case {
            name: "Windows line ends",
            metadata: "metadata:\r\n  name: web\r\n",
            expected: format!("metadata:\r\n  annotations:\r\n    {key}: 10.9.0.1\r\n  name: web\r\n"),
        },
        Case {
            name: "beside what a merge key brings",
            metadata: "metadata:\n  annotations:\n    <<: {a: b}\n    c: d\n  name: web\n",
            expected: format!(
                "metadata:\n  annotations:\n    <<: {{a: b}}\n    {key}: 10.9.0.1\n    c: d\n  \
                 name: web\n"
            ),
        },
    ];
    const HEAD: &str = "apiVersion: v1\nkind: Service\n";
    let fill = |text: &str| plan_with(settings.clone(), &[source("in.yaml", text)]).1;
    for Case { name, metadata, expected } in rows {
        let text = format!("{HEAD}{metadata}{SPEC}");
        // The whole text decides the line ends.
        let (text, end) = if name == "Windows line ends" {
            (text.replace("\r\n", "\n").replace('\n', "\r\n"), "\r\n")
        } else {
            (text, "\n")
        };
        let expected = format!("{HEAD}{expected}{SPEC}").replace("\r\n", "\n").replace('\n', end);
        assert_eq!(fill(&text), Ok(expected), "{name}");
    }
    let both = fill(&format!("{HEAD}metadata:\n  name: web\n{BOTH}"));
    let expected = format!("{HEAD}metadata:\n  annotations:\n    {key}: \"10.9.0.1,fd09::1\"\n  name: web\n{BOTH}");
    assert_eq!(both, Ok(expected), "two families");
    let json = r#"{"apiVersion":"v1","kind":"Service","metadata":{"name":"web"},"spec":{"type":"LoadBalancer","loadBalancerClass":"clusterip-policy/external"}}"#;
    let expected = r#"{"apiVersion":"v1","kind":"Service","metadata":{"annotations": {"clusterip-policy/external-addresses": "10.9.0.1"}, "name":"web"},"spec":{"clusterIP": "10.0.0.2", "type":"LoadBalancer","loadBalancerClass":"clusterip-policy/external"}}"#;
    assert_eq!(fill(json).as_deref(), Ok(expected), "JSON, with a ClusterIP");
    let plain = format!("{HEAD}metadata: {{name: web}}\nspec: {{type: LoadBalancer, clusterIP: 10.0.0.9}}\n");
    assert_eq!(fill(&plain), Ok(plain), "of another class");

    let refused = [
        Refused {
            name: "an alias for its annotations",
            text: format!("base: &base {{a: b}}\n{HEAD}metadata: {{name: web, annotations: *base}}\n{SPEC}"),
            reason: "an alias or merge key brings its metadata or annotations in; write them out",
        },
        Refused {
            name: "a text over several lines",
            text: format!("{HEAD}metadata:\n  name: web\n  annotations:\n    {key}: \"\\x310.9.0.01\"\n{SPEC}"),
            reason: "the text around it is too unusual; set the annotation by hand",
        },
    ];
    for Refused { name, text, reason } in refused {
        let expected = format!("in.yaml: document 1, line 1: the external address can't be filled in: {reason}");
        assert_eq!(fill(&text), Err(expected), "{name}");
    }
}

#[test]
fn several_files_become_one_stream() {
    struct Case {
        name: &'static str,
        texts: Vec<&'static str>,
        expected: String,
    }
    const A: &str = "kind: Service\napiVersion: v1\nmetadata: {name: a}\nspec: {}\n";
    const FILLED: &str = "kind: Service\napiVersion: v1\nmetadata: {name: a}\nspec: {\"clusterIP\": \"10.0.0.2\"}\n";
    const B: &str = "kind: ConfigMap\napiVersion: v1\nmetadata: {name: b}\n";
    let rows = [
        Case { name: "no mark", texts: vec![A, B], expected: format!("{FILLED}---\n{B}") },
        Case { name: "no line end", texts: vec![A.trim_end(), B], expected: format!("{FILLED}---\n{B}") },
        Case {
            name: "a mark",
            texts: vec![A, "---\nkind: A\napiVersion: v1\nmetadata: {name: b}\n"],
            expected: format!("{FILLED}---\nkind: A\napiVersion: v1\nmetadata: {{name: b}}\n"),
        },
        Case {
            name: "a mark behind a comment",
            texts: vec![A, "# b\n\n--- # c\n"],
            expected: format!("{FILLED}# b\n\n--- # c\n"),
        },
        Case {
            name: "a directive, which wants the end of the document before",
            texts: vec![A, "%YAML 1.2\n---\nkind: A\napiVersion: v1\nmetadata: {name: b}\n"],
            expected: format!("{FILLED}...\n%YAML 1.2\n---\nkind: A\napiVersion: v1\nmetadata: {{name: b}}\n"),
        },
        Case { name: "an empty file first", texts: vec!["", A], expected: FILLED.to_owned() },
        Case {
            name: "JSON",
            texts: vec![A, "{\"kind\": \"A\", \"apiVersion\": \"v1\", \"metadata\": {\"name\": \"b\"}}"],
            expected: format!(
                "{FILLED}---\n{{\"kind\": \"A\", \"apiVersion\": \"v1\", \"metadata\": {{\"name\": \
                 \"b\"}}}}"
            ),
        },
    ];
    for Case { name, texts, expected } in rows {
        let sources: Vec<Source> = texts.iter().map(|text| source("in.yaml", text)).collect();
        assert_eq!(plan(&sources).1, Ok(expected), "{name}");
    }
}

#[test]
fn text_without_place_for_an_address_is_refused_by_name() {
    struct Case {
        name: &'static str,
        text: String,
        document: usize,
        line: usize,
        reason: &'static str,
    }
    const MISSING: &str = "its spec is missing, or an alias or merge key brings it in; write it out";
    const UNUSUAL: &str = "the text around it is too unusual; set clusterIP by hand";
    let rows = [
        Case { name: "no spec", text: HEAD.to_owned(), document: 1, line: 1, reason: MISSING },
        Case { name: "a spec of nothing", text: format!("{HEAD}spec:\n"), document: 1, line: 1, reason: MISSING },
        Case { name: "a null spec", text: format!("{HEAD}spec: null\n"), document: 1, line: 1, reason: MISSING },
        Case {
            name: "an alias",
            text: format!("base: &base {{ports: []}}\n{HEAD}spec: *base\n"),
            document: 1,
            line: 1,
            reason: MISSING,
        },
        Case {
            name: "a merged spec",
            text: format!("base: &base {{spec: {{}}}}\n<<: *base\n{HEAD}"),
            document: 1,
            line: 1,
            reason: MISSING,
        },
        Case {
            name: "a spec of merges",
            text: format!("base: &base {{ports: []}}\n{HEAD}spec: {{<<: *base}}\n"),
            document: 1,
            line: 1,
            reason: MISSING,
        },
        Case {
            name: "an item that is an alias",
            text: "---\n---\n# two\nkind: List\napiVersion: v1\nitems:\n- &a {kind: Service, apiVersion: v1, \
                   metadata: {name: a}, spec: {}}\n- {<<: *a, metadata: {name: b}}\n"
                .to_owned(),
            document: 2,
            line: 8,
            reason: MISSING,
        },
        Case {
            name: "an anchor on what goes",
            text: format!("{HEAD}spec:\n  clusterIP: &no ''\n  sessionAffinity: *no\n"),
            document: 1,
            line: 1,
            reason: UNUSUAL,
        },
        Case {
            name: "a key without a colon",
            text: format!("{HEAD}spec: {{clusterIP}}\n"),
            document: 1,
            line: 1,
            reason: UNUSUAL,
        },
        Case {
            name: "a list of nothing",
            text: format!("{HEAD}spec:\n  clusterIP: ''\n  clusterIPs:\n  - ''\n"),
            document: 1,
            line: 1,
            reason: UNUSUAL,
        },
    ];
    for Case { name, text, document, line, reason } in rows {
        let expected = format!("in.yaml: document {document}, line {line}: the address can't be filled in: {reason}");
        assert_eq!(plan(&[source("in.yaml", &text)]).1, Err(expected), "{name}");
    }
}

/// A document, with the order of its fields and the text of its scalars.
#[derive(Clone, Debug)]
enum Tree {
    Scalar(String),
    List(Vec<Tree>),
    Map(Vec<(&'static str, Tree)>),
    /// A value that was filled in: no comment follows it.
    Filled(String),
}

/// How a document is written.
#[derive(Clone, Copy, Debug)]
enum Style {
    Block { indent: usize, comments: bool },
    Flow,
    Lines,
}

impl Tree {
    fn text(text: &str) -> Self {
        Self::Scalar(text.to_owned())
    }

    fn write(&self, style: Style) -> String {
        let mut text = String::new();
        match style {
            Style::Block { .. } => self.block(style, 0, &mut text),
            Style::Flow => text = self.flow() + "\n",
            Style::Lines => {
                self.lines(0, &mut text);
                text.push('\n');
            }
        }
        text
    }

    fn block(&self, style: Style, column: usize, text: &mut String) {
        let Style::Block { indent, comments } = style else { unreachable!() };
        let (comment, pad) = (if comments { " # ü {clusterIP: ''}" } else { "" }, " ".repeat(column));
        match self {
            Self::Map(fields) => {
                for (position, (key, value)) in fields.iter().enumerate() {
                    // The first field of an item follows its dash.
                    let pad = if position == 0 && text.ends_with("- ") { "" } else { &pad };
                    match value {
                        Self::Scalar(value) if value.is_empty() => text.push_str(&format!("{pad}{key}:{comment}\n")),
                        Self::Scalar(value) => text.push_str(&format!("{pad}{key}: {value}{comment}\n")),
                        Self::Filled(value) => text.push_str(&format!("{pad}{key}: {value}\n")),
                        Self::List(items) if items.is_empty() => text.push_str(&format!("{pad}{key}: []{comment}\n")),
                        Self::List(_) => {
                            text.push_str(&format!("{pad}{key}:{comment}\n"));
                            value.block(style, column, text);
                        }
                        Self::Map(_) => {
                            text.push_str(&format!("{pad}{key}:{comment}\n"));
                            value.block(style, column + indent, text);
                        }
                    }
                }
            }
            Self::List(items) => {
                for item in items {
                    text.push_str(&format!("{pad}- "));
                    item.block(style, column + 2, text);
                }
            }
            Self::Scalar(value) | Self::Filled(value) => text.push_str(&format!("{value}{comment}\n")),
        }
    }

    fn flow(&self) -> String {
        let all = |parts: Vec<String>| parts.join(", ");
        match self {
            Self::Scalar(value) => json_scalar(value),
            Self::Filled(value) => value.clone(),
            Self::List(items) => format!("[{}]", all(items.iter().map(Self::flow).collect())),
            Self::Map(fields) => {
                format!(
                    "{{{}}}",
                    all(fields.iter().map(|(key, value)| format!("\"{key}\": {}", value.flow())).collect())
                )
            }
        }
    }

    fn lines(&self, column: usize, text: &mut String) {
        let Self::Map(fields) = self else { return text.push_str(&self.flow()) };
        text.push('{');
        for (position, (key, value)) in fields.iter().enumerate() {
            let comma = if position > 0 { "," } else { "" };
            text.push_str(&format!("{comma}\n{}\"{key}\": ", " ".repeat(column + 2)));
            value.lines(column + 2, text);
        }
        text.push_str(&format!("\n{}}}", " ".repeat(column)));
    }

    fn to_value(&self) -> Value {
        match self {
            Self::Scalar(value) | Self::Filled(value) => serde_json::from_str(&json_scalar(value)).unwrap(),
            Self::List(items) => items.iter().map(Self::to_value).collect(),
            Self::Map(fields) => fields.iter().map(|(key, value)| ((*key).to_owned(), value.to_value())).collect(),
        }
    }

    fn field(&mut self, name: &str) -> Option<&mut Self> {
        let Self::Map(fields) = self else { return None };
        fields.iter_mut().find(|(key, _)| *key == name).map(|(_, value)| value)
    }

    /// Fills addresses in where the program should do it.
    fn fill(&mut self, addresses: &[String], style: Style) {
        let quoted = |address: &String| format!("\"{address}\"");
        let primary = match style {
            Style::Block { .. } if !addresses[0].contains(':') => addresses[0].clone(),
            _ => quoted(&addresses[0]),
        };
        let all = format!("[{}]", addresses.iter().map(quoted).collect::<Vec<_>>().join(", "));
        let mut added = Vec::new();
        for (key, value) in [("clusterIP", Some(primary)), ("clusterIPs", (addresses.len() > 1).then_some(all))] {
            match (self.field(key), value) {
                (Some(place), Some(value)) => *place = Self::Scalar(value),
                (None, Some(value)) => added.push((key, Self::Filled(value))),
                (_, None) => {}
            }
        }
        if let Self::Map(fields) = self {
            fields.splice(0..0, added);
        }
    }
}

/// A YAML scalar as JSON.
fn json_scalar(text: &str) -> String {
    match text {
        "" | "~" => "null".to_owned(),
        "''" => "\"\"".to_owned(),
        text if text.starts_with(['"', '[']) || text == "null" || text.parse::<u16>().is_ok() => text.to_owned(),
        text => format!("\"{text}\""),
    }
}

/// The fields of a Service's spec, in any order. `number` makes addresses differ.
fn spec(number: usize) -> impl Strategy<Value = Tree> {
    let by_hand = format!("10.0.0.{}", 200 + number);
    let cluster_ip = prop_oneof![
        4 => Just(None),
        4 => prop::sample::select(vec!["''", "", "null", "~", "\"\""]).prop_map(|text| Some(text.to_owned())),
        1 => Just(Some("None".to_owned())),
        1 => Just(Some(by_hand)),
    ];
    let families = prop::sample::select(vec![
        ("", ""),
        ("", "IPv6"),
        ("PreferDualStack", ""),
        ("RequireDualStack", ""),
        ("RequireDualStack", "IPv6 IPv4"),
        ("SingleStack", "IPv4"),
    ]);
    let port = Tree::Map(vec![("name", Tree::text("web")), ("port", Tree::text("80"))]);
    (cluster_ip, any::<bool>(), families, 0..3_usize, any::<bool>())
        .prop_map(move |(cluster_ip, cluster_ips, (policy, families), ports, external)| {
            let mut fields = vec![("sessionAffinity", Tree::text("ClientIP"))];
            let no_address =
                cluster_ip.as_ref().is_none_or(|text| !text.contains(char::is_alphanumeric) || text == "null");
            fields.extend(cluster_ip.map(|text| ("clusterIP", Tree::Scalar(text))));
            if cluster_ips && no_address {
                fields.push(("clusterIPs", Tree::List(Vec::new())));
            }
            if !policy.is_empty() {
                fields.push(("ipFamilyPolicy", Tree::text(policy)));
            }
            if !families.is_empty() {
                fields.push(("ipFamilies", Tree::List(families.split(' ').map(Tree::text).collect())));
            }
            if ports > 0 {
                fields.push(("ports", Tree::List(vec![port.clone(); ports])));
            }
            if external && no_address {
                fields.push(("type", Tree::text("ExternalName")));
            }
            fields
        })
        .prop_shuffle()
        .prop_map(Tree::Map)
}

/// Some Services, and between them a text that looks like a Service.
fn objects() -> impl Strategy<Value = Vec<Tree>> {
    let service = |number: usize| {
        (spec(number), prop::sample::select(vec!["", "shop", "kube-system"])).prop_map(move |(spec, namespace)| {
            let mut metadata = vec![("name", Tree::Scalar(format!("web-{number}")))];
            if !namespace.is_empty() {
                metadata.push(("namespace", Tree::text(namespace)));
            }
            let (api_version, kind) = (("apiVersion", Tree::text("v1")), ("kind", Tree::text("Service")));
            Tree::Map(vec![api_version, kind, ("metadata", Tree::Map(metadata)), ("spec", spec)])
        })
    };
    let other = Tree::Map(vec![
        ("apiVersion", Tree::text("v1")),
        ("kind", Tree::text("ConfigMap")),
        ("metadata", Tree::Map(vec![("name", Tree::text("looks"))])),
        ("spec", Tree::Map(vec![("clusterIP", Tree::text("''"))])),
    ]);
    (service(0), service(1), service(2), service(3)).prop_map(move |(a, b, c, d)| vec![a, b, other.clone(), c, d])
}

fn styles() -> impl Strategy<Value = Style> {
    prop_oneof![
        (2..5_usize, any::<bool>()).prop_map(|(indent, comments)| Style::Block { indent, comments }),
        Just(Style::Flow),
        Just(Style::Lines),
    ]
}

/// One text: documents, or one List.
fn write(objects: &[Tree], style: Style, as_list: bool, line_end: &str) -> String {
    let text = if as_list {
        let (api_version, kind) = (("apiVersion", Tree::text("v1")), ("kind", Tree::text("List")));
        Tree::Map(vec![api_version, kind, ("items", Tree::List(objects.to_vec()))]).write(style)
    } else {
        objects.iter().map(|object| object.write(style)).collect::<Vec<_>>().join("---\n")
    };
    text.replace('\n', line_end)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn filled_manifests_differ_only_in_addresses_and_keep_them(
        objects in objects(), style in styles(), as_list: bool, crlf: bool,
    ) {
        let line_end = if crlf { "\r\n" } else { "\n" };
        let text = write(&objects, style, as_list, line_end);
        let (forecast, filled) = plan(&[source("in.yaml", &text)]);

        let mut expected = objects.clone();
        let services = expected.iter_mut().filter(|object| object.to_value()["kind"] == "Service");
        for (service, row) in services.zip(&forecast.rows).filter(|(_, row)| row.decision == Outcome::Allocated) {
            let addresses: Vec<String> = row.cluster_ips.iter().map(ToString::to_string).collect();
            // In a list an object is written in braces on one line, whatever the style.
            let style = if as_list && matches!(style, Style::Lines) { Style::Flow } else { style };
            service.field("spec").unwrap().fill(&addresses, style);
        }
        let filled = filled.unwrap();
        prop_assert_eq!(&filled, &write(&expected, style, as_list, line_end));

        let read = manifests::parse(&[source("out.yaml", &filled)], "").unwrap();
        let mut values: Vec<Value> = expected.iter().map(Tree::to_value).collect();
        for value in &mut values {
            let metadata = value["metadata"].as_object_mut().unwrap();
            metadata.entry("namespace").or_insert_with(|| "".into());
        }
        prop_assert_eq!(read.into_iter().map(|manifest| manifest.object.value()).collect::<Vec<_>>(), values);

        let (again, twice) = plan(&[source("out.yaml", &filled)]);
        for (first, second) in forecast.rows.iter().zip(&again.rows) {
            prop_assert_eq!(&first.cluster_ips, &second.cluster_ips);
            prop_assert_ne!(second.decision, Outcome::Denied);
        }
        prop_assert_eq!(twice.unwrap(), filled, "nothing is left to fill in");
    }
}
