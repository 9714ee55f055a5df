//! `clusterip plan` of input that is probably a mistake.

use crate::command::{Done, Folder, service_manifest};

#[test]
fn names_that_are_almost_those_that_a_plan_reads_give_a_warning() {
    struct Case {
        /// The manifest of `web` up to its name.
        kind: &'static str,
        more: &'static str,
        warning: &'static str,
    }
    let cases = [
        Case { kind: "v1, kind: Service", more: "}", warning: "" },
        Case { kind: "serving.knative.dev/v1, kind: Service", more: "}", warning: "" },
        Case { kind: "v1, kind: ServiceAccount", more: "}", warning: "" },
        Case {
            kind: "v1, kind: Services",
            more: "}",
            warning: "v1 Services default/web is not planned: did you mean v1 Service?",
        },
        Case {
            kind: "v2, kind: Service",
            more: "}",
            warning: "v2 Service default/web is not planned: did you mean v1 Service?",
        },
        Case {
            kind: "apps/v1, kind: Deploymnt",
            more: "}",
            warning: "apps/v1 Deploymnt default/web is not used as evidence: did you mean apps/v1 Deployment?",
        },
        Case {
            kind: "app/v1, kind: Deployment",
            more: "}",
            warning: "app/v1 Deployment default/web is not used as evidence: did you mean apps/v1 Deployment?",
        },
        Case {
            kind: "extensions/v1beta1, kind: Deployment",
            more: "}",
            warning: "Deployment default/web is not used as evidence: Kubernetes no longer serves extensions/v1beta1, \
                      but apps/v1",
        },
        Case {
            kind: "apps/v1, kind: Deployment",
            more: "}, spec: {template: {spec: {nodeselector: {kubernetes.io/os: windows}, hostIPC: true}}}",
            warning: "Deployment default/web: spec.template.spec.nodeselector is ignored: did you mean nodeSelector?",
        },
        Case {
            kind: "batch/v1, kind: CronJob",
            more: "}, spec: {jobTemplate: {spec: {template: {spec: {nodeSelectors: {}}}}}}",
            warning: "CronJob default/web: spec.jobTemplate.spec.template.spec.nodeSelectors is ignored: did you mean \
                      nodeSelector?",
        },
        Case {
            kind: "v1, kind: Service",
            more: ", anotations: {}}",
            warning: "Service default/web: metadata.anotations is ignored: did you mean annotations?",
        },
    ];
    for Case { kind, more, warning } in cases {
        let manifest = format!("{{apiVersion: {kind}, metadata: {{name: web{more}}}");
        let done = Folder::new("almost-known").piped("plan -", &manifest);
        let expected =
            if warning.is_empty() { String::new() } else { format!("warning: -: document 1, line 1: {warning}\n") };
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
        let pools = "windows 0 of 205 used; linux 0 of 205 used";
        assert_eq!(Folder::new("no-pool").piped("plan -", &input), Done::ok(format!("{rows}\n{totals}; {pools}\n")));
    }
}

#[test]
fn empty_input_is_refused() {
    let folder = Folder::new("no-input");
    folder.write("web.yaml", service_manifest("web", "{}"));
    for input in ["", "\n", "# nothing\n", "---", "---\n---\n"] {
        folder.write("empty.yaml", input);
        let piped = Done::refused("-: no manifests: standard input has no Kubernetes objects");
        assert_eq!(folder.piped("plan -", input), piped, "{input:?}");
        let expected = Done::refused("empty.yaml: no manifests: the file has no Kubernetes objects");
        assert_eq!(folder.clusterip("plan web.yaml -f empty.yaml"), expected, "{input:?}");
    }
}
