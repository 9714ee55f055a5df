//! The settings that the leader uses, shown in an annotation of its Lease. `clusterip move` and `clusterip audit` read
//! them there.
//!
//! The annotation of [`super::applied_settings`] is not enough for them: new settings are not carried out while they
//! wait for `clusterip move`.

use clusterip_core::annotations::SETTINGS_IN_USE_ANNOTATION;
use clusterip_host::live_settings::Source;
use clusterip_leases::election;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Client;
use serde::{Deserialize, Serialize};

use super::applied_settings;

/// The settings that a leader uses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SettingsInUse {
    /// The identity of the leader.
    pub leader: String,
    /// The hash of the settings version.
    pub version: String,
    /// Where the leader reads its settings.
    pub source: Origin,
}

/// Where a leader reads its settings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Origin {
    /// Nowhere: it uses the default settings.
    Defaults,
    /// A file on the machine of the leader.
    File(String),
    /// A ConfigMap.
    #[serde(rename_all = "camelCase")]
    ConfigMap {
        /// The namespace of the ConfigMap.
        namespace: String,
        /// The name of the ConfigMap.
        name: String,
    },
}

impl From<&Source> for Origin {
    fn from(source: &Source) -> Self {
        match source {
            Source::Defaults => Self::Defaults,
            Source::File(file) => Self::File(file.display().to_string()),
            Source::ConfigMap { namespace, name, .. } => {
                Self::ConfigMap { namespace: namespace.clone(), name: name.clone() }
            }
        }
    }
}

impl SettingsInUse {
    /// The settings that the holder of this Lease uses; `None` if the Lease does not show them. An annotation of an
    /// earlier leader does not count.
    pub fn on(lease: &Lease) -> Option<Self> {
        let holder = lease.spec.as_ref().and_then(election::holder)?;
        let text = lease.metadata.annotations.as_ref()?.get(SETTINGS_IN_USE_ANNOTATION)?;
        serde_json::from_str::<Self>(text).ok().filter(|in_use| in_use.leader == holder)
    }

    /// Shows these settings on the Lease in `namespace`. Returns whether the Lease shows them now; it does not if
    /// another process leads.
    ///
    /// # Errors
    /// The error of the API server.
    pub async fn show(&self, client: &Client, namespace: &str) -> Result<bool, kube::Error> {
        let text = serde_json::to_string(self).map_err(kube::Error::SerdeError)?;
        let key = SETTINGS_IN_USE_ANNOTATION;
        applied_settings::annotate(client, namespace, Some(&self.leader), key, &text).await
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::BTreeMap;

    use k8s_openapi::api::coordination::v1::LeaseSpec;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

    use super::*;

    #[test]
    fn annotation_counts_only_for_the_leader_that_wrote_it() {
        struct Case {
            name: &'static str,
            holder: Option<&'static str>,
            annotation: Option<String>,
            known: bool,
        }
        let source = Origin::ConfigMap { namespace: "own".to_owned(), name: "settings".to_owned() };
        let in_use = SettingsInUse { leader: "pod_serve_1".to_owned(), version: "ab".to_owned(), source };
        let text = serde_json::to_string(&in_use).unwrap();
        let expected =
            r#"{"leader":"pod_serve_1","version":"ab","source":{"configMap":{"namespace":"own","name":"settings"}}}"#;
        assert_eq!(text, expected);
        let cases = [
            Case { name: "its own", holder: Some("pod_serve_1"), annotation: Some(text.clone()), known: true },
            Case {
                name: "of an earlier leader",
                holder: Some("pod_serve_2"),
                annotation: Some(text.clone()),
                known: false,
            },
            Case { name: "without a leader", holder: Some(""), annotation: Some(text.clone()), known: false },
            Case { name: "without a holder", holder: None, annotation: Some(text), known: false },
            Case { name: "not JSON", holder: Some("pod_serve_1"), annotation: Some("so".to_owned()), known: false },
            Case { name: "none", holder: Some("pod_serve_1"), annotation: None, known: false },
        ];
        for Case { name, holder, annotation, known } in cases {
            let annotations = annotation.map(|text| BTreeMap::from([(SETTINGS_IN_USE_ANNOTATION.to_owned(), text)]));
            let spec = LeaseSpec { holder_identity: holder.map(str::to_owned), ..LeaseSpec::default() };
            let lease = Lease { metadata: ObjectMeta { annotations, ..ObjectMeta::default() }, spec: Some(spec) };
            assert_eq!(SettingsInUse::on(&lease), known.then(|| in_use.clone()), "{name}");
        }
    }
}
