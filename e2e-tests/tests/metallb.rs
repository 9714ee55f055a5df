//! MetalLB's real controller beside `clusterip serve`: it takes the addresses that `clusterip` chooses, and chooses
//! none.

use std::env;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use crate::missing;
use axum::http::Method;
use serde_json::{Value, json};

use crate::external_admission::{OF_METALLB, Placed, SETTINGS, announced, of_metallb};
use crate::support::control_plane::ControlPlane;
use crate::support::eventually::eventually;
use crate::support::move_helpers::{path, request};
use crate::support::serve_process::{free_port, spawn_from_lasting_thread};

/// MetalLB's controller. It is killed when this value is dropped, and the kernel kills it when the test process ends.
struct Controller {
    child: Child,
    log: PathBuf,
    crds: PathBuf,
}

impl Controller {
    /// Starts the controller of the folder that `CLUSTERIP_METALLB` names, with an IPAddressPool that assigns no
    /// address by itself, and one that does. `None` if the variable is not set: the test is skipped.
    async fn start(plane: &ControlPlane) -> Option<Self> {
        let Some(folder) = env::var_os("CLUSTERIP_METALLB").map(PathBuf::from) else {
            missing::skip("metallb", "the tests with MetalLB need the folder that CLUSTERIP_METALLB names");
            return None;
        };
        let crds = folder.join("crds");
        plane.kubectl(&["apply", "--server-side", "--filename", crds.to_str().unwrap()]).await.ok();
        plane
            .kubectl(&["wait", "--for=condition=Established", "crd/ipaddresspools.metallb.io", "--timeout=60s"])
            .await
            .ok();
        plane.kubectl(&["create", "namespace", "metallb-system"]).await.ok();
        for (name, range, assigns) in [("lan", "10.0.11.0/24", false), ("other", "10.0.13.0/24", true)] {
            let pool = json!({
                "apiVersion": "metallb.io/v1beta1", "kind": "IPAddressPool",
                "metadata": {"namespace": "metallb-system", "name": name},
                "spec": {"addresses": [range], "autoAssign": assigns},
            });
            plane.apply(&pool.to_string()).await;
        }
        let log = plane.folder().join("metallb.log");
        let output = std::fs::File::create(&log).unwrap();
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "KILL", "--"])
            .arg(folder.join("controller"))
            .args(["--namespace=metallb-system", "--webhook-mode=disabled"])
            .arg(format!("--port={}", free_port()))
            .env("KUBECONFIG", plane.kubeconfig())
            .stdin(Stdio::null())
            .stdout(output.try_clone().unwrap())
            .stderr(output);
        Some(Self { child: spawn_from_lasting_thread(command).unwrap(), log, crds })
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("the log of MetalLB:\n{}", std::fs::read_to_string(&self.log).unwrap_or_default());
        }
    }
}

async fn get(placed: &Placed, namespace: &str, name: &str) -> Value {
    placed.client.request(request(Method::GET, &path(namespace, name), &Value::Null)).await.unwrap()
}

/// The address in the status of a Service, which MetalLB writes.
fn shown(service: &Value) -> Option<String> {
    Some(service.pointer("/status/loadBalancer/ingress/0/ip")?.as_str().unwrap().to_owned())
}

/// Waits until MetalLB shows the address of a record.
async fn is_shown(placed: &Placed, name: &str, record: Option<&String>) {
    eventually("MetalLB to take the address", async || {
        (shown(&get(placed, "shop", name).await).as_ref() == record).then_some(())
    })
    .await;
}

#[tokio::test]
async fn metallb_takes_the_addresses_that_it_is_given_and_chooses_none() {
    let placed = Placed::with(&format!("{}{OF_METALLB}", SETTINGS.trim_end())).await;
    let Some(controller) = Controller::start(&placed.plane).await else { return };

    // The addresses that clusterip chose, also of two Services that share one.
    let shared = |port| of_metallb(json!({"metallb.io/allow-shared-ip": "front"}), port);
    let [web, _] = announced(&placed.create("shop", "web", of_metallb(json!({}), 80)).await.unwrap());
    let [front, _] = announced(&placed.create("shop", "front", shared(80)).await.unwrap());
    assert!(web.is_some() && front.is_some());
    is_shown(&placed, "web", web.as_ref()).await;
    is_shown(&placed, "front", front.as_ref()).await;
    let [tls, _] = announced(&placed.create("shop", "front-tls", shared(443)).await.unwrap());
    assert_eq!(tls, front, "both share the address");
    is_shown(&placed, "front-tls", front.as_ref()).await;

    // A tenant moves its Service within the pool.
    let asked = json!({"metadata": {"annotations": {"clusterip-policy/external-address": "10.0.11.40"}}});
    placed.patch("web", &asked).await.unwrap();
    is_shown(&placed, "web", Some(&"10.0.11.40".to_owned())).await;

    // A tenant whom the pool does not admit names the IPAddressPool, or waits for one that assigns by itself.
    let named = |pool: &str| of_metallb(json!({"metallb.io/address-pool": pool}), 80);
    for (name, change) in [("named", named("lan")), ("waits", of_metallb(json!({}), 80)), ("other", named("other"))] {
        placed.create("bank", name, change).await.unwrap();
    }
    // MetalLB itself would give this Service an address, so it takes back what the controller of clusterip refuses.
    placed.plane.kubectl(&["create", "namespace", "clusterip-policy"]).await;
    placed.create("clusterip-policy", "unseen", named("other")).await.unwrap();
    eventually("MetalLB to see the refused address", async || {
        let unseen = get(&placed, "clusterip-policy", "unseen").await;
        (announced(&unseen) == [None, Some("0.0.0.0".to_owned())] && shown(&unseen).is_none()).then_some(())
    })
    .await;
    // It has looked at all Services once it has given this one its address.
    let [last, _] = announced(&placed.create("shop", "last", of_metallb(json!({}), 80)).await.unwrap());
    is_shown(&placed, "last", last.as_ref()).await;
    for name in ["named", "waits", "other"] {
        assert_eq!(shown(&get(&placed, "bank", name).await), None, "{name}");
    }
    let crds = controller.crds.clone();
    drop(controller);
    placed.plane.kubectl(&["delete", "--wait=false", "--filename", crds.to_str().unwrap()]).await.ok();
}
