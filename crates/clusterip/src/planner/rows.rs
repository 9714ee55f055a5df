//! The planned results for Services.

use std::net::IpAddr;

use clusterip_cluster::lookups::snapshot::addresses;
use clusterip_cluster::object;
use clusterip_core::decision::Report;
use clusterip_core::decision::{External, RecordChange};
use clusterip_core::external::stored;
use clusterip_core::{Decision, Denial, Verdict};
use serde::{Serialize, Serializer};
use serde_json::Value;

/// The planned result for a Service.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    /// The namespace of the Service.
    pub namespace: String,
    /// The name of the Service. If the name is yet to be generated, `generateName` with an ellipsis.
    pub name: String,
    /// The decision.
    pub decision: Verdict,
    /// The pool of the Service; `None` if no pool matches it.
    pub pool: Option<String>,
    /// Why the Service belongs to its pool: the labels of the nodes of its Pods, or conditions such as its namespace.
    pub evidence: Option<Report>,
    /// The addresses of the Service after the plan.
    #[serde(rename = "clusterIPs")]
    pub cluster_ips: Vec<IpAddr>,
    /// Warnings for the author of the Service.
    pub warnings: Vec<String>,
    /// Why the Service stays unchanged or is denied.
    pub message: Option<String>,
    /// The planned result for its external addresses; `None` if the request is not about any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub external: Option<ExternalRow>,
}

/// The planned result for the external addresses of a Service.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ExternalRow {
    /// The decision: `recorded`, `removed`, `unchanged` or `denied`.
    #[serde(serialize_with = "by_name")]
    pub decision: RecordChange,
    /// The pool that the addresses are from.
    pub pool: Option<String>,
    /// The external addresses of the Service after the plan.
    pub addresses: Vec<IpAddr>,
    /// Why the Service gets these addresses; `None` if it gets none.
    pub source: Option<AddressSource>,
    /// Why nothing happens, or why addresses are taken away.
    pub message: Option<String>,
}

/// Why a Service gets certain external addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum AddressSource {
    /// The Service asks for one of them.
    Asked,
    /// The Service has had one of them before.
    Kept,
    /// The addresses are free.
    Free,
}

impl Row {
    /// The result of a decision about `object`, which is an update of `old`.
    pub(super) fn new(object: &Value, old: Option<&Value>, decision: &Decision, mut warnings: Vec<String>) -> Self {
        warnings.extend(decision.cut_warnings());
        Self {
            namespace: object::namespace(object).to_owned(),
            name: shown_name(object),
            decision: decision.verdict.clone(),
            pool: decision.pool.clone(),
            external: decision.external.clone().map(|external| ExternalRow::new(external, object, old)),
            evidence: decision.evidence.clone(),
            cluster_ips: match &decision.verdict {
                Verdict::Denied(_) => Vec::new(),
                Verdict::Allocated(addresses) => addresses.clone(),
                Verdict::Unchanged(_) | Verdict::Assigned(_) => addresses(object),
            },
            warnings,
            message: decision.verdict.reason().map(str::to_owned),
        }
    }

    /// The same Service, refused by the API server for this reason.
    pub(super) fn refused(self, reason: &str) -> Self {
        let message = format!("Service {}/{}: the API server refuses it: {reason}", self.namespace, self.name);
        let decision = Verdict::Denied(Denial { code: 422, message: message.clone() });
        Self { decision, cluster_ips: Vec::new(), external: None, message: Some(message), ..self }
    }
}

impl AddressSource {
    fn of(addresses: &[IpAddr], object: &Value, old: Option<&Value>) -> Option<Self> {
        let are_among = |named: &[IpAddr]| named.iter().any(|address| addresses.contains(address));
        let service = stored::read(object);
        let had_before = || old.is_some_and(|old| are_among(&stored::recorded(&stored::read(old))));
        if addresses.is_empty() {
            None
        } else if are_among(&stored::requested(&service)) {
            Some(Self::Asked)
        } else if are_among(&stored::recorded(&service)) || had_before() {
            Some(Self::Kept)
        } else {
            Some(Self::Free)
        }
    }
}

fn by_name<S: Serializer>(outcome: &RecordChange, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(outcome.name())
}

impl ExternalRow {
    fn new(External { outcome, pool, addresses, reason }: External, object: &Value, old: Option<&Value>) -> Self {
        let source = AddressSource::of(&addresses, object, old);
        Self { decision: outcome, pool, addresses, source, message: reason }
    }
}

/// The name of a Service as a row shows it.
pub(super) fn shown_name(service: &Value) -> String {
    match object::name(service) {
        "" => format!("{}…", object::text(service, &["metadata", "generateName"])),
        name => name.to_owned(),
    }
}
