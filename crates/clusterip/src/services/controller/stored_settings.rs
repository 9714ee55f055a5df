//! What the leader stores about its settings in its namespace.
//!
//! [`SettingsInUse`] is a `ControllerRevision`. `clusterip move` and `clusterip audit` find the server by this object, and
//! read there where its settings are.
//!
//! The leader's Lease does not prove that a server leads: a user with the role `edit` in any namespace may write such a
//! Lease there. That user may only read ControllerRevisions. The controllers of StatefulSets and DaemonSets write some
//! in the namespaces of tenants, with labels that the tenants choose. But the names of these end in a hash of another
//! length, and their `data` is a Pod template.
//!
//! An annotation of the leader's Lease has the hash of the settings that were carried out last: without it, a restart
//! with other settings could not be told from one with the same. It is not enough for these commands: new settings are
//! not carried out while they wait for `clusterip move`.

use clusterip_cluster::live_settings::SettingsSource;
use clusterip_core::annotations::SETTINGS_HASH_ANNOTATION;
use clusterip_failover::leases::{Identity, LEASE};
use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Api, PartialObjectMeta, PostParams};
use kube::{Client, Error as KubeError};
use serde::{Deserialize, Serialize};

use crate::services::own_revisions::{self, api};

const SERVER: &str = "server";
/// The beginning of the name. The random part of the leader's identity follows.
const PREFIX: &str = "clusterip-server-";
const RANDOM_DIGITS: usize = 16;
/// How many times a write of the Lease is tried if it conflicts with another.
const ATTEMPTS: usize = 5;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SettingsInUse {
    pub leader: String,
    /// The hash of the settings version.
    pub version: String,
    pub source: SettingsOrigin,
    pub agents_namespace: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum SettingsOrigin {
    /// A file on the machine of the leader.
    File(String),
    Pools,
    KubewardenPolicy(String),
}

impl From<&SettingsSource> for SettingsOrigin {
    fn from(source: &SettingsSource) -> Self {
        match source {
            SettingsSource::Pools { .. } => Self::Pools,
            SettingsSource::File(file) => Self::File(file.display().to_string()),
            // No server has such settings.
            SettingsSource::Document(_) => Self::File(String::new()),
            SettingsSource::KubewardenPolicy { name, .. } => Self::KubewardenPolicy(name.clone()),
        }
    }
}

impl SettingsInUse {
    /// Stores these settings in `namespace`, if they are not stored already, and deletes those of earlier leaders.
    pub async fn show(&self, client: &Client, namespace: &str) -> Result<(), KubeError> {
        let (api, object, name) = (api(client, namespace), self.object(), name(&self.leader));
        match api.get_opt(&name).await? {
            Some(found) if found.data == object.data => return Ok(()),
            // The data of a ControllerRevision can't be changed.
            Some(_) => own_revisions::delete(&api, &name).await?,
            None => {}
        }
        api.create(&PostParams::default(), &object).await?;
        for (_, other) in names(&api).await? {
            if other != name {
                own_revisions::delete(&api, &other).await?;
            }
        }
        Ok(())
    }

    fn object(&self) -> ControllerRevision {
        own_revisions::object(&name(&self.leader), SERVER, self)
    }

    /// The settings in an object; `None` if a leader did not write the object.
    fn of(object: ControllerRevision) -> Option<Self> {
        let in_use: Self = serde_json::from_value(object.data.0).ok()?;
        (object.metadata.name? == name(&in_use.leader)).then_some(in_use)
    }
}

/// The settings of all leaders, also of those that have ended, each with the namespace; in `namespace` if it is given.
pub async fn list(client: &Client, namespace: Option<&str>) -> Result<Vec<(String, SettingsInUse)>, KubeError> {
    let listed = match namespace {
        Some(namespace) => api(client, namespace),
        None => Api::all(client.clone()),
    };
    let mut all = Vec::new();
    // Tenants can make their objects large, so only the names are listed.
    for (namespace, name) in names(&listed).await? {
        let object = api(client, &namespace).get_opt(&name).await?;
        all.extend(object.and_then(SettingsInUse::of).map(|in_use| (namespace, in_use)));
    }
    Ok(all)
}

/// The settings of this leader; `None` if it has not stored them.
pub async fn of_leader(client: &Client, namespace: &str, leader: &str) -> Result<Option<SettingsInUse>, KubeError> {
    let name = name(leader);
    // Another text must not become a part of a URL.
    if !is_name(&name) {
        return Ok(None);
    }
    let object = api(client, namespace).get_opt(&name).await?;
    Ok(object.and_then(SettingsInUse::of).filter(|in_use| in_use.leader == leader))
}

pub async fn remove(client: &Client, namespace: &str, leader: &str) -> Result<(), KubeError> {
    own_revisions::delete(&api(client, namespace), &name(leader)).await
}

async fn names(api: &Api<ControllerRevision>) -> Result<Vec<(String, String)>, KubeError> {
    let name = |object: PartialObjectMeta<ControllerRevision>| {
        Some((object.metadata.namespace?, object.metadata.name.filter(|name| is_name(name))?))
    };
    own_revisions::list(api, SERVER, name).await
}

fn name(leader: &str) -> String {
    format!("{PREFIX}{}", Identity::of(leader).random())
}

fn is_name(name: &str) -> bool {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    name.strip_prefix(PREFIX).is_some_and(|random| random.len() == RANDOM_DIGITS && random.bytes().all(is_digit))
}

/// Reads the hash of the settings that were carried out last; `None` if there is no Lease, or no hash on it.
pub async fn applied(client: &Client, namespace: &str) -> Result<Option<String>, KubeError> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), namespace);
    let lease = leases.get_opt(LEASE).await?;
    Ok(lease.and_then(|lease| lease.metadata.annotations?.remove(SETTINGS_HASH_ANNOTATION)))
}

/// Records that the settings with this hash are carried out. Writes nothing if the Lease has this hash already.
pub async fn set_applied(client: &Client, namespace: &str, hash: &str) -> Result<(), KubeError> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), namespace);
    let mut attempt = 1;
    loop {
        let mut lease = leases.get(LEASE).await?;
        let annotations = lease.metadata.annotations.get_or_insert_default();
        if annotations.insert(SETTINGS_HASH_ANNOTATION.to_owned(), hash.to_owned()).as_deref() == Some(hash) {
            return Ok(());
        }
        match leases.replace(LEASE, &PostParams::default(), &lease).await {
            Ok(_) => return Ok(()),
            // Conflicts are expected: the leader renews this Lease every 2 seconds.
            Err(KubeError::Api(status)) if status.code == 409 && attempt < ATTEMPTS => attempt += 1,
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use clusterip_failover::leases::Role;
    use serde_json::{Value, json};

    use super::*;

    fn in_use() -> SettingsInUse {
        let leader = Identity::with("pod", Role::Serve, 0xab).to_string();
        let source = SettingsOrigin::KubewardenPolicy("clusterip".to_owned());
        SettingsInUse { leader, version: "ab".to_owned(), source, agents_namespace: "agents".to_owned() }
    }

    #[test]
    fn object_of_a_leader_is_read_as_it_was_written() {
        let object = in_use().object();
        let expected = json!({
            "leader": "pod_serve_00000000000000ab",
            "version": "ab",
            "source": {"kubewardenPolicy": "clusterip"},
            "agentsNamespace": "agents",
        });
        assert_eq!(object.data.0, expected);
        assert_eq!(object.metadata.name.as_deref(), Some("clusterip-server-00000000000000ab"));
        assert!(is_name(object.metadata.name.as_deref().unwrap()));
        assert_eq!(SettingsInUse::of(object), Some(in_use()));
    }

    #[test]
    fn objects_of_other_programs_are_ignored() {
        struct Case {
            name: &'static str,
            object: &'static str,
            data: Value,
        }
        let whole = serde_json::to_value(in_use()).unwrap();
        let own = "clusterip-server-00000000000000ab";
        let template = json!({"spec": {"template": {"$patch": "replace", "metadata": whole}}});
        let cases = [
            Case { name: "of another leader", object: "clusterip-server-00000000000000ac", data: whole.clone() },
            Case { name: "the revision of a StatefulSet", object: own, data: template },
            Case { name: "no object", object: own, data: json!("text") },
        ];
        for Case { name, object, data } in cases {
            let mut revision = in_use().object();
            revision.metadata.name = Some(object.to_owned());
            revision.data.0 = data;
            assert_eq!(SettingsInUse::of(revision), None, "{name}");
        }
        for name in ["clusterip-server-5f6d7c8b9a", "clusterip-server-00000000000000AB", "clusterip-server-", "web"] {
            assert!(!is_name(name), "{name}");
        }
        assert!(!is_name(&super::name("x_serve_../../secrets")));
    }
}
