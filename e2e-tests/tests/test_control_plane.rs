//! The control plane that the tests run on: its version, and how it ends.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Command, Stdio};

use crate::support::control_plane::{ControlPlane, PROGRAM};

#[tokio::test]
async fn control_plane_has_the_built_version() {
    let plane = ControlPlane::shared().await;
    let versions: serde_json::Value =
        serde_json::from_str(&plane.kubectl(&["version", "--output", "json"]).await.ok()).unwrap();
    // `make test-compat` runs older servers with the kubectl of the newest.
    assert_eq!(versions["serverVersion"]["gitVersion"], plane.version());
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
