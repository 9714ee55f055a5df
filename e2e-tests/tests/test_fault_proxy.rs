//! The proxy in front of the API server that other tests use forwards requests unchanged.

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Service;
use kube::Api;
use kube::api::{WatchEvent, WatchParams};
use serde_json::json;

use crate::support::control_plane::ControlPlane;
use crate::support::eventually::MAX_WAIT;
use crate::support::fault_proxy::Proxy;
use crate::support::move_helpers::create;

#[tokio::test]
async fn proxy_forwards_watches() {
    let plane = ControlPlane::shared().await;
    let namespace = plane.namespace("watched").await;
    let proxy = Proxy::start(&plane).await;
    let services: Api<Service> = Api::namespaced(proxy.client(), &namespace);
    let version = services.list(&<_>::default()).await.unwrap().metadata.resource_version.unwrap();
    let mut events = services.watch(&WatchParams::default(), &version).await.unwrap().boxed();
    for name in ["one", "two"] {
        create(&plane.client(), &namespace, name, json!({"ports": [{"port": 80}]})).await;
        let event = tokio::time::timeout(MAX_WAIT, events.next()).await.expect("an event").unwrap().unwrap();
        let WatchEvent::Added(service) = event else { panic!("{event:?}") };
        assert_eq!(service.metadata.name.as_deref(), Some(name));
    }
}

#[tokio::test]
async fn proxy_forwards_the_identity_of_the_client() {
    let plane = ControlPlane::shared().await;
    let namespace = plane.namespace("clients").await;
    let proxy = Proxy::start(&plane).await;
    let client = kube::Client::try_from(plane.config(proxy.url(), "unknown-token")).unwrap();
    let error = Api::<Service>::namespaced(client, &namespace).list(&<_>::default()).await.unwrap_err();
    assert!(matches!(&error, kube::Error::Api(status) if status.code == 401), "{error}");
    Api::<Service>::namespaced(proxy.client(), &namespace).list(&<_>::default()).await.unwrap();
}
