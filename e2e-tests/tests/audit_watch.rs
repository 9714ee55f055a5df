//! `clusterip audit --watch` prints the report again when it changes.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use axum::http::Method;
use serde_json::{Value, json};

use crate::audit::os;
use crate::support::cluster::{Cluster, settings};
use crate::support::eventually::eventually;
use crate::support::move_helpers::{path, send};
use crate::support::program;
use crate::support::serve_process::spawn_from_lasting_thread;
use crate::support::stalling_connection::StallingConnection;

/// A running `clusterip audit --watch`. It is killed when this value is dropped.
struct WatchedAudit {
    child: Child,
    printed: Arc<Mutex<String>>,
    _folder: tempfile::TempDir,
}

impl WatchedAudit {
    fn start(cluster: &Cluster, settings: &str, arguments: &[&str]) -> Self {
        Self::with_kubeconfig(cluster.plane.kubeconfig(), settings, arguments)
    }

    fn with_kubeconfig(kubeconfig: &Path, settings: &str, arguments: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("settings.yaml");
        std::fs::write(&file, settings).unwrap();
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).arg(program()).args(["audit", "--watch", "--settings"]).arg(&file);
        command.arg("--kubeconfig").arg(kubeconfig).args(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = spawn_from_lasting_thread(command).unwrap();
        let printed = Arc::new(Mutex::new(String::new()));
        let (stdout, text) = (child.stdout.take().unwrap(), Arc::clone(&printed));
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                *text.lock().unwrap_or_else(PoisonError::into_inner) += &(line + "\n");
            }
        });
        Self { child, printed, _folder: folder }
    }

    fn printed(&self) -> String {
        self.printed.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until this is printed.
    async fn prints(&self, text: &str) {
        eventually(&format!("a report with {text:?}"), async || self.printed().contains(text).then_some(())).await;
    }

    /// Sends a signal, whose name is without SIG, and returns the exit status.
    async fn end(&mut self, signal: &str) -> Option<i32> {
        let sent = Command::new("kill").args(["-s", signal, &self.child.id().to_string()]).status().unwrap();
        assert!(sent.success(), "kill -s {signal}: {sent}");
        let child = &mut self.child;
        eventually("clusterip audit to end", async || child.try_wait().unwrap()).await.code()
    }
}

impl Drop for WatchedAudit {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn watched_audit_is_printed_again_when_it_changes() {
    struct Case {
        output: &'static str,
        signal: &'static str,
        /// A part of each report.
        report: &'static str,
        finding: &'static str,
    }
    let cases = [
        Case { output: "table", signal: "TERM", report: "POOL ", finding: "misplaced (1)" },
        Case { output: "json", signal: "INT", report: "{\"pools\":", finding: "\"kind\":\"misplaced\"" },
    ];
    let cluster = Cluster::alone().await;
    let place = cluster.place("audit-watch").await;
    let settings = settings(&json!({}));
    for Case { output, signal, report, finding } in cases {
        let args = ["-o", output, "-n", place.namespace.as_str(), "--fail-on", "misplaced"];
        let mut audit = WatchedAudit::start(&cluster, &settings, &args);
        audit.prints(report).await;
        assert!(!audit.printed().contains(finding), "{}", audit.printed());
        place.service_at("web", [172, 21, 0, 70], os("windows"), json!({"selector": null})).await;
        audit.prints(finding).await;
        assert_eq!(audit.end(signal).await, Some(1), "{output}: the status of the last report");
        let printed = audit.printed();
        assert!(printed.matches(report).count() >= 2, "{printed}");
        if output == "json" {
            let reports: Vec<Value> = printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
            assert!(reports.windows(2).all(|pair| pair[0] != pair[1]), "a report without a change: {printed}");
        } else {
            let (_, later) = printed.split_once("\n\n20").expect("the time of the second report");
            assert!(later.lines().next().unwrap().ends_with(" UTC"), "{printed}");
        }
        send(&cluster.client, Method::DELETE, &path(&place.namespace, "web"), None).await;
        let mut without = WatchedAudit::start(&cluster, &settings, &args);
        without.prints(report).await;
        assert_eq!(without.end(signal).await, Some(0), "{output}: without findings");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn watched_audit_notes_that_the_api_server_hangs() {
    let cluster = Cluster::alone().await;
    let connection = StallingConnection::new(&cluster.plane).await;
    let token = cluster.plane.admin_token();
    let kubeconfig = cluster.plane.write_kubeconfig("audit-watch.kubeconfig", connection.server(), token);
    let args = ["-o", "json", "-A", "--request-timeout", "1s"];
    let mut audit = WatchedAudit::with_kubeconfig(&kubeconfig, &settings(&json!({})), &args);
    audit.prints("{\"pools\":").await;
    let note = "the API server does not answer, so the watched objects may have changed";
    assert!(!audit.printed().contains(note), "{}", audit.printed());
    connection.stall();
    audit.prints(note).await;
    assert_eq!(audit.end("TERM").await, Some(0));
}
