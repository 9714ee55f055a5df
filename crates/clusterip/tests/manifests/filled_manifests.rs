//! `plan -o yaml` fills the addresses in and changes no other character.
//!
//! Each folder `cases/filled_manifests/GROUP/CASE` has the manifests in `in.yaml`, or in `in-1.yaml` and `in-2.yaml`,
//! and either the filled manifests in `out.yaml` or the message of the refusal in `error.txt`.

use std::fs;
use std::path::{Path, PathBuf};

use clusterip_cluster::manifests::ManifestText;
use serde_json::Value;

use crate::support::{plan, plan_with, settings, settings_with_external, settings_with_nodes, source};

/// All cases in files.
const CASES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/manifests/cases/filled_manifests");

/// Everything in a folder, by name.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let mut entries: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    assert!(!entries.is_empty(), "{}: nothing in it", folder.display());
    entries
}

fn file_name(path: &Path) -> &str {
    path.file_name().unwrap().to_str().unwrap()
}

/// The manifests of a case, and the filled ones or the message of the refusal.
fn read_case(folder: &Path) -> (Vec<ManifestText>, Result<String, String>) {
    let (mut sources, mut results) = (Vec::new(), Vec::new());
    for file in entries(folder) {
        let text = fs::read_to_string(&file).unwrap();
        match file_name(&file) {
            "in.yaml" | "in-1.yaml" | "in-2.yaml" => sources.push(source("in.yaml", &text)),
            "out.yaml" => results.push(Ok(text)),
            "error.txt" => results.push(Err(text.trim_end().to_owned())),
            _ => panic!("{}: not a file of a case", file.display()),
        }
    }
    assert!(!sources.is_empty() && results.len() == 1, "{}: in.yaml, and out.yaml or error.txt", folder.display());
    (sources, results.remove(0))
}

#[test]
fn addresses_are_filled_into_every_notation_of_objects_that_have_a_place_for_them() {
    for group in entries(Path::new(CASES)) {
        let settings = match file_name(&group) {
            "services" | "services-refused" | "streams" => settings(),
            "nodes" | "nodes-refused" => settings_with_nodes(),
            "external" | "external-refused" => settings_with_external(),
            other => panic!("{other}: which settings have its cases?"),
        };
        for folder in entries(&group) {
            let (sources, expected) = read_case(&folder);
            assert_eq!(plan_with(settings.clone(), &sources).1, expected, "{}", folder.display());
            if let ([text], Ok(filled)) = (&sources[..], &expected) {
                let without_the_last = |text: &str| text.strip_suffix('\n').unwrap().to_owned();
                let of_windows = |text: &str| text.replace('\n', "\r\n");
                for line_ends in [&without_the_last as &dyn Fn(&str) -> String, &of_windows] {
                    let changed = [source("in.yaml", &line_ends(&text.text))];
                    let found = plan_with(settings.clone(), &changed).1;
                    assert_eq!(found, Ok(line_ends(filled)), "{}: {:?}", folder.display(), changed[0].text);
                }
            }
            if file_name(&group) == "nodes" {
                assert_eq!(plan(&sources).1.as_ref(), Ok(&sources[0].text), "{}: without pools", folder.display());
            }
        }
    }
}

/// Texts of several files, and JSON on one line.
#[test]
fn line_ends_between_files_and_json_on_one_line_are_kept() {
    struct Case {
        name: &'static str,
        settings: Value,
        texts: &'static [&'static str],
        expected: &'static str,
    }
    let rows = [
        Case { name: "an empty text", settings: settings(), texts: &[""], expected: "" },
        Case {
            name: "two files, the first without a line end",
            settings: settings(),
            texts: &[
                "kind: Service\napiVersion: v1\nmetadata: {name: a}\nspec: {}",
                "kind: ConfigMap\napiVersion: v1\nmetadata: {name: b}\n",
            ],
            expected: "kind: Service\napiVersion: v1\nmetadata: {name: a}\nspec: {\"clusterIP\": \"10.0.0.2\"}\n---\nkind: ConfigMap\napiVersion: v1\nmetadata: {name: b}\n",
        },
        Case {
            name: "two files, the first empty",
            settings: settings(),
            texts: &["", "kind: Service\napiVersion: v1\nmetadata: {name: a}\nspec: {}\n"],
            expected: "kind: Service\napiVersion: v1\nmetadata: {name: a}\nspec: {\"clusterIP\": \"10.0.0.2\"}\n",
        },
        Case {
            name: "two files, the second in JSON",
            settings: settings(),
            texts: &[
                "kind: Service\napiVersion: v1\nmetadata: {name: a}\nspec: {}\n",
                r#"{"kind": "A", "apiVersion": "v1", "metadata": {"name": "b"}}"#,
            ],
            expected: "kind: Service\napiVersion: v1\nmetadata: {name: a}\nspec: {\"clusterIP\": \"10.0.0.2\"}\n---\n{\"kind\": \"A\", \"apiVersion\": \"v1\", \"metadata\": {\"name\": \"b\"}}",
        },
        Case {
            name: "a Node without a spec",
            settings: settings_with_nodes(),
            texts: &[r#"{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}}"#],
            expected: r#"{"apiVersion": "v1", "kind": "Node", "spec": {"podCIDR": "10.2.0.0/24", "podCIDRs": ["10.2.0.0/24"]}, "metadata": {"name": "n"}}"#,
        },
        Case {
            name: "a Service that gets a record and a ClusterIP",
            settings: settings_with_external(),
            texts: &[
                r#"{"apiVersion":"v1","kind":"Service","metadata":{"name":"web"},"spec":{"type":"LoadBalancer","loadBalancerClass":"clusterip-policy/external"}}"#,
            ],
            expected: r#"{"apiVersion":"v1","kind":"Service","metadata":{"annotations": {"clusterip-policy/external-addresses": "10.9.0.1"}, "name":"web"},"spec":{"clusterIP": "10.0.0.2", "type":"LoadBalancer","loadBalancerClass":"clusterip-policy/external"}}"#,
        },
    ];
    for Case { name, settings, texts, expected } in rows {
        let sources: Vec<ManifestText> = texts.iter().map(|text| source("in.yaml", text)).collect();
        assert_eq!(plan_with(settings, &sources).1.as_deref(), Ok(expected), "{name}");
    }
}
