//! Starts in a cluster of 100,000 Services. Filling the cluster takes many minutes and some gigabytes of memory, so
//! this part is measured only if it is selected.

use std::net::Ipv4Addr;

use serde_json::Value;

use super::bench::{Bench, services};
use super::large::{Large, Workloads, create_in_chunks, rounds};
use super::manifests::{is_windows, service};
use super::support::control_plane::Options;
use super::table::{Bound, Table};

const SERVICES: usize = 100_000;
const WORKLOADS: Workloads = Workloads { namespace: "huge", deployments: 20_000, pods: 50_000 };
/// The range of Service addresses, with a pool in each half.
const RANGE: &str = "10.128.0.0/12";
const FIRST_OF_LINUX: Ipv4Addr = Ipv4Addr::new(10, 129, 0, 0);
const FIRST_OF_WINDOWS: Ipv4Addr = Ipv4Addr::new(10, 137, 0, 0);
const SETTINGS: &str = "services:
  pools:
  - {name: windows, cidrs: [10.136.0.0/13], match: {os: windows}}
  - {name: linux, cidrs: [10.128.0.0/13], match: {os: linux}}
";

/// Starts a control plane, fills it, and starts a server in it several times.
pub async fn measure() -> Large {
    let options = Options { audit: false, service_ranges: vec![RANGE.to_owned()], ..Options::default() };
    let bench = Bench::start_with(options, SETTINGS).await;
    bench.namespace(WORKLOADS.namespace).await;
    create_in_chunks(&bench, &services(WORKLOADS.namespace), SERVICES, placed).await;
    WORKLOADS.create(&bench).await;
    rounds(&bench).await
}

/// A Service with an address of its pool. Services without a Deployment count as Linux.
fn placed(index: usize) -> Value {
    let windows = index < WORKLOADS.deployments && is_windows(index);
    let first = if windows { FIRST_OF_WINDOWS } else { FIRST_OF_LINUX };
    let mut service = service(WORKLOADS.namespace, index);
    service["spec"]["clusterIP"] = Ipv4Addr::from(u32::from(first) + u32::try_from(index).unwrap()).to_string().into();
    service
}

/// Prints the figures.
pub fn rows(measured: &Large, table: &mut Table) {
    measured.memory(table, Bound::AtMost(700.0));
    measured.times(table, Bound::AtMost(30.0), Bound::AtMost(10.0));
}
