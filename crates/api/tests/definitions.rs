//! The definitions in `deploy/crds` agree with what this crate and the core read.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use clusterip_api::{InUse, Kind, ObjectKey, Objects, compile, mistake_of_type};
use serde_json::{Map, Value, json};

fn definition(kind: Kind) -> Value {
    let file = format!("../../deploy/crds/{}.yaml", kind.api_resource().plural);
    serde_saphyr::from_str(&fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap()).unwrap()
}

fn properties(definition: &Value, below: &str) -> Map<String, Value> {
    let path = format!("/spec/versions/0/schema/openAPIV3Schema/properties/{below}/properties");
    definition.pointer(&path).unwrap().as_object().unwrap().clone()
}

fn object(kind: Kind, spec: Value) -> Value {
    let name = ObjectKey::policy().name;
    json!({
        "apiVersion": kind.api_resource().api_version, "kind": kind.as_str(), "metadata": {"name": name}, "spec": spec,
    })
}

/// Why an object with this spec can't be used.
fn refused(kind: Kind, spec: Value) -> String {
    let objects = vec![object(kind, spec)];
    let compiled = compile(&Objects { objects, ..Objects::default() }, &InUse::new());
    compiled.states.into_values().next().unwrap().message
}

#[test]
fn names_are_those_of_the_kinds() {
    for kind in Kind::ALL {
        let (resource, definition) = (kind.api_resource(), definition(kind));
        let names = &definition["spec"]["names"];
        assert_eq!(definition["spec"]["group"], *resource.group);
        assert_eq!(definition["spec"]["versions"][0]["name"], *resource.version);
        assert_eq!((&names["kind"], &names["plural"]), (&json!(kind.as_str()), &json!(resource.plural)));
    }
}

#[test]
fn schemas_have_the_fields_that_are_read() {
    let only_in_objects = ["priority", "serviceCIDRSelector", "fence"];
    let of_clusterip = ["name", "pools", "lookups", "unusableServiceCIDRs"];
    for kind in Kind::ALL {
        let sections: &[&str] = match kind {
            Kind::ClusterIPPolicy => &["", "evidence", "nodes", "external"],
            Kind::NodeBlockPool => &["", "match", "blockSize"],
            _ => &["", "match"],
        };
        for section in sections {
            let (below, spec) = match *section {
                "" => ("spec".to_owned(), json!({"-": 1})),
                section => (format!("spec/properties/{section}"), json!({section: {"-": 1}})),
            };
            // The message lists the fields that the core knows.
            let message = refused(kind, spec);
            let known = message.split_once("unknown key \"-\": known are ").unwrap().1.split(';').next().unwrap();
            let mut known: BTreeSet<&str> = known.split(", ").filter(|key| !of_clusterip.contains(key)).collect();
            if kind == Kind::ClusterIPPolicy && section.is_empty() {
                known.extend(["nodes", "external"]);
            }
            let properties = properties(&definition(kind), &below);
            let described = properties.keys().map(String::as_str).filter(|key| !only_in_objects.contains(key));
            assert_eq!(described.collect::<BTreeSet<_>>(), known, "{kind:?} {section}");
        }
    }
}

#[test]
fn names_of_values_are_read() {
    for kind in Kind::ALL {
        for (field, schema) in properties(&definition(kind), "spec") {
            for value in schema["enum"].as_array().into_iter().flatten() {
                let found = mistake_of_type(&object(kind, json!({"cidrs": [], &field: value})));
                assert_eq!(found, None, "{kind:?} {field}: {value}");
            }
        }
    }
}
