//! Pod CIDRs that others set, checked by `clusterip serve` as the webhook of a real API server.

use axum::http::{HeaderMap, Method, Request};
use clusterip::webhook::registration;
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};

use crate::support::eventually::eventually;
use crate::support::lent_control_plane::LentControlPlane;
use crate::support::move_helpers::send;
use crate::support::node_ipam_controller::NodeIpam;
use crate::support::node_webhook_rules::{block, node, nodes};
use crate::support::serve_process::{Server, ServerBuilder};

/// Nodes of other operating systems are in no pool, so our controller ignores them. The Service ranges are those of the
/// control plane, because old versions of Kubernetes do not publish them.
fn settings(explicit: &str) -> String {
    format!(
        "
services:
  serviceCIDRs: [172.21.0.0/16]
nodes:
  explicit: {explicit}
  pools:
  - {{name: linux, cidrs: [10.1.0.0/16], match: {{os: linux}}}}
  - {{name: windows, cidrs: [10.2.0.0/16], exclude: [10.2.7.0/24], match: {{os: windows}}}}
"
    )
}

struct Judged {
    server: Server,
    plane: LentControlPlane,
}

impl Judged {
    async fn by(explicit: &str) -> Self {
        let plane = LentControlPlane::get().await;
        // The server has an account of its own, because the webhook ignores the patches of this account.
        let namespace = plane.namespace("server").await;
        let user = plane.service_account(&namespace, "clusterip").await;
        let everything = json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]);
        plane.grant(&user, None, everything).await;
        let server = ServerBuilder::as_user(&plane.kubeconfig_of(&namespace, "clusterip").await)
            .args(&["--namespace", &namespace])
            .settings(&settings(explicit))
            .registered()
            .start()
            .await;
        let judged = Self { plane, server };
        judged.are_asked_about().await;
        judged
    }

    /// Waits until the webhook is called for Nodes: all settings warn of or deny a block outside of every pool.
    async fn are_asked_about(&self) {
        eventually("the webhook to be asked about Nodes", async || {
            (self.create("trial", "linux", block("10.99.0.0/24"), true).await != "created").then_some(())
        })
        .await;
    }

    /// Changes the settings and waits until they are in use.
    async fn change(&self, settings: &str, said: &str) {
        let before = self.server.log().iter().filter(|line| line.contains("settings in use")).count();
        std::fs::write(self.server.folder().join("settings.yaml"), settings).unwrap();
        eventually(said, async || {
            let now = self.server.log().iter().filter(|line| line.contains("settings in use")).count();
            (now > before).then_some(())
        })
        .await;
    }

    /// Creates a Node and returns a summary of the answer of the API server.
    async fn create(&self, name: &str, os: &str, spec: Value, dry_run: bool) -> String {
        let node = json!({"apiVersion": "v1", "kind": "Node",
            "metadata": {"name": name, "labels": {"kubernetes.io/os": os}}, "spec": spec});
        let path = if dry_run { "/api/v1/nodes?dryRun=All" } else { "/api/v1/nodes" };
        let request = Request::post(path).header("content-type", "application/json");
        let request = request.body(Body::from(serde_json::to_vec(&node).unwrap())).unwrap();
        let answer = self.client().send(request).await.unwrap();
        let (status, warnings) = (answer.status(), warnings(answer.headers()));
        let body = answer.into_body().collect_bytes().await.unwrap();
        let body: Value = serde_json::from_slice(&body).unwrap();
        let message = body["message"].as_str().unwrap_or_default();
        match (status.is_success(), warnings.as_slice()) {
            (true, []) => "created".to_owned(),
            (true, warnings) => format!("warned: {}", warnings.join("; ")),
            (false, _) => message
                .split_once("denied the request: ")
                .map_or(message.to_owned(), |(_, why)| format!("denied: {why}")),
        }
    }

    /// Creates a Node, which must succeed without a warning, and waits until the server has seen it.
    async fn holds(&self, name: &str, os: &str, cidr: &str) {
        assert_eq!(self.create(name, os, block(cidr), false).await, "created", "{name}");
        // A watch brings the Node, and then its block is in use.
        eventually("the Node to be known", async || {
            (self.create("twin", os, block(cidr), true).await != "created").then_some(())
        })
        .await;
    }

    /// The names of the registered webhooks.
    async fn webhooks(&self) -> Vec<String> {
        let path =
            format!("/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/{}", registration::NAME);
        let configuration = send(&self.client(), Method::GET, &path, None).await.unwrap();
        let webhooks = configuration["webhooks"].as_array().unwrap().iter();
        webhooks.map(|webhook| webhook["name"].as_str().unwrap().to_owned()).collect()
    }

    fn client(&self) -> Client {
        self.plane.client()
    }

    /// The decisions about a Node in the log, in order.
    fn decisions(&self, name: &str) -> Vec<String> {
        let named = format!("name=\"{name}\"");
        let log = self.server.log();
        let lines = log.iter().filter(|line| line.contains("kind=\"Node\"") && line.contains(&named));
        lines.cloned().collect()
    }
}

/// The warnings of an answer of the API server, as kubectl prints them: `299 - "TEXT"`.
fn warnings(headers: &HeaderMap) -> Vec<String> {
    let texts = headers.get_all("warning").iter().map(|value| value.to_str().unwrap());
    let unquoted =
        texts.map(|text| text.strip_prefix("299 - \"").and_then(|text| text.strip_suffix('"')).unwrap_or(text));
    unquoted.map(|text| text.replace("\\\"", "\"").replace("\\\\", "\\")).collect()
}

/// Why a Node with the block of another one must not be accepted. `blocks_set_by_hand.rs` of the core has all reasons.
const TAKEN: &str = "10.1.3.0/24 overlaps 10.1.3.0/24 of Node linux-1";

#[tokio::test]
async fn blocks_that_others_set_are_warned_of_or_denied_while_the_settings_have_node_pools() {
    let mut judged = Judged::by("warn").await;
    block_of_the_controller_manager_is_warned_of(&judged).await;
    judged.holds("linux-1", "linux", "10.1.3.0/24").await;
    assert_eq!(judged.create("taken", "linux", block("10.1.3.0/24"), true).await, format!("warned: {TAKEN}"));
    for (name, os, spec) in [("free", "linux", block("10.1.5.0/24")), ("without", "windows", json!({}))] {
        assert_eq!(judged.create(name, os, spec, true).await, "created", "{name}");
    }
    assert_eq!(judged.decisions("without"), Vec::<String>::new(), "the webhook is called for a Node without blocks");
    assert!(judged.decisions("taken")[0].contains("podcidrs=\"10.1.3.0/24\""), "{:?}", judged.decisions("taken"));

    judged.change(&settings("deny"), "the settings to deny").await;
    let denied =
        format!("denied: Node taken: {TAKEN}; omit podCIDR and podCIDRs, or use a free block of the Node's pool");
    assert_eq!(judged.create("taken", "linux", block("10.1.3.0/24"), false).await, denied);
    assert_eq!(judged.create("free", "linux", block("10.1.5.0/24"), false).await, "created");
    block_of_the_controller_manager_is_denied(&judged).await;

    // An update is checked too, but only if it sets the first blocks of the Node.
    assert_eq!(judged.create("late", "inferno", json!({}), false).await, "created");
    let late = nodes(judged.client());
    let set = |cidr: &str| kube::api::Patch::Merge(json!({ "spec": block(cidr) }));
    let refused = late.patch("late", &<_>::default(), &set("10.1.3.0/24")).await.unwrap_err().to_string();
    assert!(refused.contains(TAKEN), "{refused}");
    let set = late.patch("late", &<_>::default(), &set("10.77.1.0/24")).await.unwrap();
    let (first, all) = (&set.data["spec"]["podCIDR"], &set.data["spec"]["podCIDRs"]);
    assert_eq!(json!({"podCIDR": first, "podCIDRs": all}), block("10.77.1.0/24"));

    // The webhook handles Nodes while the settings have pools of Nodes.
    const SERVICES: &str = "services.clusterip-policy.io";
    const NODES: &str = "nodes.clusterip-policy.io";
    assert_eq!(judged.webhooks().await, [SERVICES, NODES]);
    let are = async |expected: &[&str]| {
        eventually("the webhook configuration to follow", async || (judged.webhooks().await == expected).then_some(()))
            .await;
    };
    let services = "services: {pools: [{name: all, cidrs: [172.21.64.0/24]}]}";
    judged.change(services, "settings without Nodes").await;
    are(&[SERVICES]).await;
    judged.change(&settings("deny"), "settings with Nodes").await;
    are(&[SERVICES, NODES]).await;
    judged.are_asked_about().await;
    assert!(judged.create("twin", "linux", block("10.1.3.0/24"), true).await.starts_with("denied: "));

    // Without the server, Nodes can be created.
    judged.server.kill();
    assert_eq!(judged.webhooks().await, [SERVICES, NODES]);
    assert_eq!(judged.create("second", "linux", block("10.1.3.0/24"), false).await, "created");
    assert_eq!(judged.create("third", "linux", json!({}), false).await, "created");
}

fn allocator(judged: &Judged) -> NodeIpam {
    NodeIpam::start(&judged.plane, &["--allocate-node-cidrs=true", "--cluster-cidr=10.1.0.0/16"])
}

async fn block_of_the_controller_manager_is_warned_of(judged: &Judged) {
    let all = nodes(judged.client());
    let runs = allocator(judged);
    // The Node is in none of our pools, so that only the controller manager gives it a block.
    all.create(&<_>::default(), &node("warned", "inferno", json!({}))).await.unwrap();
    let given = eventually("the controller manager to assign a block", async || {
        all.get("warned").await.unwrap().data["spec"]["podCIDR"].as_str().map(str::to_owned)
    })
    .await;
    drop(runs);
    assert_eq!(given, "10.1.0.0/24");
    let decisions = judged.decisions("warned");
    let why = r#"10.1.0.0/24 lies in pool \"linux\", no pool of Nodes matches kubernetes.io/os=inferno"#;
    assert_eq!(decisions.len(), 1, "{decisions:#?}");
    assert!(decisions[0].contains("operation=\"UPDATE\"") && decisions[0].contains(why), "{decisions:#?}");
}

async fn block_of_the_controller_manager_is_denied(judged: &Judged) {
    let all = nodes(judged.client());
    let runs = allocator(judged);
    all.create(&<_>::default(), &node("denied", "inferno", json!({}))).await.unwrap();
    eventually("the controller manager to try", async || (!judged.decisions("denied").is_empty()).then_some(())).await;
    let log = eventually("the denial in the log of the controller manager", async || {
        Some(NodeIpam::log(&judged.plane)).filter(|log| log.contains("omit podCIDR and podCIDRs"))
    })
    .await;
    drop(runs);
    let spec = &all.get("denied").await.unwrap().data["spec"];
    assert_eq!(spec["podCIDR"], Value::Null, "{log}");
}
