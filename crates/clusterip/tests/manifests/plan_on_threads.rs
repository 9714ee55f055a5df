//! A plan is the same for every number of threads that evaluate its Services.

use proptest::prelude::*;
use serde_json::{Value, json};

use crate::support::plan_on_threads;

/// A Service. There are few names and addresses, so that Services compete for addresses and some occur twice.
#[derive(Clone, Debug)]
struct Fields {
    namespace: u8,
    /// The number of the name; `None` for a name that is yet to be generated.
    name: Option<u8>,
    /// The last number of an address that is set by hand.
    address: Option<u8>,
    os: Option<&'static str>,
    kind: &'static str,
    is_dual_stack: bool,
    /// Whether the Service selects the Pods of the Deployment in its namespace.
    has_selector: bool,
}

impl Fields {
    fn service(&self) -> Value {
        let mut metadata = json!({"namespace": format!("team-{}", self.namespace)});
        match self.name {
            Some(name) => metadata["name"] = json!(format!("web-{name}")),
            None => metadata["generateName"] = json!("web-"),
        }
        if let Some(os) = self.os {
            metadata["annotations"] = json!({"clusterip-policy/os": os});
        }
        let mut spec = json!({"ports": [{"port": 80}], "type": self.kind});
        if self.has_selector {
            spec["selector"] = json!({"app": "web"});
        }
        match self.kind {
            "ExternalName" => spec["externalName"] = json!("example.com"),
            "LoadBalancer" => spec["loadBalancerClass"] = json!("clusterip-policy/external"),
            _ => {}
        }
        if let Some(last) = self.address.filter(|_| self.kind != "ExternalName") {
            spec["clusterIP"] = json!(format!("10.0.0.{last}"));
        }
        if self.is_dual_stack {
            spec["ipFamilyPolicy"] = json!("RequireDualStack");
        }
        json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec})
    }

    /// The Service as a cluster has it.
    fn existing(&self) -> Value {
        let mut service = Self { name: self.name.or(Some(0)), kind: "ClusterIP", ..self.clone() }.service();
        let address = format!("10.0.0.{}", self.address.unwrap_or(20));
        service["spec"]["clusterIP"] = json!(address);
        service["spec"]["clusterIPs"] = json!([address]);
        service
    }
}

fn fields() -> impl Strategy<Value = Fields> {
    let os = prop::sample::select(vec![None, None, Some("linux"), Some("windows")]);
    let kinds = vec!["ClusterIP", "ClusterIP", "ClusterIP", "NodePort", "LoadBalancer", "ExternalName"];
    let name = prop::option::weighted(0.9, 0_u8..30);
    let address = prop::option::weighted(0.2, 0_u8..32);
    let flags = (prop::bool::weighted(0.2), any::<bool>());
    (0_u8..3, name, address, os, prop::sample::select(kinds), flags).prop_map(
        |(namespace, name, address, os, kind, (is_dual_stack, has_selector))| Fields {
            namespace,
            name,
            address,
            os,
            kind,
            is_dual_stack,
            has_selector,
        },
    )
}

/// Two small pools, and external addresses.
fn settings(order: &str, when_full: &str) -> Value {
    json!({
        "services": {
            "order": order,
            "whenFull": when_full,
            "serviceCIDRs": ["10.0.0.0/24", "fd00::/112"],
            "pools": [
                {"name": "windows", "cidrs": ["10.0.0.32/28"], "match": {"os": "windows"}},
                {"name": "linux", "cidrs": ["10.0.0.0/27", "fd00::/124"], "match": {"os": "linux"}},
            ],
        },
        "external": {"pools": [{"name": "lan", "cidrs": ["10.9.0.1-10.9.0.3"]}]},
    })
}

fn deployment(namespace: usize) -> Value {
    let labels = json!({"app": "web"});
    let node_selector = json!({"kubernetes.io/os": "windows"});
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "web", "namespace": format!("team-{namespace}")},
        "spec": {"template": {"metadata": {"labels": labels}, "spec": {"nodeSelector": node_selector}}},
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn the_plan_is_the_same_for_every_number_of_threads(
        existing in prop::collection::vec(fields(), 0..8),
        // The longer plans have several groups of Services for each thread.
        services in prop_oneof![
            3 => prop::collection::vec(fields(), 2..60),
            1 => prop::collection::vec(fields(), 300..500),
        ],
        windows_namespaces in 0_usize..3,
        order in prop::sample::select(vec!["spread", "spread", "lowest"]),
        when_full in prop::sample::select(vec!["deny", "unmanaged"]),
        threads in 2_usize..6,
    ) {
        let document = settings(order, when_full);
        let cluster: Vec<Value> = existing.iter().map(Fields::existing).collect();
        let mut objects: Vec<Value> = services.iter().map(Fields::service).collect();
        objects.extend((0..windows_namespaces).map(deployment));
        let expected = plan_on_threads(1, &document, &cluster, &objects);
        prop_assert_eq!(plan_on_threads(threads, &document, &cluster, &objects), expected);
    }
}
