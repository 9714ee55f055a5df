//! The state of the exploration: the stored objects, the runs, and what may still happen.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::LazyLock;

use clusterip_core::annotations::MOVING_ANNOTATION;
use clusterip_core::service::addresses;
use clusterip_moves::journal::{Journal, Plan};
use clusterip_moves::seamless::{Observed, Progress, Request};
use clusterip_moves::step;
use clusterip_moves::temporary::{Role, Temporary};
use serde_json::{Value, json};

use super::api_server::{NEW, OLD, SERVICE, TRIGGER, is_alias, place_of};
use super::kube_proxy::{LONG, Programmed};

/// The old and the new address.
pub const FROM: &str = "10.0.0.7";
pub const TO: &str = "10.0.1.7";
/// The IP that the status of the Service shows.
pub const SHOWN: &str = "192.0.2.7";
/// The promise about a Service that is too large to read.
const UNREADABLE_ENDS: &str = "a Service that can't be read keeps temporary Services";

pub fn hash_of(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// A value with the hash of its content: cheap to clone, to hash and to compare.
#[derive(Clone)]
pub struct Hashed<T>(Rc<(T, u64)>);

impl<T> Hashed<T> {
    pub fn new(content: &str, value: T) -> Self {
        Self(Rc::new((value, hash_of(&content))))
    }
}

impl<T> Deref for Hashed<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0.0
    }
}

impl<T> Hash for Hashed<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.1.hash(state);
    }
}

impl<T> PartialEq for Hashed<T> {
    fn eq(&self, other: &Self) -> bool {
        self.0.1 == other.0.1
    }
}

pub type Objects = [Option<Hashed<Value>>; 4];

/// A run of the move in one process.
#[derive(Clone, Default, Hash)]
pub struct Runner {
    pub progress: Progress,
    pub seen: Objects,
    /// Whether the objects have to be read again.
    pub is_stale: bool,
    /// Whether no request could be on its way when the objects were read. The executor waits much longer than a request
    /// may take, so it has read the objects after the last one arrived.
    pub saw_requests_ended: bool,
    /// Whether the run has waited as long as it wanted since its last write.
    pub has_waited: bool,
    /// Which target is tried: 0 the new address, 1 the old one, 2 any.
    pub target: u8,
}

impl Runner {
    pub fn new(progress: Progress) -> Self {
        Self { progress, is_stale: true, ..Self::default() }
    }

    pub fn observed(&self, journal: &Journal) -> Observed {
        let value = |at: usize| self.seen[at].as_deref().cloned();
        let service = value(SERVICE).filter(|service| service["metadata"]["uid"] == journal.uid.as_str());
        Observed { service, new: value(NEW), old: value(OLD), trigger: value(TRIGGER) }
    }
}

/// What other writers have done.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Touched {
    pub service_deleted: bool,
    /// Another client has set the type of the Service back.
    pub type_set_back: bool,
    /// Another client has changed the selector and the labels of the Service.
    pub changed: bool,
    /// A request has arrived after its client had given up.
    pub late: bool,
    /// Another client has deleted or replaced a temporary Service.
    pub temporary: bool,
    /// Its author has made the Service too large to read.
    pub outgrown: bool,
}

/// The state of everything.
#[derive(Clone, Default, Hash)]
pub struct World {
    pub objects: Objects,
    pub versions: [u32; 4],
    /// The addresses of Services elsewhere.
    pub taken_by_others: BTreeSet<IpAddr>,
    /// Whether another Service has been given [`SHOWN`].
    pub shown_is_given: bool,
    /// Whether the Service is too large to read now.
    pub is_unreadable: bool,
    pub is_recorded: bool,
    /// A request whose client has given up, and that may still be carried out.
    pub late: Option<Hashed<Request>>,
    pub runs: [Option<Runner>; 2],
    /// What kube-proxy has programmed.
    pub programmed: Programmed,
    /// 0 in time, 1 the preparation takes too long, 2 the grace period is over.
    pub clock: u8,
    pub touched: Touched,
    /// The first broken promise.
    pub violation: Option<&'static str>,
    pub failures: u8,
    pub others: u8,
    pub leaders: u8,
}

/// The Service before the move.
pub fn service() -> Value {
    json!({
        "metadata": {"name": "web", "namespace": "shop", "uid": "uid-web", "resourceVersion": "1"},
        "spec": {"type": "LoadBalancer", "clusterIP": FROM, "clusterIPs": [FROM], "selector": {"app": "web"}},
        "status": {"loadBalancer": {"ingress": [{"ip": SHOWN}]}},
    })
}

/// The journal of the move, and its plan.
pub fn journal() -> &'static (Journal, Plan) {
    static JOURNAL: LazyLock<(Journal, Plan)> = LazyLock::new(new_journal);
    &JOURNAL
}

fn new_journal() -> (Journal, Plan) {
    let plan = Plan::new("shop", "uid-web", "clusterip-policy", "cluster.local", 30);
    let mut journal = step::beginning(&service(), &[TO.parse().unwrap()], "why");
    journal.recorded_at = 1000;
    journal.seamless = Some(plan.clone());
    let released = json!({"type": "ExternalName", "externalName": plan.external_name, "selector": {"app": "web"}});
    journal.released = released.as_object().cloned().unwrap();
    (journal, plan)
}

impl World {
    /// The move has just been recorded, and the first run begins.
    pub fn start(failures: u8, others: u8, leaders: u8) -> Self {
        let runs = [Some(Runner::new(Progress::of_first_run())), None];
        let mut world = Self { is_recorded: true, runs, failures, others, leaders, ..Self::default() };
        world.store(SERVICE, service(), false);
        world.pass(LONG);
        world
    }

    /// Whether one run alone writes, and no other client.
    pub fn is_undisturbed(&self) -> bool {
        self.touched == Touched::default() && self.taken_by_others.is_empty() && self.runs.iter().flatten().count() == 1
    }

    /// The objects as a run reads them.
    pub fn read(&self) -> Objects {
        let mut read = self.objects.clone();
        if self.is_unreadable {
            read[SERVICE] = None;
        }
        read
    }

    /// The time in seconds since 1970.
    pub fn now(&self) -> i64 {
        [1000, 1010, 5000][usize::from(self.clock)]
    }

    pub fn temporary(&self, role: Role, journal: &Journal) -> Temporary<'_> {
        Temporary::of(self.objects[place_of(role)].as_deref(), role, journal)
    }

    pub fn breaks(&mut self, promise: &'static str) {
        self.violation.get_or_insert(promise);
    }

    /// Checks a replacement before it is stored.
    pub fn check_replace(&mut self, at: usize, before: &Value, after: &Value) {
        let (journal, _) = journal();
        if at == SERVICE && !is_alias(before) && is_alias(after) && !self.touched.temporary {
            if !self.temporary(Role::New, journal).is_at(&journal.to) {
                self.breaks("the Service points at a name without an address");
            }
            if !self.temporary(Role::Old, journal).is_released(journal) {
                self.breaks("nothing can take the old address at once");
            }
        }
        if before["metadata"]["uid"] != after["metadata"]["uid"] || before["metadata"]["foreign"] == true {
            self.breaks("an object of another client was replaced");
        }
    }

    /// Checks a deletion.
    pub fn check_delete(&mut self, at: usize, found: &Value) {
        if at == SERVICE || found["metadata"]["foreign"] == true {
            self.breaks("an object of another client was deleted");
        }
    }

    /// Ends the move, or leaves its record if its Service can't be read.
    pub fn end(&mut self) {
        let remains = [Role::New, Role::Old, Role::Trigger].map(|role| self.temporary(role, &journal().0).is_ours());
        if self.is_unreadable && remains.contains(&true) && self.late.is_none() {
            self.breaks(UNREADABLE_ENDS);
        }
        self.is_recorded = self.is_unreadable;
    }

    /// Checks the state after the move has ended.
    pub fn check_end(&self) -> Result<(), String> {
        let (journal, _) = journal();
        for role in [Role::New, Role::Old, Role::Trigger] {
            if self.temporary(role, journal).is_ours() {
                return Err(format!("the temporary Service {} remains", role.as_str()));
            }
        }
        let Some(service) = self.objects[SERVICE].as_deref() else {
            return if self.touched.service_deleted { Ok(()) } else { Err("the Service is gone".to_owned()) };
        };
        let now = addresses(service);
        let has_marker = !service["metadata"]["annotations"][MOVING_ANNOTATION].is_null();
        let is_taken = |address: &IpAddr| self.taken_by_others.contains(address);
        let both_are_taken = journal.to.iter().any(is_taken) && journal.from.iter().any(is_taken);
        let expected = if self.touched.type_set_back || both_are_taken {
            !now.is_empty()
        } else {
            now == journal.to || now == journal.from
        };
        match () {
            () if service["metadata"]["uid"] != journal.uid.as_str() => Err("the UID has changed".to_owned()),
            () if is_alias(service) || now.is_empty() => Err("the Service has no address".to_owned()),
            () if has_marker => Err("the marker remains".to_owned()),
            () if !service["spec"]["externalName"].is_null() => Err("an external name remains".to_owned()),
            () if self.touched.changed
                && (service["spec"]["selector"]["app"] != "shop"
                    || service["metadata"]["labels"]["team"] != "blue") =>
            {
                Err("a change of another client was lost".to_owned())
            }
            () if !expected => Err(format!("the Service is at {now:?}")),
            () => Ok(()),
        }
    }
}
