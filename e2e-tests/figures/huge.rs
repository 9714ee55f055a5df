//! Measures starts and admissions in a cluster of 100,000 Services. The API server needs some gigabytes of memory for
//! them, so this part is measured only if it is selected.

use std::net::Ipv4Addr;

use super::bench::{Bench, services};
use super::etcd;
use super::large::{Bounds, Large, Workloads, rounds};
use super::manifests::is_windows;
use super::pairs::admissions_without_api_server;
use super::support::control_plane::Options;
use super::table::{Bound, Table, ratios};

const SERVICES: usize = 100_000;
/// As many that the objects of each take about two thirds of the memory that the server allows for a namespace.
const NAMESPACES: usize = 20;
const WORKLOADS: Workloads = Workloads { namespace, deployments: 20_000, pods: 50_000 };
/// The range of Service addresses, with a pool in each half.
const RANGE: &str = "10.128.0.0/12";
const FIRST_OF_LINUX: Ipv4Addr = Ipv4Addr::new(10, 129, 0, 0);
const FIRST_OF_WINDOWS: Ipv4Addr = Ipv4Addr::new(10, 137, 0, 0);
const SETTINGS: &str = "services:
  pools:
  - {name: windows, cidrs: [10.136.0.0/13], match: {os: windows}}
  - {name: linux, cidrs: [10.128.0.0/13], match: {os: linux}}
";

/// The measurements. Times of admissions are in milliseconds.
pub struct Huge {
    starts: Large,
    admission_beside_none: Vec<f64>,
    admission: Vec<f64>,
}

/// Fills a new control plane, and measures starts in it. Then measures admissions there and in another control plane,
/// which is empty, in turns.
pub async fn measure(pairs: usize) -> Huge {
    let start = || {
        let options = Options { audit: false, service_ranges: vec![RANGE.to_owned()], ..Options::default() };
        Bench::start_with(options, SETTINGS.to_owned())
    };
    let bench = start().await;
    for nth in 0..NAMESPACES {
        bench.namespace(&nth_namespace(nth)).await;
    }
    etcd::write_services(&bench, (0..SERVICES).map(|index| (namespace(index), index, address(index)))).await;
    etcd::write_objects(&bench, "deployments", WORKLOADS.deployments()).await;
    etcd::write_objects(&bench, "pods", WORKLOADS.pods()).await;
    etcd::write_objects(&bench, "endpointslices", WORKLOADS.slices()).await;
    etcd::wait_until_idle(&bench).await;
    for nth in 0..NAMESPACES {
        let list = bench.get(&format!("{}?limit=1", services(&nth_namespace(nth)))).await;
        assert_eq!(list["metadata"]["remainingItemCount"], SERVICES / NAMESPACES - 1);
    }
    let starts = rounds(&bench, pairs).await;
    let empty = start().await;
    let [admission_beside_none, admission] = admissions_without_api_server([&empty, &bench]).await;
    Huge { starts, admission_beside_none, admission }
}

/// The namespace of a Service and of its Deployment. Each namespace has Linux and Windows, which alternate.
fn namespace(index: usize) -> String {
    nth_namespace(index / 2 % NAMESPACES)
}

fn nth_namespace(nth: usize) -> String {
    format!("huge-{nth}")
}

/// The address of a Service, in its pool. Services without a Deployment count as Linux.
fn address(index: usize) -> Ipv4Addr {
    let windows = index < WORKLOADS.deployments && is_windows(index);
    let first = if windows { FIRST_OF_WINDOWS } else { FIRST_OF_LINUX };
    Ipv4Addr::from(u32::from(first) + u32::try_from(index).unwrap())
}

impl Huge {
    /// Prints the figures.
    pub fn rows(&self, table: &mut Table) {
        self.starts.memory(table, Bound::AtMost(150.0));
        let bounds = Bounds {
            ready: Bound::AtMost(30.0),
            examined: Bound::None,
            examined_after_ready: Bound::AtMost(1.0),
            changed: Bound::AtMost(1.0),
        };
        self.starts.times(table, &bounds);
        let [none, these] = [&self.admission_beside_none, &self.admission];
        table.rounds("admission without the API server: beside no Services", none, "ms", Bound::None);
        table.rounds("admission without the API server: beside 100,000", these, "ms", Bound::None);
        table.rounds("  ratio, turn by turn", &ratios(these, none), "", Bound::AtMost(1.05));
    }
}
