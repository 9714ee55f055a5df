//! A cluster whose nodes run Pods. Each node is a network namespace of this machine with a containerd, a kubelet and a
//! kube-proxy. `make cluster` runs the same cluster for users.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use nix::sched::{CloneFlags, setns};
use serde_json::{Value, json};

use super::control_plane::{ControlPlane, Options, PROGRAM};

/// The image with which Kubernetes tests itself. `netexec` is a web server that also sends requests.
pub const AGNHOST: &str = "registry.k8s.io/e2e-test-images/agnhost:2.63.0";

/// The environment variable with the folder of the images that users get. `make test-pods` and `make conformance` build
/// them.
pub const IMAGES: &str = "CLUSTERIP_IMAGES";

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
    pub fn start(nodes: usize, images: &[PathBuf]) -> Self {
        Self::start_with_proxy(nodes, images, "nftables")
    }

    /// As [`Self::start`], with this mode of kube-proxy: `nftables` or `iptables`.
    pub fn start_with_proxy(nodes: usize, images: &[PathBuf], proxy_mode: &str) -> Self {
        Self::start_with(Options {
            nodes,
            proxy_mode: proxy_mode.to_owned(),
            images: images.to_vec(),
            ..Options::default()
        })
    }

    /// As [`Self::start`], with these options.
    pub fn start_with(options: Options) -> Self {
        Self(ControlPlane::start(Options { controller_manager: true, audit: false, ..options }))
    }

    /// Creates a Pod of this name that serves web requests on a node, and waits until it is ready. Its label `app` has
    /// its name as its value.
    pub async fn web_server(&self, namespace: &str, name: &str, node: &str) {
        self.web_server_on_port(namespace, name, node, PORT).await;
    }

    /// As [`Self::web_server`], with another port. Only a Pod with the usual port can be a client.
    pub async fn web_server_on_port(&self, namespace: &str, name: &str, node: &str, port: u16) {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": namespace, "labels": {"app": name}},
            "spec": {
                "nodeSelector": {"kubernetes.io/hostname": node},
                "terminationGracePeriodSeconds": 0,
                "containers": [{
                    "name": "web", "image": AGNHOST, "args": ["netexec", format!("--http-port={port}")],
                    "readinessProbe": {"httpGet": {"path": "/healthz", "port": port}, "periodSeconds": 1},
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

    /// The network namespace of a client outside of the cluster, in the network of the nodes.
    pub fn outside(&self) -> PathBuf {
        let pid = fs::read_to_string(self.folder().join("pid")).unwrap();
        format!("/proc/{}/root/run/netns/outside", pid.trim()).into()
    }

    /// The name of the Pod that answers a web request from a client outside of the cluster.
    pub async fn ask_from_outside(&self, server: SocketAddr) -> io::Result<String> {
        let network = File::open(self.outside())?;
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

/// The archives of the images of the tests: those of the server and of the agents. Returns what is missing if they are
/// not built.
pub fn tested_images() -> Result<Vec<PathBuf>, String> {
    let folder = std::env::var_os(IMAGES).map(PathBuf::from).ok_or("the images: make test-pods")?;
    let archives: Vec<PathBuf> =
        ["clusterip", "clusterip-agent"].iter().map(|name| folder.join(format!("{name}.tar"))).collect();
    match archives.iter().find(|archive| !archive.is_file()) {
        Some(missing) => Err(format!("{} is missing: make tested-images", missing.display())),
        None => Ok(archives),
    }
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
