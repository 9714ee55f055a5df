//! The size of the policy module, and the time of an evaluation in it.

use std::fs;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use clusterip_cluster::lookups::complete_objects::CompleteObjects;
use clusterip_cluster::policy::host_calls::HostCalls;
use clusterip_cluster::policy::recorded_session::{Recorder, Replay};
use clusterip_cluster::policy::wasm_module::{Limits, WasmModule};
use clusterip_core::service::addresses;

use crate::fixtures::{HalfFull, create};
use crate::layout::median;
use crate::table::{Table, micros, time};

const SERVICES: usize = 10_000;
const DEPLOYMENTS: usize = 1_000;
const EVALUATIONS: usize = 200;

pub fn figures(table: &mut Table) -> Result<(), Box<dyn std::error::Error>> {
    let file = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../policy.wasm"));
    table.row("size", fs::metadata(file)?.len() as f64 / 1e3, "KB", Some(530.0));
    let module = WasmModule::load(file, Limits::default())?;
    let half = HalfFull::new(SERVICES);
    let host: Arc<dyn HostCalls> = Arc::new(half.objects(DEPLOYMENTS).collect::<CompleteObjects>());
    let mut runs = Vec::new();
    for number in 0..EVALUATIONS {
        let request = create(&format!("web-{number}"));
        // The answers are recorded before, so that the time of the host is not measured.
        let recorder = Arc::new(Recorder::new(Arc::clone(&host)));
        module.validate(&request, &half.settings, recorder.clone())?;
        let replay = Arc::new(Replay::new(recorder.exchanges()));
        let (duration, answer) = time(|| module.validate(&request, &half.settings, replay));
        match *answer?.mutated_object.as_ref().map(addresses).unwrap_or_default() {
            [IpAddr::V4(address)] if half.usable.contains(&address) && !half.used.contains(&address) => {
                runs.push(micros(duration));
            }
            ref other => return Err(format!("{} was not placed: {other:?}", request["name"]).into()),
        }
    }
    table.row("an evaluation beside 10,000 Services and 1,000 Deployments, on wasmi", median(runs), "us", None);
    Ok(())
}
