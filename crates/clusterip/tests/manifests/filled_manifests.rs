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
            if file_name(&group) == "nodes" {
                assert_eq!(plan(&sources).1.as_ref(), Ok(&sources[0].text), "{}: without pools", folder.display());
            }
        }
    }
}

/// A text whose line ends matter, so it stands here with its escapes.
struct TextCase {
    name: &'static str,
    texts: &'static [&'static str],
    expected: &'static str,
}

#[track_caller]
fn check_texts(settings: &Value, rows: &[TextCase]) {
    for TextCase { name, texts, expected } in rows {
        let sources: Vec<ManifestText> = texts.iter().map(|text| source("in.yaml", text)).collect();
        assert_eq!(plan_with(settings.clone(), &sources).1.as_deref(), Ok(*expected), "{name}");
    }
}

#[test]
fn line_ends_of_services_are_kept() {
    check_texts(
        &settings(),
        &[
            TextCase {
                name: "a block without a line end at the end",
                texts: &["apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec:\n  ports: []"],
                expected: "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec:\n  clusterIP: 10.0.0.2\n  ports: []",
            },
            TextCase {
                name: "empty braces without a line end at the end",
                texts: &["apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {}"],
                expected: "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {\"clusterIP\": \"10.0.0.2\"}",
            },
            TextCase {
                name: "clusterIP without a value or a line end",
                texts: &["apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec:\n  clusterIP:"],
                expected: "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec:\n  clusterIP: 10.0.0.2",
            },
            TextCase { name: "an empty text", texts: &[""], expected: "" },
        ],
    );
}

#[test]
fn line_ends_of_several_files_are_kept() {
    check_texts(
        &settings(),
        &[
            TextCase {
                name: "two files, the first without a line end",
                texts: &[
                    "kind: Service\napiVersion: v1\nmetadata: {name: a}\nspec: {}",
                    "kind: ConfigMap\napiVersion: v1\nmetadata: {name: b}\n",
                ],
                expected: "kind: Service\napiVersion: v1\nmetadata: {name: a}\nspec: {\"clusterIP\": \"10.0.0.2\"}\n---\nkind: ConfigMap\napiVersion: v1\nmetadata: {name: b}\n",
            },
            TextCase {
                name: "two files, the first empty",
                texts: &["", "kind: Service\napiVersion: v1\nmetadata: {name: a}\nspec: {}\n"],
                expected: "kind: Service\napiVersion: v1\nmetadata: {name: a}\nspec: {\"clusterIP\": \"10.0.0.2\"}\n",
            },
            TextCase {
                name: "two files, the second in JSON",
                texts: &[
                    "kind: Service\napiVersion: v1\nmetadata: {name: a}\nspec: {}\n",
                    r#"{"kind": "A", "apiVersion": "v1", "metadata": {"name": "b"}}"#,
                ],
                expected: "kind: Service\napiVersion: v1\nmetadata: {name: a}\nspec: {\"clusterIP\": \"10.0.0.2\"}\n---\n{\"kind\": \"A\", \"apiVersion\": \"v1\", \"metadata\": {\"name\": \"b\"}}",
            },
        ],
    );
}

#[test]
fn line_ends_of_nodes_are_kept() {
    let rows = [
        TextCase {
            name: "no spec, in JSON on one line",
            texts: &[r#"{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}}"#],
            expected: r#"{"apiVersion": "v1", "kind": "Node", "spec": {"podCIDR": "10.2.0.0/24", "podCIDRs": ["10.2.0.0/24"]}, "metadata": {"name": "n"}}"#,
        },
        TextCase {
            name: "no spec, Windows line ends",
            texts: &["apiVersion: v1\r\nkind: Node\r\nmetadata: {name: n}\r\n"],
            expected: "apiVersion: v1\r\nkind: Node\r\nspec: {\"podCIDR\": \"10.2.0.0/24\", \"podCIDRs\": [\"10.2.0.0/24\"]}\r\nmetadata: {name: n}\r\n",
        },
    ];
    check_texts(&settings_with_nodes(), &rows);
    for TextCase { name, texts, .. } in rows {
        let sources = [source("in.yaml", texts[0])];
        assert_eq!(plan(&sources).1.as_deref(), Ok(texts[0]), "{name}: without pools for Nodes");
    }
}

#[test]
fn line_ends_of_services_with_a_record_are_kept() {
    check_texts(
        &settings_with_external(),
        &[
            TextCase {
                name: "Windows line ends",
                texts: &[
                    "apiVersion: v1\r\nkind: Service\r\nmetadata:\r\n  name: web\r\nspec: {type: LoadBalancer, loadBalancerClass: clusterip-policy/external, clusterIP: 10.0.0.9}\r\n",
                ],
                expected: "apiVersion: v1\r\nkind: Service\r\nmetadata:\r\n  annotations:\r\n    clusterip-policy/external-addresses: 10.9.0.1\r\n  name: web\r\nspec: {type: LoadBalancer, loadBalancerClass: clusterip-policy/external, clusterIP: 10.0.0.9}\r\n",
            },
            TextCase {
                name: "JSON on one line, with a ClusterIP",
                texts: &[
                    r#"{"apiVersion":"v1","kind":"Service","metadata":{"name":"web"},"spec":{"type":"LoadBalancer","loadBalancerClass":"clusterip-policy/external"}}"#,
                ],
                expected: r#"{"apiVersion":"v1","kind":"Service","metadata":{"annotations": {"clusterip-policy/external-addresses": "10.9.0.1"}, "name":"web"},"spec":{"clusterIP": "10.0.0.2", "type":"LoadBalancer","loadBalancerClass":"clusterip-policy/external"}}"#,
            },
        ],
    );
}
