//! Settings that change while we run: a watched ConfigMap, or a file.
//!
//! # Promises
//! - Only settings that the policy itself takes are ever published. A version with mistakes changes
//!   nothing: the one before stays in use, and the log, the metrics and an Event on the ConfigMap say
//!   so.
//! - What is published differs from what was published before. So whoever compares hashes knows
//!   whether decisions could be others.

use std::fmt;
use std::future::Future;
use std::hash::Hasher;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use clusterip_core::settings::Settings;
use futures::stream::{self, BoxStream, StreamExt};
use ipnet::IpNet;
use k8s_openapi::api::core::v1::{ConfigMap, ObjectReference};
use kube::runtime::WatchStreamExt;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::runtime::watcher::watch_object;
use kube::{Api, Client, Resource};
use serde_json::Value;
use siphasher::sip128::{Hasher128, SipHasher24};
use thiserror::Error;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::cluster::failure::words;
use crate::cluster::{manifests, yaml};
use crate::metrics::Metrics;
use crate::policy::module::Module;
use crate::settings::complete;

/// The key of the ConfigMap that holds the settings.
pub const KEY: &str = "settings.yaml";

/// How often a file is looked at. A mounted ConfigMap changes through links, which not every file system
/// tells of.
const LOOK: Duration = Duration::from_secs(1);
/// For how long an Event may keep its task.
const PATIENCE: Duration = Duration::from_secs(10);
/// The longest note that the API server takes in an Event.
const LONGEST_NOTE: usize = 1024;
/// In how many Events mistakes are named at most.
const MOST_EVENTS: usize = 8;

/// Where settings come from.
#[derive(Clone)]
pub enum Source {
    /// Nowhere: those that `{}` stands for.
    Defaults,
    /// A file.
    File(PathBuf),
    /// The key [`KEY`] of a ConfigMap.
    ConfigMap {
        /// Who reads it, and writes the Events.
        client: Client,
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Defaults => f.write_str("the default settings"),
            Self::File(file) => write!(f, "{}", file.display()),
            Self::ConfigMap { namespace, name, .. } => write!(f, "configmap {namespace}/{name}, key {KEY}"),
        }
    }
}

/// Settings in use.
#[derive(Clone, Debug, PartialEq)]
pub struct LiveSettings {
    /// As the policy gets them.
    pub document: Value,
    /// As we understand them.
    pub settings: Settings,
    /// The same for the same document, in every process: 32 hexadecimal digits.
    pub hash: String,
    /// What is allowed, but probably not meant.
    pub warnings: Vec<String>,
}

/// Settings to start with that can't be used.
#[derive(Debug, Error)]
pub enum SettingsError {
    /// They have mistakes: all of them, a line each.
    #[error("settings: {origin}\n{mistakes}")]
    Mistakes {
        /// Where they come from.
        origin: String,
        /// What is wrong.
        mistakes: String,
    },
    /// There is no such ConfigMap.
    #[error(
        "settings: there is no configmap {namespace}/{name}: create it, with the settings in its key {KEY} \
         (`{{}}` stands for the defaults)"
    )]
    NoConfigMap {
        /// The namespace.
        namespace: String,
        /// The name.
        name: String,
    },
    /// It can't be read.
    #[error("settings: {origin} can't be read: {reason}")]
    Request {
        /// Which.
        origin: String,
        /// What the API server says.
        reason: String,
    },
}

/// What is written somewhere: a document, or why it is none.
type Written = Result<Value, String>;

/// Keeps to settings that may change.
pub struct Follower {
    source: Source,
    judge: Judge,
    ranges: watch::Receiver<Vec<String>>,
    metrics: Arc<Metrics>,
    /// As they were written last, good or bad.
    latest: Written,
    /// As those in use were written.
    used: Value,
    /// The mistakes of the latest version, where it has some: told once.
    refused: Option<String>,
    /// The ConfigMap as it was seen last: what Events are about.
    about: Option<ObjectReference>,
    state: watch::Sender<Arc<LiveSettings>>,
}

impl Follower {
    /// Reads the settings, and checks them. `ranges` are the cluster's own Service ranges, the primary one
    /// first; none: not known.
    ///
    /// # Errors
    /// [`SettingsError`] where they can't be read, or have mistakes.
    pub async fn start(
        source: Source,
        module: Arc<Module>,
        mut ranges: watch::Receiver<Vec<String>>,
        metrics: Arc<Metrics>,
    ) -> Result<Self, SettingsError> {
        let (written, about) = read(&source).await?;
        let judge = Judge { module };
        let known = ranges.borrow_and_update().clone();
        let mistakes = |mistakes| SettingsError::Mistakes { origin: source.to_string(), mistakes };
        let written = written.map_err(mistakes)?;
        let live = judge.judge(written.clone(), known).await.map_err(mistakes)?;
        metrics.settings_in_use(&live.hash, true);
        tell(&source, &live);
        Ok(Self {
            source,
            judge,
            ranges,
            metrics,
            latest: Ok(written.clone()),
            used: written,
            refused: None,
            about,
            state: watch::Sender::new(Arc::new(live)),
        })
    }

    /// The settings in use, now and whenever they change.
    pub fn subscribe(&self) -> watch::Receiver<Arc<LiveSettings>> {
        self.state.subscribe()
    }

    /// Follows them until `shutdown`.
    pub async fn run(mut self, shutdown: impl Future<Output = ()>) {
        let mut shutdown = pin!(shutdown);
        let mut versions = versions(&self.source, Arc::clone(&self.metrics), self.latest.clone());
        // Nobody may tell of ranges any more, and still everything else goes on.
        let mut told = true;
        loop {
            tokio::select! {
                () = &mut shutdown => return,
                Some((written, about)) = versions.next() => {
                    self.latest = written;
                    self.about = about.or(self.about.take());
                    self.take().await;
                }
                changed = self.ranges.changed(), if told => match changed {
                    Ok(()) => self.take().await,
                    Err(_) => told = false,
                },
            }
        }
    }

    /// Uses the latest version if it is good, else the one in use, with the ranges as they are now.
    async fn take(&mut self) {
        let ranges = self.ranges.borrow_and_update().clone();
        let judged = match self.latest.clone() {
            Ok(written) => self.judge.judge(written, ranges.clone()).await,
            Err(mistakes) => Err(mistakes),
        };
        match judged {
            Ok(live) => {
                if let Ok(written) = &self.latest {
                    self.used.clone_from(written);
                }
                if self.refused.take().is_some() {
                    self.metrics.settings_restored();
                    tracing::info!(source = %self.source, "the settings can be used again");
                }
                self.publish(live);
            }
            Err(mistakes) => {
                self.refuse(mistakes);
                if let Ok(live) = self.judge.judge(self.used.clone(), ranges).await {
                    self.publish(live);
                }
            }
        }
    }

    fn publish(&self, live: LiveSettings) {
        if **self.state.borrow() == live {
            return;
        }
        self.metrics.settings_in_use(&live.hash, self.refused.is_none());
        tell(&self.source, &live);
        self.state.send_replace(Arc::new(live));
    }

    fn refuse(&mut self, mistakes: String) {
        if self.refused.as_ref() == Some(&mistakes) {
            return;
        }
        self.metrics.settings_refused();
        for mistake in mistakes.lines() {
            tracing::error!(source = %self.source, mistake, "settings refused, those before stay in use");
        }
        if let (Source::ConfigMap { client, .. }, Some(about)) = (&self.source, &self.about) {
            tokio::spawn(publish_events(client.clone(), about.clone(), mistakes.clone()));
        }
        self.refused = Some(mistakes);
    }
}

fn tell(source: &Source, live: &LiveSettings) {
    tracing::info!(%source, hash = live.hash, "settings in use");
    for warning in &live.warnings {
        tracing::warn!(%source, warning, "settings");
    }
}

/// Asks the policy.
struct Judge {
    module: Arc<Module>,
}

impl Judge {
    /// The settings that a document stands for in a cluster with these ranges, or its mistakes, a line
    /// each.
    async fn judge(&self, written: Value, ranges: Vec<String>) -> Result<LiveSettings, String> {
        let module = Arc::clone(&self.module);
        let judged = tokio::task::spawn_blocking(move || judge(&module, written, &ranges));
        judged.await.map_err(|error| format!("they could not be checked: {error}"))?
    }
}

/// The settings that a document stands for in a cluster with these ranges, or its mistakes, a line each.
pub fn judge(module: &Module, written: Value, ranges: &[String]) -> Result<LiveSettings, String> {
    let document = complete(if written.is_null() { Value::Object(<_>::default()) } else { written }, ranges);
    let answer = module.validate_settings(&document).map_err(|error| error.to_string())?;
    if !answer.valid {
        return Err(answer.message.unwrap_or_else(|| "the policy refuses them, and does not say why".to_owned()));
    }
    let settings = Settings::from_value(&document).map_err(|invalid| invalid.to_string())?;
    let mut warnings = answer.warnings;
    warnings.extend(contradiction(&settings.service_cidrs, ranges));
    Ok(LiveSettings { hash: hash(&document), settings, document, warnings })
}

/// Service ranges that the user wrote, and the cluster does not have.
fn contradiction(written: &[IpNet], ranges: &[String]) -> Option<String> {
    let cluster: Vec<IpNet> =
        ranges.iter().filter_map(|range| range.parse().ok()).map(|net: IpNet| net.trunc()).collect();
    let sorted = |nets: &[IpNet]| {
        let mut nets = nets.to_vec();
        nets.sort();
        nets.dedup();
        nets
    };
    // Only the first place has a meaning.
    if cluster.is_empty() || (written.first() == cluster.first() && sorted(written) == sorted(&cluster)) {
        return None;
    }
    let list = |nets: &[IpNet]| nets.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    Some(format!(
        "services.serviceCIDRs: {} is written, but the cluster has {}: without the key the cluster's own are used",
        list(written),
        list(&cluster)
    ))
}

/// The keys of objects are in their order already, however they were written.
fn hash(document: &Value) -> String {
    let mut hasher = SipHasher24::new();
    hasher.write(document.to_string().as_bytes());
    format!("{:032x}", hasher.finish128().as_u128())
}

fn parse(text: &str) -> Written {
    yaml::single(text).map_err(|error| error.to_string())
}

fn of_config_map(config_map: &ConfigMap) -> Written {
    let data = config_map.data.as_ref();
    let Some(text) = data.and_then(|data| data.get(KEY)) else {
        let there: Vec<_> = data.into_iter().flat_map(|data| data.keys().map(String::as_str)).collect();
        let there = if there.is_empty() { "no key".to_owned() } else { there.join(", ") };
        return Err(format!("the configmap has no key {KEY}, but {there}"));
    };
    parse(text)
}

fn of_file(file: &std::path::Path) -> Written {
    let source = manifests::read_file(file).map_err(|error| error.to_string())?;
    parse(&source.text)
}

/// What is written there now.
///
/// # Errors
/// [`SettingsError`] where it can't be read.
pub async fn written(source: &Source) -> Result<Value, SettingsError> {
    let mistakes = |mistakes| SettingsError::Mistakes { origin: source.to_string(), mistakes };
    read(source).await?.0.map_err(mistakes)
}

async fn read(source: &Source) -> Result<(Written, Option<ObjectReference>), SettingsError> {
    match source {
        Source::Defaults => Ok((Ok(Value::Null), None)),
        Source::File(file) => Ok((of_file(file), None)),
        Source::ConfigMap { client, namespace, name } => {
            let found = Api::<ConfigMap>::namespaced(client.clone(), namespace).get_opt(name).await;
            let found =
                found.map_err(|error| SettingsError::Request { origin: source.to_string(), reason: words(&error) })?;
            let missing = || SettingsError::NoConfigMap { namespace: namespace.clone(), name: name.clone() };
            let config_map = found.ok_or_else(missing)?;
            Ok((of_config_map(&config_map), Some(config_map.object_ref(&()))))
        }
    }
}

/// What is written, again and again; a version may come twice.
fn versions(
    source: &Source,
    metrics: Arc<Metrics>,
    first: Written,
) -> BoxStream<'static, (Written, Option<ObjectReference>)> {
    match source {
        Source::Defaults => stream::pending().boxed(),
        Source::File(file) => {
            let next = |(file, before): (PathBuf, Written)| async move {
                let mut seen = None;
                loop {
                    sleep(LOOK).await;
                    let path = file.clone();
                    let Ok(written) = tokio::task::spawn_blocking(move || of_file(&path)).await else { continue };
                    // An editor may be halfway through, and an empty file stands for the defaults: a
                    // change counts when it is still there at the next look.
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
                    Ok(Some(config_map)) => Some((of_config_map(&config_map), Some(config_map.object_ref(&())))),
                    Ok(None) => Some((Err("the configmap is gone".to_owned()), None)),
                    Err(error) => {
                        metrics.watch_error("ConfigMap");
                        tracing::warn!(%error, "watching the settings failed, and is tried again");
                        None
                    }
                };
                futures::future::ready(version)
            };
            watch_object(config_maps, name).default_backoff().filter_map(version).boxed()
        }
    }
}

/// Names mistakes in Events on the ConfigMap.
async fn publish_events(client: Client, about: ObjectReference, mistakes: String) {
    for note in notes(&mistakes) {
        // A recorder takes an Event for one that it published before, if only the note differs, and keeps
        // the old note. So each has its own.
        let recorder = Recorder::new(client.clone(), Reporter::from("clusterip"));
        let event = Event {
            type_: EventType::Warning,
            reason: "SettingsRefused".to_owned(),
            note: Some(note),
            action: "ReadSettings".to_owned(),
            secondary: None,
        };
        match timeout(PATIENCE, recorder.publish(&event, &about)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(error = words(&error), "no event tells of the refused settings"),
            Err(_) => tracing::warn!("no event tells of the refused settings: no answer within {PATIENCE:?}"),
        }
    }
}

/// Mistakes, a line each, in as few notes as take them.
fn notes(mistakes: &str) -> Vec<String> {
    const HEAD: &str = "settings refused, those before stay in use:";
    const MORE: &str = "\nand more: the log names all";
    let room = LONGEST_NOTE - MORE.len();
    let mut notes = vec![HEAD.to_owned()];
    for mistake in mistakes.lines() {
        let mistake = cut(mistake, room - HEAD.len() - 1);
        if notes.last().is_none_or(|note| note.len() + 1 + mistake.len() > room) {
            if notes.len() == MOST_EVENTS {
                if let Some(last) = notes.last_mut() {
                    last.push_str(MORE);
                }
                break;
            }
            notes.push(HEAD.to_owned());
        }
        if let Some(note) = notes.last_mut() {
            note.push('\n');
            note.push_str(mistake);
        }
    }
    notes
}

/// As much of a text as fits, in whole characters.
fn cut(text: &str, most: usize) -> &str {
    let end = (0..=most.min(text.len())).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
    &text[..end]
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used)]
mod tests {
    use std::sync::LazyLock;

    use serde_json::json;

    use super::*;
    use crate::policy::module::EMBEDDED;

    static MODULE: LazyLock<Arc<Module>> = LazyLock::new(|| Arc::new(Module::new(EMBEDDED).unwrap()));

    fn judged(yaml: &str, ranges: &[&str]) -> Result<LiveSettings, String> {
        let ranges: Vec<_> = ranges.iter().map(|&range| range.to_owned()).collect();
        judge(&MODULE, parse(yaml)?, &ranges)
    }

    #[test]
    fn settings_are_completed() {
        let live = judged("", &["172.21.0.0/16"]).unwrap();
        let document = json!({"services": {"serviceCIDRs": ["172.21.0.0/16"], "evidence": {"lookups": "namespace"}}});
        assert_eq!(live.document, document);
        assert_eq!(live.settings, Settings::from_value(&document).unwrap());
        assert_eq!(live.warnings, Vec::<String>::new());
    }

    #[test]
    fn all_mistakes_are_named() {
        let yaml =
            "services: {pools: [{name: a, cidrs: [10.0.0.1/24]}, {name: a, cidrs: [10.1.0.0/33]}], oder: lowest}";
        let mistakes = judged(yaml, &[]).unwrap_err();
        let direct = Settings::from_value(&complete(parse(yaml).unwrap(), &[])).unwrap_err();
        assert_eq!(mistakes, direct.to_string(), "as the policy words them");
        assert!(mistakes.lines().count() >= 3, "{mistakes}");
        assert!(judged("services: [", &[]).unwrap_err().starts_with("line 2: "), "no YAML");
    }

    #[test]
    fn ranges_decide_what_is_a_mistake() {
        let yaml = "services: {pools: [{name: a, cidrs: [10.0.0.0/24]}]}";
        assert!(judged(yaml, &[]).is_ok(), "not known");
        assert!(judged(yaml, &["10.0.0.0/16"]).is_ok(), "inside");
        assert!(judged(yaml, &["172.21.0.0/16"]).unwrap_err().contains("10.0.0.0/24"), "outside");
    }

    #[test]
    fn the_hash_is_that_of_the_meaning() {
        let one = judged("services: {order: lowest, explicit: deny}", &[]).unwrap();
        let rows = [
            ("other order, comment", "# so\nservices:\n  explicit: deny\n  order: lowest\n", true),
            ("json", r#"{"services": {"order": "lowest", "explicit": "deny"}}"#, true),
            ("other value", "services: {order: spread, explicit: deny}", false),
        ];
        for (name, yaml, same) in rows {
            assert_eq!(judged(yaml, &[]).unwrap().hash == one.hash, same, "{name}");
        }
        assert_ne!(judged("services: {order: lowest, explicit: deny}", &["172.21.0.0/16"]).unwrap().hash, one.hash);
        // Processes of different versions have to agree on it.
        assert_eq!(one.hash, "60e8521bbf43618a73e43c1ddda4078f");
    }

    #[test]
    fn contradictions() {
        type Row = (&'static str, &'static [&'static str], &'static [&'static str], Option<&'static str>);
        let rows: [Row; 7] = [
            ("not known", &["10.0.0.0/16"], &[], None),
            ("the same", &["10.0.0.0/16"], &["10.0.0.0/16"], None),
            (
                "secondary ones in another order",
                &["10.0.0.0/16", "fd00::/108", "10.9.0.0/16"],
                &["10.0.0.0/16", "10.9.0.0/16", "fd00::/108"],
                None,
            ),
            (
                "another",
                &["10.0.0.0/16"],
                &["172.21.0.0/16"],
                Some("10.0.0.0/16 is written, but the cluster has 172.21.0.0/16"),
            ),
            (
                "another primary",
                &["fd00::/108", "10.0.0.0/16"],
                &["10.0.0.0/16", "fd00::/108"],
                Some("fd00::/108, 10.0.0.0/16 is written, but the cluster has 10.0.0.0/16, fd00::/108"),
            ),
            (
                "one less",
                &["10.0.0.0/16"],
                &["10.0.0.0/16", "fd00::/108"],
                Some("10.0.0.0/16 is written, but the cluster has 10.0.0.0/16, fd00::/108"),
            ),
            ("one that nobody can read", &["10.0.0.0/16"], &["so"], None),
        ];
        for (name, written, ranges, expected) in rows {
            let written: Vec<IpNet> = written.iter().map(|net| net.parse().unwrap()).collect();
            let ranges: Vec<_> = ranges.iter().map(|&range| range.to_owned()).collect();
            let expected = expected
                .map(|words| format!("services.serviceCIDRs: {words}: without the key the cluster's own are used"));
            assert_eq!(contradiction(&written, &ranges), expected, "{name}");
        }
    }

    #[test]
    fn a_config_map_without_the_key() {
        let with = |keys: &[&str]| {
            let data = keys.iter().map(|&key| (key.to_owned(), "{}".to_owned())).collect();
            of_config_map(&ConfigMap { data: Some(data), ..ConfigMap::default() })
        };
        assert_eq!(with(&["settings.yaml"]), Ok(json!({})));
        assert_eq!(
            with(&["settings.yml", "a"]),
            Err("the configmap has no key settings.yaml, but a, settings.yml".into())
        );
        assert_eq!(with(&[]), Err("the configmap has no key settings.yaml, but no key".into()));
        assert_eq!(
            of_config_map(&ConfigMap::default()),
            Err("the configmap has no key settings.yaml, but no key".into())
        );
    }

    #[test]
    fn mistakes_fit_into_notes() {
        let head = "settings refused, those before stay in use:";
        assert_eq!(notes("a: wrong\nb: wrong"), [format!("{head}\na: wrong\nb: wrong")]);
        let rows = [
            ("as many as fit", vec!["x".repeat(100); 9], 1),
            ("one more", vec!["x".repeat(100); 10], 2),
            ("one that is too long", vec!["é".repeat(2000)], 1),
            ("very many", vec!["x".repeat(100); 1000], MOST_EVENTS),
        ];
        for (name, mistakes, count) in rows {
            let notes = notes(&mistakes.join("\n"));
            assert_eq!(notes.len(), count, "{name}");
            assert!(notes.iter().all(|note| note.len() <= LONGEST_NOTE && note.starts_with(head)), "{name}");
            let told = notes.iter().map(|note| note.matches('x').count()).sum::<usize>();
            let more = notes.last().unwrap().ends_with("and more: the log names all");
            assert_eq!(more, told < mistakes.iter().map(|m| m.matches('x').count()).sum(), "{name}");
        }
    }
}
