//! Writes maps of made-up clusters as NAME.html into a folder, and serves each on its own port until standard input
//! ends. The ports are printed as JSON.
#![allow(clippy::unwrap_used)]

#[path = "../tests/map/audits/mod.rs"]
mod audits;

use std::collections::BTreeMap;
use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;

use clusterip::map_server::{AUDIT_TIME, MapServer};
use clusterip::report::map::{self, About};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let folder: PathBuf = std::env::args_os().nth(1).unwrap_or_else(|| ".".into()).into();
    let mut ports = BTreeMap::new();
    for (name, audit) in audits::all() {
        std::fs::write(folder.join(format!("{name}.html")), map::page(&audit, &About::default())?)?;
        let server = MapServer::bind(([127, 0, 0, 1], 0).into(), AUDIT_TIME).await?;
        ports.insert(name, server.local_addr().port());
        tokio::spawn(server.run(Arc::new(move || Ok(audit.clone())), std::future::pending()));
    }
    println!("{}", serde_json::to_string(&ports)?);
    tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new())).await??;
    Ok(())
}
