//! Settings that change while the server runs: pool objects, the policy of Kubewarden, and files.

use std::sync::Arc;

use clusterip::server_metrics::ServerMetrics;
use clusterip_api::Compilation;
use clusterip_cluster::live_settings::{Follower, LiveSettings, SettingsSource};
use clusterip_cluster::snapshot::service_ranges::ServiceRanges;
use kube::Client;
use serde_json::{Value, json};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

use crate::support::control_plane::ControlPlane;
use crate::support::eventually::{MAX_WAIT, eventually};
use crate::support::lent_control_plane::LentControlPlane;

/// The definitions of the custom resources of Kubewarden.
const KUBEWARDEN: &str = include_str!("../fixtures/kubewarden.yaml");
/// The name of the policy of Kubewarden.
const POLICY: &str = "clusterip";
/// The Service range of the API server in these tests.
const RANGE: &str = "172.21.0.0/16";

/// A follower of settings, and its metrics.
struct Followed {
    live: watch::Receiver<Arc<LiveSettings>>,
    compilation: watch::Receiver<Option<Arc<Compilation>>>,
    ranges: watch::Sender<ServiceRanges>,
    metrics: Arc<ServerMetrics>,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Followed {
    async fn new(source: SettingsSource) -> Self {
        let metrics = Arc::new(ServerMetrics::new());
        let (ranges, known) = watch::channel(ServiceRanges::from(vec![RANGE.to_owned()]));
        let follower = Follower::start(source, known, metrics.cluster.clone()).await;
        let follower = follower.unwrap_or_else(|error| panic!("{error}"));
        let (stop, stopped) = oneshot::channel();
        let (live, compilation) = (follower.subscribe(), follower.subscribe_compilation());
        let task = tokio::spawn(follower.run(async {
            let _ = stopped.await;
        }));
        Self { live, compilation, ranges, metrics, stop, task }
    }

    /// Waits until settings with this property are in use.
    async fn until(&mut self, what: &str, is: impl Fn(&LiveSettings) -> bool) -> Arc<LiveSettings> {
        let live = tokio::time::timeout(MAX_WAIT, self.live.wait_for(|live| is(live))).await;
        let live = live.unwrap_or_else(|_| panic!("waited in vain for {what}"));
        Arc::clone(&live.unwrap())
    }

    /// Waits until the metrics of settings have these values: valid, accepted, refused.
    async fn counted(&self, valid: u8, accepted: u32, refused: u32) {
        let expected = [
            format!("clusterip_settings_info{{hash=\"{}\"}} 1", self.live.borrow().hash),
            format!("clusterip_settings_valid {valid}"),
            format!("clusterip_settings_versions_total{{result=\"accepted\"}} {accepted}"),
            format!("clusterip_settings_versions_total{{result=\"refused\"}} {refused}"),
        ];
        eventually(&format!("{expected:#?}"), async || {
            let exposed = self.metrics.encode();
            let mut found: Vec<_> = exposed.lines().filter(|line| line.starts_with("clusterip_settings")).collect();
            found.sort_unstable();
            (found == expected).then_some(())
        })
        .await;
    }

    async fn stop(self) {
        self.stop.send(()).unwrap();
        self.task.await.unwrap();
    }
}

/// A client of a new service account with exactly these permissions in the whole cluster.
async fn with_permissions(plane: &ControlPlane, name: &str, rules: Value) -> Client {
    let namespace = plane.namespace(name).await;
    let user = plane.service_account(&namespace, "clusterip").await;
    plane.grant(&user, None, rules).await;
    plane.client_as(&user)
}

async fn start(source: &SettingsSource) -> Option<String> {
    let (_, ranges) = watch::channel(ServiceRanges::default());
    let started = Follower::start(source.clone(), ranges, Default::default()).await;
    started.err().map(|error| error.to_string())
}

#[tokio::test]
async fn policy_of_kubewarden_is_followed() {
    let plane = LentControlPlane::get().await;
    plane.apply(KUBEWARDEN).await;
    plane.kubectl(&["wait", "--for=condition=Established", "crd", "--all", "--timeout=60s"]).await.ok();
    let write = async |settings: Value| {
        let policy = json!({
            "apiVersion": "policies.kubewarden.io/v1", "kind": "ClusterAdmissionPolicy", "metadata": {"name": POLICY},
            "spec": {"module": "registry://example.com/policy:v1", "mutating": true, "rules": [], "settings": settings},
        });
        plane.apply(&policy.to_string()).await
    };
    let rules = json!([{
        "apiGroups": ["policies.kubewarden.io"], "resources": ["clusteradmissionpolicies"], "resourceNames": [POLICY],
        "verbs": ["get", "list", "watch"],
    }]);
    let client = with_permissions(&plane, "kubewarden-policy", rules).await;
    let source = SettingsSource::KubewardenPolicy { client, name: POLICY.to_owned() };
    let missing = format!(
        "settings: there is no ClusterAdmissionPolicy {POLICY}: create it, or name another one with --policy (kubectl \
         get clusteradmissionpolicies lists them)"
    );
    eventually("the missing policy to be reported", async || {
        (start(&source).await.as_ref() == Some(&missing)).then_some(())
    })
    .await;

    write(json!({"services": {"order": "lowest"}})).await;
    let mut followed = Followed::new(source.clone()).await;
    let first = followed.live.borrow().clone();
    let document = |order: &str| {
        let evidence = json!({"lookups": "namespace"});
        json!({"services": {"order": order, "serviceCIDRs": [RANGE], "evidence": evidence}})
    };
    assert_eq!(first.document, document("lowest"));
    followed.counted(1, 1, 0).await;

    write(json!({"services": {"order": "spread"}})).await;
    let second = followed.until("the change", |live| live.hash != first.hash).await;
    assert_eq!(second.document, document("spread"));
    followed.counted(1, 2, 0).await;
    assert_eq!(*followed.compilation.borrow(), None, "there are no objects to compile");

    // Mistakes: the last good version stays in use.
    write(json!({"services": {"order": "spread", "oder": "lowest"}})).await;
    followed.counted(0, 2, 1).await;
    let refused = start(&source).await.unwrap_or_default();
    assert!(refused.starts_with("settings: ClusterAdmissionPolicy clusterip: services.oder: unknown key"), "{refused}");
    plane.kubectl(&["delete", "clusteradmissionpolicy", POLICY]).await.ok();
    followed.counted(0, 2, 2).await;
    assert_eq!(*followed.live.borrow(), second, "refused settings are not published");
    assert!(!followed.live.has_changed().unwrap());
    // The settings are those in use, so they are valid again, and nothing is published.
    write(json!({"services": {"order": "spread"}})).await;
    followed.counted(1, 2, 2).await;
    assert!(!followed.live.has_changed().unwrap());

    // Without settings, the policy uses the defaults, as Kubewarden does.
    plane
        .kubectl(&["patch", "clusteradmissionpolicy", POLICY, "--type=merge", "-p", r#"{"spec":{"settings":null}}"#])
        .await
        .ok();
    followed.until("the defaults", |live| live.document["services"]["order"].is_null()).await;
    followed.stop().await;
}

#[tokio::test]
async fn service_ranges_of_the_cluster_complete_the_settings() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("settings.yaml");
    let write = |text: &str| std::fs::write(&file, text).unwrap();
    write("{}");
    let mut followed = Followed::new(SettingsSource::File(file.clone())).await;
    let ranges = |live: &LiveSettings| live.document["services"]["serviceCIDRs"].clone();
    assert_eq!(ranges(&followed.live.borrow()), json!([RANGE]));

    let two = json!([RANGE, "10.0.0.0/16"]);
    followed.ranges.send_replace(vec![RANGE.to_owned(), "10.0.0.0/16".to_owned()].into());
    followed.until("the second range", |live| ranges(live) == two).await;
    followed.counted(1, 2, 0).await;

    // The default pools are outside of the remaining range. The settings in use stay, but no address of the missing
    // range is allocated until it is back.
    followed.ranges.send_replace(vec!["10.0.0.0/16".to_owned()].into());
    let gone = |live: &LiveSettings| live.document["services"]["unusableServiceCIDRs"][RANGE].is_string();
    followed.until("the range to be gone", gone).await;
    followed.counted(0, 2, 1).await;
    followed.ranges.send_replace(vec![RANGE.to_owned()].into());
    followed.until("the first range alone", |live| ranges(live) == json!([RANGE])).await;
    followed.counted(1, 3, 1).await;

    // A refused version does not prevent changes of the cluster's ranges in the version in use.
    write("services: {order: so}");
    followed.counted(0, 3, 2).await;
    followed.ranges.send_replace(vec![RANGE.to_owned(), "10.0.0.0/16".to_owned()].into());
    followed.until("the second range again", |live| ranges(live) == two).await;
    followed.counted(0, 3, 2).await;
    followed.stop().await;
}

#[tokio::test]
async fn start_fails_without_the_definitions_of_pools() {
    let plane = ControlPlane::shared().await;
    let client = plane.client();
    let no_definitions = "settings: the cluster has no resources of the API clusterip-policy.io: install their \
                          definitions with kubectl apply -k deploy/api, or use --settings FILE";
    assert_eq!(start(&SettingsSource::Pools { client }).await.as_deref(), Some(no_definitions));
}

#[tokio::test]
async fn changed_settings_file_is_used() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("settings.yaml");
    std::fs::write(&file, "services: {order: lowest}").unwrap();
    let mut followed = Followed::new(SettingsSource::File(file.clone())).await;
    let first = followed.live.borrow().clone();
    // A state that lasts only for a moment, such as a file that is being written, is ignored.
    std::fs::write(&file, "").unwrap();
    std::fs::write(&file, "services: {order: ").unwrap();
    followed.counted(0, 1, 1).await;
    std::fs::remove_file(&file).unwrap();
    followed.counted(0, 1, 2).await;
    std::fs::write(&file, "services: {order: spread}").unwrap();
    let second = followed.until("the change", |live| live.hash != first.hash).await;
    assert_eq!(second.document["services"]["order"], json!("spread"));
    followed.counted(1, 2, 2).await;
    followed.stop().await;
}
