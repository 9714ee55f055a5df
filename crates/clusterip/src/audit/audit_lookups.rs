//! Answers the policy's look-ups during an audit.
//!
//! Which pool a Service belongs to does not depend on which addresses are free. While every Service is evaluated, all
//! addresses therefore count as free. The cost of one decision then does not grow with the cluster, whatever the
//! order of the settings, and a full pool does not hide other problems.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::{Arc, RwLock};

use clusterip_core::prefetched::Prefetched;
use clusterip_core::service_key::ServiceKey;
use clusterip_core::settings::Settings;
use clusterip_host::cluster::lookups::kubewarden_responses;
use clusterip_host::cluster::lookups::snapshot::{Snapshot, SnapshotCalls};
use clusterip_host::policy::host_calls::{HostCall, HostCalls};
use serde_json::Value;

/// Which addresses count as free.
pub enum Free {
    /// All addresses.
    All,
    /// The addresses that are not in use or in flight, and the Service's own addresses.
    But {
        /// The Service's own addresses.
        own: Vec<IpAddr>,
        /// The addresses in flight.
        in_flight: BTreeSet<IpAddr>,
    },
}

/// Look-ups while the policy decides about one Service.
pub struct AuditLookups {
    snapshot: Arc<RwLock<Snapshot>>,
    calls: SnapshotCalls,
    free: Free,
}

impl AuditLookups {
    /// Answers look-ups about `service` from a snapshot.
    pub fn new(snapshot: &Arc<RwLock<Snapshot>>, settings: &Settings, service: &Value, free: Free) -> Self {
        let calls = SnapshotCalls::new(Arc::clone(snapshot)).for_object(service);
        let calls = calls.prefetching(settings, &ServiceKey::of(service));
        Self { snapshot: Arc::clone(snapshot), calls, free }
    }

    fn is_free(&self, address: IpAddr) -> bool {
        match &self.free {
            Free::All => true,
            Free::But { own, .. } if own.contains(&address) => true,
            Free::But { in_flight, .. } => {
                !in_flight.contains(&address) && !Snapshot::read(&self.snapshot).has_ip_address(address)
            }
        }
    }
}

impl HostCalls for AuditLookups {
    fn services(&self) -> usize {
        self.calls.services()
    }

    fn prefetched(&self) -> Prefetched {
        let prefetched = self.calls.prefetched();
        match self.free {
            Free::All => Prefetched { used: Some(Vec::new()), ..prefetched },
            Free::But { .. } => prefetched,
        }
    }

    fn answer(&self, call: &HostCall) -> Result<Vec<u8>, String> {
        match call {
            HostCall::Get { api_version, kind, name, namespace, .. } if kind == "IPAddress" => {
                let is_free = name.parse().is_ok_and(|address| self.is_free(address));
                kubewarden_responses::ip_address(api_version, name, namespace.as_deref(), is_free)
            }
            HostCall::ListAll { api_version, kind, .. } if api_version == "v1" && kind == "Service" => {
                match &self.free {
                    Free::All => Ok(br#"{"apiVersion":"v1","items":[],"kind":"ServiceList","metadata":{}}"#.to_vec()),
                    Free::But { in_flight, .. } => {
                        let reservations =
                            in_flight.iter().map(|address| kubewarden_responses::in_flight(*address, "", ""));
                        self.calls.answer_with(call, &reservations.collect::<Vec<_>>())
                    }
                }
            }
            _ => self.calls.answer(call),
        }
    }
}
