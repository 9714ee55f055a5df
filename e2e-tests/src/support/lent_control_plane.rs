//! Control planes that several tests use, one after the other. A test gets one that is as new: what the tests before it
//! wrote is undone in etcd, which takes a fraction of a second. To start a control plane takes several.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::Request;
use kube::{Client, Config};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::control_plane::{ControlPlane, Options};
use super::eventually::eventually;

/// What the API server itself changes all the time.
const LIVE: [&str; 3] = ["/registry/events/", "/registry/leases/kube-system/", "/registry/masterleases/"];
/// The API server writes its own objects some time after it is ready. When nothing has changed for this long, they are
/// all there.
const SETTLED: Duration = Duration::from_secs(1);
/// Within this time the API server follows what changes in etcd.
const FOLLOWS: Duration = Duration::from_millis(500);

/// An idle control plane costs as much in two minutes as the start of another one.
const MOST_IDLE: usize = 2;

static IDLE: Mutex<Vec<(ControlPlane, Contents)>> = Mutex::new(Vec::new());

/// A control plane with the default options that no other test uses now. It is for tests that stop neither its API server
/// nor its etcd, read no audit log, and install no ValidatingAdmissionPolicy unless it is for a namespace of this test
/// alone: the API server forgets the policy late.
///
/// What writes to it must end before it is given back: fields are dropped in order, so a struct has it after its servers.
pub struct LentControlPlane {
    lent: Option<(ControlPlane, Contents)>,
}

impl LentControlPlane {
    /// An idle control plane, or another one if all are in use.
    pub async fn get() -> Self {
        let idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner).pop();
        if let Some((plane, new)) = idle {
            new.restore(&plane).await;
            return Self { lent: Some((plane, new)) };
        }
        let plane = ControlPlane::start(Options::default());
        let new = Contents::settled(&plane).await;
        Self { lent: Some((plane, new)) }
    }
}

impl Deref for LentControlPlane {
    type Target = ControlPlane;

    fn deref(&self) -> &ControlPlane {
        &self.lent.as_ref().expect("it is given back in drop alone").0
    }
}

impl Drop for LentControlPlane {
    fn drop(&mut self) {
        let mut idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < MOST_IDLE {
            idle.extend(self.lent.take());
        }
    }
}

/// The objects in etcd, as Base64, by their keys.
#[derive(Clone, PartialEq, Eq)]
struct Contents(BTreeMap<String, String>);

impl Contents {
    async fn settled(plane: &ControlPlane) -> Self {
        let mut before = Self::read(plane).await;
        eventually("the API server to have written its own objects", async || {
            sleep(SETTLED).await;
            let now = Self::read(plane).await;
            (std::mem::replace(&mut before, now.clone()) == now).then_some(now)
        })
        .await
    }

    async fn read(plane: &ControlPlane) -> Self {
        let all = json!({"key": encode("/registry/"), "range_end": encode("/registry0")});
        let found = call(plane, "/v3/kv/range", &all).await;
        let text = |pair: &Value, field: &str| pair[field].as_str().unwrap_or_default().to_owned();
        let pairs = found["kvs"].as_array().into_iter().flatten();
        let pairs = pairs.map(|pair| (text(pair, "key"), text(pair, "value")));
        Self(pairs.filter(|(key, _)| !LIVE.iter().any(|live| decode(key).starts_with(live))).collect())
    }

    /// Writes these contents back.
    async fn restore(&self, plane: &ControlPlane) {
        let now = Self::read(plane).await;
        for key in now.0.keys().filter(|key| !self.0.contains_key(*key)) {
            call(plane, "/v3/kv/deleterange", &json!({ "key": key })).await;
        }
        for (key, value) in self.0.iter().filter(|(key, value)| now.0.get(*key) != Some(value)) {
            call(plane, "/v3/kv/put", &json!({"key": key, "value": value})).await;
        }
        plane.forget_namespaces();
        sleep(FOLLOWS).await;
    }
}

async fn call(plane: &ControlPlane, path: &str, body: &Value) -> Value {
    let client = Client::try_from(Config::new(plane.etcd().parse().unwrap())).unwrap();
    client.request(Request::post(path).body(body.to_string().into_bytes()).unwrap()).await.unwrap()
}

fn encode(text: &str) -> String {
    STANDARD.encode(text)
}

fn decode(text: &str) -> String {
    String::from_utf8(STANDARD.decode(text).unwrap()).unwrap()
}
