//! The deployments grant exactly the permissions that the program checks at startup.

use std::collections::BTreeSet;

use clusterip_cluster::kinds;
use clusterip_cluster::permissions::{Duties, Need, Registration, needs};
use clusterip_core::workload::WorkloadKind;

use crate::support::{documents, strings};

/// Namespace, group, resource, name and verb.
type Permission = (Option<String>, String, String, Option<String>, String);

/// The namespace of the server, and that of the agents.
const NAMESPACE: &str = "clusterip-policy";
const AGENTS: &str = "clusterip-policy-agents";

fn granted(file: &str) -> BTreeSet<Permission> {
    let mut found = BTreeSet::new();
    for object in documents(&format!("deploy/{file}")) {
        let namespace = object["metadata"]["namespace"].as_str().map(str::to_owned);
        // A patch adds its rule to those of a ClusterRole.
        let added = object.as_array().into_iter().flatten().map(|operation| &operation["value"]);
        for rule in object["rules"].as_array().into_iter().flatten().chain(added) {
            let names = match strings(&rule["resourceNames"]) {
                names if names.is_empty() => vec![None],
                names => names.into_iter().map(Some).collect(),
            };
            for group in strings(&rule["apiGroups"]) {
                for resource in strings(&rule["resources"]) {
                    for name in &names {
                        for verb in strings(&rule["verbs"]) {
                            found.insert((namespace.clone(), group.clone(), resource.clone(), name.clone(), verb));
                        }
                    }
                }
            }
        }
    }
    found
}

/// The duties of every deployed server.
fn served() -> Duties {
    Duties {
        namespace: NAMESPACE.to_owned(),
        moves: true,
        authority: Some("clusterip-authority".to_owned()),
        registration: Some(Registration { name: "clusterip-policy".to_owned(), own: false }),
        pools: true,
        ..Duties::default()
    }
}

/// The permissions that the program checks at startup in the deployments.
fn needed(duties: &Duties) -> BTreeSet<Permission> {
    let known = WorkloadKind::known();
    let workloads: Vec<_> = known.iter().map(|kind| kinds::regular(&kinds::of_workload(kind))).collect();
    let permission = |need: Need| (need.namespace, need.group, need.resource, need.name, need.verb.to_owned());
    needs(&workloads, duties).into_iter().map(permission).collect()
}

#[test]
fn deployments_grant_exactly_the_needed_permissions() {
    struct Case {
        name: &'static str,
        duties: Duties,
        files: Vec<&'static str>,
    }
    let one = ["webhook/cluster-permissions.yaml", "webhook/own-permissions.yaml"];
    let more = |files: &[&'static str]| [&one[..], files].concat();
    let agent = Duties { namespace: AGENTS.to_owned(), agent: true, pools: true, ..Duties::default() };
    let external = Duties { external: true, agents_namespace: Some(AGENTS.to_owned()), ..served() };
    let rows = [
        Case { name: "one replica", duties: served(), files: one.to_vec() },
        Case {
            name: "several",
            duties: Duties { claims: true, ..served() },
            files: more(&["replicas/claim-permissions.yaml"]),
        },
        Case {
            name: "Nodes",
            duties: Duties { nodes: true, ..served() },
            files: more(&["nodes/component/node-permissions.yaml"]),
        },
        Case {
            name: "load balancers",
            duties: Duties { load_balancers: true, ..served() },
            files: more(&["load-balancers/status-permissions.yaml"]),
        },
        // The permission to read the configuration of CoreDNS is optional.
        Case {
            name: "seamless moves",
            duties: Duties { seamless: true, ..served() },
            files: more(&["seamless/service-permissions.yaml"]),
        },
        Case {
            name: "external addresses",
            duties: external,
            files: more(&["external/component/cluster-permissions.yaml", "external/component/holder-permissions.yaml"]),
        },
        Case { name: "an agent", duties: agent, files: vec!["external/component/agent-account.yaml"] },
    ];
    for Case { name, duties, files } in rows {
        let granted_permissions: BTreeSet<Permission> = files.into_iter().flat_map(granted).collect();
        assert!(!granted_permissions.is_empty());
        let needed = needed(&duties);
        let lacking: Vec<_> = needed.difference(&granted_permissions).collect();
        let idle: Vec<_> = granted_permissions.difference(&needed).collect();
        assert_eq!((lacking, idle), (vec![], vec![]), "{name}: lacking, and granted without need");
    }
}
