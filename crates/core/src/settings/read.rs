//! Reads a settings document, and records the path of each pool.

use serde_json::Value;

use super::reader::{Fields, Reader};
use super::{Mistake, Pool, Settings};
use crate::json::{Located, quote};
use crate::label_selector::Labels;
use crate::pod_spec::{OS_LABEL, normal};

/// Reads the valid values, and lists the mistakes. If there are mistakes, the settings are incomplete: an invalid value
/// is left out or has its default.
pub(super) fn settings(document: &Value) -> (Settings, AllPaths, Vec<Mistake>) {
    let mut reader = Reader::default();
    let mut settings = Settings::default();
    let mut paths = AllPaths::default();
    let document = Located::new(document, "");
    if let Some(fields) = reader.fields(&document, &["services", "nodes", "external"]) {
        if let Some(services) = fields.get("services") {
            paths.services = reader.services(services, &mut settings);
        }
        if let Some(nodes) = fields.get("nodes") {
            paths.nodes = reader.nodes(nodes, &mut settings.nodes);
        }
        if let Some(external) = fields.get("external") {
            paths.external = reader.external(external, &mut settings.external);
        }
        let others = fields.get("nodes").or(fields.get("external"));
        if others.is_some() && paths.services.is_empty() {
            // Settings that list only pools of Nodes or external addresses do not imply the K2s pools of Services.
            settings.pools.clear();
        }
    }
    if paths.services.is_empty() {
        // Either the default pools or no pools.
        paths.services =
            settings.pools.iter().enumerate().map(|(index, pool)| PoolPaths::of_default(index, pool)).collect();
    }
    (settings, paths, reader.mistakes)
}

/// The paths of all pools in the document, one entry for each pool.
#[derive(Debug, Default)]
pub(super) struct AllPaths {
    pub(super) services: Vec<PoolPaths>,
    pub(super) nodes: Vec<PoolPaths>,
    pub(super) external: Vec<PoolPaths>,
}

/// The paths of the values of a pool. Items that could not be read are left out here as in the pool.
#[derive(Debug, Default)]
pub(super) struct PoolPaths {
    pub(super) path: String,
    pub(super) cidrs: Vec<String>,
    pub(super) exclude: Vec<String>,
    pub(super) reservations: Vec<String>,
    /// Whether all conditions of the pool could be read.
    pub(super) match_is_whole: bool,
}

impl PoolPaths {
    /// The paths that the values of a default pool would have in a document.
    fn of_default(index: usize, pool: &Pool) -> Self {
        let path = format!("services.pools[{index}]");
        let items = |key: &str, count| (0..count).map(|item| format!("{path}.{key}[{item}]")).collect();
        Self {
            cidrs: items("cidrs", pool.cidrs.len()),
            exclude: items("exclude", pool.exclude.len()),
            match_is_whole: true,
            path,
            ..Self::default()
        }
    }
}

/// Reads the fields that all kinds of pools share.
impl Reader {
    pub(super) fn pool_name(&mut self, at: &Located<'_>, fields: &Fields<'_>) -> String {
        match fields.get("name") {
            Some(name) => self.dns_label(name).unwrap_or_default(),
            None => {
                self.mistake(at.key_path("name"), "missing: every pool needs a name");
                String::new()
            }
        }
    }

    /// Reads the ranges, and returns them with their paths.
    pub(super) fn pool_ranges<T>(
        &mut self,
        at: &Located<'_>,
        fields: &Fields<'_>,
        range: impl Fn(&mut Self, &Located<'_>) -> Option<T>,
    ) -> (Vec<String>, Vec<T>) {
        let Some(cidrs) = fields.get("cidrs") else {
            self.mistake(at.key_path("cidrs"), "missing: a pool needs at least one range");
            return Default::default();
        };
        if cidrs.value.as_array().is_some_and(Vec::is_empty) {
            self.mistake(cidrs.path.clone(), "no range: a pool needs at least one");
        }
        self.list(cidrs, |reader, at| Some((at.path.clone(), range(reader, at)?))).into_iter().unzip()
    }

    /// Reads `exclude`, and returns the ranges with their paths.
    pub(super) fn pool_exclude<T>(
        &mut self,
        fields: &Fields<'_>,
        range: impl Fn(&mut Self, &Located<'_>) -> Option<T>,
    ) -> (Vec<String>, Vec<T>) {
        let exclude = fields
            .get("exclude")
            .map(|exclude| self.list(exclude, |reader, at| Some((at.path.clone(), range(reader, at)?))));
        exclude.unwrap_or_default().into_iter().unzip()
    }

    /// Reads `nodeLabels`, and `os`, which is a short form for one of them.
    pub(super) fn node_labels(&mut self, fields: &Fields<'_>) -> Labels {
        let mut node_labels = Labels::new();
        if let Some(labels) = fields.get("nodeLabels") {
            for (key, value) in self.labels(labels) {
                let value = normal(&key, &value);
                node_labels.insert(key, value);
            }
        }
        if let Some((at, os)) = fields.get("os").and_then(|at| Some((at, self.os(at)?))) {
            match node_labels.get(OS_LABEL) {
                Some(other) if *other != os => {
                    let reason = format!("contradicts nodeLabels, where {OS_LABEL} is {}", quote(other));
                    self.mistake(at.path.clone(), reason);
                }
                _ => {
                    node_labels.insert(OS_LABEL.into(), os);
                }
            }
        }
        node_labels
    }
}
