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

/// A folder of [`CASES`].
struct FileCase {
    name: String,
    sources: Vec<ManifestText>,
    /// The filled manifests, or the message of the refusal.
    expected: Result<String, String>,
}

/// Everything in a folder, by name.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let mut entries: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    assert!(!entries.is_empty(), "{}: nothing in it", folder.display());
    entries
}

fn read_case(folder: &Path) -> FileCase {
    let (mut sources, mut results) = (Vec::new(), Vec::new());
    for file in entries(folder) {
        let text = fs::read_to_string(&file).unwrap();
        match file.file_name().unwrap().to_str().unwrap() {
            "in.yaml" | "in-1.yaml" | "in-2.yaml" => sources.push(source("in.yaml", &text)),
            "out.yaml" => results.push(Ok(text)),
            "error.txt" => results.push(Err(text.trim_end().to_owned())),
            _ => panic!("{}: not a file of a case", file.display()),
        }
    }
    let name = folder.display().to_string();
    assert!(!sources.is_empty() && results.len() == 1, "{name}: expected in.yaml, and out.yaml or error.txt");
    FileCase { name, sources, expected: results.remove(0) }
}

fn cases(group: &str) -> Vec<FileCase> {
    entries(&Path::new(CASES).join(group)).iter().map(|folder| read_case(folder)).collect()
}

fn check_files(group: &str, settings: &Value) {
    for FileCase { name, sources, expected } in cases(group) {
        assert_eq!(plan_with(settings.clone(), &sources).1, expected, "{name}");
    }
}

#[test]
fn address_is_filled_into_every_notation_of_a_service() {
    check_files("services", &settings());
}

#[test]
fn service_without_place_for_an_address_is_refused_by_name() {
    check_files("services-refused", &settings());
}

#[test]
fn blocks_are_filled_into_every_notation_of_a_node() {
    check_files("nodes", &settings_with_nodes());
    for FileCase { name, sources, .. } in cases("nodes") {
        assert_eq!(plan(&sources).1.as_ref(), Ok(&sources[0].text), "{name}: without pools for Nodes");
    }
}

#[test]
fn node_without_place_for_blocks_is_refused_by_name() {
    check_files("nodes-refused", &settings_with_nodes());
}

#[test]
fn record_is_filled_into_every_notation_of_metadata() {
    check_files("external", &settings_with_external());
}

#[test]
fn service_without_place_for_a_record_is_refused_by_name() {
    check_files("external-refused", &settings_with_external());
}

#[test]
fn several_files_become_one_stream() {
    check_files("streams", &settings());
}

#[test]
fn every_group_of_cases_is_tested() {
    let groups = entries(Path::new(CASES));
    let names: Vec<&str> = groups.iter().map(|group| group.file_name().unwrap().to_str().unwrap()).collect();
    let tested = ["external", "external-refused", "nodes", "nodes-refused", "services", "services-refused", "streams"];
    assert_eq!(names, tested);
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
                name: "Windows line ends",
                texts: &["apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec:\r\n  ports: []\r\n"],
                expected: "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec:\r\n  clusterIP: 10.0.0.2\r\n  ports: []\r\n",
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
            TextCase {
                name: "JSON on one line",
                texts: &[r#"{"apiVersion":"v1","kind":"Service","metadata":{"name":"web"},"spec":{"ports":[]}}"#],
                expected: r#"{"apiVersion":"v1","kind":"Service","metadata":{"name":"web"},"spec":{"clusterIP": "10.0.0.2", "ports":[]}}"#,
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
