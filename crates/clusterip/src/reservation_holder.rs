//! Who has an address that a pool keeps for one Service.

use clusterip_api::ReservationHolder;
use clusterip_cluster::lookups::snapshot::Snapshot;
use clusterip_core::service_key::ServiceKey;
use clusterip_core::settings::Reservation;

/// Who has the address of a reservation. If it is another Service, also the first one by namespace and name; without
/// it, only an `IPAddress` object shows that the address is used.
pub fn of<'s>(snapshot: &'s Snapshot, reservation: &Reservation) -> (ReservationHolder, Option<&'s ServiceKey>) {
    let Reservation { address, service } = reservation;
    if snapshot.owners(*address).any(|owner| owner == service) {
        return (ReservationHolder::Owner, None);
    }
    match snapshot.owners(*address).min() {
        Some(other) => (ReservationHolder::Other, Some(other)),
        None if snapshot.has_ip_address(*address) => (ReservationHolder::Other, None),
        None => (ReservationHolder::Nobody, None),
    }
}
