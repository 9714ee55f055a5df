//! The cost per Service of a list in the guest, compared with the same list in typed objects of the SDK.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use clusterip_host::cluster::lookups::snapshot::addresses;
use clusterip_host::policy::host_calls::{HostCall, HostCalls};
use clusterip_host::policy::module::{CompiledModule, EMBEDDED, Module};
use serde_json::{Value, json};

use crate::fixtures::{HalfFull, create, deployment};
use crate::layout::median;
use crate::table::{Table, micros, time};

const ROUNDS: usize = 25;
const FEW: usize = 100;
const MANY: usize = 10_000;

/// The guest of benches/typed-list, which `make bench` builds and names to the build script of `guests`.
#[expect(unsafe_code, reason = "a build script has compiled the guest")]
fn typed_list() -> Option<CompiledModule> {
    let code = guests::code("typed-list")?;
    // SAFETY: the build script of `guests` got this code from `Engine::precompile_module`.
    Some(unsafe { CompiledModule::from_build_script(code) })
}

pub fn figures(table: &mut Table) -> Result<(), Box<dyn std::error::Error>> {
    let lists = [FEW, MANY].map(|services| Arc::new(Prepared::new(&HalfFull::new(services, "lowest"))));
    let mut policies =
        vec![Policy { module: Module::new(EMBEDDED)?, settings: |list| &list.settings, few: vec![], many: vec![] }];
    if let Some(compiled) = typed_list() {
        let module = Module::new(compiled)?;
        policies.push(Policy { module, settings: |list| &list.range, few: vec![], many: vec![] });
    }
    for round in 0..=ROUNDS {
        for policy in &mut policies {
            let [few, many] = [policy.place(&lists[0])?, policy.place(&lists[1])?];
            // The first round is a warm-up.
            if round > 0 {
                policy.few.push(micros(few));
                policy.many.push(micros(many));
            }
        }
    }
    table.row("bytes of a Service in the list", (lists[1].services.len() / MANY) as f64, "", None);
    let mut figures =
        policies.into_iter().map(|policy| (median(policy.many) - median(policy.few)) / (MANY - FEW) as f64);
    let ours = figures.next().unwrap_or(f64::NAN);
    table.row("a Service in policy.wasm", ours, "us", Some(0.6));
    match figures.next() {
        Some(typed) => {
            table.row("a Service as a typed object of the SDK (benches/typed-list)", typed, "us", None);
            table.row("typed : policy.wasm", typed / ours, "", None);
        }
        None => table.missing("a Service as a typed object of the SDK", "benches/typed-list is not built"),
    }
    Ok(())
}

/// A module that picks the lowest free address of a list.
struct Policy {
    module: Module,
    settings: fn(&Prepared) -> &Value,
    /// Microseconds with few Services, and with many.
    few: Vec<f64>,
    many: Vec<f64>,
}

impl Policy {
    /// Places a Service, and checks that it got the expected address.
    fn place(&self, list: &Arc<Prepared>) -> Result<Duration, Box<dyn std::error::Error>> {
        let (request, settings) = (create("web"), (self.settings)(list));
        let calls = Arc::new(Once { list: Arc::clone(list), services: Mutex::new(Some(list.services.clone())) });
        let (duration, answer) = time(|| self.module.validate(&request, settings, calls));
        let answer = answer?;
        let placed = answer.mutated_object.as_ref().map(addresses).unwrap_or_default();
        if placed == [list.lowest] {
            Ok(duration)
        } else {
            Err(format!("not placed at {}: {answer:?}", list.lowest).into())
        }
    }
}

/// Answers that were prepared beforehand, so that the host's work for them is not measured.
struct Prepared {
    services: Vec<u8>,
    deployments: Vec<u8>,
    /// For policy.wasm.
    settings: Value,
    /// For benches/typed-list.
    range: Value,
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
            range: json!({"first": half.usable.first(), "last": half.usable.last()}),
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
