//! `clusterip validate` without a cluster, and the objects that settings are read from. `e2e-tests/tests/
//! starter_settings.rs` tests it on a cluster.

use crate::command::{Done, Folder};

const POLICY: &str = "\
apiVersion: policies.kubewarden.io/v1
kind: ClusterAdmissionPolicy
metadata: {name: clusterip-policy}
spec: {mode: protect, settings: {services: {order: lowest, pools: [{name: all, cidrs: [10.0.0.0/24]}]}}}
";

const CONFIG_MAP: &str = "\
apiVersion: v1
kind: ConfigMap
metadata: {name: clusterip-settings}
data: {settings.yaml: 'services: {order: lowest, pools: [{name: all, cidrs: [10.0.0.0/24]}]}'}
";

#[test]
fn all_mistakes_of_all_files_are_printed() {
    let folder = Folder::new("validate");
    folder
        .write("good.yaml", "services: {order: lowest}")
        .write("empty.yaml", "")
        .write("warned.yaml", "services: {whenFull: unmanaged}")
        .write(
            "os.yaml",
            "services: {assumeOS: solaris, pools: [{name: a, cidrs: [10.0.0.0/24], match: {os: window}}, \
             {name: b, cidrs: [10.0.1.0/24]}]}",
        )
        .write(
            "objects.yaml",
            "apiVersion: clusterip-policy.io/v1alpha1\nkind: ServicePool\nmetadata: {name: windows}\n\
             spec: {cidrs: [10.0.0.0/24], match: {nodeLabels: {kubernetes.io/os: Windos}}}\n---\n\
             apiVersion: clusterip-policy.io/v1alpha1\nkind: ClusterIPPolicy\nmetadata: {name: default}\n\
             spec: {whenFull: Unmanaged}\n",
        )
        .write("bad.yaml", "services: {oder: lowest, whenFull: dney, pools: [{name: a, cidrs: [10.0.0.1/8]}]}")
        .write("broken.yaml", "services: [")
        .write("job.yaml", "apiVersion: batch/v1\nkind: Job\n")
        .write("outside.yaml", "services: {serviceCIDRs: [10.96.0.0/12]}")
        .write("policy.yaml", POLICY)
        .write("config-map.yaml", CONFIG_MAP);
    struct Case {
        files: &'static str,
        status: i32,
        stdout: &'static str,
    }
    let cases = [
        Case {
            files: "good.yaml policy.yaml config-map.yaml",
            status: 0,
            stdout: "\
good.yaml: valid
policy.yaml: valid
config-map.yaml: valid
",
        },
        Case {
            files: "empty.yaml",
            status: 1,
            stdout: "empty.yaml: error: the file is empty: write {} for the pools of K2s\n",
        },
        Case {
            files: "warned.yaml os.yaml objects.yaml",
            status: 0,
            stdout: "\
warned.yaml: warning: services.whenFull: unmanaged with pools by os: Kubernetes may pick an address of any pool
warned.yaml: valid
os.yaml: warning: services.pools[0].match.os: unknown operating system \"window\": did you mean windows?
os.yaml: warning: services.assumeOS: unknown operating system \"solaris\": known are linux, windows
os.yaml: valid
objects.yaml: warning: ClusterIPPolicy default: spec.whenFull: Unmanaged with pools by os: Kubernetes may pick an \
address of any pool
objects.yaml: warning: ClusterIPPolicy default: spec.assumeOS: no pool matches Services without evidence (assumeOS \
\"linux\"): Kubernetes may pick an address of any pool
objects.yaml: warning: ServicePool windows: spec.match.nodeLabels[\"kubernetes.io/os\"]: unknown operating system \
\"Windos\": did you mean windows?
objects.yaml: valid
",
        },
        Case {
            files: "bad.yaml broken.yaml job.yaml good.yaml outside.yaml",
            status: 1,
            stdout: "\
bad.yaml: error: services.oder: unknown key \"oder\": did you mean order?
bad.yaml: error: services.pools[0].cidrs[0]: 10.0.0.1/8 has host bits set: did you mean 10.0.0.0/8?
bad.yaml: error: services.whenFull: unknown value \"dney\": did you mean deny?
broken.yaml: error: line 2: while parsing a node, did not find expected node content
job.yaml: error: batch/v1 Job has no settings: pass the settings themselves, objects of clusterip-policy.io, a \
ClusterAdmissionPolicy with them in spec.settings, or a ConfigMap with them in data[\"settings.yaml\"]
good.yaml: valid
outside.yaml: error: services.pools[0].cidrs[0]: 172.21.1.0/24 lies outside serviceCIDRs (10.96.0.0/12): the API \
server would refuse its addresses
outside.yaml: error: services.pools[1].cidrs[0]: 172.21.0.0/24 lies outside serviceCIDRs (10.96.0.0/12): the API \
server would refuse its addresses
outside.yaml: error: these are the default pools, those of K2s, and they do not fit the cluster: `clusterip init` \
prints settings that do
",
        },
    ];
    for Case { files, status, stdout } in cases {
        assert_eq!(folder.clusterip(&format!("validate {files}")), Done { status, ..Done::ok(stdout) }, "{files}");
    }
    assert_eq!(folder.piped("validate -", POLICY), Done::ok("-: valid\n"));
    let unread = folder.clusterip("validate gone.yaml bad.yaml");
    let message = "error: gone.yaml: No such file or directory (os error 2)\n";
    assert_eq!((unread.status, unread.stderr.as_str()), (2, message), "a file that can't be read weighs more");
    assert_eq!(unread.stdout.lines().count(), 3, "{unread:?}");
}

/// `plan.rs` and `audit.rs` use those of the examples.
#[test]
fn settings_of_the_deployments_are_valid() {
    let files = [
        "deploy/webhook/pools.yaml",
        "deploy/nodes/pools.yaml",
        "deploy/external/pools.yaml",
        "deploy/kubewarden/policy/policy.yaml",
        "deploy/kubewarden/team/policy.yaml",
        "deploy/kubewarden/nodes/policy.yaml",
    ];
    let done = Folder::workspace().clusterip(&format!("validate {}", files.join(" ")));
    assert_eq!((done.status, done.stderr.as_str()), (0, ""), "{done:?}");
    assert_eq!(done.stdout.lines().filter(|line| line.ends_with(": valid")).count(), files.len(), "{done:?}");
}
