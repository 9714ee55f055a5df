//! Keeps the firewall of the node in line with the ports that are open on the addresses it holds.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::node_network::{Error, Firewall, Port};
use clusterip_failover::timing::{FIREWALL_REWRITE, RETRY_PAUSE};
use tokio::time::{Instant, sleep};

/// The nftables table that only this program uses.
const TABLE: &str = "clusterip_external";

/// The open ports of all held addresses, and the nftables table that enforces them.
pub(super) struct NodeFirewall {
    table: Firewall,
    open: Mutex<Open>,
    /// The state that the table enforces. Changes that were made while waiting for this lock are applied together.
    applied: tokio::sync::Mutex<Applied>,
    catching_up: AtomicBool,
}

/// The ports that are to be open, by address.
#[derive(Clone, Default)]
struct Open {
    ports: BTreeMap<IpAddr, BTreeSet<Port>>,
    /// The number of changes so far.
    changes: u64,
}

/// The last change that the firewall enforces, and when it was written.
struct Applied {
    changes: u64,
    at: Instant,
}

impl NodeFirewall {
    /// Opens no port, and removes what an earlier process has left.
    pub(super) async fn begin() -> Result<Self, Error> {
        let table = Firewall::new(TABLE);
        table.remove().await?;
        let applied = tokio::sync::Mutex::new(Applied { changes: 0, at: Instant::now() });
        Ok(Self { table, open: Mutex::default(), applied, catching_up: AtomicBool::new(false) })
    }

    /// Opens exactly these ports of an address; `None` means that this node no longer holds the address.
    ///
    /// If nothing has changed, the firewall is still written again from time to time: a program that loads its own
    /// ruleset may have emptied this table.
    pub(super) async fn set(&self, address: IpAddr, ports: Option<BTreeSet<Port>>) -> Result<(), Error> {
        let own = {
            let mut open = self.open();
            if open.ports.get(&address) != ports.as_ref() {
                match ports {
                    Some(ports) => drop(open.ports.insert(address, ports)),
                    None => drop(open.ports.remove(&address)),
                }
                open.changes += 1;
            }
            open.changes
        };
        self.apply(own).await
    }

    /// Retries in the background until the firewall enforces the current ports.
    pub(super) fn catch_up(self: Arc<Self>) {
        if self.catching_up.swap(true, Ordering::AcqRel) {
            return;
        }
        tokio::spawn(async move {
            loop {
                sleep(RETRY_PAUSE).await;
                let changes = self.open().changes;
                if self.apply(changes).await.is_ok() {
                    self.catching_up.store(false, Ordering::Release);
                    return;
                }
            }
        });
    }

    async fn apply(&self, changes: u64) -> Result<(), Error> {
        let mut applied = self.applied.lock().await;
        if applied.changes >= changes && applied.at.elapsed() < FIREWALL_REWRITE {
            return Ok(());
        }
        let Open { ports, changes } = self.open().clone();
        if ports.is_empty() {
            self.table.remove().await?
        } else {
            self.table.replace(&ports).await?
        }
        *applied = Applied { changes, at: Instant::now() };
        Ok(())
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
