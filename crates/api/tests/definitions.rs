//! `deploy/crds` has the definitions that are generated from the types of this crate.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;

use clusterip_api::definitions;

const HEADER: &str = "# Generated from crates/api: UPDATE_GOLDEN=1 cargo test --package clusterip-api\n";

#[test]
fn deployed_definitions_are_those_of_the_types() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/crds");
    for definition in definitions() {
        let plural = definition["spec"]["names"]["plural"].as_str().unwrap();
        let file = folder.join(format!("{plural}.yaml"));
        let generated = format!("{HEADER}{}", serde_saphyr::to_string(&definition).unwrap());
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            fs::write(&file, &generated).unwrap();
        }
        let deployed = fs::read_to_string(&file).unwrap_or_default();
        assert!(deployed == generated, "{} is out of date: UPDATE_GOLDEN=1 writes it", file.display());
    }
}
