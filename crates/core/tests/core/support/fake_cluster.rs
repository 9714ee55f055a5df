//! A cluster in memory that returns scripted answers and logs the look-ups.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use clusterip_core::address::{Family, Span};
use clusterip_core::label_selector::{Labels, selects};
use clusterip_core::lookups::{Cluster, LookupError, NamespaceMeta, Reserve, Selected};
use clusterip_core::settings::Lookups;
use clusterip_core::workload::{Workload, WorkloadKind};
use ipnet::IpNet;
use serde_json::Value;

use super::{ip, labels, pod_spec_of};

#[derive(Debug)]
struct WorkloadObject {
    kind: String,
    namespace: String,
    pod_labels: Labels,
    workload: Workload,
}

/// A cluster that its methods build; each adds something and returns the cluster.
#[derive(Debug, Default)]
pub struct FakeCluster {
    workloads: Vec<WorkloadObject>,
    namespaces: BTreeMap<String, NamespaceMeta>,
    nodes: BTreeMap<String, Labels>,
    runtime_classes: BTreeMap<String, Labels>,
    services: Vec<(String, String, IpAddr)>,
    external: Vec<(String, String, IpAddr)>,
    blocks: Vec<(String, IpNet)>,
    ip_addresses: BTreeSet<IpAddr>,
    lacks_ip_address_api: bool,
    knows_free: bool,
    cut_kind: Option<String>,
    left_out_kind: Option<String>,
    failures: Vec<(String, LookupError)>,
    questions: RefCell<Vec<String>>,
}

impl FakeCluster {
    /// `object` is `namespace/name`; the Pods have the label `app=web`.
    pub fn workload(self, kind: &str, object: &str, pod_spec: Value) -> Self {
        self.workload_labelled(kind, object, &[("app", "web")], pod_spec)
    }

    pub fn workload_labelled(mut self, kind: &str, object: &str, pod_labels: &[(&str, &str)], pod_spec: Value) -> Self {
        let (namespace, name) = object.split_once('/').unwrap();
        let workload = Workload { name: name.into(), pod_spec: pod_spec_of(&pod_spec).into() };
        let (kind, namespace) = (kind.into(), namespace.into());
        self.workloads.push(WorkloadObject { kind, namespace, pod_labels: labels(pod_labels), workload });
        self
    }

    pub fn namespace(mut self, name: &str, with_labels: &[(&str, &str)], annotations: &[(&str, &str)]) -> Self {
        let meta = NamespaceMeta { labels: labels(with_labels), annotations: labels(annotations).into() };
        self.namespaces.insert(name.into(), meta);
        self
    }

    pub fn node(mut self, name: &str, with_labels: &[(&str, &str)]) -> Self {
        self.nodes.insert(name.into(), labels(with_labels));
        self
    }

    pub fn runtime_class(mut self, name: &str, node_selector: &[(&str, &str)]) -> Self {
        self.runtime_classes.insert(name.into(), labels(node_selector));
        self
    }

    /// A Service with an address, and its `IPAddress` object.
    pub fn service(mut self, object: &str, address: &str) -> Self {
        let (namespace, name) = object.split_once('/').unwrap();
        self.services.push((namespace.into(), name.into(), ip(address)));
        self.ip_addresses.insert(ip(address));
        self
    }

    /// A Service without an `IPAddress` object: it is moving, or the cache is stale.
    pub fn service_without_ip_address(mut self, object: &str, address: &str) -> Self {
        let (namespace, name) = object.split_once('/').unwrap();
        self.services.push((namespace.into(), name.into(), ip(address)));
        self
    }

    /// An `IPAddress` without a listed Service.
    pub fn ip_address(mut self, address: &str) -> Self {
        self.ip_addresses.insert(ip(address));
        self
    }

    /// A Service that has or claims an external address.
    pub fn external(mut self, object: &str, address: &str) -> Self {
        let (namespace, name) = object.split_once('/').unwrap();
        self.external.push((namespace.into(), name.into(), ip(address)));
        self
    }

    /// A Node with a pod CIDR.
    pub fn node_block(mut self, name: &str, block: &str) -> Self {
        self.blocks.push((name.into(), block.parse().unwrap()));
        self
    }

    /// A host that does not read all workloads of this kind.
    pub fn cutting(mut self, kind: &str) -> Self {
        self.cut_kind = Some(kind.into());
        self
    }

    /// A host that does not keep all workloads of this kind.
    pub fn leaving_out(mut self, kind: &str) -> Self {
        self.left_out_kind = Some(kind.into());
        self
    }

    /// A host that knows without a look-up which addresses no Service has.
    pub fn knowing_free_addresses(mut self) -> Self {
        self.knows_free = true;
        self
    }

    /// A cluster before Kubernetes 1.33.
    pub fn without_ip_address_api(mut self) -> Self {
        self.lacks_ip_address_api = true;
        self
    }

    /// Makes look-ups that begin with `question` fail; see [`FakeCluster::questions`].
    pub fn failing(mut self, question: &str, error: LookupError) -> Self {
        self.failures.push((question.into(), error));
        self
    }

    /// The look-ups, in order.
    pub fn questions(&self) -> Vec<String> {
        self.questions.borrow().clone()
    }

    fn ask(&self, question: String) -> Result<(), LookupError> {
        let failure = self.failures.iter().find(|(beginning, _)| question.starts_with(beginning.as_str()));
        self.questions.borrow_mut().push(question);
        failure.map_or(Ok(()), |(_, error)| Err(error.clone()))
    }
}

impl Cluster for FakeCluster {
    fn workloads(
        &self,
        kind: &WorkloadKind,
        namespace: &str,
        lookups: Lookups,
        selector: &Labels,
    ) -> Result<Selected, LookupError> {
        let scope = match lookups {
            Lookups::Cluster => String::new(),
            Lookups::Namespace => format!(" of {namespace}"),
        };
        self.ask(format!("list {}{scope}", kind.kind))?;
        let fits = |object: &&WorkloadObject| {
            object.kind == kind.kind && object.namespace == namespace && selects(selector, &object.pod_labels)
        };
        let workloads: Vec<Workload> =
            self.workloads.iter().filter(fits).map(|object| object.workload.clone()).collect();
        let is_it = |other: &Option<String>| other.as_ref() == Some(&kind.kind);
        let (is_cut, is_incomplete) = (is_it(&self.cut_kind), is_it(&self.left_out_kind));
        Ok(Selected { workloads, is_cut, is_incomplete })
    }

    fn namespace(&self, name: &str) -> Result<Option<NamespaceMeta>, LookupError> {
        self.ask(format!("get Namespace {name}"))?;
        Ok(self.namespaces.get(name).cloned())
    }

    fn node_labels(&self, name: &str) -> Result<Option<Labels>, LookupError> {
        self.ask(format!("get Node {name}"))?;
        Ok(self.nodes.get(name).cloned())
    }

    fn runtime_class_nodes(&self, name: &str) -> Result<Option<Labels>, LookupError> {
        self.ask(format!("get RuntimeClass {name}"))?;
        Ok(self.runtime_classes.get(name).cloned())
    }

    fn service_addresses(&self, visit: &mut dyn FnMut(&str, &str, IpAddr)) -> Result<(), LookupError> {
        self.ask("list Service".into())?;
        self.services.iter().for_each(|(namespace, name, address)| visit(namespace, name, *address));
        Ok(())
    }

    fn free_addresses(&self, ranges: &[Span], most: usize) -> Option<(Vec<IpAddr>, bool)> {
        let (mut free, mut are_all) = (Vec::new(), true);
        for range in ranges {
            let is_free = |address: &IpAddr| self.services.iter().all(|(_, _, used)| used != address);
            let mut all = range.numbers().map(|number| Family::of(range.first()).address(number)).filter(is_free);
            free.extend(all.by_ref().take(most));
            are_all &= all.next().is_none();
        }
        self.knows_free.then_some((free, are_all))
    }

    fn external_addresses(&self, visit: &mut dyn FnMut(&str, &str, IpAddr)) -> Result<(), LookupError> {
        self.ask("list Service by external addresses".into())?;
        self.external.iter().for_each(|(namespace, name, address)| visit(namespace, name, *address));
        Ok(())
    }

    fn node_blocks(&self, _: &[IpNet], visit: &mut dyn FnMut(&str, IpNet)) -> Result<(), LookupError> {
        self.ask("list Node".into())?;
        self.blocks.iter().for_each(|(name, block)| visit(name, *block));
        Ok(())
    }

    fn reserve(&self, address: IpAddr) -> Result<Reserve, LookupError> {
        self.ask(format!("get IPAddress {address}"))?;
        Ok(match self.ip_addresses.contains(&address) {
            _ if self.lacks_ip_address_api => Reserve::NoSuchApi,
            true => Reserve::Taken,
            false => Reserve::Free,
        })
    }
}
