//! The source of settings: reads the current version, and watches for new ones.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::anyhow;
use futures::stream::{self, BoxStream, StreamExt};
use kube::api::{Api, DynamicObject};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{Error as WatchError, watch_object};
use kube::{Client, Error as KubeError};
use serde_json::Value;
use tokio::time::sleep;

use super::followed_file::{FollowedFile, ReadFile, without_name};
use super::settings_file::{SettingsFile, of_policy};
use super::{WrittenSettings, in_lines, pool_objects};
use crate::api_error::{error_chain, failed};
use crate::host_metrics::ClusterMetrics;
use crate::kinds;
use crate::manifests;
use crate::panics;
use crate::repeated_failures::warn_of_watch;
use crate::snapshot::service_ranges::ServiceRanges;

const POLICIES: &str = "policies.kubewarden.io/v1";
const POLICY: &str = "ClusterAdmissionPolicy";

const NO_DEFINITIONS: &str = "settings: the cluster has no resources of the API clusterip-policy.io: install their \
                              definitions with kubectl apply -k deploy/api, or use --settings FILE";

/// The pause between two reads of a file. Files are not watched, because not every file system notifies of the symbolic
/// links of a mounted ConfigMap.
const READ_INTERVAL: Duration = Duration::from_millis(250);

#[derive(Clone)]
pub enum SettingsSource {
    /// A file, or standard input for `-`, in one of the forms of [`SettingsFile::read`].
    File(PathBuf),
    /// A document that a command has written for itself.
    Document(Value),
    Pools {
        client: Client,
    },
    KubewardenPolicy {
        client: Client,
        name: String,
    },
}

impl SettingsSource {
    pub fn chosen(file: Option<&Path>, policy: Option<&str>, client: &Client) -> Self {
        let client = client.clone();
        match (file, policy) {
            (Some(file), _) => Self::File(file.to_owned()),
            (None, Some(name)) => Self::KubewardenPolicy { client, name: name.to_owned() },
            (None, None) => Self::Pools { client },
        }
    }
}

impl fmt::Display for SettingsSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(file) => write!(f, "{}", file.display()),
            Self::Document(_) => f.write_str("the settings of this command"),
            Self::Pools { .. } => f.write_str("the pools of the cluster"),
            Self::KubewardenPolicy { name, .. } => write!(f, "{POLICY} {name}"),
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Version {
    /// What a file or a policy of Kubewarden contains, or why that is no settings.
    File(Result<SettingsFile, String>),
    Objects(Vec<Value>),
}

fn of_file(file: &Path) -> Result<SettingsFile, String> {
    let read = || SettingsFile::read(&text_of_file(file)?);
    if manifests::is_standard_input(file) {
        // Commands read their settings several times, but standard input can be read only once.
        static READ: OnceLock<Result<SettingsFile, String>> = OnceLock::new();
        return READ.get_or_init(read).clone();
    }
    read()
}

fn text_of_file(file: &Path) -> Result<String, String> {
    manifests::read_file(file).map(|source| source.text).map_err(|error| without_name(&error, file))
}

/// The document of the current version. If the version consists of objects, they are compiled in the cluster of
/// `client`. Objects of a file are not compared with its Service ranges.
pub async fn written(source: &SettingsSource, client: &Client) -> anyhow::Result<WrittenSettings> {
    let ranges = async || {
        let found = pool_objects::service_ranges(client).await;
        found.map_err(|error| unreadable(format!("the ServiceCIDRs for {source}"), &error))
    };
    match read(source).await? {
        Version::File(content) => {
            let selects = content.as_ref().is_ok_and(SettingsFile::selects_service_cidrs);
            let ranges = if selects { ranges().await?.only_labels() } else { ServiceRanges::default() };
            content
                .and_then(|file| file.document(&ranges))
                .map_err(|mistakes| anyhow!(in_lines(&source.to_string(), mistakes)))
        }
        Version::Objects(objects) => Ok(pool_objects::compiled(&objects, &ranges().await?, None).into()),
    }
}

/// The current version of the settings. A file that can't be read is a version with a mistake.
pub(super) async fn read(source: &SettingsSource) -> anyhow::Result<Version> {
    match source {
        SettingsSource::File(file) => Ok(Version::File(of_file(file))),
        SettingsSource::Document(document) => Ok(Version::File(Ok(SettingsFile::Document(document.clone())))),
        SettingsSource::Pools { client } => match pool_objects::list(client).await {
            Ok(objects) => Ok(Version::Objects(objects)),
            Err(KubeError::Api(status)) if status.code == 404 => Err(anyhow!(NO_DEFINITIONS)),
            Err(error) => Err(unreadable(source, &error)),
        },
        SettingsSource::KubewardenPolicy { client, name } => match policies(client).get_opt(name).await {
            Ok(Some(policy)) => Ok(of_kubewarden(&policy)),
            Ok(None) => Err(anyhow!(
                "settings: there is no ClusterAdmissionPolicy {name}: create it, or name another one with --policy \
                 (kubectl get clusteradmissionpolicies lists them)"
            )),
            Err(error) => Err(unreadable(source, &error)),
        },
    }
}

fn of_kubewarden(policy: &DynamicObject) -> Version {
    Version::File(Ok(SettingsFile::Document(of_policy(policy.data.get("spec")))))
}

fn policies(client: &Client) -> Api<DynamicObject> {
    Api::all_with(client.clone(), &kinds::regular(&(POLICIES.to_owned(), POLICY.to_owned())))
}

fn unreadable(source: impl fmt::Display, error: &KubeError) -> anyhow::Error {
    failed(format!("settings: {source} can't be read"), error)
}

/// The versions of the settings from now on. The same version may come twice.
pub(super) fn versions(
    source: &SettingsSource,
    metrics: ClusterMetrics,
    first: Version,
) -> BoxStream<'static, Version> {
    match source {
        SettingsSource::File(file) => {
            // Standard input was read at the start, and does not change.
            if manifests::is_standard_input(file) {
                return stream::pending().boxed();
            }
            let next = |(file, before, mut followed): (PathBuf, Version, FollowedFile)| async move {
                loop {
                    sleep(READ_INTERVAL).await;
                    let path = file.clone();
                    let read = panics::catch_blocking(move || ReadFile::read(&path)).await;
                    let Ok(read) = read else { continue };
                    if !followed.is_complete(&read) {
                        continue;
                    }
                    let content = panics::catch_blocking(move || read.text.and_then(|text| SettingsFile::read(&text)));
                    let Ok(content) = content.await else { continue };
                    let content = Version::File(content);
                    if content != before {
                        return Some((content.clone(), (file, content, followed)));
                    }
                }
            };
            stream::unfold((file.clone(), first, FollowedFile::default()), next).boxed()
        }
        SettingsSource::Document(_) => stream::pending().boxed(),
        SettingsSource::Pools { client } => pool_objects::versions(client, &metrics).map(Version::Objects).boxed(),
        SettingsSource::KubewardenPolicy { client, name } => {
            let version = move |seen: Result<Option<DynamicObject>, WatchError>| {
                let version = match seen {
                    Ok(Some(policy)) => Some(of_kubewarden(&policy)),
                    Ok(None) => Some(Version::File(Err("the ClusterAdmissionPolicy was deleted".to_owned()))),
                    Err(error) => {
                        metrics.watch_error(POLICY);
                        warn_of_watch(&(POLICIES.to_owned(), POLICY.to_owned()), &error_chain(&error));
                        None
                    }
                };
                futures::future::ready(version)
            };
            watch_object(policies(client), name).default_backoff().filter_map(version).boxed()
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::io::Write;

    use futures::FutureExt;
    use tokio::time::timeout;

    use super::*;

    fn changes(file: &Path) -> BoxStream<'static, Version> {
        let source = SettingsSource::File(file.to_owned());
        versions(&source, ClusterMetrics::default(), Version::File(of_file(file)))
    }

    #[tokio::test(start_paused = true)]
    async fn change_of_a_file_counts_when_it_is_complete() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(b"services: {pools: []}\n").unwrap();
        let mut changes = changes(file.path());
        let mut written = String::new();
        for part in ["exempt", "Namespaces: ", "[kube-system]"] {
            written += part;
            std::fs::write(file.path(), &written).unwrap();
            assert_eq!(timeout(Duration::from_millis(900), changes.next()).await.ok(), None);
        }
        assert_eq!(changes.next().await, Some(Version::File(of_file(file.path()))));
        // A comment makes no new version.
        std::fs::write(file.path(), format!("# changed\n{written}")).unwrap();
        assert_eq!(timeout(Duration::from_secs(5), changes.next()).await.ok(), None);
    }

    #[tokio::test]
    async fn standard_input_does_not_change() {
        let source = SettingsSource::File("-".into());
        let first = Version::File(SettingsFile::read("{}"));
        assert_eq!(versions(&source, ClusterMetrics::default(), first).next().now_or_never(), None);
    }
}
