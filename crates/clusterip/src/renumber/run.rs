//! Carries out the steps of a renumbering.

use std::time::Duration;

use anyhow::{Context as _, bail};
use clusterip_cluster::api_error::failed;
use clusterip_cluster::object;
use clusterip_cluster::shutdown::Interrupt;
use clusterip_moves::renumbering::change::{Change, Direction};
use clusterip_moves::renumbering::observed::Held;
use clusterip_moves::renumbering::record::{
    DEFAULT_SERVICE_CIDR, Phase, Record, SLICE_WRITER, SLICE_WRITER_LABEL, Swap, trigger,
};
use clusterip_moves::renumbering::step::{Goal, Request, Step, next};
use clusterip_moves::seamless::{PROXY_DELAY, PROXY_IDLE, TRIGGER_LEAD};
use clusterip_moves::temporary::Role;
use futures::FutureExt as _;
use jiff::Timestamp;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Client, Error as KubeError};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::kubelets::note_kubelets;
use super::objects::{
    ENDPOINT_SLICE, IP_ADDRESS, Kind, SERVICE, SERVICE_CIDR, SERVICE_POOL, api, endpoint_slices, for_each, get,
};
use super::observe::{self, Observer, is_alias_of, is_changed, pools, swap_state, wanted_copies};
use super::store::Store;

/// How often the cluster is observed while it does something.
const LOOK: Duration = Duration::from_secs(1);
/// How often the creation of the trigger is tried, and a change of a Service that other clients change.
const TRIGGER_ATTEMPTS: usize = 20;
const CHANGE_ATTEMPTS: usize = 5;
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
        let mut waited_for = String::new();
        loop {
            if goal != Goal::Switch {
                note_kubelets(&self.observer, &mut self.store, record).await?;
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
                Step::Send(requests) => self.send_all(&requests, record).await?,
            }
        }
    }

    async fn enter(&mut self, record: &mut Record, phase: Phase) -> anyhow::Result<()> {
        match phase {
            Phase::Switching => record.swaps = observe::swaps(&self.observer.client, &record.change).await?,
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
        note_kubelets(&self.observer, &mut self.store, record).await?;
        (self.report)(&format!("phase: {}", phase.as_str()));
        Ok(())
    }

    async fn send_all(&self, requests: &[Request], record: &Record) -> anyhow::Result<()> {
        let client = &self.observer.client;
        let trigger = trigger(&self.observer.server_namespace);
        let swap = |at: usize| record.swaps.get(at).context("the record has no such swap");
        // The stored Service of the swap. Between the release and the new addresses, every request costs time.
        let mut known = None;
        for request in requests {
            match *request {
                Request::Copy(at) => copy(client, swap(at)?).await?,
                Request::CreateAlias(at, role) => create_alias(client, swap(at)?, role).await?,
                Request::Settle => sleep(PROXY_DELAY.max(PROXY_IDLE)).await,
                Request::CreateTrigger => create_trigger(client, &trigger).await?,
                Request::Pause => sleep(TRIGGER_LEAD).await,
                Request::Release(at, role) => self.change_service(swap(at)?, Some(role), &mut known).await?,
                Request::Take(at) => self.change_service(swap(at)?, None, &mut known).await?,
                Request::DeleteTrigger => {
                    delete(client, SERVICE, Some(object::namespace(&trigger)), object::name(&trigger), None).await?;
                }
                // Another client may have created a Service with this name meanwhile.
                Request::DeleteAlias(at, role) => {
                    let swap = swap(at)?;
                    delete_if(client, swap, &swap.alias_name(role), |found| is_alias_of(found, swap, role)).await?;
                }
                Request::DeleteCopies(at) => delete_copies(client, swap(at)?, &[]).await?,
            }
        }
        Ok(())
    }

    /// Carries out [`Swap::change`], if it is the next one: another run may have carried it out. `known` is the stored
    /// Service, if it is known, before and after that.
    async fn change_service(&self, swap: &Swap, lead: Option<Role>, known: &mut Option<Value>) -> anyhow::Result<()> {
        let client = &self.observer.client;
        let namespace = Some(swap.namespace.as_str());
        let parameters = PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
        for attempt in 1.. {
            if known.is_none() {
                *known = get(client, SERVICE, namespace, &swap.name).await?;
            }
            let changed = known.as_ref().and_then(|service| swap.change(service, lead, &self.cluster_domain));
            let Some(changed) = changed else { break };
            let changed = serde_json::from_value(changed)?;
            match api(client, SERVICE, namespace).replace(&swap.name, &parameters, &changed).await {
                Ok(stored) => {
                    *known = Some(json!(stored));
                    break;
                }
                // Another client has changed it meanwhile.
                Err(KubeError::Api(status)) if status.code == 409 && attempt < CHANGE_ATTEMPTS => *known = None,
                Err(error) => {
                    return Err(failed(format!("Service {}/{} can't be changed", swap.namespace, swap.name), &error));
                }
            }
        }
        Ok(())
    }
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
    for swap in record.swaps.iter().filter(|swap| !swap.has_selector()) {
        let state = swap_state(client, swap).await?;
        if state.alias == Held::Old && state.service != Held::Absent && !state.has_equal_copies {
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
    unless_done(try_create(client, kind, object).await?, kind, object::name(object), "created")
}

async fn try_create(client: &Client, kind: Kind, object: &Value) -> anyhow::Result<Result<(), KubeError>> {
    let namespace = Some(object::namespace(object)).filter(|namespace| !namespace.is_empty());
    let parameters = PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
    let parsed = serde_json::from_value(object.clone())?;
    Ok(api(client, kind, namespace).create(&parameters, &parsed).await.map(drop))
}

async fn create_alias(client: &Client, swap: &Swap, role: Role) -> anyhow::Result<()> {
    let created = try_create(client, SERVICE, &swap.alias(role)).await?;
    if matches!(&created, Err(KubeError::Api(status)) if status.code == 422) {
        for address in swap.addresses(role) {
            let Some(holder) = get(client, IP_ADDRESS, None, &address.to_string()).await? else { continue };
            let of = |field: &str| object::text(&holder, &["spec", "parentRef", field]);
            let (holder, name) = (format!("{}/{}", of("namespace"), of("name")), &swap.name);
            bail!(
                "{address} of Service {}/{name} belongs to Service {holder}: delete this Service or give it another \
                 address, and try again",
                swap.namespace
            );
        }
    }
    unless_done(created, SERVICE, &swap.alias_name(role), "created")
}

/// Creates the trigger. The API server picks its address. If that lies in a fenced pool, the fence refuses the Service, and
/// the next attempt gets another address.
async fn create_trigger(client: &Client, trigger: &Value) -> anyhow::Result<()> {
    let mut created = try_create(client, SERVICE, trigger).await?;
    for _ in 1..TRIGGER_ATTEMPTS {
        if !matches!(&created, Err(KubeError::Api(status)) if matches!(status.code, 403 | 422)) {
            break;
        }
        created = try_create(client, SERVICE, trigger).await?;
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

/// Deletes the Service of this name if `is_one` is true for it.
async fn delete_if(client: &Client, swap: &Swap, name: &str, is_one: impl Fn(&Value) -> bool) -> anyhow::Result<()> {
    let namespace = Some(swap.namespace.as_str());
    let Some(found) = get(client, SERVICE, namespace, name).await?.filter(is_one) else { return Ok(()) };
    let uid = object::text(&found, &["metadata", "uid"]).to_owned();
    delete(client, SERVICE, namespace, name, Some(uid)).await
}

/// Makes the copied EndpointSlices of the aliases equal to those of their Service, which holds this.
async fn copy(client: &Client, swap: &Swap) -> anyhow::Result<()> {
    let service = get(client, SERVICE, Some(&swap.namespace), &swap.name).await?;
    let held = service.map_or(Held::Absent, |service| swap.held(&service));
    let found = endpoint_slices(client, &swap.namespace, &swap.name).await?;
    let roles = [Role::Old, Role::New].into_iter();
    let wanted: Vec<Value> = roles.flat_map(|role| wanted_copies(swap, role, held, &found)).collect();
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
    let (old, new) = (swap.alias_name(Role::Old), swap.alias_name(Role::New));
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
    use tokio::time::{Instant, timeout};
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
