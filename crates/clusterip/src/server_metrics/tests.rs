use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use clusterip_agent::agent_metrics::{AgentMetrics, Renewal, Step};
use clusterip_cluster::host_metrics::ClaimResult;
use clusterip_cluster::metrics::Exposition;
use clusterip_core::address::Family;

use super::ServerMetrics;
use crate::external::external_metrics::AssignmentResult;
use crate::nodes::node_metrics::{Assignment, Misplaced};
use crate::services::service_metrics::{MoveResult, StayReason};
use crate::usage::{PoolUsage, Usage};
use crate::webhook::admission_metrics::{AdmissionResult, ResourceKind};

fn fill(pool: &str, family: Family, usable: u128, used: u128, free: u128) -> PoolUsage {
    PoolUsage { pool: pool.into(), family, usage: Usage { usable, used, free, ..Usage::default() } }
}

/// A server with a value for each metric.
fn filled() -> ServerMetrics {
    let metrics = ServerMetrics::new();
    let answered = |kind, result, pool, duration| metrics.admission.answered(kind, result, pool, duration);
    let millis = Duration::from_millis;
    answered(ResourceKind::Service, AdmissionResult::Allocated, Some("linux"), Duration::from_nanos(1_953_125));
    answered(ResourceKind::Service, AdmissionResult::Allocated, Some("linux"), millis(9000));
    answered(ResourceKind::Service, AdmissionResult::Denied, Some("windows"), millis(125));
    answered(ResourceKind::Node, AdmissionResult::Denied, Some("windows"), millis(125));
    answered(ResourceKind::Service, AdmissionResult::Unchanged, None, millis(125));
    answered(ResourceKind::Service, AdmissionResult::Error, None, millis(2000));
    metrics.evaluation.duration.observe(0.0006);
    metrics.evaluation.errors.inc();
    let of_services = [AdmissionResult::Allocated, AdmissionResult::Denied];
    metrics.admission.begin_pool(ResourceKind::Service, &of_services, "gone");
    metrics.services.pools(&[fill("gone", Family::V4, 1, 1, 0)], &[("gone".to_owned(), 1)].into());
    let linux = [fill("linux", Family::V4, 204, 7, 200), fill("linux", Family::V6, 1 << 62, 0, 1 << 62)];
    metrics.admission.begin_pool(ResourceKind::Service, &of_services, "linux");
    metrics.services.pools(&linux, &[("linux".to_owned(), 2)].into());
    metrics.services.ledger.set(3);
    metrics.claims.claims.get_or_create(&[("result", ClaimResult::Claimed)]).inc();
    metrics.claims.claims.get_or_create(&[("result", ClaimResult::Taken)]).inc();
    metrics.services.replicas(2, 1);
    metrics.services.moved(MoveResult::Moved);
    metrics.services.moved(MoveResult::UserChanged);
    metrics.services.stays(None, Some(StayReason::Never));
    metrics.services.stays(Some(StayReason::Never), Some(StayReason::Moving));
    (0..6).for_each(|_| metrics.services.stays(None, Some(StayReason::ByHand)));
    metrics.services.stays(Some(StayReason::ByHand), None);
    metrics.cluster.settings_in_use("11", true);
    metrics.cluster.settings_refused();
    metrics.cluster.settings_in_use("22", false);
    metrics.services.leader.set(1);
    metrics.services.other_webhooks.set(1);
    metrics.cluster.store_synced("Service", true);
    metrics.cluster.store_synced("Node", false);
    metrics.cluster.watch_error("Node");
    metrics.cluster.left_out("Pod");
    metrics.cluster.services_left_out.set(2);
    metrics.admission.repeated_creates.inc();
    metrics.admission.certificate_expiry.set(1_800_000_000.0);
    metrics.cluster.last_contact.set(1_700_000_000.5);
    let blocks = |pool: &str, family| fill(pool, family, 256, 7, 250);
    metrics.admission.begin_pool(ResourceKind::Node, &[AdmissionResult::Denied], "gone");
    metrics.nodes.blocks(&[blocks("gone", Family::V4)]);
    metrics.admission.begin_pool(ResourceKind::Node, &[AdmissionResult::Denied], "nodes");
    metrics.nodes.blocks(&[blocks("nodes", Family::V4), blocks("nodes", Family::V6)]);
    metrics.nodes.assigned(Assignment::Assigned);
    metrics.nodes.waiting.set(3);
    metrics.nodes.misplaced(&[(Misplaced::Shared, 2)].into());
    let external = |pool: &str, family| {
        let usage = Usage { usable: 31, used: 3, held: Some(2), ..Usage::default() };
        PoolUsage { pool: pool.into(), family, usage }
    };
    metrics.external.pools(&[external("gone", Family::V4)]);
    metrics.external.pools(&[external("edge", Family::V4), external("edge", Family::V6)]);
    metrics.external.assignments.get_or_create(&[("result", AssignmentResult::Refused)]).inc();
    metrics.external.takeovers.inc();
    metrics.external.waiting.set(1);
    metrics
}

/// An agent with a value for each metric that a server lacks.
fn filled_of_agent() -> String {
    let agent = AgentMetrics::default();
    let mut exposition = Exposition::default();
    exposition.add(&agent);
    agent.held.set(7);
    agent.alive.set(1);
    agent.renewals.get_or_create(&[("result", Renewal::Renewed)]).inc();
    agent.failures.get_or_create(&[("step", Step::Hold)]).inc();
    agent.announcements.inc();
    agent.given_up.inc();
    exposition.encode()
}

/// The samples without help and bucket counts, sorted because their order is that of a hash table. Of those that are 0,
/// only those of admissions and stores: the table of the documentation has the labels of the others.
fn samples(exposed: &str) -> String {
    let is_shown = |line: &&str| !line.ends_with("} 0") || line.contains("_admissions_") || line.contains("_synced");
    let plain = |line: &&str| !line.starts_with('#') && !line.contains("_bucket{") && is_shown(line);
    let mut lines: Vec<&str> = exposed.lines().filter(plain).collect();
    lines.sort_unstable();
    lines.join("\n")
}

#[test]
fn server_exposes_its_metrics() {
    let version = env!("CARGO_PKG_VERSION");
    let expected = format!(
        r#"clusterip_admission_duration_seconds_count 6
clusterip_admission_duration_seconds_sum 11.376953125
clusterip_admissions_total{{kind="Node",decision="denied",pool="gone"}} 0
clusterip_admissions_total{{kind="Node",decision="denied",pool="nodes"}} 0
clusterip_admissions_total{{kind="Node",decision="denied",pool="windows"}} 1
clusterip_admissions_total{{kind="Service",decision="allocated",pool=""}} 0
clusterip_admissions_total{{kind="Service",decision="allocated",pool="gone"}} 0
clusterip_admissions_total{{kind="Service",decision="allocated",pool="linux"}} 2
clusterip_admissions_total{{kind="Service",decision="denied",pool=""}} 0
clusterip_admissions_total{{kind="Service",decision="denied",pool="gone"}} 0
clusterip_admissions_total{{kind="Service",decision="denied",pool="linux"}} 0
clusterip_admissions_total{{kind="Service",decision="denied",pool="windows"}} 1
clusterip_admissions_total{{kind="Service",decision="error",pool=""}} 1
clusterip_admissions_total{{kind="Service",decision="refused",pool=""}} 0
clusterip_admissions_total{{kind="Service",decision="unchanged",pool=""}} 1
clusterip_api_server_last_contact_timestamp_seconds 1700000000.5
clusterip_build_info{{version="{version}"}} 1
clusterip_certificate_expiry_timestamp_seconds 1800000000.0
clusterip_claims_total{{result="claimed"}} 1
clusterip_claims_total{{result="taken"}} 1
clusterip_evaluation_duration_seconds_count 1
clusterip_evaluation_duration_seconds_sum 0.0006
clusterip_evaluation_errors_total 1
clusterip_external_assignments_total{{result="refused"}} 1
clusterip_external_pool_addresses{{pool="edge",family="IPv4",state="assigned"}} 3.0
clusterip_external_pool_addresses{{pool="edge",family="IPv4",state="held"}} 2.0
clusterip_external_pool_addresses{{pool="edge",family="IPv4",state="usable"}} 31.0
clusterip_external_pool_addresses{{pool="edge",family="IPv6",state="assigned"}} 3.0
clusterip_external_pool_addresses{{pool="edge",family="IPv6",state="held"}} 2.0
clusterip_external_pool_addresses{{pool="edge",family="IPv6",state="usable"}} 31.0
clusterip_external_services_waiting 1
clusterip_external_takeovers_total 1
clusterip_leader 1
clusterip_ledger_addresses 3
clusterip_misplaced_nodes{{reason="shared"}} 2
clusterip_misplaced_services{{reason="by_hand"}} 5
clusterip_misplaced_services{{reason="moving"}} 1
clusterip_moves_total{{result="moved"}} 1
clusterip_moves_total{{result="user_changed"}} 1
clusterip_node_assignments_total{{result="assigned"}} 1
clusterip_node_pool_blocks{{pool="nodes",family="IPv4",state="free"}} 250.0
clusterip_node_pool_blocks{{pool="nodes",family="IPv4",state="usable"}} 256.0
clusterip_node_pool_blocks{{pool="nodes",family="IPv4",state="used"}} 7.0
clusterip_node_pool_blocks{{pool="nodes",family="IPv6",state="free"}} 250.0
clusterip_node_pool_blocks{{pool="nodes",family="IPv6",state="usable"}} 256.0
clusterip_node_pool_blocks{{pool="nodes",family="IPv6",state="used"}} 7.0
clusterip_nodes_waiting 3
clusterip_objects_left_out_total{{kind="Pod"}} 1
clusterip_other_webhooks 1
clusterip_pool_free_addresses{{pool="linux",family="IPv4"}} 200.0
clusterip_pool_free_addresses{{pool="linux",family="IPv6"}} 4611686018427388000.0
clusterip_pool_unmatched_services{{pool="linux"}} 2
clusterip_pool_usable_addresses{{pool="linux",family="IPv4"}} 204.0
clusterip_pool_usable_addresses{{pool="linux",family="IPv6"}} 4611686018427388000.0
clusterip_pool_used_addresses{{pool="linux",family="IPv4"}} 7.0
clusterip_pool_used_addresses{{pool="linux",family="IPv6"}} 0.0
clusterip_repeated_creates_total 1
clusterip_replicas{{settings="other"}} 1
clusterip_replicas{{settings="same"}} 2
clusterip_services_left_out 2
clusterip_settings_info{{hash="22"}} 1
clusterip_settings_valid 0
clusterip_settings_versions_total{{result="accepted"}} 1
clusterip_settings_versions_total{{result="refused"}} 1
clusterip_store_synced{{kind="Node"}} 0
clusterip_store_synced{{kind="Service"}} 1
clusterip_watch_errors_total{{kind="Node"}} 1"#
    );
    assert_eq!(samples(&filled().encode()), expected);
}

#[test]
fn agent_exposes_its_metrics() {
    let version = env!("CARGO_PKG_VERSION");
    let expected = format!(
        r#"clusterip_agent_alive 1
clusterip_agent_announcements_total 1
clusterip_agent_given_up_addresses_total 1
clusterip_agent_heartbeats_total{{result="renewed"}} 1
clusterip_agent_held_addresses 7
clusterip_agent_info{{version="{version}"}} 1
clusterip_agent_network_failures_total{{step="hold"}} 1"#
    );
    assert_eq!(samples(&filled_of_agent()), expected);
}

#[test]
fn label_values_can_not_forge_lines() {
    let metrics = ServerMetrics::new();
    metrics.cluster.watch_error("a\"} 1\nforged 1\\");
    let forged: Vec<_> =
        samples(&metrics.encode()).lines().filter(|l| l.contains("forged")).map(str::to_owned).collect();
    assert_eq!(forged, [r#"clusterip_watch_errors_total{kind="a\"} 1\nforged 1\\"} 1"#]);
}

#[test]
fn documentation_lists_all_metrics() {
    let (exposed, of_agent) = (filled().encode(), filled_of_agent());
    let mut all = described(&of_agent);
    all.extend(described(&exposed));
    let mut table = String::from("| metric | type | labels | meaning |\n| --- | --- | --- | --- |\n");
    for (name, about) in all {
        let Described { kind, help, labels } = about;
        let shown = if kind == "counter" { format!("{name}_total") } else { name };
        let label = |(label, values): (&&str, &BTreeSet<&str>)| match *label {
            // The values of these labels come from the cluster.
            "pool" | "kind" | "hash" | "version" => format!("`{label}`"),
            _ => format!("`{label}`: {}", values.iter().copied().collect::<Vec<_>>().join(", ")),
        };
        let labels: Vec<_> = labels.iter().map(label).collect();
        let help = help.trim_end_matches('.');
        writeln!(table, "| `{shown}` | {kind} | {} | {help} |", labels.join("; ")).unwrap();
    }
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/metrics.md");
    let page = std::fs::read_to_string(&page).unwrap_or_default();
    let written: Vec<_> =
        page.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|')).collect();
    let expected: Vec<_> = table.lines().collect();
    assert_eq!(written, expected, "the table of docs/metrics.md; it should be:\n{table}");
}

struct Described<'e> {
    kind: &'e str,
    help: &'e str,
    labels: BTreeMap<&'e str, BTreeSet<&'e str>>,
}

fn described(exposed: &str) -> BTreeMap<String, Described<'_>> {
    let mut all = BTreeMap::new();
    let mut current = String::new();
    for line in exposed.lines() {
        if let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) {
            name.clone_into(&mut current);
            all.insert(current.clone(), Described { kind: "", help, labels: BTreeMap::new() });
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            all.get_mut(name).unwrap().kind = kind;
        } else if let Some((_, rest)) = line.split_once('{') {
            let (labels, _) = rest.split_once('}').unwrap();
            let about = all.get_mut(&current).unwrap();
            for (key, value) in labels.split(',').filter_map(|label| label.split_once('=')) {
                if key != "le" {
                    about.labels.entry(key).or_default().insert(value.trim_matches('"'));
                }
            }
        }
    }
    all
}
