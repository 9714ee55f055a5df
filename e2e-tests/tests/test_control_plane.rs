//! The control plane that the tests run on, and how it ends.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Command, Stdio};

use k8s_openapi::api::core::v1::{ConfigMap, Service};
use k8s_openapi::api::networking::v1::ServiceCIDR;
use kube::Api;

use crate::support::control_plane::{ControlPlane, Options, PROGRAM};

#[tokio::test]
async fn control_plane_has_the_built_version() {
    let plane = ControlPlane::shared();
    let versions: serde_json::Value =
        serde_json::from_str(&plane.kubectl(&["version", "--output", "json"]).await.ok()).unwrap();
    // `make test-compat` runs older servers with the kubectl of the newest.
    assert_eq!(versions["serverVersion"]["gitVersion"], plane.version());
}

#[tokio::test]
async fn control_plane_has_the_requested_service_ranges() {
    let dual = ControlPlane::start(Options::dual_stack());
    for (plane, ranges) in
        [(ControlPlane::shared(), vec!["172.21.0.0/16"]), (&dual, vec!["172.21.0.0/16", "fd00:21::/108"])]
    {
        let client = plane.client();
        if plane.tells_addresses() {
            let range = Api::<ServiceCIDR>::all(client.clone()).get("kubernetes").await.unwrap();
            assert_eq!(range.spec.unwrap().cidrs.unwrap(), ranges);
        }
        let kubernetes = Api::<Service>::namespaced(client, "default").get("kubernetes").await.unwrap();
        assert_eq!(kubernetes.spec.unwrap().cluster_ip.as_deref(), Some("172.21.0.1"));
    }
}

#[tokio::test]
async fn each_test_gets_its_own_namespace() {
    let plane = ControlPlane::shared();
    let names = [plane.namespace("harness").await, plane.namespace("harness").await];
    assert_eq!(names, ["harness", "harness-2"]);
}

#[tokio::test]
async fn programs_can_run_as_a_service_account() {
    let plane = ControlPlane::shared();
    let namespace = plane.namespace("harness-rights").await;
    plane.kubectl(&["create", "serviceaccount", "without-permissions", "--namespace", &namespace]).await.ok();
    let kubeconfig = plane.kubeconfig_of(&namespace, "without-permissions").await;
    let denied = plane.kubectl(&["get", "services", "--kubeconfig", kubeconfig.to_str().unwrap()]).await.refused();
    assert_eq!(
        denied,
        format!(
            "Error from server (Forbidden): services is forbidden: User \"system:serviceaccount:{namespace}:without-permissions\" \
             cannot list resource \"services\" in API group \"\" in the namespace \"default\"\n"
        )
    );
}

#[tokio::test]
async fn objects_survive_a_restart_of_the_api_server() {
    let plane = ControlPlane::start(Options::default());
    let config_maps: Api<ConfigMap> = Api::namespaced(plane.client(), "default");
    plane.kubectl(&["create", "configmap", "kept"]).await.ok();
    plane.stop_api_server();
    assert!(config_maps.get("kept").await.is_err());
    plane.start_api_server();
    assert_eq!(config_maps.get("kept").await.unwrap().metadata.name.as_deref(), Some("kept"));
}

#[tokio::test]
async fn controller_manager_runs_if_requested() {
    let plane = ControlPlane::start(Options { controller_manager: true, ..Options::default() });
    let namespace = plane.namespace("managed").await;
    plane
        .kubectl(&["create", "deployment", "web", "--image", "registry.example.com/web", "--namespace", &namespace])
        .await
        .ok();
    let pods = ["wait", "--for=create", "pod", "--selector=app=web", "--timeout=60s", "--namespace", &namespace];
    plane.kubectl(&pods).await.ok();
}

/// A test that is killed must not leave a control plane behind.
#[test]
fn all_processes_end_when_standard_input_closes() {
    let mut child = Command::new(std::env::var_os(PROGRAM).unwrap())
        .arg("-machine")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    let about: serde_json::Value = serde_json::from_str(&line).unwrap();
    let folder = std::path::Path::new(about["folder"].as_str().unwrap());
    assert!(folder.exists());
    drop(child.stdin.take());
    assert_eq!(output.read_to_end(&mut Vec::new()).unwrap(), 0);
    assert!(child.wait().unwrap().success());
    assert!(!folder.exists());
    let server = about["server"].as_str().unwrap().strip_prefix("https://").unwrap();
    assert_eq!(
        std::net::TcpStream::connect(server).map_err(|error| error.kind()).err(),
        Some(std::io::ErrorKind::ConnectionRefused)
    );
}
