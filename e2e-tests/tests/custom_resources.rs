//! The schemas of `deploy/crds` on the API server: for each rule, an object that it refuses.

use std::path::PathBuf;

use futures::stream::{self, StreamExt as _};
use tokio::sync::OnceCell;

use crate::support::control_plane::{ControlPlane, Options};

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/crds");

/// How many objects are created at once.
const AT_ONCE: usize = 4;

async fn defined() -> &'static ControlPlane {
    static DEFINED: OnceCell<ControlPlane> = OnceCell::const_new();
    DEFINED
        .get_or_init(async || {
            let plane = ControlPlane::start(Options { audit: false, ..Options::default() });
            plane.install_pools().await;
            plane
        })
        .await
}

/// The files of a folder of objects.
fn files(folder: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(format!("{FIXTURES}/{folder}")).unwrap();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty());
    files
}

/// Each file begins with a comment: a part of the message.
#[tokio::test]
async fn each_rule_refuses_an_object() {
    let plane = defined().await;
    let wrong = stream::iter(files("refused")).map(async |file| {
        let text = std::fs::read_to_string(&file).unwrap();
        let expected = text.lines().next().and_then(|line| line.strip_prefix("# ")).unwrap().to_owned();
        let created = plane.kubectl(&["create", "--dry-run=server", "-f", file.to_str().unwrap()]).await;
        let refused = created.status != 0 && created.stderr.contains(&expected);
        (!refused).then(|| format!("{}: {created:?}, expected {expected:?}", file.display()))
    });
    let wrong: Vec<String> = wrong.buffer_unordered(AT_ONCE).filter_map(async |wrong| wrong).collect().await;
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test]
async fn rules_accept_every_field() {
    let plane = defined().await;
    for file in files("accepted") {
        plane.kubectl(&["create", "--dry-run=server", "-f", file.to_str().unwrap()]).await.ok();
    }
}
