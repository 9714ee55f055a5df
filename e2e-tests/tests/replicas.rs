//! Several servers: replicas that claim addresses, and servers that must run alone.

use std::time::Duration;

use axum::http::Method;
use serde_json::{Value, json};

use crate::lease_claims::SETTINGS;
use crate::support::control_plane::{ControlPlane, Options};
use crate::support::eventually::eventually;
use crate::support::lent_control_plane::LentControlPlane;
use crate::support::move_helpers::{addresses, send, stored};
use crate::support::replicas::{Kind, Replicas, leases};
use crate::support::serve_process::{Server, ServerBuilder};

fn alone(plane: &ControlPlane, namespace: &str) -> ServerBuilder {
    ServerBuilder::new(plane).settings("{}").args(&["--namespace", namespace, "--service", "127.0.0.1"])
}

async fn why_not_ready(server: &Server) -> String {
    eventually("a server that is not ready", async || {
        let (status, why) = server.get("/readyz").await?;
        (status == 503 && why.contains("is at work and leads")).then_some(why)
    })
    .await
}

async fn leader(plane: &ControlPlane, namespace: &str) -> String {
    let lease = send(&plane.client(), Method::GET, &format!("{}/clusterip-leader", leases(namespace)), None).await;
    lease.unwrap()["spec"]["holderIdentity"].as_str().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn only_one_of_two_servers_without_claims_is_ready() {
    let plane = ControlPlane::shared().await;
    let namespace = plane.namespace("alone").await;
    let mut first = alone(&plane, &namespace).start().await;
    let mut second = alone(&plane, &namespace).spawn();
    let why = why_not_ready(&second).await;
    let holder = leader(&plane, &namespace).await;
    let expected = format!(
        "another server, {holder}, is at work and leads; both would hand out the same addresses: stop one of them, or \
         start all of them with --claims lease"
    );
    assert!(why.contains(&expected), "{why}");
    assert_eq!(first.get("/readyz").await.unwrap().0, 200);

    assert_eq!(first.terminate().await, 0);
    second.ready().await;
    // Running alone needs no other Lease than that of the leader.
    let all = send(&plane.client(), Method::GET, &leases(&namespace), None).await.unwrap();
    let names: Vec<&str> =
        all["items"].as_array().unwrap().iter().map(|lease| lease["metadata"]["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["clusterip-leader"]);

    // A start does not wait for the Lease of a killed server to expire.
    second.kill();
    let dead = leader(&plane, &namespace).await;
    let third = alone(&plane, &namespace).start().await;
    assert_eq!(leader(&plane, &namespace).await, dead);
    // When another server leads, this one becomes unready.
    third.logged(" leading").await;
    let path = format!("{}/clusterip-leader", leases(&namespace));
    let taken = json!({"spec": {"holderIdentity": "other_serve_0000000000000001", "leaseDurationSeconds": 600}});
    send(&plane.client(), Method::PATCH, &path, Some(&taken)).await.unwrap();
    why_not_ready(&third).await;
}

/// The settings with another Windows pool.
fn moved_on() -> String {
    SETTINGS.replace("172.21.1.0/24", "172.21.9.0/24")
}

async fn address(replicas: &Replicas<'_>, namespace: &str) -> String {
    let service = stored(&replicas.client, namespace, "web").await.unwrap();
    addresses(&service).first().map(ToString::to_string).unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn moves_wait_until_all_replicas_have_the_same_settings() {
    let plane = LentControlPlane::get().await;
    let replicas = Replicas::start(&plane, SETTINGS, "Fail", vec![Kind::usual(); 2]).await;
    let namespace = plane.namespace("agreement").await;
    replicas.create(&namespace, &Replicas::service(0, "web", Some("windows"))).await.unwrap();
    let before = address(&replicas, &namespace).await;
    assert!(before.starts_with("172.21.1."), "{before}");
    let leading = eventually("a leader", async || {
        let holder = leader(&plane, &replicas.namespace).await;
        (0..2).find(|nth| {
            replicas.server(*nth).log().iter().any(|line| line.contains(&holder) && line.contains("leading"))
        })
    })
    .await;
    let other = 1 - leading;

    replicas.change_settings_of(leading, &moved_on());
    let line = replicas.server(leading).logged("other replicas have other settings in use; nothing is moved").await;
    let lagging = replicas.leases("replica").await;
    let hash =
        |server: &Server| server.log().iter().rev().find_map(|line| line.split("hash=").nth(1).map(str::to_owned));
    assert_ne!(hash(replicas.server(leading)), hash(replicas.server(other)));
    let named: Vec<&Value> = lagging
        .iter()
        .map(|lease| &lease["spec"]["holderIdentity"])
        .filter(|holder| line.contains(holder.as_str().unwrap()))
        .collect();
    assert_eq!(named.len(), 1, "{line}");
    let metric = async |nth: usize, line: &str| {
        let (_, all) = replicas.server(nth).get("/metrics").await.unwrap();
        all.lines().any(|found| found == line)
    };
    assert!(metric(leading, "clusterip_replicas{settings=\"other\"} 1").await);
    // Nothing shows that the Service was considered and left, so it is observed for a while.
    for _ in 0..30 {
        assert_eq!(address(&replicas, &namespace).await, before);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    replicas.change_settings_of(other, &moved_on());
    eventually("the Service to be moved", async || {
        address(&replicas, &namespace).await.starts_with("172.21.9.").then_some(())
    })
    .await;
    assert!(metric(leading, "clusterip_replicas{settings=\"same\"} 2").await);
}

/// The permissions in `deploy/replicas` are enough for running replicas, and the API server accepts its manifests.
#[tokio::test]
async fn deployment_of_several_replicas_works() {
    const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/replicas");
    const NAMESPACE: &str = "clusterip-policy";
    let plane = ControlPlane::start(Options::default());
    plane.install_pools().await;
    // From one replica to several, and back.
    plane.kubectl(&["apply", "-k", &FOLDER.replace("replicas", "webhook")]).await.ok();
    plane.kubectl(&["apply", "-k", FOLDER]).await.ok();
    let again = plane.kubectl(&["apply", "-k", FOLDER]).await.ok();
    // kubectl replaces the selector of a budget as a whole, and reports a change although it is the same.
    let changed =
        again.lines().filter(|line| !line.ends_with(" unchanged") && !line.starts_with("poddisruptionbudget"));
    assert_eq!(changed.collect::<Vec<_>>(), [""; 0]);
    let get = async |path: &str| send(&plane.client(), Method::GET, path, None).await.unwrap();
    let deployment = get("/apis/apps/v1/namespaces/clusterip-policy/deployments/clusterip").await;
    let spec = &deployment["spec"];
    assert_eq!(
        (&spec["replicas"], &spec["strategy"]),
        (&json!(3), &json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}}))
    );
    let pod = &spec["template"]["spec"];
    let args: Vec<&str> =
        pod["containers"][0]["args"].as_array().unwrap().iter().map(|arg| arg.as_str().unwrap()).collect();
    let budget = get("/apis/policy/v1/namespaces/clusterip-policy/poddisruptionbudgets/clusterip").await;
    assert_eq!((&budget["spec"]["maxUnavailable"], &budget["spec"]["selector"]), (&json!(1), &spec["selector"]));

    // Two replicas run with these arguments and permissions.
    let kubeconfig = plane.kubeconfig_of(NAMESPACE, "clusterip").await;
    let start =
        || ServerBuilder::as_user(&kubeconfig).pools().args(&["--namespace", NAMESPACE]).args(&args[3..]).spawn();
    let mut servers = [start(), start()];
    for server in &mut servers {
        server.ready().await;
    }
    let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "1", "operation": "CREATE", "namespace": "default", "name": "web",
        "kind": {"group": "", "version": "v1", "kind": "Service"},
        "resource": {"group": "", "version": "v1", "resource": "services"},
        "object": {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"},
            "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]}},
    }});
    for server in &servers {
        let (_, answer) = server.post("/mutate", &review).await.unwrap();
        assert_eq!(answer["response"]["allowed"], true, "{answer}");
    }
    let labelled = async |kind: &str| {
        let list = get(&format!("{}?labelSelector=clusterip-policy/lease={kind}", leases(NAMESPACE))).await;
        list["items"].as_array().unwrap().len()
    };
    eventually("a Lease and a claim of each replica", async || {
        ((labelled("replica").await, labelled("claim").await) == (2, 2)).then_some(())
    })
    .await;
    let log = servers.iter().flat_map(Server::log).filter(|line| line.contains("forbidden")).collect::<Vec<_>>();
    assert_eq!(log, [""; 0]);

    plane.kubectl(&["apply", "-k", &FOLDER.replace("replicas", "webhook")]).await.ok();
    let deployment = get("/apis/apps/v1/namespaces/clusterip-policy/deployments/clusterip").await;
    assert_eq!(deployment["spec"]["strategy"], json!({"type": "Recreate"}));
}
