//! A model of the API server, as far as moves need it: names, UIDs, versions, and the allocation of addresses.

use std::net::IpAddr;

use clusterip_core::service::addresses;
use clusterip_moves::outcome::Refusal;
use clusterip_moves::seamless::{Request, Verb};
use clusterip_moves::temporary::Role;
use serde_json::{Value, json};

use super::world::{Hashed, World};

/// The promise about the status.
pub const SHOWN_BY_ONE: &str = "the status has an IP of another Service";

/// The places of the objects in a [`World`].
pub const SERVICE: usize = 0;
pub const NEW: usize = 1;
pub const OLD: usize = 2;
pub const TRIGGER: usize = 3;

pub fn place_of(role: Role) -> usize {
    match role {
        Role::New => NEW,
        Role::Old => OLD,
        Role::Trigger => TRIGGER,
    }
}

fn place(name: &str) -> usize {
    match name {
        "web" => SERVICE,
        name if name.starts_with("clusterip-new-") => NEW,
        name if name.starts_with("clusterip-old-") => OLD,
        _ => TRIGGER,
    }
}

/// The text at a path without escaped characters: to look for them takes a large part of the time of the search.
fn text<'v>(object: &'v Value, path: &str) -> &'v str {
    let found = path.split('/').skip(1).try_fold(object, |value, key| value.get(key));
    found.and_then(Value::as_str).unwrap_or_default()
}

pub fn is_alias(object: &Value) -> bool {
    text(object, "/spec/type") == "ExternalName"
}

impl World {
    /// Whether an object other than that at `except`, or a Service elsewhere, has this address.
    pub fn is_taken(&self, address: IpAddr, except: usize) -> bool {
        let has = |object: &Value| !is_alias(object) && addresses(object).contains(&address);
        let mut others = self.objects.iter().enumerate().filter(|(at, _)| *at != except);
        self.taken_by_others.contains(&address) || others.any(|(_, object)| object.as_deref().is_some_and(has))
    }

    /// Carries out a request.
    pub fn carry_out(&mut self, request: &Request, checks: bool) -> Result<(), Refusal> {
        let Request { verb, name, body, .. } = request;
        let at = place(name);
        let found = match (*verb, self.objects[at].clone()) {
            (Verb::Create, None) => {
                let stored = self.allocated(at, body.clone())?;
                self.store(at, stored, true);
                return Ok(());
            }
            (Verb::Create, Some(_)) => return Err(Refusal::Conflict),
            (_, None) => return Err(Refusal::Gone),
            (_, Some(found)) => found,
        };
        let named = if *verb == Verb::Delete { "/preconditions" } else { "/metadata" };
        let same = |field| text(&found, &format!("/metadata/{field}")) == text(body, &format!("{named}/{field}"));
        if checks && !(same("uid") && same("resourceVersion")) {
            return Err(Refusal::Conflict);
        }
        if *verb == Verb::Delete {
            self.check_delete(at, &found);
            self.remove(at);
            return Ok(());
        }
        if !is_alias(&found) && !is_alias(body) && addresses(&found) != addresses(body) {
            return Err(Refusal::Refused("may not change once set".to_owned()));
        }
        let mut stored = self.allocated(at, body.clone())?;
        // Only the subresource writes the status, and only a load balancer has one.
        let is_balancer = text(&stored, "/spec/type") == "LoadBalancer";
        stored["status"] = if is_balancer { found["status"].clone() } else { Value::Null };
        if *verb == Verb::Replace {
            self.check_replace(at, &found, &stored);
            self.store(at, stored, false);
        }
        Ok(())
    }

    /// Writes the status of the Service, if it was not changed since it was seen.
    pub fn write_status(&mut self, body: Value) -> Result<(), Refusal> {
        let Some(found) = self.objects[SERVICE].clone() else { return Err(Refusal::Gone) };
        if text(&found, "/metadata/resourceVersion") != text(&body, "/metadata/resourceVersion") {
            return Err(Refusal::Conflict);
        }
        if self.shown_is_given {
            self.breaks(SHOWN_BY_ONE);
        }
        self.store(SERVICE, body, false);
        Ok(())
    }

    /// The object as it is stored, with its addresses.
    fn allocated(&self, at: usize, mut body: Value) -> Result<Value, Refusal> {
        let wanted = addresses(&body);
        let spec = body["spec"].as_object_mut().unwrap();
        if spec["type"] == "ExternalName" {
            spec.remove("clusterIP");
            spec.remove("clusterIPs");
            return Ok(body);
        }
        if let Some(taken) = wanted.iter().find(|address| self.is_taken(**address, at)) {
            return Err(Refusal::Address {
                which: Some(*taken),
                reason: "provided IP is already allocated".to_owned(),
            });
        }
        if wanted.is_empty() {
            let free = format!("10.0.0.{}", 200 + at);
            spec.insert("clusterIP".into(), free.as_str().into());
            spec.insert("clusterIPs".into(), json!([free]));
        }
        Ok(body)
    }

    pub fn remove(&mut self, at: usize) {
        let before = self.seen_by_kube_proxy();
        self.objects[at] = None;
        self.notice(at, &before, true);
    }

    pub fn store(&mut self, at: usize, mut object: Value, is_new: bool) {
        let before = self.seen_by_kube_proxy();
        self.versions[at] += 1;
        let version = self.versions[at].to_string();
        if is_new {
            object["metadata"]["uid"] = json!(format!("uid-{at}-{version}"));
        }
        object["metadata"]["resourceVersion"] = json!(version);
        self.objects[at] = Some(Hashed::new(&object.to_string(), object));
        self.notice(at, &before, is_new);
    }
}
