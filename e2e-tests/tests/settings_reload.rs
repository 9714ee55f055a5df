//! Settings that change while the server runs.

use std::sync::{Arc, LazyLock};

use clusterip::server_metrics::ServerMetrics;
use clusterip_host::cluster::watch::service_ranges::ServiceRanges;
use clusterip_host::live_settings::{Follower, LiveSettings, Source};
use clusterip_host::policy::module::{EMBEDDED, Module};
use k8s_openapi::api::events::v1::Event;
use kube::Client;
use kube::api::{Api, ListParams};
use serde_json::{Value, json};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

use crate::support::control_plane::ControlPlane;
use crate::support::eventually::{MAX_WAIT, eventually};

static MODULE: LazyLock<Arc<Module>> = LazyLock::new(|| Arc::new(Module::new(EMBEDDED).unwrap()));

const NAME: &str = "clusterip-settings";
/// The Service range of the API server in these tests.
const RANGE: &str = "172.21.0.0/16";

/// A follower of settings, and its metrics.
struct Followed {
    live: watch::Receiver<Arc<LiveSettings>>,
    ranges: watch::Sender<ServiceRanges>,
    metrics: Arc<ServerMetrics>,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Followed {
    async fn new(source: Source) -> Self {
        Self::with(source, |follower| follower).await
    }

    async fn with(source: Source, how: impl Fn(Follower) -> Follower) -> Self {
        let metrics = Arc::new(ServerMetrics::new());
        let (ranges, known) = watch::channel(ServiceRanges::from(vec![RANGE.to_owned()]));
        let follower = Follower::start(source, Arc::clone(&MODULE), known, metrics.cluster.clone()).await;
        let follower = how(follower.unwrap_or_else(|error| panic!("{error}")));
        let (stop, stopped) = oneshot::channel();
        let live = follower.subscribe();
        let task = tokio::spawn(follower.run(async {
            let _ = stopped.await;
        }));
        Self { live, ranges, metrics, stop, task }
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

fn config_map(client: &Client, namespace: &str) -> Source {
    Source::ConfigMap { client: client.clone(), namespace: namespace.to_owned(), name: NAME.to_owned() }
}

async fn write(plane: &ControlPlane, namespace: &str, data: Value) {
    let metadata = json!({ "name": NAME, "namespace": namespace });
    plane
        .apply(&json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data }).to_string())
        .await;
}

/// The notes of all Events, sorted.
async fn notes(client: &Client, namespace: &str) -> Vec<String> {
    let events = Api::<Event>::namespaced(client.clone(), namespace).list(&ListParams::default()).await.unwrap();
    for event in &events {
        let about = event.regarding.clone().unwrap();
        assert_eq!(
            (about.kind.as_deref(), about.name.as_deref(), event.reason.as_deref(), event.type_.as_deref()),
            (Some("ConfigMap"), Some(NAME), Some("SettingsRefused"), Some("Warning"))
        );
    }
    let mut notes: Vec<_> = events.into_iter().filter_map(|event| event.note).collect();
    notes.sort();
    notes
}

#[tokio::test]
async fn changed_config_map_is_used_and_a_broken_one_is_ignored() {
    let plane = ControlPlane::shared();
    let namespace = plane.namespace("settings-followed").await;
    write(plane, &namespace, json!({ "settings.yaml": "services: {order: lowest}" })).await;

    // The account has exactly these permissions.
    plane.kubectl(&["create", "serviceaccount", "clusterip", "--namespace", &namespace]).await.ok();
    plane
        .apply(&format!(
            r#"
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {{name: settings, namespace: {namespace}}}
rules:
- {{apiGroups: [""], resources: [configmaps], resourceNames: [{NAME}], verbs: [get, list, watch]}}
- {{apiGroups: [events.k8s.io], resources: [events], verbs: [create]}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {{name: settings, namespace: {namespace}}}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: Role, name: settings}}
subjects: [{{kind: ServiceAccount, name: clusterip, namespace: {namespace}}}]
"#
        ))
        .await;
    let client = plane.client_with(&plane.token(&namespace, "clusterip").await);
    eventually("the rights", async || {
        Api::<k8s_openapi::api::core::v1::ConfigMap>::namespaced(client.clone(), &namespace).get(NAME).await.ok()
    })
    .await;

    let mut followed = Followed::new(config_map(&client, &namespace)).await;
    let first = followed.live.borrow().clone();
    let document = |order: &str| json!({"services": {"order": order, "serviceCIDRs": [RANGE], "evidence": {"lookups": "namespace"}}});
    assert_eq!(first.document, document("lowest"));
    followed.counted(1, 1, 0).await;

    write(plane, &namespace, json!({ "settings.yaml": "services: {order: spread}" })).await;
    let second = followed.until("the change", |live| live.hash != first.hash).await;
    assert_eq!(second.document, document("spread"));
    followed.counted(1, 2, 0).await;

    let broken =
        "services: {oder: lowest, pools: [{name: a, cidrs: [10.0.0.0/24]}, {name: a, cidrs: [172.21.0.0/24]}]}";
    write(plane, &namespace, json!({ "settings.yaml": broken })).await;
    followed.counted(0, 2, 1).await;
    write(plane, &namespace, json!({ "settings.yml": "{}" })).await;
    followed.counted(0, 2, 2).await;
    // The same mistakes again cause no Event.
    write(plane, &namespace, json!({ "settings.yml": "services: {}" })).await;
    let mistakes = clusterip_host::live_settings::check_settings(
        &MODULE,
        clusterip_host::yaml::single(broken).unwrap(),
        &vec![RANGE.to_owned()].into(),
    )
    .unwrap_err()
    .to_string();
    assert!(mistakes.lines().count() >= 3, "{mistakes}");
    let mut expected = vec![
        format!("settings refused, the previous ones stay in use:\n{mistakes}"),
        "settings refused, the previous ones stay in use:\nthe configmap has no key settings.yaml, but settings.yml"
            .to_owned(),
    ];
    expected.sort();
    let admin = plane.client();
    eventually("both events", async || (notes(&admin, &namespace).await.len() >= 2).then_some(())).await;
    assert_eq!(notes(&admin, &namespace).await, expected);
    assert_eq!(*followed.live.borrow(), second, "refused settings are not published");
    assert!(!followed.live.has_changed().unwrap());

    plane.kubectl(&["delete", "configmap", NAME, "--namespace", &namespace]).await.ok();
    followed.counted(0, 2, 3).await;
    // The settings are those in use, so they are valid again, and nothing is published.
    write(plane, &namespace, json!({ "settings.yaml": "services: {order: spread} # again" })).await;
    followed.counted(1, 2, 3).await;
    assert!(!followed.live.has_changed().unwrap());
    followed.stop().await;
}

#[tokio::test]
async fn only_the_server_writes_events_about_settings() {
    let plane = ControlPlane::shared();
    let (client, namespace) = (plane.client(), plane.namespace("settings-silently").await);
    write(plane, &namespace, json!({ "settings.yaml": "{}" })).await;
    let silent = Followed::with(config_map(&client, &namespace), Follower::silently).await;
    let broken = |number: u8| json!({ "settings.yaml": format!("services: {{oder: {number}}}") });
    write(plane, &namespace, broken(1)).await;
    silent.counted(0, 1, 1).await;
    write(plane, &namespace, json!({ "settings.yaml": "{}" })).await;
    silent.counted(1, 1, 1).await;
    let loud = Followed::new(config_map(&client, &namespace)).await;
    write(plane, &namespace, broken(2)).await;
    silent.counted(0, 1, 2).await;
    loud.counted(0, 1, 1).await;
    // There is one Event, and none about the earlier mistake, which only the silent follower has seen.
    eventually("an event", async || (!notes(&client, &namespace).await.is_empty()).then_some(())).await;
    assert_eq!(notes(&client, &namespace).await.len(), 1);
    silent.stop().await;
    loud.stop().await;
}

#[tokio::test]
async fn service_ranges_of_the_cluster_complete_the_settings() {
    let plane = ControlPlane::shared();
    let (client, namespace) = (plane.client(), plane.namespace("settings-ranges").await);
    write(plane, &namespace, json!({ "settings.yaml": "{}" })).await;
    let mut followed = Followed::new(config_map(&client, &namespace)).await;
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
    write(plane, &namespace, json!({ "settings.yaml": "services: {order: so}" })).await;
    followed.counted(0, 3, 2).await;
    followed.ranges.send_replace(vec![RANGE.to_owned(), "10.0.0.0/16".to_owned()].into());
    followed.until("the second range again", |live| ranges(live) == two).await;
    followed.counted(0, 3, 2).await;

    write(plane, &namespace, json!({ "settings.yaml": "services: {serviceCIDRs: [172.16.0.0/12]}" })).await;
    let live = followed.until("the user's own", |live| ranges(live) == json!(["172.16.0.0/12"])).await;
    let expected = "services.serviceCIDRs: the settings have 172.16.0.0/12, but the cluster has 172.21.0.0/16, \
                    10.0.0.0/16: remove the key to use the ranges of the cluster";
    assert_eq!(live.warnings, [expected]);
    followed.stop().await;
}

#[tokio::test]
async fn start_fails_with_invalid_settings() {
    let plane = ControlPlane::shared();
    let (client, namespace) = (plane.client(), plane.namespace("settings-start").await);
    let file = tempfile::tempdir().unwrap();
    let broken = file.path().join("broken.yaml");
    std::fs::write(&broken, "services:\n  oder: lowest\n  order: so\n").unwrap();
    let absent = file.path().join("absent.yaml");
    let start = async |source: &Source| {
        let (_, ranges) = watch::channel(ServiceRanges::default());
        let started = Follower::start(source.clone(), Arc::clone(&MODULE), ranges, Default::default()).await;
        started.err().map(|error| error.to_string())
    };

    let from = config_map(&client, &namespace);
    let missing = format!(
        "settings: there is no configmap {namespace}/{NAME}: create it, with the settings in its key settings.yaml \
         (`{{}}` stands for the defaults)"
    );
    assert_eq!(start(&from).await, Some(missing), "no configmap");
    let written = json!({"services": {"oder": "lowest", "order": "so"}});
    let mistakes = clusterip_host::live_settings::check_settings(&MODULE, written, &ServiceRanges::default())
        .unwrap_err()
        .to_string();
    assert_eq!(mistakes.lines().count(), 2, "{mistakes}");
    struct Case<'a> {
        name: &'static str,
        data: Value,
        /// The error, if the start must fail.
        expected: Option<&'a str>,
    }
    let cases = [
        Case { name: "no key", data: json!({}), expected: Some("the configmap has no key settings.yaml, but no key") },
        Case {
            name: "mistakes",
            data: json!({ "settings.yaml": "services: {oder: lowest, order: so}" }),
            expected: Some(mistakes.as_str()),
        },
        Case {
            name: "two documents",
            data: json!({ "settings.yaml": "{}\n---\n{}\n" }),
            expected: Some("line 3: more than one document"),
        },
        Case { name: "defaults", data: json!({ "settings.yaml": "{}" }), expected: None },
        Case { name: "nothing is as the defaults", data: json!({ "settings.yaml": "# none\n" }), expected: None },
    ];
    for Case { name, data, expected } in cases {
        write(plane, &namespace, data).await;
        let expected =
            expected.map(|text| format!("settings: configmap {namespace}/{NAME}, key settings.yaml\n{text}"));
        assert_eq!(start(&from).await, expected, "{name}");
    }
    let (name, source) = (broken.display(), Source::File(broken.clone()));
    assert_eq!(start(&source).await, Some(format!("settings: {name}\n{mistakes}")), "a file");
    let (name, source) = (absent.display(), Source::File(absent.clone()));
    let expected = format!("settings: {name}\n{name}: No such file or directory (os error 2)");
    assert_eq!(start(&source).await, Some(expected), "no file");
    assert_eq!(start(&Source::Defaults).await, None, "defaults");
}

#[tokio::test]
async fn changed_settings_file_is_used() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("settings.yaml");
    std::fs::write(&file, "services: {order: lowest}").unwrap();
    let mut followed = Followed::new(Source::File(file.clone())).await;
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
