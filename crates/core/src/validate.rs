//! The functions that a host calls, from bytes to bytes.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::answer::Answer;
use crate::decide::decide;
use crate::external::Held;
use crate::json::{TypeMismatch, describe};
use crate::lookups::Cluster;
use crate::node::{self, Allocation};
use crate::prefetched::{Prefetched, PrefetchedCluster};
use crate::request::{About, Request};
use crate::settings::{Invalid, Settings};

/// Keeps the settings of the last payload, so that they are not read again if the next payload has the same ones.
/// Reading settings takes a third of the time of a decision, or more with many pools. The answers stay the same.
#[derive(Debug, Default)]
pub struct LastSettings(Option<(Value, Settings)>);

impl LastSettings {
    /// Reads the settings of `document`, or returns the last ones if they are from the same document.
    fn read(&mut self, document: Value) -> Result<&Settings, Invalid> {
        let (document, settings) = match self.0.take() {
            Some((last, settings)) if last == document => (last, settings),
            _ => {
                let settings = Settings::from_value(&document)?;
                (document, settings)
            }
        };
        Ok(&self.0.insert((document, settings)).1)
    }
}

/// Answers `{"request": AdmissionRequest, "settings": …}`. To get blocks for a Node, the host adds `"allocation": …`,
/// see [`Allocation`]; to get external addresses for a Service, it adds `"external": …`, see [`Held`]; to save
/// look-ups, it adds `"prefetched": …`, see [`Prefetched`]. A payload that can't be read is denied with status 400 and
/// the reason.
pub fn validate(payload: &[u8], cluster: &dyn Cluster) -> Answer {
    validate_reusing(&mut LastSettings::default(), payload, cluster)
}

/// As [`validate`]. Reads the settings of the payload only if they differ from `last_settings`, and keeps them there.
pub fn validate_reusing(last_settings: &mut LastSettings, payload: &[u8], cluster: &dyn Cluster) -> Answer {
    let unreadable =
        |why: &str| Answer::unreadable(format!("the request is not a JSON document with request and settings: {why}"));
    // A generic value instead of a type: deserialising types would make the module larger.
    let mut payload: Value = match serde_json::from_slice(payload) {
        Ok(payload) => payload,
        Err(error) => return unreadable(&error.to_string()),
    };
    if !payload.is_object() {
        return unreadable(&format!("found {}", describe(&payload)));
    }
    let mut field = |key: &str| payload.get_mut(key).map(Value::take).unwrap_or_default();
    let (mut request, settings) = (field("request"), field("settings"));
    let (allocation, external, prefetched) = (field("allocation"), field("external"), field("prefetched"));
    let settings = match last_settings.read(settings) {
        Ok(settings) => settings,
        Err(invalid) => return Answer::unreadable(format!("invalid settings: {invalid}")),
    };
    let read = || -> Result<_, TypeMismatch> {
        let (parsed, allocation) = (Request::read(&request)?, Allocation::read(&allocation)?);
        Ok((parsed, allocation, Held::read(&external)?, Prefetched::read(&prefetched)?))
    };
    let (parsed, allocation, held, prefetched) = match read() {
        Ok(inputs) => inputs,
        Err(mismatch) => return Answer::unreadable(format!("the request can't be read: {mismatch}")),
    };
    let cluster = &PrefetchedCluster { cluster, prefetched: &prefetched };
    let decision = match &parsed.about {
        About::Node(node) => node::decide(node, settings, allocation.as_ref(), cluster),
        About::Service(_) | About::Other => decide(&parsed, settings, held.as_ref(), cluster),
    };
    Answer::new(decision, request.get_mut("object").map(Value::take).unwrap_or_default())
}

/// The answer about settings: the fields that Kubewarden reads, and warnings for hosts that can show them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettingsAnswer {
    /// Whether the policy can use the settings.
    pub valid: bool,
    /// All mistakes, one on each line.
    pub message: Option<String>,
    /// Settings that are allowed but probably not intended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// Checks a settings document in JSON.
pub fn validate_settings(payload: &[u8]) -> SettingsAnswer {
    let invalid = |message: String| SettingsAnswer { valid: false, message: Some(message), warnings: Vec::new() };
    match serde_json::from_slice(payload) {
        Err(error) => invalid(format!("the settings are not a JSON document: {error}")),
        Ok(document) => match Settings::from_value(&document) {
            Err(mistakes) => invalid(mistakes.to_string()),
            Ok(settings) => {
                let warnings = settings.warnings().iter().map(ToString::to_string).collect();
                SettingsAnswer { valid: true, message: None, warnings }
            }
        },
    }
}
