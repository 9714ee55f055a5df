//! Carries out the steps of a renumbering.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clusterip_cluster::api_error::failed;
use clusterip_cluster::object;
use clusterip_cluster::shutdown::Interrupt;
use clusterip_moves::renumbering::change::{Change, Direction};
use clusterip_moves::renumbering::observed::Held;
use clusterip_moves::renumbering::record::{
    DEFAULT_SERVICE_CIDR, Phase, Record, SLICE_WRITER, SLICE_WRITER_LABEL, Side, Swap, trigger,
};
use clusterip_moves::renumbering::step::{Goal, Request, Step, next};
use clusterip_moves::seamless::{PROXY_DELAY, PROXY_IDLE, TRIGGER_LEAD};
use futures::FutureExt as _;
use jiff::Timestamp;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Client, Error as KubeError};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::kubelets::note_kubelets;
use super::objects::{
    ENDPOINT_SLICE, IP_ADDRESS, Kind, SERVICE, SERVICE_CIDR, SERVICE_POOL, api, endpoint_slices, for_each, get,
};
use super::observe::{self, Observer, is_alias_of, is_changed, pools, swap_state};
use super::store::Store;

/// How often the cluster is observed while it does something.
const LOOK: Duration = Duration::from_secs(1);
/// How often the creation of the trigger is tried.
const TRIGGER_ATTEMPTS: usize = 20;
/// How often a change of a Service is tried that other clients change, too.
const CHANGE_ATTEMPTS: usize = 5;
/// The end of the message of an API server about an address that is not free.
const TAKEN: &str = "provided IP is already allocated";
/// How often the creation of an alias is tried, and what an API server answers if it looks into another range.
const TRIALS: usize = 50;
const OUTSIDE: &str = "is not in the valid range";
/// How many attempts one look for the Service with the address is for: the look takes longer than an attempt.
const ATTEMPTS_FOR_HOLDER: usize = 20;
/// After this time, the API servers have freed an address that no Service has: they look after a minute.
const FREED_AFTER: Duration = Duration::from_secs(90);
const MANAGER: &str = "clusterip-renumber";
/// The longest time that a command waits for requests of the previous one, whatever the record says. By itself, an API
/// server ends a request after a minute.
const MOST_REQUEST_SECONDS: u64 = 600;

/// How a run of a command ended.
#[derive(Debug, PartialEq, Eq)]
pub enum End {
    Done(String),
    /// An administrator must do something first.
    Stopped(String),
    Interrupted,
}

pub struct Run<'r, M> {
    pub store: Store,
    pub observer: Observer,
    /// Moves the Services of a cluster. It returns whether all that were to move have moved.
    pub mover: M,
    pub report: &'r dyn Fn(&str),
    /// The longest time that a request takes: if this command is killed, its requests may still arrive for so long.
    pub request_timeout: Duration,
    /// The domain of the cluster in DNS.
    pub cluster_domain: String,
    /// Ends the run between two steps. The handler of a signal stays for the life of the process, so nothing else ends it.
    pub interrupt: Interrupt,
}

impl<M: AsyncFn(&Record, Direction) -> anyhow::Result<bool>> Run<'_, M> {
    /// Carries out steps until the goal is reached, or an administrator must do something.
    pub async fn work(&mut self, goal: Goal, mut record: Record) -> anyhow::Result<End> {
        let is_broken = self.request_timeout.subsec_nanos() > 0;
        let own = self.request_timeout.as_secs().saturating_add(u64::from(is_broken));
        if record.is_running {
            let seconds = record.request_seconds.map_or(own, |seconds| seconds.min(MOST_REQUEST_SECONDS));
            (self.report)(&format!("waiting {seconds} s: requests of the previous command may still arrive"));
            if until(&self.interrupt, sleep(Duration::from_secs(seconds))).await.is_none() {
                // The requests may still arrive: the next command waits, too.
                return Ok(End::Interrupted);
            }
            record = self.store.read().await?.context("the renumbering has ended")?;
        }
        if (record.is_running, record.request_seconds) != (true, Some(own)) {
            (record.is_running, record.request_seconds) = (true, Some(own));
            self.store.write(&record).await?;
        }
        let end = self.carry_out(goal, &mut record).await?;
        if self.store.is_stored() {
            record.is_running = false;
            self.store.write(&record).await?;
        }
        Ok(end)
    }

    async fn carry_out(&mut self, goal: Goal, record: &mut Record) -> anyhow::Result<End> {
        let client = self.observer.client.clone();
        let (mut waited_for, mut sent) = (String::new(), Vec::new());
        loop {
            if goal != Goal::Switch {
                note_kubelets(&mut self.observer, &mut self.store, record).await?;
            }
            let observed = until(&self.interrupt, self.observer.observe(goal, record)).await;
            let Some(observed) = observed else { return Ok(End::Interrupted) };
            match next(goal, record, &observed?) {
                Step::Done(text) => return Ok(End::Done(text)),
                Step::Stop(text) => return Ok(End::Stopped(text)),
                Step::Wait(what) => {
                    if what != waited_for {
                        (self.report)(&format!("waiting: {what}"));
                        waited_for = what;
                    }
                    if until(&self.interrupt, sleep(LOOK)).await.is_none() {
                        return Ok(End::Interrupted);
                    }
                }
                Step::DeleteRecord(text) => {
                    self.store.delete().await?;
                    return Ok(End::Done(text));
                }
                Step::Move(direction) => {
                    // Any user can make a Service that can't move: it must not hold up the others.
                    let have_all_moved = (self.mover)(record, direction).await?;
                    // The mover has stopped at the signal, too.
                    if self.interrupt.clone().now_or_never().is_some() {
                        return Ok(End::Interrupted);
                    }
                    if !have_all_moved {
                        (self.report)("some Services have not moved and keep their addresses: see above");
                    }
                    self.observer.has_moved = true;
                }
                Step::Enter(phase) => self.enter(record, phase).await?,
                Step::CreateServiceCidr(name, cidrs) => {
                    let metadata = json!({"name": name, "labels": {"app.kubernetes.io/name": "clusterip"}});
                    let service_cidr = json!({"apiVersion": SERVICE_CIDR.0, "kind": SERVICE_CIDR.1,
                        "metadata": metadata, "spec": {"cidrs": cidrs}});
                    create(&client, SERVICE_CIDR, &service_cidr).await?;
                }
                Step::DeleteServiceCidr(name) => {
                    self.observer.has_replaced_default |= name == DEFAULT_SERVICE_CIDR;
                    delete(&client, SERVICE_CIDR, None, name, None).await?;
                }
                Step::SetPools(direction) => set_pools(&client, &record.change.directed(direction)).await?,
                Step::Send(requests) => {
                    // The requests have not changed what is observed, such as a deletion that a finalizer delays.
                    if sent == requests && until(&self.interrupt, sleep(LOOK)).await.is_none() {
                        return Ok(End::Interrupted);
                    }
                    self.send_all(&requests, record).await?;
                    sent = requests;
                }
            }
        }
    }

    async fn enter(&mut self, record: &mut Record, phase: Phase) -> anyhow::Result<()> {
        match phase {
            Phase::Switching => {
                record.swaps = observe::swaps(&self.observer.client, &record.change).await?;
                // If a policy refuses an alias, its Service keeps its addresses, and a rollback is still possible.
                for swap in &record.swaps {
                    try_aliases(&self.observer.client, swap).await?;
                }
            }
            Phase::Switched => {
                // Pods that start from now on use the new addresses.
                sleep(PROXY_DELAY).await;
                record.switched_at = Some(Timestamp::now().as_second());
            }
            _ => {}
        }
        record.phase = phase;
        // The switch looks again for Services that have not moved.
        self.observer.has_moved &= phase != Phase::Switching;
        self.store.write(record).await?;
        note_kubelets(&mut self.observer, &mut self.store, record).await?;
        (self.report)(&format!("phase: {}", phase.as_str()));
        Ok(())
    }

    async fn send_all(&self, requests: &[Request], record: &Record) -> anyhow::Result<()> {
        let client = &self.observer.client;
        let trigger = trigger(&self.observer.server_namespace);
        let swap = |at: usize| record.swaps.get(at).context("the record has no such swap");
        // The Service of the swap, as last stored: a read before each change would make the swap longer.
        let mut stored = None;
        for request in requests {
            match *request {
                Request::Copy(at) => copy(client, swap(at)?).await?,
                Request::CreateAlias(at, side) => create_alias(client, swap(at)?, side, &mut stored).await?,
                Request::Settle => sleep(PROXY_DELAY.max(PROXY_IDLE)).await,
                Request::CreateTrigger => create_trigger(client, &trigger).await?,
                Request::Pause => sleep(TRIGGER_LEAD).await,
                Request::PointTo(at, side) => {
                    let swap = swap(at)?;
                    let changed = |service: &Value| swap.pointing_to(service, side, &self.cluster_domain);
                    change_service(client, swap, &mut stored, changed).await?;
                }
                Request::Take(at) => {
                    let swap = swap(at)?;
                    change_service(client, swap, &mut stored, |service| swap.with_new_addresses(service)).await?;
                }
                Request::DeleteTrigger => {
                    delete(client, SERVICE, Some(object::namespace(&trigger)), object::name(&trigger), None).await?;
                }
                Request::DeleteAlias(at, side) => delete_alias(client, swap(at)?, side).await?,
                Request::DeleteCopies(at) => delete_copies(client, swap(at)?, &[]).await?,
            }
        }
        Ok(())
    }
}

/// The Service of a swap, as last stored.
async fn service<'s>(client: &Client, swap: &Swap, stored: &'s mut Option<Value>) -> anyhow::Result<Option<&'s Value>> {
    if stored.is_none() {
        *stored = get(client, SERVICE, Some(&swap.namespace), &swap.name).await?;
    }
    Ok(stored.as_ref())
}

/// Writes the next change of the Service; nothing if another command has written it.
async fn change_service(
    client: &Client,
    swap: &Swap,
    stored: &mut Option<Value>,
    changed: impl Fn(&Value) -> Option<Value>,
) -> anyhow::Result<()> {
    let parameters = PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
    let services = api(client, SERVICE, Some(&swap.namespace));
    for attempt in 1.. {
        let Some(changed) = service(client, swap, stored).await?.and_then(&changed) else { break };
        let changed = serde_json::from_value(changed)?;
        let replaced = async || Ok(services.replace(&swap.name, &parameters, &changed).await);
        match when_free(client, swap, &swap.new, replaced).await? {
            None => break,
            Some(Ok(changed)) => {
                *stored = Some(json!(changed));
                break;
            }
            // Another client has changed it meanwhile.
            Some(Err(KubeError::Api(status))) if status.code == 409 && attempt < CHANGE_ATTEMPTS => *stored = None,
            Some(Err(error)) => {
                return Err(failed(format!("Service {}/{} can't be changed", swap.namespace, swap.name), &error));
            }
        }
    }
    Ok(())
}

async fn create_alias(client: &Client, swap: &Swap, side: Side, stored: &mut Option<Value>) -> anyhow::Result<()> {
    let Some(service) = service(client, swap, stored).await? else { return Ok(()) };
    let alias = swap.alias(side, service);
    let create = async || try_create(client, SERVICE, &alias, false).await;
    match when_free(client, swap, &swap.addresses(side), create).await? {
        None => Ok(()),
        Some(created) => unless_done(created, SERVICE, &swap.alias_name(side), "created"),
    }
}

/// Tries whether policies admit the aliases. For a trial, an API server looks into one of the Service ranges, at random.
async fn try_aliases(client: &Client, swap: &Swap) -> anyhow::Result<()> {
    let Some(service) = get(client, SERVICE, Some(&swap.namespace), &swap.name).await? else { return Ok(()) };
    for alias in Side::ALL.map(|side| swap.alias(side, &service)) {
        for _ in 0..TRIALS {
            let tried = try_create(client, SERVICE, &alias, true).await?;
            if !matches!(&tried, Err(KubeError::Api(status)) if status.message.contains(OUTSIDE)) {
                unless_done(tried, SERVICE, object::name(&alias), "created")?;
                break;
            }
        }
    }
    Ok(())
}

/// Repeats a write that needs these addresses until they are free; `None` if a Service of this swap has one already.
///
/// An API server allocates an address before it asks policies. So another client holds it for a moment with each request
/// that a policy refuses. If a write failed, an API server may free its address only after a minute.
async fn when_free<T>(
    client: &Client,
    swap: &Swap,
    addresses: &[IpAddr],
    write: impl AsyncFn() -> anyhow::Result<Result<T, KubeError>>,
) -> anyhow::Result<Option<Result<T, KubeError>>> {
    let begun = Instant::now();
    let mut attempts = (0..ATTEMPTS_FOR_HOLDER).cycle();
    loop {
        let written = write().await?;
        let is_taken = matches!(&written, Err(KubeError::Api(status)) if status.message.contains(TAKEN));
        if !is_taken || begun.elapsed() > FREED_AFTER {
            return Ok(Some(written));
        }
        if attempts.next() == Some(0)
            && let Some((address, namespace, name)) = holder(client, addresses).await?
        {
            let own = [swap.name.clone(), swap.alias_name(Side::Old), swap.alias_name(Side::New)];
            if namespace == swap.namespace && own.contains(&name) {
                return Ok(None);
            }
            bail!(
                "{address} of Service {}/{} belongs to Service {namespace}/{name}: delete this Service or give it \
                 another address, and try again",
                swap.namespace,
                swap.name
            );
        }
    }
}

/// The first of these addresses that a Service has, and the namespace and the name of this Service.
async fn holder(client: &Client, addresses: &[IpAddr]) -> anyhow::Result<Option<(IpAddr, String, String)>> {
    for address in addresses {
        let Some(found) = get(client, IP_ADDRESS, None, &address.to_string()).await? else { continue };
        let of = |field: &str| object::text(&found, &["spec", "parentRef", field]).to_owned();
        let (namespace, name) = (of("namespace"), of("name"));
        let service = get(client, SERVICE, Some(&namespace), &name).await?;
        if service.is_some_and(|service| clusterip_core::service::addresses(&service).contains(address)) {
            return Ok(Some((*address, namespace, name)));
        }
    }
    Ok(None)
}

/// What the work returns; `None` if the interrupt comes first.
async fn until<T>(interrupt: &Interrupt, work: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        () = interrupt.clone() => None,
        done = work => Some(done),
    }
}

/// Makes the copied EndpointSlices of the aliases without a selector equal to those of their Services.
pub async fn keep_equal(client: &Client, record: &Record) -> anyhow::Result<()> {
    // Before and after that, the aliases do not exist or are deleted.
    if !matches!(record.phase, Phase::Switching | Phase::Switched) {
        return Ok(());
    }
    for swap in &record.swaps {
        let state = swap_state(client, swap).await?;
        let has_alias = (state.old_alias, state.new_alias) != (Held::Absent, Held::Absent);
        // A Service that was deleted has no endpoints to copy.
        if has_alias && !state.has_selector && state.service != Held::Absent && !state.has_equal_copies {
            copy(client, swap).await?;
        }
    }
    Ok(())
}

/// The pools as they are after the change, each with the part of its spec that changes.
pub async fn changed_pools(client: &Client, change: &Change) -> anyhow::Result<Vec<Value>> {
    let changed = pools(client).await?.into_iter().filter(|pool| is_changed(pool, change)).map(|pool| {
        let spec = change.spec(&pool["spec"]).map_err(|text| {
            anyhow::anyhow!("ServicePool {}: {text} has no place in the other range: change it", object::name(&pool))
        })?;
        let (name, version) = (object::name(&pool), object::text(&pool, &["metadata", "resourceVersion"]));
        let metadata = json!({"name": name, "resourceVersion": version});
        Ok(json!({"apiVersion": SERVICE_POOL.0, "kind": SERVICE_POOL.1, "metadata": metadata, "spec": spec}))
    });
    changed.collect()
}

async fn set_pools(client: &Client, change: &Change) -> anyhow::Result<()> {
    for pool in changed_pools(client, change).await? {
        let name = object::name(&pool);
        let patched = api(client, SERVICE_POOL, None).patch(name, &PatchParams::default(), &Patch::Merge(&pool)).await;
        patched.map_err(|error| failed(format!("ServicePool {name} can't be changed"), &error))?;
    }
    Ok(())
}

/// It is no error that an object exists already, or is gone already.
fn unless_done(result: Result<(), KubeError>, kind: Kind, name: &str, what: &str) -> anyhow::Result<()> {
    match result {
        Err(KubeError::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
        other => other.map_err(|error| failed(format!("{} {name} can't be {what}", kind.1), &error)),
    }
}

async fn create(client: &Client, kind: Kind, object: &Value) -> anyhow::Result<()> {
    unless_done(try_create(client, kind, object, false).await?, kind, object::name(object), "created")
}

async fn try_create(
    client: &Client,
    kind: Kind,
    object: &Value,
    dry_run: bool,
) -> anyhow::Result<Result<(), KubeError>> {
    let namespace = Some(object::namespace(object)).filter(|namespace| !namespace.is_empty());
    let parameters = PostParams { field_manager: Some(MANAGER.to_owned()), dry_run };
    let parsed = serde_json::from_value(object.clone())?;
    Ok(api(client, kind, namespace).create(&parameters, &parsed).await.map(drop))
}

/// Creates the trigger. The API server picks its address. If that lies in a fenced pool, the fence refuses the Service, and
/// the next attempt gets another address.
async fn create_trigger(client: &Client, trigger: &Value) -> anyhow::Result<()> {
    let mut created = try_create(client, SERVICE, trigger, false).await?;
    for _ in 1..TRIGGER_ATTEMPTS {
        if !matches!(&created, Err(KubeError::Api(status)) if matches!(status.code, 403 | 422)) {
            break;
        }
        created = try_create(client, SERVICE, trigger, false).await?;
    }
    unless_done(created, SERVICE, object::name(trigger), "created")
}

async fn delete(
    client: &Client,
    kind: Kind,
    namespace: Option<&str>,
    name: &str,
    uid: Option<String>,
) -> anyhow::Result<()> {
    let this = DeleteParams::default().preconditions(Preconditions { uid, ..Preconditions::default() });
    let deleted = api(client, kind, namespace).delete(name, &this).await.map(drop);
    unless_done(deleted, kind, name, "deleted")
}

/// Deletes an alias, and no Service that another client has created with its name.
async fn delete_alias(client: &Client, swap: &Swap, side: Side) -> anyhow::Result<()> {
    let (namespace, name) = (Some(swap.namespace.as_str()), swap.alias_name(side));
    let found = get(client, SERVICE, namespace, &name).await?;
    let Some(found) = found.filter(|found| is_alias_of(found, swap, side)) else { return Ok(()) };
    let uid = object::text(&found, &["metadata", "uid"]).to_owned();
    delete(client, SERVICE, namespace, &name, Some(uid)).await
}

/// Makes the copied EndpointSlices of the aliases equal to those of their Service.
async fn copy(client: &Client, swap: &Swap) -> anyhow::Result<()> {
    let service = get(client, SERVICE, Some(&swap.namespace), &swap.name).await?;
    let held = service.map_or(Held::Absent, |service| swap.held(&service));
    let found = endpoint_slices(client, &swap.namespace, &swap.name).await?;
    let wanted = swap.copies(held, &found);
    let parameters = PatchParams::apply(MANAGER).force();
    for slice in &wanted {
        let name = object::name(slice);
        let applied =
            api(client, ENDPOINT_SLICE, Some(&swap.namespace)).patch(name, &parameters, &Patch::Apply(slice)).await;
        applied.map_err(|error| failed(format!("EndpointSlice {}/{name} can't be written", swap.namespace), &error))?;
    }
    delete_copies(client, swap, &wanted).await
}

/// Deletes the copied EndpointSlices of the aliases, without those that are wanted.
async fn delete_copies(client: &Client, swap: &Swap, wanted: &[Value]) -> anyhow::Result<()> {
    let namespace = Some(swap.namespace.as_str());
    let (old, new) = (swap.alias_name(Side::Old), swap.alias_name(Side::New));
    let selector = format!("{SLICE_WRITER_LABEL}={SLICE_WRITER},kubernetes.io/service-name in ({old},{new})");
    let mut left = Vec::new();
    for_each(client, ENDPOINT_SLICE, namespace, ListParams::default().labels(&selector), |slice| {
        let name = object::name(&slice);
        left.extend(wanted.iter().all(|slice| object::name(slice) != name).then(|| name.to_owned()));
    })
    .await?;
    for name in left {
        delete(client, ENDPOINT_SLICE, namespace, &name, None).await?;
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::cell::RefCell;
    use std::convert::Infallible;
    use std::sync::Arc;

    use clusterip_moves::renumbering::record::RECORD;
    use http::{Method, Request as HttpRequest, Response};
    use kube::client::Body;
    use parking_lot::Mutex;
    use tokio::time::timeout;
    use tower::service_fn;

    use super::*;

    /// A cluster that contains only the record and a ServiceCIDR that is being deleted.
    struct Cluster {
        client: Client,
        record: Arc<Mutex<Value>>,
    }

    impl Cluster {
        fn with(record: &Record) -> Self {
            let text = json!(record).to_string();
            let object = json!({"metadata": {"name": RECORD, "uid": "u"}, "data": {"record": text}});
            let record = Arc::new(Mutex::new(object));
            let stored = Arc::clone(&record);
            let client = service_fn(move |request: HttpRequest<Body>| {
                let stored = Arc::clone(&stored);
                async move {
                    let (parts, body) = request.into_parts();
                    let path = parts.uri.path();
                    let is_of_record = path.ends_with(RECORD);
                    if is_of_record && parts.method == Method::PUT {
                        *stored.lock() = serde_json::from_slice(&body.collect_bytes().await.unwrap()).unwrap();
                    }
                    let list =
                        |items: Value| json!({"apiVersion": "v1", "kind": "List", "metadata": {}, "items": items});
                    let range = json!({"metadata": {"name": "clusterip-old", "deletionTimestamp": "2026-01-01T00:00:00Z"},
                        "spec": {"cidrs": ["10.96.0.0/24"]}});
                    let answer = match path.rsplit('/').next().unwrap() {
                        RECORD => stored.lock().clone(),
                        "servicecidrs" => list(json!([range])),
                        _ => list(json!([])),
                    };
                    Ok::<_, Infallible>(Response::new(Body::from(answer.to_string().into_bytes())))
                }
            });
            Self { client: Client::new(client, "default"), record }
        }

        fn record(&self) -> Record {
            Record::parse(self.record.lock()["data"]["record"].as_str().unwrap()).unwrap()
        }

        /// Runs `begin`, which waits for the ServiceCIDR for ever, with an interrupt after this time. Returns the end, after
        /// how many seconds it came, and what was reported.
        async fn begin(&self, request_timeout: u64, interrupt: u64) -> (End, u64, Vec<String>) {
            let mut store = Store::new(&self.client, "clusterip-policy");
            let record = store.read().await.unwrap().unwrap();
            let reports = RefCell::default();
            let mut run = Run {
                store,
                observer: Observer::new(self.client.clone(), "clusterip-policy"),
                mover: async |_: &Record, _: Direction| anyhow::Ok(true),
                report: &|text| RefCell::<Vec<String>>::borrow_mut(&reports).push(text.to_owned()),
                request_timeout: Duration::from_secs(request_timeout),
                cluster_domain: "cluster.local".to_owned(),
                interrupt: sleep(Duration::from_secs(interrupt)).boxed_local().shared(),
            };
            let begun = Instant::now();
            let end = timeout(Duration::from_secs(3600), run.work(Goal::Begin, record)).await.unwrap().unwrap();
            (end, begun.elapsed().as_secs(), reports.into_inner())
        }
    }

    #[tokio::test]
    async fn trigger_gets_another_address_if_a_fence_refuses_the_first() {
        let attempts = Arc::new(Mutex::new(0));
        let counted = Arc::clone(&attempts);
        let client = service_fn(move |_: HttpRequest<Body>| {
            let counted = Arc::clone(&counted);
            async move {
                *counted.lock() += 1;
                let refused = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 422,
                    "reason": "Invalid", "message": "10.100.0.71 lies in ServicePool shop"});
                let is_fenced = *counted.lock() < 3;
                let (code, body) = if is_fenced { (422, refused) } else { (201, trigger("clusterip-policy")) };
                let answer = Response::builder().status(code).body(Body::from(body.to_string().into_bytes()));
                Ok::<_, Infallible>(answer.unwrap())
            }
        });
        create_trigger(&Client::new(client, "default"), &trigger("clusterip-policy")).await.unwrap();
        assert_eq!(*attempts.lock(), 3);
    }

    fn record(is_running: bool) -> Record {
        let range = |range: &str| vec![range.parse().unwrap()];
        let change = Change::new(&range("10.96.0.0/24"), &range("10.100.0.0/24")).unwrap();
        Record { is_running, ..Record::new(change, range("10.96.0.0/24")) }
    }

    const FOR_CLUSTER: &str = "waiting: ServiceCIDR clusterip-old is being deleted";

    #[tokio::test(start_paused = true)]
    async fn interrupt_ends_each_wait() {
        let cluster = Cluster::with(&record(false));
        assert_eq!(cluster.begin(10, 30).await, (End::Interrupted, 30, vec![FOR_CLUSTER.to_owned()]));
        assert!(!cluster.record().is_running, "the next command need not wait for requests");

        let cluster = Cluster::with(&record(true));
        let for_requests = "waiting 10 s: requests of the previous command may still arrive".to_owned();
        assert_eq!(cluster.begin(10, 5).await, (End::Interrupted, 5, vec![for_requests]));
        assert!(cluster.record().is_running, "they may still arrive");
    }

    #[tokio::test(start_paused = true)]
    async fn command_waits_as_long_as_a_request_of_the_previous_one_may_take() {
        struct Case {
            name: &'static str,
            recorded: Option<u64>,
            waits: u64,
        }
        let cases = [
            Case { name: "recorded by an older version", recorded: None, waits: 10 },
            Case { name: "a longer limit", recorded: Some(60), waits: 60 },
            Case { name: "a shorter limit", recorded: Some(3), waits: 3 },
            Case { name: "no limit that a command would record", recorded: Some(u64::MAX), waits: 600 },
        ];
        for Case { name, recorded, waits } in cases {
            let cluster = Cluster::with(&Record { request_seconds: recorded, ..record(true) });
            let for_requests = format!("waiting {waits} s: requests of the previous command may still arrive");
            let reports = vec![for_requests, FOR_CLUSTER.to_owned()];
            assert_eq!(cluster.begin(10, waits + 20).await, (End::Interrupted, waits + 20, reports), "{name}");
            assert_eq!(cluster.record().request_seconds, Some(10), "{name}");
        }
    }
}
