//! Runs helm and kubectl, and reads the objects that they print.

use std::collections::BTreeMap;
use std::env;
use std::path::PathBuf;
use std::process::Command;

use crate::files::{document, documents, workspace};
use serde_json::{Value, json};

/// The namespace of the kustomizations.
pub const NAMESPACE: &str = "clusterip-policy";

/// The namespace of the agents in the kustomizations.
pub const AGENTS: &str = "clusterip-policy-agents";

/// Objects, by kind, namespace and name.
pub type Objects = BTreeMap<String, Value>;

/// A program whose path, or whose folder, is in an environment variable.
pub fn program(variable: &str, name: &str) -> Command {
    let path = env::var_os(variable)
        .unwrap_or_else(|| panic!("{variable} is not set: these tests need helm and kubectl; run `make test-chart`"));
    let mut path = PathBuf::from(path);
    if path.is_dir() {
        path.push(name);
    }
    let mut command = Command::new(path);
    command.current_dir(workspace());
    command
}

/// The output of a command, or its error output if it fails.
pub fn run(mut command: Command) -> Result<String, String> {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = |bytes| String::from_utf8(bytes).unwrap();
    if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
}

pub fn objects(text: &str) -> Objects {
    let mut all = Objects::new();
    for mut object in documents(text) {
        if object.is_null() {
            continue;
        }
        // Parse the documents inside of a document too, so that their order and comments do not matter.
        for (name, value) in object["data"].as_object_mut().into_iter().flatten() {
            if let (true, Some(text)) = (name.ends_with(".yaml") || name.ends_with(".json"), value.as_str()) {
                *value = document(text);
            }
        }
        let of = |key: &str| object["metadata"][key].as_str().unwrap_or_default().to_owned();
        let key = format!("{} {}/{}", object["kind"].as_str().unwrap(), of("namespace"), of("name"));
        assert!(all.insert(key.clone(), object).is_none(), "{key} twice");
    }
    all
}

/// The objects that `kubectl apply -k` would apply, with these components on top of the last folder. Without the
/// namespace, which `helm install --create-namespace` creates, and without the definitions of custom resources, which
/// `helm template` leaves out.
pub fn kustomized(folders: &[&str], components: &[&str]) -> Objects {
    let mut all = Objects::new();
    for (nth, folder) in folders.iter().enumerate() {
        let components = if nth + 1 == folders.len() { components } else { &[] };
        all.append(&mut built(folder, components));
    }
    all.remove(&format!("Namespace /{NAMESPACE}"));
    all.retain(|_, object| object["kind"] != "CustomResourceDefinition");
    all
}

/// The objects of a folder with these components.
fn built(folder: &str, components: &[&str]) -> Objects {
    let mut kubectl = program("KUBEBUILDER_ASSETS", "kubectl");
    kubectl.arg("kustomize");
    if components.is_empty() {
        kubectl.arg(folder);
        return objects(&run(kubectl).unwrap());
    }
    // The paths in a kustomization are relative, so it lies in a copy of `deploy`.
    let copy = tempfile::tempdir().unwrap();
    let mut copied = Command::new("cp");
    copied.arg("-r").arg(workspace().join("deploy")).arg(copy.path());
    run(copied).unwrap();
    let path = |folder: &&str| json!(format!("../{}", folder.trim_start_matches("deploy/")));
    let components: Vec<Value> = components.iter().map(path).collect();
    let kustomization = json!({ "resources": [path(&folder)], "components": components }).to_string();
    let own = copy.path().join("deploy/own");
    std::fs::create_dir(&own).unwrap();
    std::fs::write(own.join("kustomization.yaml"), kustomization).unwrap();
    kubectl.arg(own);
    objects(&run(kubectl).unwrap())
}

/// The objects that `helm install` would apply with these values.
pub fn rendered(namespace: &str, values: &Value) -> Result<Objects, String> {
    rendered_for("1.37.2", namespace, values)
}

/// The same for this version of Kubernetes.
pub fn rendered_for(version: &str, namespace: &str, values: &Value) -> Result<Objects, String> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("values.json");
    std::fs::write(&file, values.to_string()).unwrap();
    let mut helm = program("CLUSTERIP_HELM", "helm");
    helm.args([
        "template",
        "clusterip",
        "deploy/chart",
        "--kube-version",
        version,
        "--namespace",
        namespace,
        "--values",
    ]);
    helm.arg(&file);
    run(helm).map(|text| objects(&text))
}
