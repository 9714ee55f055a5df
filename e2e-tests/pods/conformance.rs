//! Kubernetes' own tests of Services pass with the webhook. `make conformance` runs more of them.

use e2e_tests::support::installation::{install, uninstall};
use e2e_tests::support::upstream_tests::{Selection, run_tests};
use e2e_tests::support::whole_cluster::WholeCluster;

/// The tests in which the webhook takes part: Services whose type changes, whose addresses are set by hand, and of which
/// many are created or deleted.
const TESTS: [&str; 9] = [
    "[sig-network] Service CIDRs should create Services and serve on different Service CIDRs",
    "[sig-network] ServiceCIDR and IPAddress API should support IPAddress API operations [Conformance]",
    "[sig-network] ServiceCIDR and IPAddress API should support ServiceCIDR API operations [Conformance]",
    "[sig-network] Services should be able to change the type from ClusterIP to ExternalName [Conformance]",
    "[sig-network] Services should be able to change the type from ExternalName to ClusterIP [Conformance]",
    "[sig-network] Services should be able to change the type from ExternalName to NodePort [Conformance]",
    "[sig-network] Services should be able to change the type from NodePort to ExternalName [Conformance]",
    "[sig-network] Services should complete a service status lifecycle [Conformance]",
    "[sig-network] Services should delete a collection of services [Conformance]",
];
const FOCUS: &str =
    r"\[sig-network\] (Service ?CIDR|Services should (be able to change the type|complete|delete a collection))";

pub async fn upstream_tests_of_services_pass(cluster: &WholeCluster) {
    install(cluster, "webhook").await;
    let folder = tempfile::tempdir().unwrap();
    let selection = Selection { focus: FOCUS, skip: &[], processes: 4 };
    let outcomes = run_tests(cluster, &selection, folder.path()).await;
    assert_eq!(outcomes.keys().collect::<Vec<_>>(), TESTS);
    let not_passed: Vec<_> = outcomes.iter().filter(|(_, outcome)| !outcome.passed()).collect();
    assert!(not_passed.is_empty(), "{not_passed:#?}");
    uninstall(cluster).await;
}
