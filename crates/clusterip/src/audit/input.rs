//! The input of an audit.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, RwLock};

use clusterip_api::{ObjectKey, ObjectState, ReservationStatus};
use clusterip_cluster::live_settings::LiveSettings;
use clusterip_cluster::lookups::snapshot::Snapshot;
use clusterip_cluster::watch::control_plane_services::ControlPlaneServices;
use clusterip_failover::holder_snapshot::HolderSnapshot;
use clusterip_failover::leases::owner::Owner;
use ipnet::IpNet;
use thiserror::Error;
use tokio::runtime::TryCurrentError;

/// The input of an audit.
pub struct AuditInput<'m> {
    /// The settings in force.
    pub settings: &'m LiveSettings,
    /// The state of the objects that the settings come from; empty if they come from no objects.
    pub objects: BTreeMap<ObjectKey, ObjectState>,
    /// The cluster's Service ranges; empty if unknown.
    pub ranges: Vec<IpNet>,
    /// The cluster.
    pub snapshot: &'m Arc<RwLock<Snapshot>>,
    /// The addresses in flight, with the Services that they are for.
    pub in_flight: Vec<(IpAddr, Owner)>,
    /// What the status of ServicePools says about reservations; empty if the cluster has none.
    pub reservations: BTreeMap<IpAddr, ReservationStatus>,
    /// Which node holds which external address, or why that is unknown.
    pub holders: Result<HolderSnapshot, HoldersError>,
    /// Which Services the control plane calls.
    pub called: ControlPlaneServices,
    /// Whether `in_flight` is complete.
    pub ledger: bool,
    /// Whether a server and `clusterip move` refuse the settings, because they don't fit the cluster's ranges.
    pub refused: bool,
    /// What could not be determined, as sentences.
    pub notes: Vec<String>,
}

/// Why it is unknown which node holds which external address.
#[derive(Debug, Error)]
pub enum HoldersError {
    /// This server reads no Leases.
    #[error("Leases are not read here")]
    NotReadHere,
    /// The source of the audit has no Leases.
    #[error("no Leases were read")]
    NotRead,
    /// The Leases were to be read outside of an async runtime.
    #[error(transparent)]
    NoRuntime(#[from] TryCurrentError),
    /// The Leases can't be read. Contains the error of the API server.
    #[error("{0}")]
    Request(String),
}
