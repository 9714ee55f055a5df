//! The module gives the same bytes as the core without the module around it, and makes the same look-ups; and the core
//! gives them with look-ups that a snapshot answers without text between them: on random requests, settings and
//! clusters.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::{Arc, RwLock};

use clusterip_cluster::lookups::complete_objects::CompleteObjects;
use clusterip_cluster::lookups::stored_cluster::StoredCluster;
use clusterip_cluster::policy::host_calls::{HostCall, HostCalls};
use clusterip_cluster::policy::recorded_session::Recorder;
use clusterip_cluster::snapshot::Snapshot;
use clusterip_core::settings::Settings;
use clusterip_core::{InUse, Response, decide_value};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::json;

use crate::support::random::{cluster, request, settings};
use crate::support::{answer_of_core, call, snapshots};

const CASES: u32 = 600;

/// A cluster whose API server refuses to show one kind.
struct Cluster {
    objects: CompleteObjects,
    forbidden: Option<&'static str>,
}

impl HostCalls for Cluster {
    fn answer(&self, call: &HostCall) -> Result<Vec<u8>, String> {
        let (_, kind) = call.resource();
        if self.forbidden == Some(kind) {
            return Err(format!("{kind} is forbidden: User \"policy-server\" cannot read it"));
        }
        self.objects.answer(call)
    }
}

#[test]
fn module_gives_the_bytes_of_the_core_and_makes_the_same_look_ups() {
    let outcomes = RefCell::new(BTreeMap::<String, u32>::new());
    let mut runner = TestRunner::new(Config { cases: CASES, failure_persistence: None, ..Config::default() });
    let equal = runner.run(&(request(), settings(), cluster()), |(request, settings, (objects, forbidden, absent))| {
        let payload = json!({"request": request, "settings": settings}).to_string();
        let mut snapshot: Snapshot = snapshots::snapshot(&objects);
        let mut complete = snapshots::complete(&objects);
        if let Some(kind) = absent {
            snapshot.remove_api("networking.k8s.io/v1", kind);
            complete.remove_api("networking.k8s.io/v1", kind);
        }
        let (snapshot, objects) = (Arc::new(RwLock::new(snapshot)), complete);
        let host = || Arc::new(Recorder::new(Arc::new(Cluster { objects: objects.clone(), forbidden })));
        let (for_module, for_core) = (host(), host());
        let by_module = call("validate", payload.as_bytes(), for_module.clone()).map_err(TestCaseError::fail)?;
        let by_core = answer_of_core(payload.as_bytes(), for_core.as_ref());
        prop_assert_eq!(String::from_utf8_lossy(&by_module), String::from_utf8_lossy(&by_core));
        prop_assert_eq!(for_module.exchanges(), for_core.exchanges());
        let answer: Response = serde_json::from_slice(&by_core).unwrap();
        if let (None, Ok(settings)) = (forbidden, Settings::from_value(&settings)) {
            let cluster = StoredCluster::new(&snapshot, &request["object"]);
            let decision = decide_value(&request, &settings, InUse::default(), &cluster);
            prop_assert_eq!(&Response::new(decision, request["object"].clone()), &answer, "from the snapshot");
        }
        let outcome = answer.audit_annotations.and_then(|mut audit| audit.remove("decision")).unwrap_or_default();
        *outcomes.borrow_mut().entry(outcome).or_default() += 1;
        Ok(())
    });
    equal.unwrap_or_else(|error| panic!("{error}"));
    // The test would prove little if the core refused nearly all requests.
    let outcomes = outcomes.into_inner();
    for outcome in ["allocated", "unchanged", "denied"] {
        assert!(outcomes.get(outcome).is_some_and(|count| *count > CASES / 40), "{outcomes:?}");
    }
}

#[test]
fn module_checks_settings_as_the_core_does() {
    let mut runner = TestRunner::new(Config { cases: CASES, failure_persistence: None, ..Config::default() });
    let equal = runner.run(&settings(), |settings| {
        let payload = settings.to_string();
        let by_module = crate::support::MODULE.call("validate_settings", payload.as_bytes(), None);
        let by_core = serde_json::to_vec(&clusterip_core::validate_settings(payload.as_bytes())).unwrap();
        prop_assert_eq!(by_module.map_err(|error| TestCaseError::fail(error.to_string()))?, by_core);
        Ok(())
    });
    equal.unwrap_or_else(|error| panic!("{error}"));
}
