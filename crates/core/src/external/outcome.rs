//! The outcome for a Service's external addresses.

use std::net::IpAddr;

use serde_json::Value;

use crate::annotations::{RECORD_ANNOTATION, annotate, in_record};

/// The decision about a Service's external addresses, and its reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct External {
    /// What happens.
    pub outcome: RecordChange,
    /// The pool of the addresses, if known.
    pub pool: Option<String>,
    /// The addresses that the Service has after the request, in the order of its families.
    pub addresses: Vec<IpAddr>,
    /// Why nothing changes, or why the record is removed.
    pub reason: Option<String>,
}

/// What happens to the record of a Service's external addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordChange {
    /// It is written, because the Service gets other addresses than it has.
    Recorded,
    /// It is removed.
    Removed,
    /// It stays as it is.
    Unchanged,
    /// The request is refused.
    Denied,
}

impl RecordChange {
    /// `recorded`, `removed`, `unchanged` or `denied`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Recorded => "recorded",
            Self::Removed => "removed",
            Self::Unchanged => "unchanged",
            Self::Denied => "denied",
        }
    }
}

impl External {
    /// Whether the record changes.
    pub fn changes(&self) -> bool {
        matches!(self.outcome, RecordChange::Recorded | RecordChange::Removed)
    }

    /// Changes the record of `object`, a Service, according to this outcome.
    pub fn carry_out(&self, object: &mut Value) {
        if self.changes() {
            // A removed record has no addresses.
            annotate(object, RECORD_ANNOTATION, in_record(&self.addresses));
        }
    }

    pub(super) fn new(outcome: RecordChange, reason: &str) -> Self {
        Self { outcome, pool: None, addresses: Vec::new(), reason: Some(reason.to_owned()) }
    }
}
