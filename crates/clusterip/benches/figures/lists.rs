//! The cost per Service of a list in the module.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use clusterip_cluster::policy::host_calls::{HostCall, HostCalls};
use clusterip_cluster::policy::wasm_module::WasmModule;
use clusterip_cluster::snapshot::addresses;
use serde_json::{Value, json};

use crate::fixtures::{HalfFull, create, deployment};
use crate::layout::median;
use crate::module::module;
use crate::table::{Table, micros, time};

const ROUNDS: usize = 5;
const FEW: usize = 100;
const MANY: usize = 10_000;

pub fn figures(table: &mut Table) -> Result<(), Box<dyn std::error::Error>> {
    let lists = [FEW, MANY].map(|services| Arc::new(Prepared::new(&HalfFull::new(services, "lowest"))));
    let policy = module()?;
    let (mut few, mut many) = (Vec::new(), Vec::new());
    for round in 0..=ROUNDS {
        let times = [place(&policy, &lists[0])?, place(&policy, &lists[1])?].map(micros);
        // The first round is a warm-up.
        if round > 0 {
            few.push(times[0]);
            many.push(times[1]);
        }
    }
    table.row("bytes of a Service in the list", (lists[1].services.len() / MANY) as f64, "", None);
    table.row("a Service in policy.wasm", (median(many) - median(few)) / (MANY - FEW) as f64, "us", None);
    Ok(())
}

/// Places a Service, and checks that it got the lowest free address of the list.
fn place(policy: &WasmModule, list: &Arc<Prepared>) -> Result<Duration, Box<dyn std::error::Error>> {
    let request = create("web");
    let calls = Arc::new(Once { list: Arc::clone(list), services: Mutex::new(Some(list.services.clone())) });
    let (duration, answer) = time(|| policy.validate(&request, &list.settings, calls));
    let answer = answer?;
    let placed = answer.mutated_object.as_ref().map(addresses).unwrap_or_default();
    if placed == [list.lowest] {
        Ok(duration)
    } else {
        Err(format!("not placed at {}: {answer:?}", list.lowest).into())
    }
}

/// Answers that were prepared beforehand, so that the host's work for them is not measured.
struct Prepared {
    services: Vec<u8>,
    deployments: Vec<u8>,
    settings: Value,
    /// The lowest free address.
    lowest: IpAddr,
}

impl Prepared {
    fn new(half: &HalfFull) -> Self {
        let deployments = json!({"apiVersion": "apps/v1", "kind": "DeploymentList", "items": [deployment()]});
        let used: HashSet<_> = half.used.iter().collect();
        let lowest = half.usable.iter().find(|address| !used.contains(address));
        Self {
            services: half.masked_list(),
            deployments: deployments.to_string().into_bytes(),
            settings: half.settings.clone(),
            lowest: lowest.map_or(Ipv4Addr::UNSPECIFIED, |lowest| *lowest).into(),
        }
    }
}

/// The answers to one evaluation. The list was copied beforehand too.
struct Once {
    list: Arc<Prepared>,
    services: Mutex<Option<Vec<u8>>>,
}

impl HostCalls for Once {
    fn answer(&self, call: &HostCall) -> Result<Vec<u8>, String> {
        match call {
            HostCall::ListAll { kind, .. } if kind == "Service" => {
                let services = self.services.lock().unwrap_or_else(PoisonError::into_inner).take();
                services.ok_or_else(|| "listed twice".to_owned())
            }
            HostCall::ListNamespace { kind, .. } if kind == "Deployment" => Ok(self.list.deployments.clone()),
            HostCall::Get { api_version, kind, name, .. } => {
                Err(format!("Cannot find {api_version}/{kind} named '{name}' inside of namespace 'None'"))
            }
            other => Err(format!("not prepared: {other:?}")),
        }
    }
}
