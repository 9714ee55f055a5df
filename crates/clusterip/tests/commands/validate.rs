//! `clusterip validate` without a cluster, and the objects that settings are read from. `e2e-tests/tests/
//! starter_settings.rs` tests it on a cluster.

use crate::command::{Done, Folder, service_manifest};

const POLICY: &str = "\
apiVersion: policies.kubewarden.io/v1
kind: ClusterAdmissionPolicy
metadata: {name: clusterip-policy}
spec:
  mode: protect
  settings:
    services:
      order: lowest
      pools:
      - {name: all, cidrs: [10.0.0.0/24]}
";

const CONFIG_MAP: &str = "\
apiVersion: v1
kind: ConfigMap
metadata: {name: clusterip-settings}
data:
  settings.yaml: |
    services:
      order: lowest
      pools:
      - {name: all, cidrs: [10.0.0.0/24]}
";

fn done(status: i32, stdout: &str, stderr: &str) -> Done {
    Done { status, stdout: stdout.to_owned(), stderr: stderr.to_owned() }
}

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
    let unmanaged = "services.whenFull: unmanaged with pools by os: Kubernetes may pick an address of any pool";
    let outside = |place: u8, third: u8| {
        format!(
            "outside.yaml: error: services.pools[{place}].cidrs[0]: 172.21.{third}.0/24 lies outside serviceCIDRs \
             (10.96.0.0/12): the API server would refuse its addresses\n"
        )
    };
    let gone = "error: gone.yaml: No such file or directory (os error 2)\n";
    struct Case<'a> {
        files: &'a [&'a str],
        expected: Done,
    }
    let cases = [
        Case { files: &["good.yaml"], expected: done(0, "good.yaml: valid\n", "") },
        Case {
            files: &["empty.yaml"],
            expected: done(1, "empty.yaml: error: the file is empty: write {} for the pools of K2s\n", ""),
        },
        Case {
            files: &["warned.yaml"],
            expected: done(0, &format!("warned.yaml: warning: {unmanaged}\nwarned.yaml: valid\n"), ""),
        },
        Case {
            files: &["os.yaml"],
            expected: done(
                0,
                "os.yaml: warning: services.pools[0].match.os: unknown operating system \"window\": did you mean \
                 windows?\n\
                 os.yaml: warning: services.assumeOS: unknown operating system \"solaris\": known are linux, windows\n\
                 os.yaml: valid\n",
                "",
            ),
        },
        Case {
            files: &["objects.yaml"],
            expected: done(
                0,
                "objects.yaml: warning: ClusterIPPolicy default: spec.whenFull: Unmanaged with pools by os: Kubernetes \
                 may pick an address of any pool\n\
                 objects.yaml: warning: ClusterIPPolicy default: spec.assumeOS: no pool matches Services without \
                 evidence (assumeOS \"linux\"): Kubernetes may pick an address of any pool\n\
                 objects.yaml: warning: ServicePool windows: spec.match.nodeLabels[\"kubernetes.io/os\"]: unknown \
                 operating system \"Windos\": did you mean windows?\n\
                 objects.yaml: valid\n",
                "",
            ),
        },
        Case {
            files: &["bad.yaml"],
            expected: done(
                1,
                "bad.yaml: error: services.oder: unknown key \"oder\": did you mean order?\n\
                 bad.yaml: error: services.pools[0].cidrs[0]: 10.0.0.1/8 has host bits set: did you mean 10.0.0.0/8?\n\
                 bad.yaml: error: services.whenFull: unknown value \"dney\": did you mean deny?\n",
                "",
            ),
        },
        Case {
            files: &["broken.yaml", "good.yaml"],
            expected: done(
                1,
                "broken.yaml: error: line 2: while parsing a node, did not find expected node content\n\
                 good.yaml: valid\n",
                "",
            ),
        },
        Case {
            files: &["job.yaml"],
            expected: done(
                1,
                "job.yaml: error: batch/v1 Job has no settings: pass the settings themselves, objects of \
                 clusterip-policy.io, a ClusterAdmissionPolicy with them in spec.settings, or a ConfigMap with them in \
                 data[\"settings.yaml\"]\n",
                "",
            ),
        },
        Case {
            files: &["outside.yaml"],
            expected: done(
                1,
                &(outside(0, 1)
                    + &outside(1, 0)
                    + "outside.yaml: error: these are the default pools, those of K2s, and they do not fit the \
                       cluster: `clusterip init` prints settings that do\n"),
                "",
            ),
        },
        Case {
            files: &["policy.yaml", "config-map.yaml"],
            expected: done(0, "policy.yaml: valid\nconfig-map.yaml: valid\n", ""),
        },
        Case { files: &["gone.yaml", "good.yaml"], expected: done(2, "good.yaml: valid\n", gone) },
    ];
    for Case { files, expected } in cases {
        assert_eq!(folder.run(&[&["validate"], files].concat()), expected, "{files:?}");
    }
    let piped = folder.run_with(&["validate", "-"], POLICY, &[]);
    assert_eq!(piped, Done::ok("-: valid\n"));
    let mistakes = folder.run(&["validate", "bad.yaml", "gone.yaml"]);
    assert_eq!((mistakes.status, mistakes.stdout.lines().count()), (2, 3), "a file that can't be read weighs more");
}

#[test]
fn settings_of_the_examples_and_deployments_are_valid() {
    let files = [
        "examples/settings/dual-stack.yaml",
        "examples/settings/external.yaml",
        "examples/settings/k2s.yaml",
        "examples/settings/nodes.yaml",
        "examples/settings/reservations.yaml",
        "examples/settings/static-band.yaml",
        "examples/settings/teams.yaml",
        "deploy/webhook/pools.yaml",
        "deploy/nodes/pools.yaml",
        "deploy/external/pools.yaml",
        "deploy/kubewarden/policy/policy.yaml",
        "deploy/kubewarden/team/policy.yaml",
        "deploy/kubewarden/nodes/policy.yaml",
    ];
    let done = Folder::workspace().run(&[&["validate"][..], &files].concat());
    assert_eq!((done.status, done.stderr.as_str()), (0, ""), "{done:?}");
    assert_eq!(done.stdout.lines().filter(|line| line.ends_with(": valid")).count(), files.len(), "{done:?}");
}

/// Every command that reads a settings file takes the same objects.
#[test]
fn settings_in_a_policy_or_config_map_are_used_by_other_commands() {
    let folder = Folder::new("settings-objects");
    folder.write("in.yaml", service_manifest("web", "{}")).write("policy.yaml", POLICY);
    folder.write("config-map.yaml", CONFIG_MAP).write("service.yaml", service_manifest("web", "{}"));
    for settings in ["policy.yaml", "config-map.yaml"] {
        let done = folder.run(&["plan", "in.yaml", "--settings", settings]);
        assert!(done.status == 0 && done.stdout.contains("all         10.0.0.1 "), "{settings}: {done:?}");
    }
    let piped = folder.run_with(&["plan", "in.yaml", "--settings", "-"], POLICY, &[]);
    assert_eq!(piped, folder.run(&["plan", "in.yaml", "--settings", "policy.yaml"]), "standard input");
    let done = folder.run(&["plan", "in.yaml", "--settings", "service.yaml"]);
    assert_eq!(done.status, 2);
    assert!(done.stderr.starts_with("error: settings: service.yaml: v1 Service has no settings: "), "{done:?}");
}

#[test]
fn plan_and_audit_name_init_if_the_default_pools_do_not_fit() {
    let folder = Folder::new("default-pools");
    let cidr = "apiVersion: networking.k8s.io/v1\nkind: ServiceCIDR\nmetadata: {name: kubernetes}\n\
                spec: {cidrs: [10.96.0.0/12]}\n";
    let db = service_manifest("db", "{clusterIP: 10.96.0.7}");
    let cluster = db + "---\n" + cidr;
    folder.write("in.yaml", service_manifest("web", "{}")).write("cluster.yaml", &cluster);
    let done = folder.run(&["plan", "in.yaml", "--snapshot", "cluster.yaml"]);
    assert_eq!(done.status, 2);
    let mistake = "error: settings: the default settings: services.pools[0].cidrs[0]: ";
    assert!(done.stderr.contains(mistake), "{done:?}");
    let remedy = "do not fit the cluster: `clusterip init` prints settings that do\n";
    assert!(done.stderr.ends_with(remedy), "{done:?}");
    let audit = folder.run(&["audit", "--snapshot", "cluster.yaml"]);
    let piped = folder.run_with(&["audit", "--snapshot", "-"], &cluster, &[]);
    assert_eq!(piped, audit, "standard input");
    assert!(audit.status == 2 && audit.stderr.ends_with(remedy), "{audit:?}");
}
