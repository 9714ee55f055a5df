//! The source of settings: reads the current version, and watches for new ones.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use clusterip_runtime::api_error::{RequestFailure, error_chain};
use futures::stream::{self, BoxStream, StreamExt};
use k8s_openapi::api::core::v1::{ConfigMap, ObjectReference};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::watch_object;
use kube::{Api, Client, Error as KubeError, Resource};
use serde_json::Value;
use tokio::time::sleep;

use super::settings_object::settings_in;
use super::{DocumentError, SettingsError, pool_objects};
use crate::cluster::manifests;
use crate::host_metrics::ClusterMetrics;
use crate::yaml;

/// The key of the ConfigMap that holds the settings.
pub const KEY: &str = "settings.yaml";

/// How often a file is checked. A mounted ConfigMap changes through symbolic links, for which not every file system
/// sends notifications.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The source of settings.
#[derive(Clone)]
pub enum Source {
    /// No source: the settings are `{}`.
    Defaults,
    /// A file, or standard input for `-`: the settings themselves, or an object that contains them, see
    /// [`settings_in`].
    File(PathBuf),
    /// The key [`KEY`] of a ConfigMap.
    ConfigMap {
        /// The client that reads the ConfigMap and writes Events.
        client: Client,
        /// The namespace of the ConfigMap.
        namespace: String,
        /// The name of the ConfigMap.
        name: String,
    },
    /// The objects of the API `clusterip-policy.io`.
    Pools {
        /// The client that reads the objects.
        client: Client,
    },
}

impl Source {
    /// The source for the options of a command: a file, a ConfigMap in this namespace, or the pools of the cluster.
    pub fn chosen(file: Option<&Path>, config_map: Option<&str>, client: &Client, namespace: &str) -> Self {
        match (file, config_map) {
            (Some(file), _) => Self::File(file.to_owned()),
            (None, Some(name)) => {
                Self::ConfigMap { client: client.clone(), namespace: namespace.to_owned(), name: name.to_owned() }
            }
            (None, None) => Self::Pools { client: client.clone() },
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Defaults => f.write_str("the default settings"),
            Self::File(file) => write!(f, "{}", file.display()),
            Self::ConfigMap { namespace, name, .. } => write!(f, "configmap {namespace}/{name}, key {KEY}"),
            Self::Pools { .. } => f.write_str("the pools of the cluster"),
        }
    }
}

/// A version of the settings, as the source has it.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Version {
    /// A document, or why the text is not a document.
    Written(Written),
    /// The objects of the API `clusterip-policy.io`.
    Objects(Vec<Value>),
}

/// A document, or why a text is not a document.
pub(super) type Written = Result<Value, DocumentError>;

/// Parses a version.
pub(super) fn parse(text: &str) -> Written {
    Ok(yaml::single(text)?)
}

pub(super) fn of_config_map(config_map: &ConfigMap) -> Written {
    let data = config_map.data.as_ref();
    let Some(text) = data.and_then(|data| data.get(KEY)) else {
        let there: Vec<_> = data.into_iter().flat_map(|data| data.keys().map(String::as_str)).collect();
        let there = if there.is_empty() { "no key".to_owned() } else { there.join(", ") };
        return Err(DocumentError::NoKey { keys: there });
    };
    parse(text)
}

fn of_file(file: &Path) -> Written {
    let read = || -> Written {
        let source = manifests::read_file(file).map_err(|error| DocumentError::File(error.to_string()))?;
        settings_in(&source.text)
    };
    if manifests::is_standard_input(file) {
        // Commands read their settings several times, but standard input can be read only once.
        static READ: OnceLock<Written> = OnceLock::new();
        return READ.get_or_init(read).clone();
    }
    read()
}

/// The document of the current version. If it consists of objects, they are compiled with the Service ranges of the
/// cluster.
///
/// # Errors
/// [`SettingsError`] if it can't be read.
pub async fn written(source: &Source) -> Result<Value, SettingsError> {
    match read(source).await?.0 {
        Version::Written(written) => {
            written.map_err(|error| SettingsError::Mistakes { origin: source.to_string(), mistakes: error.into() })
        }
        Version::Objects(objects) => {
            let Source::Pools { client } = source else { return Ok(Value::Null) };
            let ranges = pool_objects::service_ranges(client).await.map_err(|error| failed(source, &error))?;
            Ok(pool_objects::compiled(&objects, &ranges, None).document)
        }
    }
}

/// The current version of the settings, and the ConfigMap if they come from one.
pub(super) async fn read(source: &Source) -> Result<(Version, Option<ObjectReference>), SettingsError> {
    match source {
        Source::Defaults => Ok((Version::Written(Ok(Value::Null)), None)),
        Source::File(file) => Ok((Version::Written(of_file(file)), None)),
        Source::ConfigMap { client, namespace, name } => {
            let found = Api::<ConfigMap>::namespaced(client.clone(), namespace).get_opt(name).await;
            let found = found.map_err(|error| failed(source, &error))?;
            let missing = || SettingsError::NoConfigMap { namespace: namespace.clone(), name: name.clone() };
            let config_map = found.ok_or_else(missing)?;
            Ok((Version::Written(of_config_map(&config_map)), Some(config_map.object_ref(&()))))
        }
        Source::Pools { client } => match pool_objects::list(client).await {
            Ok(objects) => Ok((Version::Objects(objects), None)),
            Err(KubeError::Api(status)) if status.code == 404 => Err(SettingsError::NoDefinitions),
            Err(error) => Err(failed(source, &error)),
        },
    }
}

fn failed(source: &Source, error: &KubeError) -> SettingsError {
    SettingsError::Request { origin: source.to_string(), reason: RequestFailure::from(error) }
}

/// The versions of the settings from now on. The same version may come twice.
pub(super) fn versions(
    source: &Source,
    metrics: ClusterMetrics,
    first: Version,
) -> BoxStream<'static, (Version, Option<ObjectReference>)> {
    match source {
        Source::Defaults => stream::pending().boxed(),
        Source::File(file) => {
            let next = |(file, before): (PathBuf, Version)| async move {
                let mut seen = None;
                loop {
                    sleep(CHECK_INTERVAL).await;
                    let path = file.clone();
                    let Ok(written) = tokio::task::spawn_blocking(move || of_file(&path)).await else { continue };
                    let written = Version::Written(written);
                    // An editor may be in the middle of writing: a change counts only if the next check finds the same
                    // text.
                    if written != before && seen.as_ref() == Some(&written) {
                        return Some(((written.clone(), None), (file, written)));
                    }
                    seen = Some(written);
                }
            };
            stream::unfold((file.clone(), first), next).boxed()
        }
        Source::ConfigMap { client, namespace, name } => {
            let config_maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
            let version = move |seen: Result<Option<ConfigMap>, kube::runtime::watcher::Error>| {
                let version = match seen {
                    Ok(Some(config_map)) => {
                        Some((Version::Written(of_config_map(&config_map)), Some(config_map.object_ref(&()))))
                    }
                    Ok(None) => Some((Version::Written(Err(DocumentError::Deleted)), None)),
                    Err(error) => {
                        metrics.watch_error("ConfigMap");
                        tracing::warn!(error = error_chain(&error), "watching the settings failed, trying again");
                        None
                    }
                };
                futures::future::ready(version)
            };
            watch_object(config_maps, name).default_backoff().filter_map(version).boxed()
        }
        Source::Pools { client } => {
            pool_objects::versions(client, &metrics).map(|objects| (Version::Objects(objects), None)).boxed()
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn config_map_without_the_key_is_refused() {
        let read = |config_map: &ConfigMap| of_config_map(config_map).map_err(|error| error.to_string());
        let with = |keys: &[&str]| {
            let data = keys.iter().map(|&key| (key.to_owned(), "{}".to_owned())).collect();
            read(&ConfigMap { data: Some(data), ..ConfigMap::default() })
        };
        assert_eq!(with(&["settings.yaml"]), Ok(json!({})));
        assert_eq!(
            with(&["settings.yml", "a"]),
            Err("the configmap has no key settings.yaml, but a, settings.yml".into())
        );
        assert_eq!(with(&[]), Err("the configmap has no key settings.yaml, but no key".into()));
        assert_eq!(read(&ConfigMap::default()), Err("the configmap has no key settings.yaml, but no key".into()));
    }
}
