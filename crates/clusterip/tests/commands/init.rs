//! `clusterip init` without a cluster. `e2e-tests/tests/starter_settings.rs` tests it on clusters.

use std::fs;

use crate::command::{Done, Folder};

fn init(args: &str) -> Done {
    Folder::new("init").clusterip(&format!("init {args}"))
}

const KUBEADM: &str = "\
# Starter settings of clusterip: a pool for each operating system of the Nodes.
# Service ranges of the cluster: 10.96.0.0/12 (as given with --service-cidr)
# `clusterip validate --cluster FILE` checks these settings, and `clusterip audit --settings FILE`
# shows which Services would be misplaced.
services:
  # The first pool whose `match` fits serves a Service. A `match` may also name namespaces and labels.
  pools:
  - name: linux
    cidrs: [10.96.0.0/13]
    # The first 11 addresses of each range are kept for addresses set by hand:
    # up to the tenth one, which many installers give to the cluster's DNS.
    reserved: 11
    # Like Kubernetes, use the static band of each range (KEP-3070) last.
    bands: true
    match: {os: linux}
  - name: windows
    cidrs: [10.104.0.0/13]
    # Like Kubernetes, use the static band of each range (KEP-3070) last.
    bands: true
    match: {os: windows}
  # Services of these namespaces keep their addresses. Name the namespace of clusterip here, too: the API
  # server does not call the webhook for it.
  exemptNamespaces: [kube-system, clusterip-policy]
  # The Service ranges of the cluster, the primary one first.
  serviceCIDRs: [10.96.0.0/12]
";

const ONE_POOL: &str = "\
# Starter settings of clusterip: one pool for all Services, because all Nodes have the same operating system.
# Service ranges of the cluster: 10.43.0.0/16, fd00::/108, 10.2.0.0/16 (as given with --service-cidr)
# Not in a pool, except the first 65,536 addresses of a large range: fd00::/108, 10.2.0.0/16
# `clusterip validate --cluster FILE` checks these settings, and `clusterip audit --settings FILE`
# shows which Services would be misplaced.
services:
  # The first pool whose `match` fits serves a Service. A `match` may also name namespaces and labels.
  pools:
  - name: all
    cidrs: [10.43.0.0/16, fd00::/112]
    # The first 11 addresses of each range are kept for addresses set by hand:
    # up to the tenth one, which many installers give to the cluster's DNS.
    reserved: 11
    # Like Kubernetes, use the static band of each range (KEP-3070) last.
    bands: true
  # Services of these namespaces keep their addresses. Name the namespace of clusterip here, too: the API
  # server does not call the webhook for it.
  exemptNamespaces: [kube-system, clusterip-policy]
  # The Service ranges of the cluster, the primary one first.
  serviceCIDRs: [10.43.0.0/16, fd00::/108, 10.2.0.0/16]
";

const K2S: &str = "\
# Starter settings of clusterip: a pool for each operating system of the Nodes.
# Service ranges of the cluster: 172.21.0.0/16 (as given with --service-cidr)
# These are the pools of the K2s distribution: the routes of its nodes depend on them.
# `clusterip validate --cluster FILE` checks these settings, and `clusterip audit --settings FILE`
# shows which Services would be misplaced.
services:
  # The first pool whose `match` fits serves a Service. A `match` may also name namespaces and labels.
  pools:
  - name: windows
    cidrs: [172.21.1.0/24]
    # The first 50 addresses of each range are kept for addresses set by hand:
    # as in K2s.
    reserved: 50
    match: {os: windows}
  - name: linux
    cidrs: [172.21.0.0/24]
    # The first 50 addresses of each range are kept for addresses set by hand:
    # as in K2s.
    reserved: 50
    match: {os: linux}
  # Services of these namespaces keep their addresses. Name the namespace of clusterip here, too: the API
  # server does not call the webhook for it.
  exemptNamespaces: [kube-system, clusterip-policy]
  # The Service ranges of the cluster, the primary one first.
  serviceCIDRs: [172.21.0.0/16]
";

#[test]
fn settings_for_given_ranges_and_systems_are_printed_and_valid() {
    let cases = [
        ("--service-cidr 10.96.0.0/12 --os linux,windows", KUBEADM),
        ("--service-cidr 10.96.0.0/12 --os windows --os linux", KUBEADM),
        ("--service-cidr 10.43.0.0/16,fd00::/108 --service-cidr 10.2.0.0/16 --os linux", ONE_POOL),
        ("--service-cidr 172.21.0.0/16 --os linux,windows", K2S),
    ];
    for (args, expected) in cases {
        assert_eq!(init(args), Done::ok(expected), "{args}");
        assert_eq!(Folder::new("init").piped("validate -", expected), Done::ok("-: valid\n"), "{args}");
    }
}

#[test]
fn settings_are_written_to_a_file() {
    let args = "init --service-cidr 10.96.0.0/12 --os linux,windows --output-file";
    let folder = Folder::new("init-file");
    assert_eq!(folder.clusterip(&format!("{args} settings.yaml -q --color always")), Done::ok(""));
    assert_eq!(fs::read_to_string(folder.path("settings.yaml")).unwrap(), KUBEADM);
    let done = folder.clusterip(&format!("{args} gone/settings.yaml"));
    assert_eq!(done, Done::refused("gone/settings.yaml: No such file or directory (os error 2)"));
}

#[test]
fn static_band_of_a_range_is_reserved_if_that_of_its_half_is_smaller() {
    let done = init("--service-cidr 10.0.0.0/20 --os linux,windows");
    let expected = "    # The first 257 addresses of each range are kept for addresses set by hand:
    # the static band of the Service range, 256 addresses, with the usual one of the cluster's DNS.
    reserved: 257\n";
    assert!(done.status == 0 && done.stdout.contains(expected), "{done:?}");
}

#[test]
fn ranges_that_can_not_be_divided_are_refused() {
    for (args, reason) in [
        (
            "--service-cidr 10.0.0.0/27 --os linux,windows",
            "the Service range 10.0.0.0/27 has only 32 addresses: too few for two pools; write the pools by hand",
        ),
        ("--service-cidr 10.0.0.0 --os linux", "\"10.0.0.0\" is not a CIDR: add a prefix length such as /24"),
        ("--service-cidr 10.96.0.1/12 --os linux", "10.96.0.1/12 has host bits set: did you mean 10.96.0.0/12?"),
        ("--service-cidr=", "is not a CIDR"),
    ] {
        let done = init(args);
        assert_eq!((done.status, done.stdout.as_str()), (2, ""), "{args}");
        assert!(done.stderr.contains(reason), "{args}: {done:?}");
    }
}

#[test]
fn without_a_cluster_the_reason_is_named() {
    let environment = [("KUBECONFIG", "missing.yaml"), ("HOME", "."), ("KUBERNETES_SERVICE_HOST", "")];
    let done = Folder::new("init").run_with(&["init"], "", &environment);
    assert_eq!((done.status, done.stdout.as_str()), (2, ""), "{done:?}");
    assert!(done.stderr.starts_with("error: no kubeconfig was found: "), "{done:?}");
    assert!(done.stderr.ends_with("; or give both --service-cidr and --os\n"), "{done:?}");
}
