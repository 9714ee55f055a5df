//! `clusterip plan` of input that is probably a mistake.

use crate::command::{Done, Folder, service_manifest};
use serde_json::json;

#[test]
fn manifest_whose_type_is_almost_that_of_a_service_gives_a_warning() {
    struct Case {
        api_version: &'static str,
        kind: &'static str,
        warned: bool,
    }
    let cases = [
        Case { api_version: "v1", kind: "service", warned: true },
        Case { api_version: "v1", kind: "Services", warned: true },
        Case { api_version: "v2", kind: "Service", warned: true },
        Case { api_version: "v1", kind: "Servce", warned: true },
        Case { api_version: "v1", kind: "Service", warned: false },
        Case { api_version: "serving.knative.dev/v1", kind: "Service", warned: false },
        Case { api_version: "v1", kind: "ServiceAccount", warned: false },
    ];
    for Case { api_version, kind, warned } in cases {
        let input = format!("apiVersion: {api_version}\nkind: {kind}\nmetadata: {{name: web}}\nspec: {{}}\n");
        let done = Folder::new("almost-service").run_with(&["plan", "-"], &input, &[]);
        let warning = format!(
            "warning: -: document 1, line 1: {api_version} {kind} default/web is not planned: did you mean v1 \
             Service?\n"
        );
        let expected = if warned { warning } else { String::new() };
        assert_eq!((done.status, done.stderr), (0, expected), "{api_version} {kind}");
    }
}

#[test]
fn names_that_are_almost_those_of_evidence_give_a_warning() {
    struct Case {
        manifest: &'static str,
        warning: &'static str,
    }
    let cases = [
        Case {
            manifest: "{apiVersion: apps/v1, kind: Deploymnt, metadata: {name: web, namespace: shop}}",
            warning: "apps/v1 Deploymnt shop/web is not used as evidence: did you mean apps/v1 Deployment?",
        },
        Case {
            manifest: "{apiVersion: app/v1, kind: Deployment, metadata: {name: web, namespace: shop}}",
            warning: "app/v1 Deployment shop/web is not used as evidence: did you mean apps/v1 Deployment?",
        },
        Case {
            manifest: "{apiVersion: apps/v1, kind: Deployment, metadata: {name: web, namespace: shop}, \
                       spec: {template: {spec: {nodeselector: {kubernetes.io/os: windows}, hostIPC: true}}}}",
            warning: "Deployment shop/web: spec.template.spec.nodeselector is ignored: did you mean nodeSelector?",
        },
        Case {
            manifest: "{apiVersion: batch/v1, kind: CronJob, metadata: {name: web, namespace: shop}, \
                       spec: {jobTemplate: {spec: {template: {spec: {nodeSelectors: {}}}}}}}",
            warning: "CronJob shop/web: spec.jobTemplate.spec.template.spec.nodeSelectors is ignored: did you mean \
                      nodeSelector?",
        },
        Case {
            manifest: "{apiVersion: v1, kind: Service, metadata: {name: web, namespace: shop, anotations: {}}}",
            warning: "Service shop/web: metadata.anotations is ignored: did you mean annotations?",
        },
    ];
    for Case { manifest, warning } in cases {
        let done = Folder::new("almost-evidence").run_with(&["plan", "-"], manifest, &[]);
        let expected = format!("warning: -: document 1, line 1: {warning}\n");
        assert_eq!((done.status, done.stderr), (0, expected), "{manifest}");
    }
}

#[test]
fn address_outside_of_pools_and_folder_without_services_are_accepted() {
    struct Case {
        input: String,
        rows: &'static str,
        totals: &'static str,
    }
    let cases = [
        Case {
            input: service_manifest("web", "{clusterIP: 10.0.0.9}"),
            rows: "\
NAMESPACE  SERVICE  BELONGS TO  CLUSTER-IP  EVIDENCE
default    web      linux       10.0.0.9    unchanged: set by hand; os=linux (setting assumeOS)
  warning: 10.0.0.9 lies in no pool, expected pool \"linux\": kubernetes.io/os=linux (setting assumeOS)
",
            totals: "1 Service: 0 allocated, 1 unchanged, 0 denied",
        },
        Case {
            input: "apiVersion: v1\nkind: List\nitems: []\n".to_owned(),
            rows: "NAMESPACE  SERVICE  BELONGS TO  CLUSTER-IP  EVIDENCE\n",
            totals: "0 Services: 0 allocated, 0 unchanged, 0 denied",
        },
    ];
    for Case { input, rows, totals } in cases {
        let done = Folder::new("no-pool").run_with(&["plan", "-"], &input, &[]);
        let pools = "windows 0 of 205 used; linux 0 of 205 used";
        assert_eq!(done, Done::ok(format!("{rows}\n{totals}; {pools}\n")));
    }
}

#[test]
fn empty_input_is_refused() {
    for input in ["", "\n", "# nothing\n", "---", "---\n---\n"] {
        let folder = Folder::new("no-input");
        folder.write("empty.yaml", input).write("web.yaml", service_manifest("web", "{}"));
        let done = folder.run_with(&["plan", "-"], input, &[]);
        assert_eq!(done, Done::refused("-: no manifests: standard input has no Kubernetes objects"), "{input:?}");
        for args in [&["plan", "empty.yaml"][..], &["plan", "web.yaml", "-f", "empty.yaml"]] {
            let expected = Done::refused("empty.yaml: no manifests: the file has no Kubernetes objects");
            assert_eq!(folder.run(args), expected, "{input:?}");
        }
    }
}

#[test]
fn explicit_deny_refuses_an_address_outside_of_all_pools() {
    struct Case {
        name: &'static str,
        os: &'static str,
        status: i32,
        message: &'static str,
    }
    let cases = [
        Case {
            name: "a pool matches the Service",
            os: "linux",
            status: 1,
            message: "Service default/web: 10.0.0.9 lies in no pool, expected pool \"linux\": kubernetes.io/os=linux \
                      (annotation clusterip-policy/os); omit clusterIP, or use an address of the Service's pool",
        },
        Case { name: "no pool matches the Service", os: "plan9", status: 0, message: "set by hand" },
    ];
    for Case { name, os, status, message } in cases {
        let folder = Folder::new("explicit-outside");
        let pools = "[{name: linux, cidrs: [172.21.0.0/24], match: {os: linux}}]";
        folder.write("settings.yaml", format!("services: {{explicit: deny, pools: {pools}}}\n"));
        let metadata = format!("{{name: web, annotations: {{clusterip-policy/os: {os}}}}}");
        let input = format!("apiVersion: v1\nkind: Service\nmetadata: {metadata}\nspec: {{clusterIP: 10.0.0.9}}\n");
        let done = folder.run_with(&["plan", "-", "-s", "settings.yaml", "-o", "json"], &input, &[]);
        assert_eq!((done.status, &done.json()["services"][0]["message"]), (status, &json!(message)), "{name}");
    }
}
