//! A cluster whose nodes run Pods. Each node is a network namespace of this machine with a containerd, a kubelet and a
//! kube-proxy. `make cluster` runs the same cluster for users.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::ops::Deref;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use nix::sched::{CloneFlags, setns};
use serde_json::{Value, json};

use super::control_plane::{ControlPlane, Options, PROGRAM};

/// The image with which Kubernetes tests itself. `netexec` is a web server that also sends requests.
pub const AGNHOST: &str = "registry.k8s.io/e2e-test-images/agnhost:2.63.0";

/// The port of the web servers.
const PORT: u16 = 8080;
/// The time limit of one request.
const REQUEST: Duration = Duration::from_secs(2);

/// A control plane with nodes, which ends as [`ControlPlane`] does.
pub struct WholeCluster(ControlPlane);

impl Deref for WholeCluster {
    type Target = ControlPlane;

    fn deref(&self) -> &ControlPlane {
        &self.0
    }
}

impl WholeCluster {
    /// Starts a cluster with this number of nodes and the images of these archives, and waits until all nodes and the
    /// DNS server are ready.
    pub fn start(nodes: usize, images: &[&Path]) -> Self {
        Self::start_with_proxy(nodes, images, "nftables")
    }

    /// As [`Self::start`], with this mode of kube-proxy: `nftables` or `iptables`.
    pub fn start_with_proxy(nodes: usize, images: &[&Path], proxy_mode: &str) -> Self {
        let images = images.iter().map(|image| image.to_path_buf()).collect();
        Self(ControlPlane::start(Options {
            nodes,
            proxy_mode: proxy_mode.to_owned(),
            images,
            controller_manager: true,
            audit: false,
            ..Options::default()
        }))
    }

    /// Creates a Pod of this name that serves web requests on a node, and waits until it is ready. Its label `app` has
    /// its name as its value.
    pub async fn web_server(&self, namespace: &str, name: &str, node: &str) {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": namespace, "labels": {"app": name}},
            "spec": {
                "nodeSelector": {"kubernetes.io/hostname": node},
                "terminationGracePeriodSeconds": 0,
                "containers": [{
                    "name": "web", "image": AGNHOST, "args": ["netexec"],
                    "readinessProbe": {"httpGet": {"path": "/healthz", "port": PORT}, "periodSeconds": 1},
                }],
            },
        });
        self.apply(&pod.to_string()).await;
        let created = format!("pod/{name}");
        let wait = ["wait", "--namespace", namespace, "--for=condition=Ready", "--timeout=60s", &created];
        self.kubectl(&wait).await.ok();
    }

    /// The name of the Pod that answers a web request to `host` and `port` from the Pod `client` of
    /// [`Self::web_server`], or the error.
    pub async fn ask_from_pod(&self, namespace: &str, client: &str, host: &str, port: u16) -> Result<String, String> {
        let path = format!(
            "/api/v1/namespaces/{namespace}/pods/{client}:{PORT}/proxy/dial?request=hostname&protocol=http&tries=1\
             &host={host}&port={port}"
        );
        let text = self.kubectl(&["get", "--raw", &path]).await.ok();
        let answer: Value = serde_json::from_str(&text).unwrap();
        answer["responses"][0].as_str().map(str::to_owned).ok_or(text)
    }

    /// The name of the Pod that answers a web request from a client outside of the cluster, in the network of the
    /// nodes.
    pub async fn ask_from_outside(&self, server: SocketAddr) -> io::Result<String> {
        let pid = fs::read_to_string(self.folder().join("pid"))?;
        let network = File::open(format!("/proc/{}/root/run/netns/outside", pid.trim()))?;
        // A thread of its own, because it stays in the other network namespace.
        let asked = std::thread::spawn(move || -> io::Result<String> {
            setns(network, CloneFlags::CLONE_NEWNET)?;
            let mut connection = TcpStream::connect_timeout(&server, REQUEST)?;
            connection.set_read_timeout(Some(REQUEST))?;
            write!(connection, "GET /hostname HTTP/1.0\r\n\r\n")?;
            let mut answer = String::new();
            connection.read_to_string(&mut answer)?;
            Ok(answer.rsplit("\r\n").next().unwrap_or_default().to_owned())
        });
        tokio::task::spawn_blocking(move || asked.join().unwrap()).await.unwrap()
    }
}

/// What nodes need and this machine lacks.
pub fn lacking() -> Option<String> {
    let Some(program) = std::env::var_os(PROGRAM) else {
        return Some("a control plane: make test-pods".to_owned());
    };
    let output = Command::new(program).arg("check").output().unwrap();
    (!output.status.success()).then(|| String::from_utf8_lossy(&output.stderr).trim().to_owned())
}

/// Writes an archive of an image that contains a program of this machine and its libraries.
pub fn write_image(name: &str, archive: &Path, program: &Path) {
    write_image_with(name, archive, program, &[]);
}

/// As [`write_image`], with further files of this machine, which keep their absolute paths.
pub fn write_image_with(name: &str, archive: &Path, program: &Path, files: &[&Path]) {
    let tool = std::env::var_os(PROGRAM).unwrap();
    let output = Command::new(tool).args(["image", name]).args([archive, program]).args(files).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
