//! Replays the sessions of `e2e-tests/sessions`, one for each row of the decision, strictly through the module
//! and through the core without it. `e2e-tests/README.md` describes the files, and how to record them.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clusterip_cluster::admission_review::AdmissionResponse;
use clusterip_cluster::lookups::complete_objects::CompleteObjects;
use clusterip_cluster::manifests;
use clusterip_cluster::policy::host_calls::{HostCall, HostCalls};
use clusterip_cluster::policy::recorded_session::{self, Exchange, Recorder, Replay};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::lookup_failures::{is_known, lookup};
use crate::support::{MODULE, MODULE_SHELL, SHELLS, Shell};

/// The minimum number of folders: a test that finds none would pass.
const FEWEST: usize = 90;

/// With `RECORD=1` in the environment, writes `session.yml` for each folder with a cluster to record from, and
/// `response.json` for all: once, before the first comparison.
static RECORDED: LazyLock<()> = LazyLock::new(|| {
    if std::env::var_os("RECORD").is_some_and(|value| value == "1") {
        Folder::there().iter().for_each(Folder::record);
    }
});

/// A folder with one session.
struct Folder {
    name: String,
    path: PathBuf,
}

impl Folder {
    /// All folders, by name.
    fn all() -> Vec<Self> {
        LazyLock::force(&RECORDED);
        Self::there()
    }

    fn there() -> Vec<Self> {
        let sessions = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../e2e-tests/sessions");
        let paths = fs::read_dir(&sessions).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_dir());
        let name = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().to_owned();
        let mut folders: Vec<Self> = paths.map(|path| Self { name: name(&path), path }).collect();
        folders.sort_by(|one, other| one.name.cmp(&other.name));
        assert!(folders.len() >= FEWEST, "{} folders in {}, expected {FEWEST}", folders.len(), sessions.display());
        folders
    }

    fn text(&self, file: &str) -> String {
        let path = self.path.join(file);
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    fn json(&self, file: &str) -> Value {
        serde_json::from_str(&self.text(file)).unwrap_or_else(|error| panic!("{}/{file}: {error}", self.name))
    }

    fn record(&self) {
        if let Some((_, exchanges)) = self.recorded() {
            self.write("session.yml", &recorded_session::write(&exchanges));
        }
        let (response, _) = self.replayed(MODULE_SHELL);
        self.write("response.json", &format!("{response:#}\n"));
    }

    fn write(&self, file: &str, text: &str) {
        fs::write(self.path.join(file), text).unwrap();
    }

    fn session(&self) -> Vec<Exchange> {
        recorded_session::read(&self.text("session.yml"))
            .unwrap_or_else(|error| panic!("{}/session.yml: {error}", self.name))
    }

    /// The cluster that the session was recorded from; `None` if the session was written by hand.
    fn cluster(&self) -> Option<Arc<dyn HostCalls>> {
        let path = self.path.join("cluster.yaml");
        if !path.exists() {
            return None;
        }
        let (source, mut objects) = (manifests::read_file(&path).unwrap(), Vec::new());
        manifests::each(&[source], "default", &mut |manifest, _| objects.push(manifest.object)).unwrap();
        Some(Arc::new(CompleteObjects::from_iter(objects)))
    }

    /// The whole `AdmissionResponse` with its patch decoded.
    fn response(&self, shell: Shell, calls: Arc<dyn HostCalls>) -> Value {
        let request = self.json("request.json");
        let payload = json!({"request": request, "settings": self.json("settings.json")});
        let answer = shell(payload.to_string().as_bytes(), calls);
        let response = AdmissionResponse::new(&request, serde_json::from_slice(&answer).unwrap()).unwrap();
        let mut response = serde_json::to_value(response).unwrap();
        if let Some(patch) = response.get("patch").and_then(Value::as_str) {
            response["patch"] = serde_json::from_slice(&STANDARD.decode(patch).unwrap()).unwrap();
        }
        response
    }

    /// The response to the stored session, and the number of exchanges that were not used.
    fn replayed(&self, shell: Shell) -> (Value, usize) {
        let replay = Arc::new(Replay::new(self.session()));
        let response = self.response(shell, Arc::clone(&replay) as Arc<dyn HostCalls>);
        (response, replay.left())
    }

    /// The response with the cluster of this folder, and all look-ups with their answers.
    fn recorded(&self) -> Option<(Value, Vec<Exchange>)> {
        let recorder = Arc::new(Recorder::new(self.cluster()?));
        let response = self.response(MODULE_SHELL, Arc::clone(&recorder) as Arc<dyn HostCalls>);
        Some((response, recorder.exchanges()))
    }
}

/// Each position at which two documents differ, with both values.
fn differences(expected: &Value, found: &Value) -> Vec<String> {
    let at = |document: &Value, path: &str| document.pointer(path).map_or("nothing".to_owned(), Value::to_string);
    let line = |path: String| format!("{path}: expected {}, found {}", at(expected, &path), at(found, &path));
    json_patch::diff(expected, found).iter().map(|operation| line(operation.path().to_string())).collect()
}

#[track_caller]
fn report(problems: Vec<String>) {
    assert!(problems.is_empty(), "{} problems:\n{}", problems.len(), problems.join("\n"));
}

#[test]
fn every_session_gets_its_stored_response_from_the_module_and_from_the_core() {
    let mut problems = Vec::new();
    for folder in Folder::all() {
        for (by, shell) in SHELLS {
            let name = format!("{} by the {by}", folder.name);
            let (response, left) = folder.replayed(shell);
            let differences = differences(&folder.json("response.json"), &response);
            problems.extend(differences.into_iter().map(|difference| format!("{name}: {difference}")));
            if format!("{response:#}\n") != folder.text("response.json") {
                problems.push(format!("{name}: other bytes than response.json"));
            }
            if left > 0 {
                problems.push(format!("{name}: {left} exchanges at the end of session.yml were not asked for"));
            }
        }
    }
    report(problems);
}

#[test]
fn recorded_session_matches_the_answers_of_the_native_host() {
    let mut problems = Vec::new();
    for folder in Folder::all() {
        let Some((response, exchanges)) = folder.recorded() else { continue };
        if exchanges != folder.session() {
            problems.push(format!(
                "{}: session.yml is out of date:\n{}",
                folder.name,
                recorded_session::write(&exchanges)
            ));
        }
        let differences = differences(&folder.json("response.json"), &response);
        problems.extend(differences.into_iter().map(|difference| format!("{}: {difference}", folder.name)));
    }
    report(problems);
}

/// `lookup_failures.rs` has a row for each.
#[test]
fn failures_of_every_look_up_are_tested() {
    let unknown = |folder: Folder| {
        let lookups = folder.session().into_iter().map(|exchange| lookup(&exchange.call));
        lookups
            .filter(|lookup| !is_known(lookup))
            .map(|lookup| format!("{}: {lookup}", folder.name))
            .collect::<Vec<_>>()
    };
    report(Folder::all().into_iter().flat_map(unknown).collect());
}

#[test]
fn settings_of_every_session_are_valid() {
    let check = |folder: &Folder| MODULE.validate_settings(&folder.json("settings.json")).unwrap();
    let mistakes = |folder: &Folder| Some(format!("{}: {}", folder.name, check(folder).message?));
    report(Folder::all().iter().filter_map(mistakes).collect());
}

/// The API server may cut longer warnings; Kubernetes asks for at most 120 characters where possible. Longer warnings
/// contain the numbers of a full pool, or the error of a host.
#[test]
fn warnings_are_short() {
    const MAX_CHARACTERS: usize = 256;
    const AT_BEST: usize = 120;
    let mut long = Vec::new();
    for folder in Folder::all() {
        for warning in folder.json("response.json")["warnings"].as_array().into_iter().flatten() {
            let length = warning.as_str().unwrap().chars().count();
            assert!(length <= MAX_CHARACTERS, "{}: {length}: {warning}", folder.name);
            if length > AT_BEST {
                long.push(folder.name.clone());
            }
        }
    }
    assert_eq!(long, ["by-hand-and-a-look-up-fails-warns", "full-is-unmanaged", "node-and-a-look-up-fails-warns"]);
}

// --- The format, and the replay itself

/// A session in the format of `kwctl`: plain scalars, blocks, and quotes only where they are needed.
const BY_KWCTL: &str = r#"- type: Exchange
  request: |
    !KubernetesListResourceNamespace
    api_version: apps/v1
    kind: Deployment
    namespace: shop
    label_selector: null
    field_selector: null
    field_masks:
    - spec.template.spec.os
    - spec.template.metadata.labels
  response:
    type: Success
    payload: '{"items":[{"metadata":{"name":"it''s"}}]}'
- type: Exchange
  request: |
    !KubernetesGetResource
    api_version: networking.k8s.io/v1
    kind: IPAddress
    name: 10.0.0.9
    namespace: null
    disable_cache: true
    field_masks: null
  response:
    type: Error
    message: |-
      Cannot find it
      at all
"#;

fn by_kwctl() -> Vec<Exchange> {
    let own = |text: &str| text.to_owned();
    let masks = ["spec.template.metadata.labels", "spec.template.spec.os"].map(own);
    let list = HostCall::ListNamespace {
        api_version: own("apps/v1"),
        kind: own("Deployment"),
        namespace: own("shop"),
        label_selector: None,
        field_selector: None,
        field_masks: Some(masks.into()),
    };
    vec![
        Exchange { call: list, answer: Ok(own(r#"{"items":[{"metadata":{"name":"it's"}}]}"#)) },
        Exchange { call: ip_address("10.0.0.9"), answer: Err(own("Cannot find it\nat all")) },
    ]
}

fn ip_address(name: &str) -> HostCall {
    HostCall::Get {
        api_version: "networking.k8s.io/v1".to_owned(),
        kind: "IPAddress".to_owned(),
        name: name.to_owned(),
        namespace: None,
        disable_cache: true,
        field_masks: None,
    }
}

#[test]
fn session_recorded_by_kwctl_is_read() {
    assert_eq!(recorded_session::read(BY_KWCTL).unwrap(), by_kwctl());
}

#[test]
fn invalid_session_is_refused_with_the_number_of_the_exchange() {
    struct Case {
        name: &'static str,
        text: String,
        number: usize,
    }
    let exchange = BY_KWCTL.split("- type").nth(1).map(|text| format!("- type{text}")).unwrap();
    let rows = [
        Case { name: "a mapping", text: "type: Exchange".to_owned(), number: 0 },
        Case { name: "no YAML", text: "- [".to_owned(), number: 0 },
        Case { name: "no exchange", text: "- 5".to_owned(), number: 1 },
        Case { name: "no tag", text: exchange.replace("!Kubernetes", "Kubernetes"), number: 1 },
        Case { name: "an unknown call", text: exchange.replace("ListResourceNamespace", "CanI"), number: 1 },
        Case { name: "a call without its kind", text: exchange.replace("    kind: Deployment\n", ""), number: 1 },
        Case { name: "an unknown response", text: exchange.replace("Success", "Maybe"), number: 1 },
        Case { name: "the second of two", text: format!("{exchange}- type: Exchange"), number: 2 },
    ];
    for Case { name, text, number } in rows {
        let error = recorded_session::read(&text).unwrap_err();
        let place = if number == 0 { String::new() } else { format!("exchange {number}: ") };
        let error = error.to_string();
        assert!(error.starts_with(&place) && (number > 0 || !error.starts_with("exchange ")), "{name}: {error}");
    }
}

#[test]
fn replay_answers_only_the_recorded_look_ups_in_order() {
    let first = by_kwctl().remove(0);
    let replay = Replay::new(by_kwctl());
    assert_eq!(replay.answer(&first.call), first.answer.map(String::into_bytes));
    assert_eq!(replay.left(), 1);
    assert_eq!(replay.answer(&ip_address("10.0.0.9")), Err("Cannot find it\nat all".to_owned()));
    assert_eq!(replay.left(), 0);
    assert_eq!(replay.answer(&first.call), Err("the list of recorded responses is empty".to_owned()));

    let replay = Replay::new(by_kwctl().split_off(1));
    let error = replay.answer(&ip_address("10.0.0.10")).unwrap_err();
    assert!(error.starts_with("Replay error: unexpected request."), "{error}");
    assert_eq!(replay.left(), 0);
}

/// Characters that end lines, quotes or documents in some version of YAML, and others that do not.
const AWKWARD: &str = "[ -~\\n\\r\\t\u{0}\u{7f}\u{85}\u{a0}\u{2028}\u{2029}\u{feff}\u{ffff}\u{1f600}]{0,12}";

proptest! {
    #[test]
    fn any_session_survives_a_file(payload in any::<String>(), message in AWKWARD, name in AWKWARD) {
        let list = HostCall::ListAll {
            api_version: name.clone(),
            kind: message.clone(),
            label_selector: None,
            field_selector: None,
            field_masks: Some([name.clone(), message.clone()].into()),
        };
        let exchange = |call, answer| Exchange { call, answer };
        let more = [exchange(ip_address(&name), Ok(payload)), exchange(list, Err(message))];
        let exchanges = [by_kwctl(), more.into()].concat();
        prop_assert_eq!(recorded_session::read(&recorded_session::write(&exchanges)).unwrap(), exchanges);
    }
}
