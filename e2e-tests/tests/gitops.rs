//! Programs that apply manifests again and again, such as GitOps controllers and Helm: after a move they find no
//! difference, and they change nothing.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde_json::{Value, json};

use crate::support::control_plane::ControlPlane;
use crate::support::documented_steps::{Operator, Step};
use crate::support::eventually::eventually;
use crate::support::helm::Helm;
use crate::support::webhook_cluster::{WebhookCluster, address, all, deployment, on, place, service};

/// A program that applies manifests, as flags of `kubectl apply` and `kubectl diff`.
struct Applier {
    name: &'static str,
    flags: &'static [&'static str],
}

static APPLIERS: [Applier; 4] = [
    Applier { name: "kubectl", flags: &[] },
    Applier { name: "kubectl-server-side", flags: &["--server-side"] },
    Applier {
        name: "argo-cd-server-side",
        flags: &["--server-side", "--field-manager=argocd-controller", "--force-conflicts"],
    },
    Applier { name: "flux", flags: &["--server-side", "--field-manager=kustomize-controller", "--force-conflicts"] },
];

/// The Services of a namespace, if all of them have moved to the Windows pool and no move of them is under way.
async fn moved(cluster: &WebhookCluster, namespace: &str) -> Option<BTreeMap<String, Value>> {
    let services = cluster.list(namespace).await;
    let is_moved = |service: &Value| {
        let text = service.to_string();
        let is_moving = text.contains("clusterip-policy/moving") || text.contains("clusterip-mover");
        !is_moving && service["spec"]["type"] != "ExternalName" && place(address(service)) == "windows"
    };
    services.values().all(is_moved).then_some(services)
}

#[tokio::test]
async fn manifests_show_no_difference_after_a_move_and_change_nothing() {
    let cluster = WebhookCluster::shared().await;
    let namespace = cluster.plane.namespace("gitops").await;
    let flag = format!("--namespace={namespace}");
    let run = async |verb: &str, applier: &Applier, manifest: &str| {
        let args = [&[verb, &*flag], applier.flags, &["-f", "-"]].concat();
        cluster.plane.kubectl_with(&args, manifest).await
    };
    let specs = [
        ("plain", json!({})),
        ("node-port", json!({"type": "NodePort", "sessionAffinity": "ClientIP"})),
        // As charts render it.
        ("empty", json!({"clusterIP": ""})),
    ];
    let mut manifests = Vec::new();
    for applier in &APPLIERS {
        for (shape, spec) in &specs {
            let name = format!("{shape}-{}", applier.name);
            manifests.push((applier, service(&name, spec.clone()).to_string()));
        }
    }
    for (applier, manifest) in &manifests {
        run("apply", applier, manifest).await.ok();
    }
    let names: Vec<String> = cluster.list(&namespace).await.into_keys().collect();
    assert_eq!(names.len(), manifests.len());
    cluster.plane.apply(&all(&namespace, names.iter().map(|name| deployment(name, on("windows"))))).await;
    let before = eventually("all Services to move", async || moved(&cluster, &namespace).await).await;
    for (applier, manifest) in &manifests {
        let diff = run("diff", applier, manifest).await;
        assert_eq!((diff.status, diff.stdout.as_str()), (0, ""), "{}: {}", applier.name, diff.stderr);
        run("apply", applier, manifest).await.ok();
    }
    assert_eq!(cluster.list(&namespace).await, before);
}

/// The server writes the `caBundle` and the status of pools. Neither is a difference, and both survive the next apply.
pub(crate) async fn installation_shows_no_difference_and_keeps_what_the_server_wrote(operator: &Operator<'_>) {
    let run = async |command: &str| operator.does(&Step::Type(command.to_owned())).await;
    let written = async || {
        run("kubectl wait --for=condition=Ready servicepool --all --timeout 60s").await;
        run("kubectl get mutatingwebhookconfiguration clusterip-policy \
             --output jsonpath='{.webhooks[*].clientConfig.caBundle}'")
        .await
    };
    let bundle = written().await;
    assert!(!bundle.is_empty());
    for applier in &APPLIERS {
        let flags = applier.flags.join(" ");
        // The first apply by another manager changes the owners of fields.
        if applier.name != "kubectl" {
            run(&format!("kubectl apply --force-conflicts --server-side {flags} -k deploy/webhook")).await;
        }
        let diff = operator.tries(&Step::Type(format!("kubectl diff {flags} -k deploy/webhook"))).await;
        assert_eq!((diff.status, diff.stdout.as_str()), (0, ""), "{}: {}", applier.name, diff.stderr);
        run(&format!("kubectl apply {flags} -k deploy/webhook")).await;
        assert_eq!(written().await, bundle, "{}", applier.name);
    }
}

const TEMPLATE: &str = "\
apiVersion: v1
kind: Service
metadata: {name: '{{ .Release.Name }}'}
spec:
  {{- if .Values.empty }}
  clusterIP: ''
  {{- end }}
  selector: {app: '{{ .Release.Name }}'}
  ports: [{port: {{ .Values.port }}}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: '{{ .Release.Name }}'}
spec:
  selector: {matchLabels: {app: '{{ .Release.Name }}'}}
  template:
    metadata: {labels: {app: '{{ .Release.Name }}'}}
    spec:
      nodeSelector: {kubernetes.io/os: windows}
      containers: [{name: main, image: registry.example.com/main}]
";

/// A chart of a Service and its Windows Deployment. Helm creates the Service first, so the Service moves after it was
/// installed.
struct Chart<'n> {
    helm: Helm,
    namespace: &'n str,
    folder: tempfile::TempDir,
}

impl<'n> Chart<'n> {
    /// Returns `None` if there is no helm.
    fn of(plane: &ControlPlane, namespace: &'n str) -> Option<Self> {
        let helm = Helm::of(plane)?;
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("templates")).unwrap();
        std::fs::write(folder.path().join("Chart.yaml"), "apiVersion: v2\nname: web\nversion: 0.1.0\n").unwrap();
        std::fs::write(folder.path().join("templates/web.yaml"), TEMPLATE).unwrap();
        Some(Self { helm, namespace, folder })
    }

    /// Runs `helm install` or `helm upgrade`.
    async fn run(&self, verb: &str, release: &str, port: u16, flags: &[&str]) {
        let (folder, port) = (self.folder.path().to_str().unwrap(), format!("port={port}"));
        let arguments = [&[verb, release, folder, "--namespace", self.namespace, "--set", &*port], flags].concat();
        self.helm.run(&arguments).await;
    }
}

#[tokio::test]
async fn helm_upgrades_and_rollbacks_keep_the_address_of_a_moved_service() {
    let cluster = WebhookCluster::shared().await;
    let namespace = cluster.plane.namespace("gitops-helm").await;
    let Some(chart) = Chart::of(&cluster.plane, &namespace) else { return };
    struct Case {
        release: &'static str,
        /// The flags of both commands.
        flags: &'static [&'static str],
        /// More flags of `helm upgrade`.
        upgrade: &'static [&'static str],
    }
    let cases = [
        Case { release: "server-side", flags: &["--server-side=true"], upgrade: &[] },
        Case { release: "client-side", flags: &["--server-side=false"], upgrade: &[] },
        Case { release: "empty", flags: &["--set=empty=yes"], upgrade: &[] },
        Case { release: "replaced", flags: &["--server-side=false"], upgrade: &["--force-replace"] },
    ];
    for Case { release, flags, .. } in &cases {
        chart.run("install", release, 80, flags).await;
    }
    let identities = |services: &BTreeMap<String, Value>| -> BTreeMap<String, (Value, IpAddr)> {
        let identity = |service: &Value| (service["metadata"]["uid"].clone(), address(service));
        services.iter().map(|(name, service)| (name.clone(), identity(service))).collect()
    };
    let ports = |services: &BTreeMap<String, Value>| -> Vec<Value> {
        services.values().map(|service| service["spec"]["ports"][0]["port"].clone()).collect()
    };
    let before = eventually("all Services to move", async || moved(&cluster, &namespace).await).await;
    for Case { release, flags, upgrade } in &cases {
        chart.run("upgrade", release, 81, &[*flags, *upgrade].concat()).await;
    }
    let upgraded = cluster.list(&namespace).await;
    assert_eq!((identities(&upgraded), ports(&upgraded)), (identities(&before), vec![json!(81); 4]));
    for Case { release, .. } in &cases {
        chart.helm.run(&["rollback", *release, "1", "--namespace", &*namespace]).await;
    }
    let rolled_back = cluster.list(&namespace).await;
    assert_eq!((identities(&rolled_back), ports(&rolled_back)), (identities(&before), vec![json!(80); 4]));
}
