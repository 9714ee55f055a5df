//! Carries out the steps of a renumbering.

use std::time::Duration;

use anyhow::Context as _;
use clusterip_cluster::api_error::{failed, if_found};
use clusterip_cluster::object;
use clusterip_core::service::addresses;
use clusterip_moves::renumbering::change::Change;
use clusterip_moves::renumbering::observed::Held;
use clusterip_moves::renumbering::record::{
    DEFAULT_RANGES, Phase, Record, SLICE_WRITER, SLICE_WRITER_LABEL, Swap, trigger,
};
use clusterip_moves::renumbering::step::{Direction, Goal, Request, Step, next};
use ipnet::IpNet;
use jiff::Timestamp;
use kube::Client;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams, Preconditions};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::observe::{self, Observer, api, get, is_alias_of, is_changed, pools, slices, swap_state, unless_done};
use super::status::note_kubelets;
use super::store::Store;
use crate::text::joined;

/// How often the cluster is observed while it does something.
const LOOK: Duration = Duration::from_secs(1);
/// How long before a swap the trigger is created: kube-proxy has programmed it by then, and waits for its
/// `minSyncPeriod` before it programs both halves of the swap.
const AFTER_TRIGGER: Duration = Duration::from_millis(450);
const MANAGER: &str = "clusterip-renumber";

/// Moves the Services of a cluster. It returns whether all that were to move have moved.
pub trait Mover {
    async fn move_services(&self, record: &Record, direction: Direction) -> anyhow::Result<bool>;
}

/// How a run of a command ended.
#[derive(Debug, PartialEq, Eq)]
pub enum End {
    Done(String),
    /// An administrator must do something first.
    Stopped(String),
}

pub struct Run<'r, M> {
    pub store: Store,
    pub observer: Observer,
    pub mover: M,
    pub report: &'r dyn Fn(&str),
}

impl<M: Mover> Run<'_, M> {
    /// Carries out steps until the goal is reached, or an administrator must do something.
    pub async fn work(&mut self, goal: Goal, mut record: Record) -> anyhow::Result<End> {
        let mut waited_for = String::new();
        loop {
            if goal != Goal::Switch {
                note_kubelets(&self.observer, &mut self.store, &mut record).await?;
            }
            let observed = self.observer.observe(goal, &record).await?;
            let step = next(goal, &record, &observed);
            if let Step::Wait(what) = &step {
                if *what != waited_for {
                    (self.report)(&format!("waiting: {what}"));
                    waited_for.clone_from(what);
                }
                sleep(LOOK).await;
                continue;
            }
            match step {
                Step::Done(text) => return Ok(End::Done(text)),
                Step::Stop(text) => return Ok(End::Stopped(text)),
                Step::DeleteRecord => {
                    self.store.delete().await?;
                    return Ok(End::Done(match goal {
                        Goal::Rollback => "the renumbering is rolled back".to_owned(),
                        _ => format!("the Service range is {}", joined(record.new_ranges(), ",")),
                    }));
                }
                Step::Move(direction) => {
                    // Any user can make a Service that can't move: it must not hold up the others.
                    if !self.mover.move_services(&record, direction).await? {
                        (self.report)("some Services have not moved and keep their addresses: see above");
                    }
                    self.observer.has_moved = true;
                }
                Step::Enter(phase) => self.enter(&mut record, phase).await?,
                step => self.carry_out(step, &record).await?,
            }
        }
    }

    async fn enter(&mut self, record: &mut Record, phase: Phase) -> anyhow::Result<()> {
        let client = &self.observer.client;
        match phase {
            Phase::Switching => record.swaps = observe::swaps(client, &record.change).await?,
            Phase::Switched => record.switched_at = Some(Timestamp::now().as_second()),
            _ => {}
        }
        record.phase = phase;
        // The switch looks again for Services that have not moved.
        self.observer.has_moved &= phase != Phase::Switching;
        self.store.write(record).await?;
        note_kubelets(&self.observer, &mut self.store, record).await?;
        (self.report)(&format!("phase: {}", phase.as_str()));
        Ok(())
    }

    async fn carry_out(&mut self, step: Step, record: &Record) -> anyhow::Result<()> {
        let client = self.observer.client.clone();
        match step {
            Step::CreateRanges(name, cidrs) => create_ranges(&client, name, &cidrs).await,
            Step::DeleteRanges(name) => {
                self.observer.has_tried |= name == DEFAULT_RANGES;
                let ranges = api(&client, "networking.k8s.io/v1", "ServiceCIDR", None);
                let deleted = ranges.delete(name, &DeleteParams::default()).await.map(drop);
                unless_done(deleted).map_err(|error| failed(format!("ServiceCIDR {name} can't be deleted"), &error))
            }
            Step::SetPools(direction) => set_pools(&client, &directed(record, direction)).await,
            Step::Send(requests) => self.send_all(&requests, record).await,
            Step::Move(_) | Step::Enter(_) | Step::DeleteRecord | Step::Wait(_) | Step::Stop(_) | Step::Done(_) => {
                Ok(())
            }
        }
    }

    async fn send_all(&self, requests: &[Request], record: &Record) -> anyhow::Result<()> {
        let mut requests = requests.iter().peekable();
        while let Some(request) = requests.next() {
            // Between the deletion and these two, no Service has the address: they are sent at once.
            match (request, requests.peek()) {
                (Request::CreateAlias(_), Some(Request::Create(_))) => {
                    let other = requests.next().unwrap_or(request);
                    let (one, two) = futures::join!(self.send(*request, record), self.send(*other, record));
                    one.and(two)?;
                }
                _ => self.send(*request, record).await?,
            }
        }
        Ok(())
    }

    async fn send(&self, request: Request, record: &Record) -> anyhow::Result<()> {
        let client = &self.observer.client;
        let swap = |at: usize| record.swaps.get(at).context("the record has no such swap");
        let trigger = trigger(&self.observer.server_namespace);
        match request {
            Request::CreateTrigger => create(client, &trigger).await,
            Request::Pause => {
                sleep(AFTER_TRIGGER).await;
                Ok(())
            }
            Request::DeleteTrigger => delete_service(client, &trigger, None).await,
            Request::Delete(at) => {
                let swap = swap(at)?;
                let found = get(client, "v1", "Service", Some(&swap.namespace), &swap.name).await?;
                // Another run may have swapped it meanwhile.
                let found = found.filter(|it| addresses(it).iter().any(|address| swap.old.contains(address)));
                let Some(found) = found else { return Ok(()) };
                let uid = object::text(&found, &["metadata", "uid"]).to_owned();
                delete_service(client, &swap.service, Some(uid)).await
            }
            Request::CreateAlias(at) => create(client, &swap(at)?.alias).await,
            Request::Create(at) => create(client, &swap(at)?.service).await,
            Request::Copy(at) => copy(client, swap(at)?).await,
            Request::DeleteAlias(at) => {
                let swap = swap(at)?;
                let found = get(client, "v1", "Service", Some(&swap.namespace), &swap.alias_name()).await?;
                // Another client may have created a Service with this name meanwhile.
                let Some(found) = found.filter(|it| is_alias_of(it, swap)) else { return Ok(()) };
                let uid = object::text(&found, &["metadata", "uid"]).to_owned();
                delete_service(client, &swap.alias, Some(uid)).await
            }
            Request::DeleteCopies(at) => {
                let swap = swap(at)?;
                delete_copies(client, swap, |_| true).await
            }
        }
    }
}

/// Makes the copied EndpointSlices of the aliases without a selector equal to those of their Services.
pub async fn keep_equal(client: &Client, record: &Record) -> anyhow::Result<()> {
    // Before and after that, the aliases do not exist or are deleted.
    if !matches!(record.phase, Phase::Switching | Phase::Switched) {
        return Ok(());
    }
    for swap in record.swaps.iter().filter(|swap| !swap.has_selector()) {
        let state = swap_state(client, swap).await?;
        // In the middle of a swap, the Service has no endpoints to copy.
        if state.alias == Held::Old && state.service != Held::Absent && !state.has_equal_copies {
            copy(client, swap).await?;
        }
    }
    Ok(())
}

pub fn directed(record: &Record, direction: Direction) -> Change {
    match direction {
        Direction::Forward => record.change.clone(),
        Direction::Back => record.change.inverse(),
    }
}

async fn create_ranges(client: &Client, name: &str, cidrs: &[IpNet]) -> anyhow::Result<()> {
    let object = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR",
        "metadata": {"name": name, "labels": {"app.kubernetes.io/name": "clusterip"}},
        "spec": {"cidrs": cidrs},
    });
    let object: DynamicObject = serde_json::from_value(object)?;
    let ranges = api(client, "networking.k8s.io/v1", "ServiceCIDR", None);
    let created = ranges.create(&PostParams::default(), &object).await.map(drop);
    unless_done(created).map_err(|error| failed(format!("ServiceCIDR {name} can't be created"), &error))
}

/// The pools as they are after the change, each with the part of its spec that changes.
pub async fn changed_pools(client: &Client, change: &Change) -> anyhow::Result<Vec<Value>> {
    let changed = pools(client).await?.into_iter().filter(|pool| is_changed(pool, change)).map(|pool| {
        let spec = change.spec(&pool["spec"]).map_err(|text| {
            anyhow::anyhow!("ServicePool {}: {text} has no place in the other range: change it", object::name(&pool))
        })?;
        let (name, version) = (object::name(&pool), object::text(&pool, &["metadata", "resourceVersion"]));
        Ok(json!({
            "apiVersion": object::api_version(&pool), "kind": object::kind(&pool),
            "metadata": {"name": name, "resourceVersion": version},
            "spec": spec,
        }))
    });
    changed.collect()
}

async fn set_pools(client: &Client, change: &Change) -> anyhow::Result<()> {
    let resource = clusterip_api::Kind::ServicePool.api_resource();
    let api = &Api::<DynamicObject>::all_with(client.clone(), &resource);
    for pool in changed_pools(client, change).await? {
        let name = object::name(&pool).to_owned();
        let patched = api.patch(&name, &PatchParams::default(), &Patch::Merge(&pool)).await;
        patched.map_err(|error| failed(format!("ServicePool {name} can't be changed"), &error))?;
    }
    Ok(())
}

async fn create(client: &Client, service: &Value) -> anyhow::Result<()> {
    let (namespace, name) = (object::namespace(service), object::name(service));
    let api = api(client, "v1", "Service", Some(namespace));
    let object: DynamicObject = serde_json::from_value(service.clone())?;
    let parameters = PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
    let created = api.create(&parameters, &object).await.map(drop);
    unless_done(created).map_err(|error| failed(format!("Service {namespace}/{name} can't be created"), &error))
}

async fn delete_service(client: &Client, service: &Value, uid: Option<String>) -> anyhow::Result<()> {
    let (namespace, name) = (object::namespace(service), object::name(service));
    let api = api(client, "v1", "Service", Some(namespace));
    let parameters = DeleteParams::default().preconditions(Preconditions { uid, ..Preconditions::default() });
    let deleted = api.delete(name, &parameters).await.map(drop);
    unless_done(deleted).map_err(|error| failed(format!("Service {namespace}/{name} can't be deleted"), &error))
}

/// Makes the copied EndpointSlices of an alias equal to those of its Service.
async fn copy(client: &Client, swap: &Swap) -> anyhow::Result<()> {
    let api = &api(client, "discovery.k8s.io/v1", "EndpointSlice", Some(&swap.namespace));
    let wanted: Vec<Value> =
        slices(client, &swap.namespace, &swap.name).await?.iter().map(|slice| swap.copied(slice)).collect();
    let parameters = PatchParams::apply(MANAGER).force();
    for slice in &wanted {
        let name = object::name(slice);
        let applied = api.patch(name, &parameters, &Patch::Apply(slice)).await;
        applied.map_err(|error| failed(format!("EndpointSlice {}/{name} can't be written", swap.namespace), &error))?;
    }
    delete_copies(client, swap, |name| wanted.iter().all(|slice| object::name(slice) != name)).await
}

async fn delete_copies(client: &Client, swap: &Swap, is_old: impl Fn(&str) -> bool) -> anyhow::Result<()> {
    let api = api(client, "discovery.k8s.io/v1", "EndpointSlice", Some(&swap.namespace));
    let selector = format!("{SLICE_WRITER_LABEL}={SLICE_WRITER},kubernetes.io/service-name={}", swap.alias_name());
    let parameters = ListParams::default().labels(&selector);
    let found = api.list_metadata(&parameters).await;
    let found = found.map_err(|error| failed("EndpointSlices can't be listed", &error))?;
    for name in found.items.into_iter().filter_map(|slice| slice.metadata.name).filter(|name| is_old(name)) {
        let deleted = if_found(api.delete(&name, &DeleteParams::default()).await.map(drop));
        deleted.map_err(|error| failed(format!("EndpointSlice {}/{name} can't be deleted", swap.namespace), &error))?;
    }
    Ok(())
}
