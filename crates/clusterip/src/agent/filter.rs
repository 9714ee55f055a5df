//! Which ports are open for the addresses that this node holds, kept in its firewall.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use node_network::{Error, Firewall, Port};
use tokio::time::{Instant, sleep};

use super::timing::{AGAIN, REFILTERED};

/// The table of nftables that is this program's alone.
const TABLE: &str = "clusterip_external";

/// What is open, and how the firewall is told.
pub(super) struct Filter {
    firewall: Firewall,
    open: Mutex<Open>,
    /// What the firewall shows. Who waits for it finds his own change done together with those of others.
    shown: tokio::sync::Mutex<Shown>,
    catching_up: AtomicBool,
}

/// Which ports are to be open.
#[derive(Clone, Default)]
struct Open {
    ports: BTreeMap<IpAddr, BTreeSet<Port>>,
    /// How often that has changed.
    changes: u64,
}

/// The last change that the firewall shows, and when it was told.
struct Shown {
    changes: u64,
    at: Instant,
}

impl Filter {
    /// Nothing is open, whatever an earlier process has left.
    pub(super) async fn begin() -> Result<Self, Error> {
        let firewall = Firewall::new(TABLE);
        firewall.remove().await?;
        let shown = tokio::sync::Mutex::new(Shown { changes: 0, at: Instant::now() });
        Ok(Self { firewall, open: Mutex::default(), shown, catching_up: AtomicBool::new(false) })
    }

    /// Opens these ports of an address, and no others; with `None` the address is none of ours.
    ///
    /// Asked for what is so already, it looks after the rest, now and then: who loads a firewall of his own may
    /// have emptied this one.
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
        self.show(own).await
    }

    /// Has the firewall show what it could not be told, some time.
    pub(super) fn catch_up(self: Arc<Self>) {
        if self.catching_up.swap(true, Ordering::AcqRel) {
            return;
        }
        tokio::spawn(async move {
            loop {
                sleep(AGAIN).await;
                let changes = self.open().changes;
                if self.show(changes).await.is_ok() {
                    self.catching_up.store(false, Ordering::Release);
                    return;
                }
            }
        });
    }

    async fn show(&self, changes: u64) -> Result<(), Error> {
        let mut shown = self.shown.lock().await;
        if shown.changes >= changes && shown.at.elapsed() < REFILTERED {
            return Ok(());
        }
        let Open { ports, changes } = self.open().clone();
        if ports.is_empty() {
            self.firewall.remove().await?
        } else {
            self.firewall.replace(&ports).await?
        }
        *shown = Shown { changes, at: Instant::now() };
        Ok(())
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
