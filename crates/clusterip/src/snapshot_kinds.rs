//! Which kinds of objects a snapshot file has, and which it lacks. Without some of them, an audit or a plan would be
//! wrong and look right.

use std::collections::BTreeSet;

use anyhow::ensure;
use clusterip_cluster::kinds::{self, Kind};
use clusterip_cluster::object;
use clusterip_core::settings::Settings;
use serde::Deserialize as _;
use serde_json::{Value, json};

use crate::lease_namespaces::LeaseNamespaces;
use crate::text::joined;

/// The API version and the kind of the object that names the kinds which `clusterip snapshot` has listed.
const CONTENTS: (&str, &str) = ("snapshot.clusterip-policy/v1", "Contents");

const REMEDY: &str = "`clusterip snapshot` writes a snapshot of a cluster";

#[derive(Default)]
pub struct SnapshotKinds {
    seen: BTreeSet<Kind>,
    /// The kinds that were listed when the snapshot was written, even if they have no objects.
    listed: BTreeSet<Kind>,
    /// Whether an API server may have stored a Service: it has an address, `None` as its address, or needs none.
    has_address: bool,
}

impl SnapshotKinds {
    pub fn of(objects: &[Value]) -> Self {
        let mut kinds = Self::default();
        objects.iter().for_each(|object| kinds.add(object));
        kinds
    }

    pub fn add(&mut self, object: &Value) {
        let kind = kind_of(object);
        if (kind.0.as_str(), kind.1.as_str()) == CONTENTS {
            let kinds = object.get("kinds").and_then(Value::as_array).into_iter().flatten();
            self.listed.extend(kinds.map(kind_of));
        } else {
            let spec = |field| object::text(object, &["spec", field]);
            let is_stored = !spec("clusterIP").is_empty() || spec("type") == "ExternalName";
            self.has_address |= kind.1 == "Service" && is_stored;
            self.seen.insert(kind);
        }
    }

    pub fn append(&mut self, other: Self) {
        self.seen.extend(other.seen);
        self.listed.extend(other.listed);
        self.has_address |= other.has_address;
    }

    pub fn check_not_empty(&self) -> anyhow::Result<()> {
        ensure!(!self.seen.is_empty(), "no Kubernetes objects: {REMEDY}");
        Ok(())
    }

    /// Checks that the snapshot has objects of each kind that the settings have pools for.
    pub fn check(&self, settings: &Settings) -> anyhow::Result<()> {
        self.check_not_empty()?;
        let has_nodes = !settings.nodes.pools.is_empty() && self.has("v1", "Node");
        let is_usable = self.has_address || has_nodes;
        ensure!(is_usable || self.has("v1", "Service"), "no Services, but every cluster has some: {REMEDY}");
        // The manifests were not applied to a cluster.
        ensure!(
            is_usable,
            "no Service has an address, but those of a cluster have: `clusterip plan` takes manifests, and {REMEDY}"
        );
        Ok(())
    }

    /// What an audit of the snapshot must say about it.
    pub fn note(&self, settings: &Settings) -> Option<String> {
        if !self.has("v1", "Service") {
            return Some(format!("the snapshot has no Services: {REMEDY}"));
        }
        let by_nodes = settings.pools.iter().any(|pool| !pool.matches.node_labels.is_empty());
        let of_cluster = [("v1", "Namespace"), ("v1", "Node"), ("node.k8s.io/v1", "RuntimeClass")];
        let of_cluster = of_cluster.map(|(api, kind)| (api.to_owned(), kind.to_owned()));
        let evidence = settings.kinds.iter().map(kinds::of_workload).chain(of_cluster).filter(|_| by_nodes);
        let missing = joined(
            evidence.filter(|kind| !self.seen.union(&self.listed).any(|seen| seen == kind)).map(|(_, kind)| kind),
            ", ",
        );
        (!missing.is_empty()).then(|| {
            format!(
                "the snapshot has no objects of the kinds {missing}: if the cluster has some, the evidence about nodes \
                 is incomplete; {REMEDY}, with all kinds"
            )
        })
    }

    pub fn was_listed(&self, api_version: &str, kind: &str) -> bool {
        self.listed.contains(&(api_version.to_owned(), kind.to_owned()))
    }

    fn has(&self, api_version: &str, kind: &str) -> bool {
        self.seen.contains(&(api_version.to_owned(), kind.to_owned()))
    }
}

/// The object that names the listed kinds, and the namespaces of the Leases. It is the first object of a snapshot.
pub fn contents(kinds: &[Kind], leases: &LeaseNamespaces) -> Value {
    let (api_version, kind) = CONTENTS;
    let kind_object = |(api_version, kind): &Kind| json!({"apiVersion": api_version, "kind": kind});
    let kinds: Vec<Value> = kinds.iter().map(kind_object).collect();
    let metadata = json!({"name": "clusterip-snapshot"});
    json!({"apiVersion": api_version, "kind": kind, "metadata": metadata, "kinds": kinds, "leaseNamespaces": leases})
}

pub fn lease_namespaces(object: &Value) -> Option<LeaseNamespaces> {
    let (api_version, kind) = kind_of(object);
    let named = object.get("leaseNamespaces").filter(|_| (api_version.as_str(), kind.as_str()) == CONTENTS)?;
    LeaseNamespaces::deserialize(named).ok()
}

pub fn kind_of(object: &Value) -> Kind {
    (object::api_version(object).to_owned(), object::kind(object).to_owned())
}

#[cfg(test)]
#[allow(clippy::expect_used)]
mod tests {
    use super::*;

    fn object(api_version: &str, kind: &str) -> Value {
        json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": "x"}})
    }

    fn with_address() -> Value {
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "x"}, "spec": {"clusterIP": "10.0.0.1"}})
    }

    #[test]
    fn snapshot_without_what_the_settings_need_is_refused() {
        struct Case {
            name: &'static str,
            objects: Vec<Value>,
            settings: Value,
            /// The beginning of the error.
            expected: Option<&'static str>,
        }
        let nodes = || json!({"nodes": {"pools": [{"name": "all", "cidrs": ["10.0.0.0/16"]}]}});
        let service = |api_version| object(api_version, "Service");
        let case = |name, objects, settings, expected| Case { name, objects, settings, expected };
        let (none, listed) = (json!({}), contents(&[], &LeaseNamespaces::default()));
        let others = vec![object("apps/v1", "Deployment"), object("v1", "Node")];
        let knative = vec![service("serving.knative.dev/v1")];
        let cases = [
            case("nothing", vec![], none.clone(), Some("no Kubernetes objects")),
            case("only what the snapshot lists", vec![listed], none.clone(), Some("no Kubernetes objects")),
            case("no Services", others, none.clone(), Some("no Services")),
            case("manifests of Services", vec![service("v1")], none.clone(), Some("no Service has an address")),
            case("Services of a cluster", vec![service("v1"), with_address()], none, None),
            case("Nodes, and pools of Nodes", vec![object("v1", "Node")], nodes(), None),
            case("a Service of another API", knative, nodes(), Some("no Services")),
        ];
        for Case { name, objects, settings, expected } in cases {
            let settings = Settings::from_value(&settings).expect("valid settings");
            let error = SnapshotKinds::of(&objects).check(&settings).err().map(|error| error.to_string());
            assert_eq!(error.as_ref().and_then(|error| error.split([':', ',']).next()), expected, "{name}");
        }
    }

    #[test]
    fn missing_kinds_of_evidence_are_noted_unless_they_were_listed() {
        struct Case {
            name: &'static str,
            objects: Vec<Value>,
            settings: &'static str,
            expected: &'static str,
        }
        const BY_OS: &str = r#"{"services": {"pools": [{"name": "linux", "cidrs": ["10.0.0.0/24"], "match": {"os": "linux"}}],
                "evidence": {"kinds": ["Deployment", "Pod"]}}}"#;
        const ANY: &str = r#"{"services": {"pools": [{"name": "all", "cidrs": ["10.0.0.0/24"]}]}}"#;
        let kinds = [("apps/v1", "Deployment"), ("v1", "Pod"), ("v1", "Namespace"), ("node.k8s.io/v1", "RuntimeClass")];
        let kinds = kinds.map(|(api_version, kind)| (api_version.to_owned(), kind.to_owned()));
        let listed = contents(&kinds, &LeaseNamespaces::default());
        let case = |name, objects, settings, expected| Case { name, objects, settings, expected };
        let (service, node) = (|| object("v1", "Service"), || object("v1", "Node"));
        let some = vec![service(), object("v1", "Pod"), node()];
        let cases = [
            case("Services alone", vec![service()], BY_OS, "Deployment, Pod, Namespace, Node, RuntimeClass"),
            case("some", some, BY_OS, "Deployment, Namespace, RuntimeClass"),
            case("listed, and there are none", vec![listed, service(), node()], BY_OS, ""),
            case("no pool needs evidence", vec![service()], ANY, ""),
        ];
        for Case { name, objects, settings, expected } in cases {
            let settings = serde_json::from_str(settings).expect("JSON");
            let settings = Settings::from_value(&settings).expect("valid settings");
            let note = SnapshotKinds::of(&objects).note(&settings);
            let missing = note.iter().filter_map(|note| note.split(" of the kinds ").nth(1)?.split(':').next());
            assert_eq!(missing.collect::<Vec<_>>().join("; "), expected, "{name}");
        }
    }
}
