//! The size of the program, and the start and memory of a small plan.

use std::fs;

use crate::layout::median;
use crate::process::{Run, program};
use crate::table::Table;

const ROUNDS: usize = 20;
const ONE_SERVICE: &str = "apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80}]}
";

pub fn figures(table: &mut Table) -> Result<(), Box<dyn std::error::Error>> {
    table.row("size", fs::metadata(program().get_program())?.len() as f64 / 1e6, "MB", Some(12.0));
    let folder = tempfile::tempdir()?;
    let service = folder.path().join("service.yaml");
    fs::write(&service, ONE_SERVICE)?;
    let (mut more, mut megabytes) = (Vec::new(), Vec::new());
    // The first round is a warm-up.
    for round in 0..=ROUNDS {
        let version = Run::of(program().arg("--version"))?;
        let plan = Run::of(program().arg("plan").arg(&service))?;
        if round > 0 {
            more.push((plan.seconds - version.seconds) * 1e3);
            megabytes.push(plan.megabytes);
        }
    }
    // The process of a plan that prints so little may end before its memory is read.
    megabytes.retain(|megabytes| megabytes.is_finite());
    table.row("plan of one Service, more than --version", median(more), "ms", Some(2.0));
    table.row("plan of one Service, peak memory", median(megabytes), "MB", Some(15.0));
    Ok(())
}
