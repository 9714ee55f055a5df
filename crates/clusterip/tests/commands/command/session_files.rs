//! The recorded sessions, and the one that most tests of `clusterip evaluate` use.

use std::fs;

use super::Folder;
use serde_json::json;

/// The folder of a session, relative to the workspace.
pub fn session(name: &str) -> String {
    format!("e2e-tests/sessions/{name}")
}

/// A test folder with the files of a session.
pub fn copy_of(test: &str, name: &str) -> Folder {
    let folder = Folder::new(test);
    for file in ["request.json", "settings.json", "session.yml", "cluster.yaml"] {
        if let Ok(text) = fs::read(Folder::workspace().path(&format!("{}/{file}", session(name)))) {
            folder.write(file, text);
        }
    }
    folder
}

/// The text of a file of `folder`.
pub fn read(folder: &Folder, file: &str) -> String {
    fs::read_to_string(folder.path(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// The Service of session 21, which selects a Deployment for Windows.
pub const WEB: &str = "evidence-from-a-deployment";

/// The response to it: for Windows if the Deployment exists, otherwise for Linux.
pub fn response(os: &str) -> String {
    let (address, source) = match os {
        "windows" => ("172.21.1.59", "Deployment shop/web"),
        _ => ("172.21.0.59", "setting assumeOS"),
    };
    let response = json!({
        "uid": "00000000-0000-4000-8000-000000000021",
        "allowed": true,
        "patchType": "JSONPatch",
        "patch": [{"op": "add", "path": "/spec/clusterIP", "value": address}],
        "auditAnnotations": {
            "decision": "allocated",
            "evidence": format!(r#"{{"source":"{source}","labels":{{"kubernetes.io/os":"{os}"}}}}"#),
            "pool": os,
        },
        "warnings": null,
    });
    format!("{response:#}\n")
}
