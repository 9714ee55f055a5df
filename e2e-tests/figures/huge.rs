//! Measures starts and admissions in a cluster of 100,000 Services. The API server needs some gigabytes of memory for
//! them, so this part is measured only if it is selected.

use std::net::Ipv4Addr;

use serde_json::{Value, json};

use super::bench::{Bench, services};
use super::etcd;
use super::large::{Bounds, Large, Workloads, rounds};
use super::layout::median;
use super::manifests::{is_windows, name, service};
use super::pairs::admission_without_api_server;
use super::support::control_plane::Options;
use super::table::{Bound, Table};

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
    admission_before: Vec<f64>,
    admission: Vec<f64>,
}

/// Fills a new control plane, and measures starts in it. Measures admissions before the control plane is filled and
/// after that, in so many rounds.
pub async fn measure(admission_rounds: usize) -> Huge {
    let options = Options { audit: false, service_ranges: vec![RANGE.to_owned()], ..Options::default() };
    let bench = Bench::start_with(options, SETTINGS).await;
    let admission_before = admission_without_api_server(&bench, admission_rounds).await;
    for nth in 0..NAMESPACES {
        bench.namespace(&nth_namespace(nth)).await;
    }
    etcd::write_objects(&bench, "ipaddresses", (0..SERVICES).map(ip_address)).await;
    etcd::write_objects(&bench, "services/specs", (0..SERVICES).map(placed)).await;
    etcd::write_objects(&bench, "deployments", WORKLOADS.deployments()).await;
    etcd::write_objects(&bench, "pods", WORKLOADS.pods()).await;
    etcd::write_objects(&bench, "endpointslices", WORKLOADS.slices()).await;
    etcd::wait_until_idle(&bench).await;
    for nth in 0..NAMESPACES {
        let list = bench.get(&format!("{}?limit=1", services(&nth_namespace(nth)))).await;
        assert_eq!(list["metadata"]["remainingItemCount"], SERVICES / NAMESPACES - 1);
    }
    let starts = rounds(&bench).await;
    let admission = admission_without_api_server(&bench, admission_rounds).await;
    Huge { starts, admission_before, admission }
}

/// The namespace of a Service and of its Deployment. Each namespace has Linux and Windows, which alternate.
fn namespace(index: usize) -> String {
    nth_namespace(index / 2 % NAMESPACES)
}

fn nth_namespace(nth: usize) -> String {
    format!("huge-{nth}")
}

/// The address of a Service, in its pool. Services without a Deployment count as Linux.
fn address(index: usize) -> String {
    let windows = index < WORKLOADS.deployments && is_windows(index);
    let first = if windows { FIRST_OF_WINDOWS } else { FIRST_OF_LINUX };
    Ipv4Addr::from(u32::from(first) + u32::try_from(index).unwrap()).to_string()
}

fn placed(index: usize) -> Value {
    let mut service = service(&namespace(index), index);
    service["spec"]["clusterIP"] = address(index).into();
    service["spec"]["clusterIPs"] = json!([address(index)]);
    service["spec"]["ipFamilies"] = json!(["IPv4"]);
    service["spec"]["ipFamilyPolicy"] = "SingleStack".into();
    service
}

fn ip_address(index: usize) -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "IPAddress",
        "metadata": {
            "name": address(index),
            "labels": {
                "ipaddress.kubernetes.io/ip-family": "IPv4",
                "ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io",
            },
        },
        "spec": {"parentRef": {"resource": "services", "namespace": namespace(index), "name": name(index)}},
    })
}

impl Huge {
    /// Prints the figures.
    pub fn rows(&self, table: &mut Table) {
        self.starts.memory(table, Bound::AtMost(700.0));
        let bounds = Bounds {
            ready: Bound::AtMost(30.0),
            examined: Bound::None,
            examined_after_ready: Bound::AtMost(10.0),
            changed: Bound::AtMost(10.0),
        };
        self.starts.times(table, &bounds);
        table.rounds("admission without the API server: with none", &self.admission_before, "ms", Bound::None);
        table.rounds("admission without the API server: with 100,000", &self.admission, "ms", Bound::None);
        let ratio = median(self.admission.clone()) / median(self.admission_before.clone());
        table.total("  ratio of the medians", ratio, "", Bound::AtMost(1.2));
    }
}
