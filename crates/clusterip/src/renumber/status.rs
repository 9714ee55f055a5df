//! Since when no kubelet gives Pods an old DNS address.

use clusterip_moves::renumbering::record::{Phase, Record};
use jiff::Timestamp;

use super::observe::Observer;
use super::store::Store;

/// Records the time at which no kubelet gives Pods an old DNS address any more. Pods that are older may know it.
pub async fn note_kubelets(observer: &Observer, store: &mut Store, record: &mut Record) -> anyhow::Result<()> {
    let is_open = record.phase == Phase::Switched && record.kubelets_at.is_none();
    if is_open && observer.old_kubelets(record).await?.is_empty() {
        record.kubelets_at = Some(Timestamp::now().as_second());
        store.write(record).await?;
    }
    Ok(())
}
