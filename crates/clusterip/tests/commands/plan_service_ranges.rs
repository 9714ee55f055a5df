//! How `clusterip plan` uses the Service ranges of the cluster.

use crate::command::{Done, Folder, headless, service_cidr, service_manifest};
use serde_json::json;

#[test]
fn service_ranges_are_read_from_service_cidrs() {
    struct Case {
        name: &'static str,
        objects: String,
        expected: Done,
    }
    const SETTINGS: &str = "services: {order: lowest, pools: [{name: all, cidrs: [10.0.0.0/29]}]}\n";
    let cidr = |name: &str, cidr: &str| service_cidr(name, cidr, json!({})).to_string();
    let outside = "settings: settings.yaml: services.pools[0].cidrs[0]: 10.0.0.0/29 lies outside of the Service ranges \
                   of the cluster (10.1.0.0/24): the API server would refuse its addresses";
    let at = |address: &str, usable: u8| {
        Done::ok(format!(
            "NAMESPACE  SERVICE  BELONGS TO  CLUSTER-IP  EVIDENCE\ndefault    web      all         {address}    default\n\n\
             1 Service: 1 allocated, 0 unchanged, 0 denied; all 1 of {usable} used\n"
        ))
    };
    let rows = [
        Case {
            name: "nothing is known",
            objects: "{apiVersion: v1, kind: ConfigMap, metadata: {name: other}}".to_owned(),
            expected: at("10.0.0.1", 6),
        },
        Case {
            name: "the first address of the API server's own range, whatever its place, is that of default/kubernetes",
            objects: cidr("extra", "10.1.0.0/24") + "\n---\n" + &cidr("kubernetes", "10.0.0.0/24"),
            expected: at("10.0.0.2", 5),
        },
        Case {
            name: "a second range has no such address",
            objects: cidr("kubernetes", "10.1.0.0/24") + "\n---\n" + &cidr("extra", "10.0.0.0/24"),
            expected: at("10.0.0.1", 6),
        },
        Case {
            name: "a pool outside is a mistake",
            objects: cidr("kubernetes", "10.1.0.0/24"),
            expected: Done::refused(outside),
        },
    ];
    let folder = Folder::new("service-cidrs");
    let input = service_manifest("web", "{}");
    folder.write("in.yaml", &input).write("settings.yaml", SETTINGS);
    for Case { name, objects, expected } in rows {
        folder.write("objects.yaml", &objects).write("snapshot.yaml", format!("{}\n---\n{objects}", headless()));
        let among = folder.clusterip("plan in.yaml objects.yaml -s settings.yaml");
        assert_eq!(among, expected, "{name}: among the manifests");
        let snapshot = folder.clusterip("plan in.yaml --snapshot snapshot.yaml -s settings.yaml");
        assert_eq!(snapshot, expected, "{name}: in the snapshot");
    }
    folder.write("settings.yaml", SETTINGS.replace("order", "serviceCIDRs: [10.0.0.0/16], order"));
    let done = folder.piped("plan - -s settings.yaml", &(input + "---\n" + &cidr("kubernetes", "10.1.0.0/24")));
    assert_eq!(done, at("10.0.0.2", 5), "what the settings say goes first");
}

/// `clusterip plan` accepts the settings that `clusterip serve` accepts, and prints the same warnings.
#[test]
fn settings_that_contradict_the_cluster_are_checked_as_the_server_checks_them() {
    struct Case {
        name: &'static str,
        of_cluster: &'static str,
        of_manifests: &'static str,
        status: i32,
        stderr: &'static str,
    }
    const SETTINGS: &str =
        "services: {serviceCIDRs: [10.0.0.0/16], pools: [{name: all, reserved: 16, cidrs: [10.0.0.0/24]}]}\n";
    const OUTSIDE: &str = "error: settings: settings.yaml: services.pools[0].cidrs[0]: 10.0.0.0/24 lies outside \
                           the Service ranges of the cluster (10.1.0.0/24), which services.serviceCIDRs (10.0.0.0/16) \
                           contradicts: the API server would refuse its addresses; remove services.serviceCIDRs, and \
                           choose pools inside the ranges of the cluster\n";
    let rows = [
        Case {
            name: "the pool lies inside",
            of_cluster: "10.0.0.0/20",
            of_manifests: "",
            status: 0,
            stderr: "warning: settings.yaml: services.serviceCIDRs: the settings have 10.0.0.0/16, but the cluster has \
                     10.0.0.0/20: remove the key to use the ranges of the cluster\n",
        },
        Case { name: "the pool lies outside", of_cluster: "10.1.0.0/24", of_manifests: "", status: 2, stderr: OUTSIDE },
        Case {
            name: "the manifests may lack a range of the cluster",
            of_cluster: "",
            of_manifests: "10.1.0.0/24",
            status: 0,
            stderr: "",
        },
    ];
    for Case { name, of_cluster, of_manifests, status, stderr } in rows {
        let with_range = |first: String, range: &str| match range {
            "" => first,
            range => format!("{first}\n---\n{}", service_cidr("kubernetes", range, json!({}))),
        };
        let folder = Folder::new("plan-contradiction");
        folder.write("settings.yaml", SETTINGS);
        folder.write("in.yaml", with_range(service_manifest("web", "{}"), of_manifests));
        folder.write("snapshot.yaml", with_range(headless().to_string(), of_cluster));
        let done = folder.clusterip("plan in.yaml --snapshot snapshot.yaml -s settings.yaml");
        assert_eq!((done.status, done.stderr.as_str()), (status, stderr), "{name}");
    }
}

#[test]
fn no_address_of_a_service_cidr_being_deleted_is_planned() {
    let folder = Folder::new("plan-deleted-range");
    let deleted = json!({"metadata": {"deletionTimestamp": "2026-01-02T03:04:05Z"}});
    let ranges = [service_cidr("team", "10.2.0.0/16", deleted), service_cidr("kubernetes", "10.1.0.0/16", json!({}))];
    folder
        .write("one.yaml", "services: {order: lowest, pools: [{name: all, cidrs: [10.2.0.0/24]}]}\n")
        .write("two.yaml", "services: {order: lowest, pools: [{name: all, cidrs: [10.2.0.0/24, 10.1.1.0/24]}]}\n")
        .write("in.yaml", service_manifest("web", "{}"))
        .write("snapshot.yaml", format!("{}\n---\n{}\n---\n{}\n", ranges[0], ranges[1], headless()));
    let plan = |settings: &str| folder.clusterip(&format!("plan in.yaml -s {settings} --snapshot snapshot.yaml"));
    let refused = "ServiceCIDR team (10.2.0.0/16) is being deleted: addresses of it are refused by the API server";
    let warning = |settings: &str| {
        format!(
            "warning: {settings}: services.pools[0].cidrs[0]: {refused}, and pool \"all\" assigns none of them meanwhile\n"
        )
    };
    let (one, two) = (plan("one.yaml"), plan("two.yaml"));
    assert!(one.stdout.contains(&format!("pool \"all\" (10.2.0.0/24) has no usable address: {refused}")), "{one:?}");
    assert_eq!((one.status, one.stderr), (1, warning("one.yaml")));
    assert!(two.stdout.contains(" 10.1.1.1 "), "{two:?}");
    assert_eq!((two.status, two.stderr), (0, warning("two.yaml")));
}

#[test]
fn unused_dns_address_in_a_pool_gives_a_warning() {
    const SETTINGS: &str =
        "services: {order: lowest, serviceCIDRs: [10.96.0.0/16], pools: [{name: all, cidrs: [10.96.0.0/24]}]}\n";
    const WARNING: &str = "warning: services.pools[0]: pool \"all\" may hand out 10.96.0.10, the tenth address of the \
                           Service range 10.96.0.0/16: many installers give it to the cluster's DNS; exclude it from the \
                           pool, or reserve it\n";
    let folder = Folder::new("plan-dns");
    let (web, dns) = (service_manifest("web", "{}"), service_manifest("dns", "{clusterIP: 10.96.0.10}"));
    folder.write("settings.yaml", SETTINGS).write("web.yaml", web).write("dns.yaml", dns);
    for (args, warning) in [("web.yaml", WARNING), ("web.yaml dns.yaml", ""), ("web.yaml --snapshot dns.yaml", "")] {
        let done = folder.clusterip(&format!("plan -s settings.yaml {args}"));
        assert_eq!((done.status, done.stderr.as_str()), (0, warning), "{args}");
    }
}

#[test]
fn large_pool_is_counted_in_powers_of_two() {
    let settings = r#"services: {pools: [{name: wide, cidrs: ["fd00::/64"]}], serviceCIDRs: ["fd00::/64"]}"#;
    let folder = Folder::new("wide");
    folder.write("settings.yaml", settings);
    let done = folder.piped("plan - -s settings.yaml", &service_manifest("web", "{}"));
    let totals = done.stdout.lines().last().unwrap();
    assert_eq!(totals, "1 Service: 1 allocated, 0 unchanged, 0 denied; wide IPv6 1 of 2^64 used", "{done:?}");
}
