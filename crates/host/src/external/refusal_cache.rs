//! Remembers the policy's answers about recorded external addresses, so that a change of one Service does not make the
//! policy be asked about all Services.

use std::collections::HashMap;
use std::sync::{Arc, RwLock};

use clusterip_core::prefetched::Prefetched;
use clusterip_core::service_key::ServiceKey;
use serde_json::Value;

use super::policy_check::{recorded_fields, refusal_of};
use crate::cluster::lookups::snapshot::{Snapshot, SnapshotCalls};
use crate::live_settings::LiveSettings;
use crate::object::Packed;
use crate::policy::host_calls::{HostCall, HostCalls};
use crate::policy::module::{Module, ModuleError};
use crate::policy::recorded_lookups::RecordedLookups;

/// Earlier answers, by Service.
///
/// The same input gives the same answer. Therefore an answer is used again as long as the settings, the fields of the
/// Service that the policy gets, and the answers to all look-ups that the policy made are the same.
#[derive(Default)]
pub struct RefusalCache {
    /// The hash of the settings that the answers are for.
    settings: String,
    /// The answers of the round before.
    before: HashMap<ServiceKey, KnownRefusal>,
    /// The answers of this round.
    now: HashMap<ServiceKey, KnownRefusal>,
}

struct KnownRefusal {
    /// The fields of the Service that the policy got.
    fields: Packed,
    lookups: Arc<RecordedLookups>,
    refusal: Option<String>,
}

impl RefusalCache {
    /// Begins a round with these settings. Answers about Services that the round before did not ask about are dropped.
    pub fn begin(&mut self, settings: &LiveSettings) {
        let before = std::mem::take(&mut self.now);
        self.before = if self.settings == settings.hash { before } else { HashMap::new() };
        self.settings.clone_from(&settings.hash);
    }

    /// As [`refusal`](super::policy_check::refusal), with the settings of the round.
    ///
    /// # Errors
    /// [`ModuleError`] if the policy does not answer. The next round asks again.
    pub fn refusal(
        &mut self,
        module: &Module,
        settings: &LiveSettings,
        snapshot: &Arc<RwLock<Snapshot>>,
        service: &Value,
    ) -> Result<Option<String>, ModuleError> {
        let (fields, calls) = (recorded_fields(service), SnapshotCalls::new(Arc::clone(snapshot)));
        self.known_or_asked(ServiceKey::of(service), &fields, calls, |calls| {
            refusal_of(module, settings, calls, &fields)
        })
    }

    fn known_or_asked<E>(
        &mut self,
        id: ServiceKey,
        fields: &Value,
        calls: impl HostCalls + 'static,
        ask: impl FnOnce(Arc<dyn HostCalls>) -> Result<Option<String>, E>,
    ) -> Result<Option<String>, E> {
        let fields = Packed::new(fields);
        let known = self.before.remove(&id).filter(|known| known.fields == fields && known.lookups.hold(&calls));
        let known = match known {
            Some(known) => known,
            None => {
                let lookups = Arc::new(RecordedLookups::default());
                let refusal = ask(Arc::new(RecordingCalls { calls, lookups: Arc::clone(&lookups) }))?;
                KnownRefusal { fields, lookups, refusal }
            }
        };
        let refusal = known.refusal.clone();
        self.now.insert(id, known);
        Ok(refusal)
    }
}

/// Records the look-ups that an evaluation makes.
struct RecordingCalls<C> {
    calls: C,
    lookups: Arc<RecordedLookups>,
}

impl<C: HostCalls> HostCalls for RecordingCalls<C> {
    fn answer(&self, call: &HostCall) -> Result<Vec<u8>, String> {
        self.lookups.answer(&self.calls, call)
    }

    fn prefetched(&self) -> Prefetched {
        self.calls.prefetched()
    }

    fn services(&self) -> usize {
        self.calls.services()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::convert::Infallible;

    use clusterip_core::settings::Settings;
    use serde_json::json;

    use super::*;

    const SERVICES: usize = 2_000;

    fn live(hash: &str) -> LiveSettings {
        LiveSettings {
            document: Value::Null,
            settings: Settings::from_value(&json!({})).unwrap(),
            hash: hash.to_owned(),
            version: String::new(),
            warnings: Vec::new(),
            are_objects: false,
        }
    }

    fn namespace(number: usize, team: &str) -> Value {
        let metadata = json!({"name": format!("team-{number}"), "labels": {"team": team}});
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
    }

    /// A Service in one of ten Namespaces, with this record.
    fn service(number: usize, record: &str) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {
                "namespace": format!("team-{}", number % 10), "name": format!("web-{number}"), "resourceVersion": "1",
                "annotations": {"clusterip-policy/external-addresses": record, "note": "x"},
            },
            "spec": {"type": "LoadBalancer"},
        })
    }

    #[test]
    fn change_of_one_service_asks_about_that_service_only() {
        struct Round {
            name: &'static str,
            settings: &'static str,
            change: fn(&mut Snapshot, &mut Vec<Value>),
            asked: usize,
        }
        let rounds = [
            Round { name: "the first round", settings: "a", change: |_, _| (), asked: SERVICES },
            Round { name: "no change", settings: "a", change: |_, _| (), asked: 0 },
            Round {
                name: "another record",
                settings: "a",
                change: |_, services| services[7] = service(7, "10.0.9.9"),
                asked: 1,
            },
            Round {
                name: "fields that the policy does not get",
                settings: "a",
                change: |_, services| {
                    services[7]["metadata"]["resourceVersion"] = json!("2");
                    services[7]["metadata"]["annotations"]["note"] = json!("y");
                    services[7]["status"] = json!({"loadBalancer": {"ingress": [{"ip": "10.0.9.9"}]}});
                },
                asked: 0,
            },
            Round {
                name: "labels of a Namespace",
                settings: "a",
                change: |snapshot, _| snapshot.insert(namespace(3, "other")),
                asked: SERVICES / 10,
            },
            Round {
                name: "a Node",
                settings: "a",
                change: |snapshot, _| {
                    snapshot.insert(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}}));
                },
                asked: 0,
            },
            Round { name: "other settings", settings: "b", change: |_, _| (), asked: SERVICES },
            Round { name: "a Service is deleted", settings: "b", change: |_, services| drop(services.pop()), asked: 0 },
            Round {
                name: "a Service is created again after a round without it",
                settings: "b",
                change: |_, services| services.push(service(SERVICES - 1, "10.0.9.1")),
                asked: 1,
            },
        ];
        let snapshot = Arc::new(RwLock::new(Snapshot::default()));
        (0..10).for_each(|number| snapshot.write().unwrap().insert(namespace(number, "yes")));
        let mut services: Vec<Value> = (0..SERVICES).map(|number| service(number, "10.0.9.1")).collect();
        let mut cache = RefusalCache::default();
        for Round { name, settings, change, asked } in rounds {
            change(&mut snapshot.write().unwrap(), &mut services);
            cache.begin(&live(settings));
            let mut count = 0;
            for service in &services {
                // This policy refuses the Services of Namespaces of another team.
                let ask = |calls: Arc<dyn HostCalls>| -> Result<_, Infallible> {
                    count += 1;
                    let team = calls.answer(&HostCall::Get {
                        api_version: "v1".to_owned(),
                        kind: "Namespace".to_owned(),
                        name: service["metadata"]["namespace"].as_str().unwrap().to_owned(),
                        namespace: None,
                        disable_cache: false,
                        field_masks: None,
                    });
                    let namespace: Value = serde_json::from_slice(&team.unwrap()).unwrap();
                    Ok((namespace["metadata"]["labels"]["team"] == "other").then(|| "not for this team".to_owned()))
                };
                let (id, fields) = (ServiceKey::of(service), recorded_fields(service));
                let refusal = cache.known_or_asked(id.clone(), &fields, SnapshotCalls::new(Arc::clone(&snapshot)), ask);
                let labels = snapshot.read().unwrap().get("v1", "Namespace", "", &id.namespace).unwrap();
                let is_other = labels["metadata"]["labels"]["team"] == "other";
                assert_eq!(refusal.unwrap().is_some(), is_other, "{name}: {id}");
            }
            assert_eq!(count, asked, "{name}");
        }
    }
}
