//! The acts of other writers: of users of the namespace, and of Services elsewhere that take a free address.

use serde_json::{Value, json};

use super::api_server::{NEW, OLD, SERVICE, TRIGGER, is_alias};
use super::search::Model;
use super::world::{FROM, Hashed, SHOWN, TO, World};

/// Collects what may happen next: its name, and what it changes.
type Collector<'c> = dyn FnMut(String, &dyn Fn(&mut World)) + 'c;

impl Model {
    /// The acts of other writers.
    pub(super) fn acts_of_others(&self, world: &World, add: &mut Collector<'_>) {
        if let Some(service) = world.objects[SERVICE].as_deref() {
            add("a user deletes the Service".to_owned(), &|world| {
                world.others -= 1;
                world.interrupt();
                world.remove(SERVICE);
                world.touched.service_deleted = true;
            });
            let mut changed = service.clone();
            changed["spec"]["selector"]["app"] = json!("shop");
            changed["metadata"]["labels"]["team"] = json!("blue");
            add("a user changes the selector and the labels".to_owned(), &|world| {
                world.others -= 1;
                world.touched.changed = true;
                world.store(SERVICE, changed.clone(), false);
            });
            add("a user makes the Service too large to read".to_owned(), &|world| {
                world.others -= 1;
                world.interrupt();
                (world.touched.outgrown, world.is_unreadable) = (true, true);
                world.store(SERVICE, (*service).clone(), false);
            });
            if is_alias(service) {
                let mut back = service.clone();
                back["spec"]["type"] = json!("ClusterIP");
                back["spec"]["clusterIP"] = json!("10.0.0.250");
                back["spec"]["clusterIPs"] = json!(["10.0.0.250"]);
                add("a user sets the type back".to_owned(), &|world| {
                    world.others -= 1;
                    world.interrupt();
                    world.touched.type_set_back = true;
                    world.store(SERVICE, back.clone(), false);
                });
            }
        }
        for address in [FROM, TO].map(|text| text.parse().unwrap()) {
            if !world.is_taken(address, usize::MAX) {
                add(format!("another Service takes {address}"), &|world| {
                    world.others -= 1;
                    world.interrupt();
                    world.taken_by_others.insert(address);
                });
            }
        }
        let shows = |service: &Hashed<Value>| !service["status"]["loadBalancer"]["ingress"].is_null();
        if !world.shown_is_given && !world.objects[SERVICE].as_ref().is_some_and(shows) {
            add(format!("another Service is given {SHOWN}"), &|world| {
                world.others -= 1;
                world.shown_is_given = true;
            });
        }
        for (at, name) in [(NEW, &self.plan.new), (OLD, &self.plan.old), (TRIGGER, &self.plan.trigger)] {
            if world.objects[at].is_some() {
                add(format!("a user deletes {name}"), &|world| {
                    world.others -= 1;
                    world.interrupt();
                    world.touched.temporary = true;
                    world.remove(at);
                });
            }
            let foreign = json!({
                "metadata": {"name": name, "foreign": true},
                "spec": {"type": "ClusterIP", "clusterIP": format!("10.0.0.{}", 220 + at)},
            });
            add(format!("a user puts another {name} in its place"), &|world| {
                world.others -= 1;
                world.interrupt();
                world.touched.temporary = true;
                world.store(at, foreign.clone(), true);
            });
        }
    }
}
