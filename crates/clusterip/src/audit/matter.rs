//! What an audit is made from.

use std::net::IpAddr;
use std::sync::{Arc, RwLock};

use ipnet::IpNet;

use crate::agent::holdings::Holdings;
use crate::cluster::ledger::Owner;
use crate::cluster::snapshot::Snapshot;
use crate::controller::control_plane_services::ControlPlaneServices;
use crate::live_settings::LiveSettings;
use crate::policy::module::Module;

/// What an audit is made from.
pub struct Matter<'m> {
    /// The policy.
    pub module: &'m Module,
    /// The settings in force.
    pub settings: &'m LiveSettings,
    /// The cluster's own Service ranges; none where they are not known.
    pub ranges: Vec<IpNet>,
    /// The cluster.
    pub snapshot: &'m Arc<RwLock<Snapshot>>,
    /// Addresses in flight, and for whom.
    pub in_flight: Vec<(IpAddr, Owner)>,
    /// Who holds which external address, or why that is not known.
    pub holdings: Result<Holdings, String>,
    /// Which Services the control plane calls.
    pub called: ControlPlaneServices,
    /// Whether all that is in flight is known.
    pub ledger: bool,
    /// What could not be found out.
    pub notes: Vec<String>,
}
