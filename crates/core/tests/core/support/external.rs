//! Admission requests about external addresses, and the expected answers, as JSON.

use serde_json::{Value, json};

use super::requests::service;
use super::{FakeCluster, answer_in_use, extended};

/// The class of Services that get their external addresses from this policy.
const CLASS: &str = "clusterip-policy/external";
/// The remedy in every refusal.
pub const REMEDY: &str = "use an address of a pool that matches this Service, or get one with type: LoadBalancer and \
     loadBalancerClass: clusterip-policy/external";
/// The annotation that asks for external addresses.
pub const ASKED: &str = "clusterip-policy/external-address";
/// The annotation that records external addresses.
pub const RECORD: &str = "clusterip-policy/external-addresses";

/// The IPv4 Service `shop/web` of our class, with these annotations.
pub fn balancer(annotations: &[(&str, &str)]) -> Value {
    balancer_of(json!({"ipFamilies": ["IPv4"]}), annotations)
}

/// The Service `shop/web` of our class with these additional fields of its spec, and these annotations.
pub fn balancer_of(fields: Value, annotations: &[(&str, &str)]) -> Value {
    let spec = json!({"type": "LoadBalancer", "loadBalancerClass": CLASS, "clusterIP": "10.96.0.7"});
    let mut object = service(extended(spec, &fields));
    if !annotations.is_empty() {
        object["metadata"]["annotations"] = annotations.iter().copied().collect();
    }
    object
}

/// `object` with its external addresses recorded.
pub fn with_record(mut object: Value, record: &str) -> Value {
    object["metadata"]["annotations"][RECORD] = record.into();
    object
}

/// The whole answer to `request`. The host knows the held addresses with their holders; without `held` they are looked
/// up.
pub fn external_answer(
    request: &Value,
    settings: &Value,
    held: Option<&[(&str, &str)]>,
    cluster: &FakeCluster,
) -> Value {
    let mut payload = json!({"request": request, "settings": settings});
    if let Some(held) = held {
        let held: Vec<Value> = held.iter().map(|(address, by)| json!({"address": address, "by": by})).collect();
        payload["external"] = json!({ "held": held });
    }
    let answer = answer_in_use(&payload, cluster);
    if held.is_some() {
        let asked = cluster.questions().into_iter().filter(|question| question.starts_with("list"));
        assert_eq!(asked.count(), 0, "the host knows the holders, so nothing is looked up");
    }
    serde_json::to_value(answer).unwrap()
}

/// The name of a row, a request, and the expected answer.
pub type Row<'a> = (&'a str, Value, Now);

/// The expected answer if the settings have no pool of Services.
#[derive(Clone)]
pub struct Now {
    /// `external`, `-pool`, `-addresses` and `-reason` of the audit annotations; an empty text stands for an absent
    /// one.
    audit: [String; 4],
    object: Option<Value>,
    denied: Option<(u16, String)>,
    warnings: Vec<String>,
}

/// Starts an expected answer; see the methods of [`Now`].
pub fn now(outcome: &str) -> Now {
    Now { audit: [outcome, "", "", ""].map(str::to_owned), object: None, denied: None, warnings: Vec::new() }
}

/// The answer to a request that concerns no address of our pools.
pub fn nothing() -> Now {
    now("")
}

/// The refusal of this mistake, with the remedy.
pub fn refused(mistake: &str) -> Now {
    now("denied").denied(403, &format!("Service shop/web: {mistake}; {REMEDY}"))
}

impl Now {
    pub fn pool(mut self, pool: &str) -> Self {
        self.audit[1] = pool.into();
        self
    }

    pub fn addresses(mut self, addresses: &str) -> Self {
        self.audit[2] = addresses.into();
        self
    }

    pub fn because(mut self, reason: &str) -> Self {
        self.audit[3] = reason.into();
        self
    }

    /// The addresses are written into `object`.
    pub fn recorded_in(mut self, object: &Value) -> Self {
        self.object = Some(with_record(object.clone(), &self.audit[2]));
        self
    }

    /// The record of `object` is removed.
    pub fn removed_from(mut self, object: &Value) -> Self {
        let mut object = object.clone();
        object["metadata"]["annotations"].as_object_mut().unwrap().remove(RECORD);
        self.object = Some(object);
        self
    }

    pub fn denied(mut self, code: u16, message: &str) -> Self {
        self.denied = Some((code, message.into()));
        self
    }

    pub fn with(mut self, warning: &str) -> Self {
        self.warnings.push(warning.into());
        self
    }
}

/// The whole answer.
impl From<Now> for Value {
    fn from(now: Now) -> Self {
        let (decision, reason) = match &now.denied {
            Some((_, message)) => ("denied", message.as_str()),
            None => ("unchanged", "the settings have no pool for Services"),
        };
        let mut audit = json!({"decision": decision, "reason": reason});
        for (key, value) in ["external", "external-pool", "external-addresses", "external-reason"].iter().zip(now.audit)
        {
            if !value.is_empty() {
                audit[*key] = value.into();
            }
        }
        let mut answer = json!({"accepted": now.denied.is_none(), "audit_annotations": audit});
        if let Some((code, message)) = now.denied {
            answer["code"] = code.into();
            answer["message"] = message.into();
        }
        if let Some(object) = now.object {
            answer["mutated_object"] = object;
        }
        if !now.warnings.is_empty() {
            answer["warnings"] = json!(now.warnings);
        }
        answer
    }
}
