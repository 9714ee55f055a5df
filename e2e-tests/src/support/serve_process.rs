//! `clusterip serve` as a process, which ends with the test process.

use std::collections::hash_map::RandomState;
use std::ffi::{OsStr, OsString};
use std::hash::BuildHasher as _;
use std::io::{BufRead as _, BufReader};
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::control_plane::ControlPlane;
use super::eventually::eventually;

/// How long a server may take to become ready: it lists all objects first, some tests have hundreds of megabytes of them,
/// and other tests use the processors.
const MAX_START: Duration = Duration::from_secs(180);

/// How `clusterip serve` is started.
pub struct ServerBuilder {
    port: u16,
    args: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    /// Whether the settings are the pools of the cluster.
    pools: bool,
    // This folder contains the settings, and must exist as long as the process.
    folder: tempfile::TempDir,
}

/// A running `clusterip serve`. It is killed when this value is dropped, and the kernel kills it when the test process
/// ends in any way. If the test fails, its log is printed.
pub struct Server {
    port: u16,
    child: Child,
    log: Arc<Mutex<Vec<String>>>,
    http: reqwest::Client,
    folder: tempfile::TempDir,
}

impl ServerBuilder {
    /// `clusterip serve`, listening on a free port, as the administrator of this control plane.
    pub fn new(plane: &ControlPlane) -> Self {
        Self::as_user(plane.kubeconfig())
    }

    /// `clusterip serve`, listening on a free port, with this kubeconfig.
    pub fn as_user(kubeconfig: &Path) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let args = vec!["serve".into()];
        let builder = Self { port: free_port(), args, environment: Vec::new(), pools: false, folder };
        builder.arg("--kubeconfig").arg(kubeconfig)
    }

    /// Uses this port instead of a free one, such as that of a server that has ended.
    pub fn port(mut self, port: u16) -> Self {
        self.port = port;
        self
    }

    /// Adds an argument.
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.args.push(arg.as_ref().to_owned());
        self
    }

    /// Adds arguments.
    pub fn args(self, args: &[&str]) -> Self {
        args.iter().fold(self, Self::arg)
    }

    /// Sets an environment variable.
    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.environment.push((name.into(), value.as_ref().to_owned()));
        self
    }

    /// Uses the pool objects of the cluster. Without this, and without settings, the settings are `{}`.
    pub fn pools(mut self) -> Self {
        self.pools = true;
        self
    }

    /// Adds `--settings` with a file of this text.
    pub fn settings(self, yaml: &str) -> Self {
        let file = self.folder.path().join("settings.yaml");
        std::fs::write(&file, yaml).unwrap();
        self.arg("--settings").arg(file)
    }

    /// Adds `--register-url` with the URL of this server.
    pub fn registered(self) -> Self {
        let url = url(self.port);
        self.arg("--register-url").arg(url)
    }

    /// Starts the server, and does not wait.
    pub fn spawn(self) -> Server {
        let has_settings = self.pools || self.args.iter().any(|arg| arg == "--settings" || arg == "--policy");
        if has_settings { self.begin() } else { self.settings("{}").begin() }
    }

    fn begin(self) -> Server {
        super::use_ring();
        // `setpriv` sets the signal at the death of the parent, and then becomes the program. Without it, this crate
        // would need unsafe code.
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "KILL", "--"])
            .arg(super::program())
            .args(&self.args)
            .args(["--listen", &format!("127.0.0.1:{}", self.port)])
            .envs(self.environment)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut child = spawn_from_lasting_thread(command)
            .unwrap_or_else(|error| panic!("setpriv: {error}: sudo apt-get install util-linux"));
        let log = Arc::new(Mutex::new(Vec::new()));
        let (stderr, lines) = (child.stderr.take().unwrap(), Arc::clone(&log));
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                lines.lock().unwrap_or_else(PoisonError::into_inner).push(line);
            }
        });
        // Only the test sends requests, and they are not secret.
        let http = reqwest::Client::builder()
            .tls_danger_accept_invalid_certs(true)
            .pool_max_idle_per_host(0)
            .timeout(Duration::from_secs(10))
            .build()
            .unwrap();
        Server { port: self.port, child, log, http, folder: self.folder }
    }

    /// Starts the server, and waits until it is ready.
    pub async fn start(self) -> Server {
        let mut server = self.spawn();
        server.ready().await;
        server
    }
}

impl Server {
    /// The port on which the server listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The URL, such as `https://127.0.0.1:12345`.
    pub fn url(&self) -> String {
        url(self.port)
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The folder of this server, with `settings.yaml`.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The lines of the log so far.
    pub fn log(&self) -> Vec<String> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits for a line of the log that contains this text.
    pub async fn logged(&self, text: &str) -> String {
        eventually(&format!("a line of the log with {text:?}"), async || {
            self.log().into_iter().find(|line| line.contains(text))
        })
        .await
    }

    /// Waits until `/readyz` answers 200. Panics if the process ends before.
    pub async fn ready(&mut self) {
        let deadline = Instant::now() + MAX_START;
        loop {
            let answer = self.get("/readyz").await;
            if matches!(answer, Some((200, _))) {
                return;
            }
            if let Some(status) = self.child.try_wait().unwrap() {
                panic!("clusterip serve ended before it was ready: {status}");
            }
            assert!(Instant::now() < deadline, "clusterip serve is not ready: {answer:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Sends a GET request: the status and the body; `None` without an answer.
    pub async fn get(&self, path: &str) -> Option<(u16, String)> {
        let response = self.http.get(format!("{}{path}", self.url())).send().await.ok()?;
        Some((response.status().as_u16(), response.text().await.ok()?))
    }

    /// Sends a POST request with JSON: the body as text; `None` without an answer.
    pub async fn post_for_text(&self, path: &str, body: &serde_json::Value) -> Option<String> {
        let response = self.http.post(format!("{}{path}", self.url())).json(body).send().await.ok()?;
        response.text().await.ok()
    }

    /// Sends a POST request with JSON: the status and the parsed body; `None` without an answer.
    pub async fn post(&self, path: &str, body: &serde_json::Value) -> Option<(u16, serde_json::Value)> {
        let response = self.http.post(format!("{}{path}", self.url())).json(body).send().await.ok()?;
        Some((response.status().as_u16(), response.json().await.ok()?))
    }

    /// Sends SIGTERM, waits until the process has ended, and returns its exit status.
    pub async fn terminate(&mut self) -> i32 {
        self.signal("TERM");
        self.ended().await.code().expect("an exit status, not a signal")
    }

    /// Sends a signal; the name is without SIG.
    pub fn signal(&self, name: &str) {
        // The process has not been waited for, so its process id can't belong to another process.
        let sent = Command::new("kill").args(["-s", name, &self.pid().to_string()]).status().unwrap();
        assert!(sent.success(), "kill -s {name}: {sent}");
    }

    /// Sends SIGKILL, and waits until the process has ended.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits until the process has ended by itself or by a signal.
    pub async fn ended(&mut self) -> ExitStatus {
        let child = &mut self.child;
        eventually("clusterip serve to end", async || child.try_wait().unwrap()).await
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("the log of clusterip serve, port {}:", self.port);
            for line in self.log() {
                eprintln!("  {line}");
            }
        }
    }
}

fn url(port: u16) -> String {
    format!("https://127.0.0.1:{port}")
}

/// A port on which no process listens. It is below the ports that the kernel picks for outgoing connections, so that it
/// stays free while a server restarts, and below those of control planes.
pub fn free_port() -> u16 {
    const FIRST: u16 = 10_000;
    const COUNT: u16 = 10_000;
    // A random first port, so that concurrent test processes rarely try the same ports.
    static NEXT: LazyLock<Mutex<u16>> =
        LazyLock::new(|| Mutex::new((RandomState::new().hash_one(0) % u64::from(COUNT)) as u16));
    let mut next = NEXT.lock().unwrap_or_else(PoisonError::into_inner);
    for _ in 0..COUNT {
        let port = FIRST + *next;
        *next = (*next + 1) % COUNT;
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
    panic!("no free port from {FIRST} on");
}

type Spawned = std::io::Result<Child>;
type Order = (Command, Sender<Spawned>);

/// Starts a process from a thread that never ends. The kernel kills the process when the *thread* that started it ends,
/// and tests, each of which has a thread, may share a server.
pub fn spawn_from_lasting_thread(command: Command) -> Spawned {
    static THREAD: LazyLock<Mutex<Sender<Order>>> = LazyLock::new(|| {
        let (sender, receiver): (_, Receiver<Order>) = channel();
        std::thread::spawn(move || {
            for (mut command, answer) in receiver {
                let _ = answer.send(command.spawn());
            }
        });
        Mutex::new(sender)
    });
    let (sender, receiver) = channel();
    THREAD.lock().unwrap_or_else(PoisonError::into_inner).send((command, sender)).unwrap();
    receiver.recv().unwrap()
}
