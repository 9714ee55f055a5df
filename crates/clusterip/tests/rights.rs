//! What deploy/webhook grants is what the program asks for at its start: no less, and no more.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use clusterip::cluster::{kinds, yaml};
use clusterip::permissions::{Duties, Registration, needs};
use clusterip_core::workload::WorkloadKind;
use serde_json::Value;

/// Namespace, group, resource, name and verb.
type Right = (Option<String>, String, String, Option<String>, String);

fn strings(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().map(|item| item.as_str().unwrap().to_owned()).collect()
}

fn granted(file: &str) -> BTreeSet<Right> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/webhook").join(file);
    let text = fs::read_to_string(file).unwrap();
    let mut rights = BTreeSet::new();
    for document in yaml::documents(&text) {
        let object = document.unwrap().to_value();
        let namespace = object["metadata"]["namespace"].as_str().map(str::to_owned);
        for rule in object["rules"].as_array().into_iter().flatten() {
            let names = match strings(&rule["resourceNames"]) {
                names if names.is_empty() => vec![None],
                names => names.into_iter().map(Some).collect(),
            };
            for group in strings(&rule["apiGroups"]) {
                for resource in strings(&rule["resources"]) {
                    for name in &names {
                        for verb in strings(&rule["verbs"]) {
                            rights.insert((namespace.clone(), group.clone(), resource.clone(), name.clone(), verb));
                        }
                    }
                }
            }
        }
    }
    rights
}

#[test]
fn the_deployment_grants_what_is_needed_and_nothing_else() {
    let known = WorkloadKind::known();
    let workloads: Vec<_> = known.iter().map(|kind| kinds::regular(&kinds::of_workload(kind))).collect();
    let duties = Duties {
        namespace: "clusterip-policy".to_owned(),
        moves: true,
        authority: Some("clusterip-authority".to_owned()),
        registration: Some(Registration { name: "clusterip-policy".to_owned(), own: false }),
        settings: Some("clusterip-settings".to_owned()),
    };
    let needed: BTreeSet<Right> = needs(&workloads, &duties)
        .into_iter()
        .map(|need| {
            let resource = match need.subresource {
                Some(subresource) => format!("{}/{subresource}", need.resource),
                None => need.resource,
            };
            (need.namespace, need.group, resource, need.name, need.verb.to_owned())
        })
        .collect();
    let mut granted_rights = granted("cluster-rights.yaml");
    granted_rights.extend(granted("own-rights.yaml"));
    assert!(!granted_rights.is_empty());
    let lacking: Vec<_> = needed.difference(&granted_rights).collect();
    let idle: Vec<_> = granted_rights.difference(&needed).collect();
    assert_eq!((lacking, idle), (vec![], vec![]), "lacking, and granted without need");
}
