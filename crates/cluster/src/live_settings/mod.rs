//! Settings that can change while the program runs: the objects of the API `clusterip-policy.io`, the policy of
//! Kubewarden, or a file.
//!
//! # Promises
//! - Only settings that the core accepts are published. Otherwise the version before stays in use, and the log and the
//!   metrics report it. An object that can't be used does not affect the others, and its status tells why.
//! - Each published version differs from the one before, so comparing hashes shows whether decisions may differ.

mod followed_file;
mod follower;
mod pool_objects;
mod settings_file;
mod settings_source;
mod validation;

use std::collections::BTreeMap;
use std::fmt;

use clusterip_api::{Compilation, ObjectKey, ObjectState, field_of, in_words_of_objects, reason_of_object};
use clusterip_core::settings::{Mistake, Settings};
use clusterip_core::{Decision, Verdict};
use serde_json::Value;

pub use self::follower::{Follower, report_missing_permissions, start_following};
pub use self::pool_objects::{compile_cluster, list as list_objects, list_if_defined};
pub use self::settings_file::{
    SettingsFile, compiled_as_in_cluster, document_of_objects, is_service_cidr, is_settings_api, is_settings_object,
};
pub use self::settings_source::{SettingsSource, written};
pub use self::validation::{check_settings, complete, version};

#[derive(Clone, Debug, Default, PartialEq)]
pub struct WrittenSettings {
    pub document: Value,
    /// The state of the objects that the document was compiled from; `None` if it comes from no objects.
    pub objects: Option<BTreeMap<ObjectKey, ObjectState>>,
}

impl From<Value> for WrittenSettings {
    fn from(document: Value) -> Self {
        Self { document, objects: None }
    }
}

impl From<Compilation> for WrittenSettings {
    fn from(Compilation { document, states, .. }: Compilation) -> Self {
        Self { document, objects: Some(states) }
    }
}

/// A setting that is allowed but probably not intended. Displayed as `services.pools[0].match.os: REASON`, or if the
/// settings come from objects, as `ServicePool windows: spec.match.os: REASON`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    pub object: Option<ObjectKey>,
    pub mistake: Mistake,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.object.iter().try_for_each(|object| write!(f, "{object}: "))?;
        self.mistake.fmt(f)
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct LiveSettings {
    pub document: Value,
    pub settings: Settings,
    /// The hash of the document in 32 hexadecimal digits: the same for the same document in every process.
    pub hash: String,
    /// The hash of the settings version: of the document as it was written, see [`version()`]. The Service ranges of
    /// the cluster do not affect it.
    pub version: String,
    pub warnings: Vec<Warning>,
    /// Whether the settings were compiled from objects, so that messages name those and their fields.
    pub are_objects: bool,
}

impl LiveSettings {
    /// A message about these settings. If they were compiled from objects, it has the fields of those.
    pub fn words(&self, message: String) -> String {
        if self.are_objects { in_words_of_objects(&message) } else { message }
    }

    /// The warning about a field of the document or, if it was compiled from objects, of one of them.
    pub fn warning(&self, mistake: Mistake) -> Warning {
        match field_of(&mistake.path, &self.document).filter(|_| self.are_objects) {
            Some((object, path)) => {
                let reason = reason_of_object(&path, &mistake.reason);
                Warning { object: Some(object), mistake: Mistake { path, reason } }
            }
            None => Warning { object: None, mistake },
        }
    }

    pub fn worded(&self, mut decision: Decision) -> Decision {
        let reason = match &mut decision.verdict {
            Verdict::Unchanged(reason) => Some(reason),
            Verdict::Denied(denial) => Some(&mut denial.message),
            Verdict::Allocated(_) | Verdict::Assigned(_) => None,
        };
        let of_external = decision.external.as_mut().and_then(|external| external.reason.as_mut());
        for text in reason.into_iter().chain(of_external) {
            *text = self.words(std::mem::take(text));
        }
        decision
    }
}

/// The message about mistakes of settings, which are one per line: each line begins with the name of the settings.
pub fn in_lines(name: &str, mistakes: impl fmt::Display) -> String {
    mistakes.to_string().lines().map(|mistake| format!("settings: {name}: {mistake}")).collect::<Vec<_>>().join("\n")
}
