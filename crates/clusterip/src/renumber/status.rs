//! How far a renumbering is.

use std::net::IpAddr;

use clusterip_moves::renumbering::change::Change;
use clusterip_moves::renumbering::observed::Held;
use clusterip_moves::renumbering::record::{Phase, Record};
use clusterip_moves::renumbering::step::Goal;
use clusterip_moves::temporary::Role;
use jiff::Timestamp;
use serde::Serialize;

use super::observe::Observer;
use super::store::Store;

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    pub change: Change,
    pub phase: Phase,
    pub next: &'static str,
    pub swaps: Vec<SwapStatus>,
    /// The first Services with addresses of the old ranges, and a text about the others.
    pub left_old: Vec<String>,
    pub users_of_old: Vec<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SwapStatus {
    pub service: String,
    pub addresses: Vec<IpAddr>,
    /// The alias; the Service itself before its swap, and `nothing` in the middle of the swap.
    pub alias: String,
    /// Whether the alias has the endpoints of the Service.
    pub endpoints_equal: bool,
}

impl Observer {
    pub async fn status(&mut self, record: &Record) -> anyhow::Result<Status> {
        let observed = self.observe(Goal::Finish { force: false }, record).await?;
        let swaps = record.swaps.iter().zip(&observed.swaps).map(|(swap, state)| {
            let service = format!("{}/{}", swap.namespace, swap.name);
            let alias = match (state.service, state.alias) {
                (_, Held::Old) => format!("{}/{}", swap.namespace, swap.alias_name(Role::Old)),
                (Held::Old, _) => service.clone(),
                _ => "nothing".to_owned(),
            };
            let endpoints_equal = if swap.has_selector() { state.has_own_endpoints } else { state.has_equal_copies };
            SwapStatus { service, addresses: swap.old.clone(), alias, endpoints_equal }
        });
        let swaps = swaps.collect();
        Ok(Status {
            change: record.change.clone(),
            phase: record.phase,
            next: record.phase.next(),
            swaps,
            left_old: observed.left_old.texts(),
            users_of_old: observed.users_of_old,
        })
    }
}

/// Records the time at which no kubelet gives Pods an old DNS address any more. Pods that are older may know it.
pub async fn note_kubelets(observer: &Observer, store: &mut Store, record: &mut Record) -> anyhow::Result<()> {
    let is_open = record.phase == Phase::Switched && record.kubelets_at.is_none();
    if is_open && observer.old_kubelets(record).await?.is_empty() {
        record.kubelets_at = Some(Timestamp::now().as_second());
        store.write(record).await?;
    }
    Ok(())
}
