use super::*;

const OLD: &str = "172.21.0.7";
const NEW: &str = "172.21.1.7";

fn idle() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {
            "name": "web", "namespace": "shop", "uid": "1", "resourceVersion": "7",
            "annotations": {SOURCE_RANGES_ANNOTATION: "10.0.0.0/8"},
            "managedFields": [{"manager": "owner", "fieldsV1": {"f:spec": {"f:type": {}}}}],
        },
        "spec": {
            "type": "LoadBalancer", "clusterIP": OLD, "clusterIPs": [OLD], "loadBalancerSourceRanges": ["10.0.0.0/8"],
            "ports": [{"port": 80, "nodePort": 30080}], "healthCheckNodePort": 30081,
            "externalIPs": ["192.0.2.7"], "loadBalancerIP": "192.0.2.1",
        },
        "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}},
    })
}

fn journal() -> Journal {
    Journal { released: spec_of_released(), ..beginning(&idle(), &[NEW.parse().unwrap()], "why") }
}

fn spec_of_released() -> Map<String, Value> {
    json!({"type": "ExternalName", "externalName": MOVING_NAME, "ports": [{"port": 80}]}).as_object().cloned().unwrap()
}

/// The Service as the API server stores it after the release.
fn stored_released() -> Value {
    let mut service = released(&idle(), &journal());
    service["spec"] = spec_of_released().into();
    service["status"] = json!({"loadBalancer": {}});
    service
}

fn stored_assigned() -> Value {
    assigned(&stored_released(), &journal(), &at_new(), &Without::default())
}

fn at_new() -> Vec<IpAddr> {
    vec![NEW.parse().unwrap()]
}

fn with(mut service: Value, patch: Value) -> Value {
    json_patch::merge(&mut service, &patch);
    service
}

/// The next step, and how the move ends if that is the last step.
fn next_of(service: &Value, journal: &Journal) -> String {
    match next(service, journal) {
        Step::Cleanup => format!("cleanup: {}", ending(service, journal, &journal.to, &[]).reason()),
        step => format!("{step:?}"),
    }
}

#[test]
fn the_next_step_follows_from_the_service_and_its_journal() {
    struct Row {
        name: &'static str,
        service: Value,
        expected: &'static str,
    }
    let row = |name, service, expected| Row { name, service, expected };
    let status = json!({"status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.2"}]}}});
    let marked = |value: Value| json!({"metadata": {"annotations": {MOVING_ANNOTATION: value}}});
    let done = with(stored_assigned(), status);
    let alias = json!({"type": "ExternalName", "externalName": "x", "clusterIP": null, "clusterIPs": null});
    let rows = [
        row("cut off before the release, or after the end", idle(), "Idle"),
        row("released", stored_released(), "Assign"),
        row(
            "released, and deleted behind a finalizer",
            with(stored_released(), json!({"metadata": {"deletionTimestamp": "x"}})),
            "Assign",
        ),
        row("released, the marker taken off", with(stored_released(), marked(Value::Null)), "Assign"),
        row("released, the marker rewritten", with(stored_released(), marked(json!("{"))), "Assign"),
        row("assigned, the status wiped", stored_assigned(), "RestoreStatus"),
        row(
            "assigned, and of another load balancer class",
            with(stored_assigned(), json!({"spec": {"loadBalancerClass": "mallory/none"}})),
            "cleanup: AddressMoved",
        ),
        row(
            "assigned, no load balancer any more",
            with(stored_assigned(), json!({"spec": {"type": "ClusterIP"}})),
            "cleanup: AddressMoved",
        ),
        row("all but cleaned up", done.clone(), "cleanup: AddressMoved"),
        row("all but cleaned up, the marker taken off", with(done.clone(), marked(Value::Null)), "Idle"),
        row(
            "back at the old address",
            with(done.clone(), json!({"spec": {"clusterIP": OLD, "clusterIPs": [OLD]}})),
            "cleanup: AddressKept",
        ),
        row(
            "at another address",
            with(done.clone(), json!({"spec": {"clusterIP": "172.21.9.9", "clusterIPs": ["172.21.9.9"]}})),
            "cleanup: MoveOvertaken",
        ),
        row("assigned, then made an alias", with(done, json!({"spec": alias})), "cleanup: MoveOvertaken"),
        row(
            "released, and set back by a user",
            with(stored_released(), json!({"spec": {"type": "ClusterIP", "clusterIP": "172.21.9.9"}})),
            "cleanup: MoveOvertaken",
        ),
        row(
            "released, then made another alias",
            with(stored_released(), json!({"spec": {"externalName": "example.com"}})),
            "cleanup: MoveOvertaken",
        ),
        row(
            "the name of a move left over",
            with(idle(), json!({"spec": {"externalName": MOVING_NAME}})),
            "cleanup: AddressKept",
        ),
        row("no object at all", Value::Null, "Idle"),
        row("types that can't be", json!({"metadata": [], "spec": 5}), "Idle"),
    ];
    for Row { name, service, expected } in rows {
        assert_eq!(next_of(&service, &journal()), expected, "{name}");
    }
}

#[test]
fn the_second_address_moves_while_the_first_stays() {
    let both = [OLD, "fd00:21::7"];
    let spec = json!({"type": "ClusterIP", "ipFamilyPolicy": "RequireDualStack", "ipFamilies": ["IPv4", "IPv6"], "clusterIP": OLD, "clusterIPs": both});
    let service = with(idle(), json!({"spec": null}));
    let service = with(service, json!({"spec": spec}));
    let to: Vec<IpAddr> = [OLD, "fd00:21::8"].map(|text| text.parse().unwrap()).to_vec();
    let mut journal = beginning(&service, &to, "why");
    let single = released(&service, &journal);
    let expected = json!({"type": "ClusterIP", "ipFamilyPolicy": "SingleStack", "ipFamilies": ["IPv4"], "clusterIP": OLD, "clusterIPs": [OLD]});
    assert_eq!(single["spec"], expected);
    assert_eq!(next_of(&single, &journal), "Assign");
    let unmarked = with(single.clone(), json!({"metadata": {"annotations": {MOVING_ANNOTATION: null}}}));
    assert_eq!(next_of(&unmarked, &journal), "Idle", "a user made it single-stack");
    journal.released = expected.as_object().cloned().unwrap();
    let at = |addresses: Value| with(json!({"spec": spec}), json!({"spec": {"clusterIPs": addresses}}))["spec"].clone();
    for (target, expected) in [(to.clone(), at(json!(to))), (Vec::new(), at(json!([OLD])))] {
        let assigned = assigned(&single, &journal, &target, &Without::default());
        assert_eq!(assigned["spec"], expected, "{target:?}");
    }
    let changed = with(single, json!({"spec": {"ipFamilyPolicy": "PreferDualStack"}}));
    assert_eq!(next_of(&changed, &journal), "cleanup: MoveOvertaken", "its second address was taken off");
}

#[test]
fn annotated_reason_is_that_of_the_new_addresses() {
    struct Row {
        name: &'static str,
        /// The annotation before the move.
        before: Option<&'static str>,
        /// The reason in the journal.
        reason: Option<&'static str>,
        target: Vec<IpAddr>,
        expected: Option<&'static str>,
    }
    let (old, new) = (Some("pool linux: default"), Some("pool windows: default"));
    let these = |address: &str| vec![address.parse().unwrap()];
    let rows = [
        Row { name: "replaced", before: old, reason: new, target: at_new(), expected: new },
        Row { name: "removed without the setting", before: old, reason: None, target: at_new(), expected: None },
        Row { name: "not added", before: None, reason: new, target: at_new(), expected: None },
        Row { name: "back at the old address", before: old, reason: new, target: these(OLD), expected: old },
        Row { name: "at another address", before: old, reason: new, target: these("172.21.1.8"), expected: None },
        Row { name: "at any address", before: old, reason: new, target: vec![], expected: None },
    ];
    for Row { name, before, reason, target, expected } in rows {
        let journal = Journal { reason: reason.map(str::to_owned), ..journal() };
        let service = with(stored_released(), json!({"metadata": {"annotations": {REASON_ANNOTATION: before}}}));
        let assigned = assigned(&service, &journal, &target, &Without::default());
        assert_eq!(annotation(&assigned, REASON_ANNOTATION), expected, "{name}");
        let cleaned_up = cleaned_up(&assigned, &journal, false);
        assert_eq!(annotation(&cleaned_up, REASON_ANNOTATION), expected, "{name}, cleaned up");
    }
}

#[test]
fn everything_is_restored_and_no_trace_is_left() {
    struct Row {
        name: &'static str,
        without: Without,
        expected: Value,
    }
    let at_new_address = with(idle(), json!({"spec": {"clusterIP": NEW, "clusterIPs": [NEW]}}));
    let rows = [
        Row { name: "everything", without: Without::default(), expected: json!({}) },
        Row {
            name: "without two ports",
            without: Without { ports: vec![30080, 30081], external: false },
            expected: json!({"spec": {"ports": [{"port": 80}], "healthCheckNodePort": null}}),
        },
        Row {
            name: "without external addresses",
            without: Without { ports: vec![], external: true },
            expected: json!({"spec": {"externalIPs": null, "loadBalancerIP": null}}),
        },
    ];
    for Row { name, without, expected } in rows {
        let assigned = assigned(&stored_released(), &journal(), &at_new(), &without);
        assert_eq!(next(&assigned, &journal()), Step::RestoreStatus, "{name}: {assigned}");
        let with_status = with_status(&assigned, &journal());
        assert_eq!(next(&with_status, &journal()), Step::Cleanup, "{name}: {with_status}");
        let mut stored = with_status;
        stored["metadata"]["managedFields"] = json!([{"manager": MANAGER, "fieldsV1": {"f:spec": {"f:type": {}}}}]);
        let cleaned_up = cleaned_up(&stored, &journal(), false);
        assert_eq!(cleaned_up, with(at_new_address.clone(), expected), "{name}");
        assert_eq!(next(&cleaned_up, &journal()), Step::Idle, "{name}");
    }
}

#[test]
fn fields_changed_by_others_stay_and_the_rest_is_owners() {
    let original = json!({
        "type": "NodePort", "clusterIP": "172.21.0.7", "selector": {"app": "web"}, "externalTrafficPolicy": "Local",
        "ports": [{"protocol": "TCP", "port": 80, "nodePort": 30080}, {"protocol": "UDP", "port": 80, "nodePort": 30081}],
        "unknown": [{"a": 1, "b": 2}],
    });
    let released = json!({
        "type": "ExternalName", "externalName": "moving.invalid", "selector": {"app": "web"},
        "ports": [{"protocol": "TCP", "port": 80}, {"protocol": "UDP", "port": 80}], "unknown": [{"a": 1}],
    });
    let ports = |dns: Value| json!({"ports": [dns, {"protocol": "TCP", "port": 443}]});
    // A port is renamed, one is removed, and one is added. The renamed one keeps its node port.
    let dns = json!({"protocol": "UDP", "port": 80, "name": "dns"});
    let renamed = (ports(dns.clone()), ports(with(dns, json!({"nodePort": 30081}))));
    let stay = [
        json!({}),
        json!({"selector": {"app": "shop", "tier": "x"}}),
        json!({"selector": null}),
        json!({"sessionAffinity": "ClientIP"}),
        // The release had removed this field.
        json!({"externalTrafficPolicy": "Cluster"}),
        // A list of a later version of Kubernetes. Its items are no ports.
        json!({"unknown": [{"a": 3}]}),
    ];
    for (change, expected) in stay.into_iter().map(|change| (change.clone(), change)).chain([renamed]) {
        let now = with(released.clone(), change.clone());
        let merged =
            merged_spec(original.as_object().unwrap(), released.as_object().unwrap(), now.as_object().unwrap());
        assert_eq!(Value::from(merged), with(original.clone(), expected), "{change}");
    }
}

fn entries(value: Value) -> Vec<Fields> {
    serde_json::from_value(value).unwrap()
}

fn entry(manager: &str, time: &str, fields: Value) -> Value {
    json!({"manager": manager, "operation": "Update", "apiVersion": "v1", "time": time,
           "fieldsType": "FieldsV1", "fieldsV1": fields})
}

/// The entry of an owner of these fields of the spec.
fn of_spec(manager: &str, time: &str, fields: &[&str]) -> Value {
    let owned: Fields = fields.iter().map(|field| (format!("f:{field}"), json!({}))).collect();
    entry(manager, time, json!({"f:spec": owned}))
}

#[test]
fn fields_go_back_to_their_previous_owners() {
    struct Case {
        name: &'static str,
        original: Value,
        now: Value,
        expected: Value,
    }
    let owner = of_spec("owner", "1", &["type", "selector"]);
    let (owner_of_type, ours) = (of_spec("owner", "1", &["type"]), of_spec(MANAGER, "2", &["type"]));
    let editor = of_spec("editor", "3", &["selector"]);
    let of_list = |port: Value| entry("owner", "1", json!({"f:ports": {".": {}, "k:80": port}}));
    let of_port = of_list(json!({".": {}, "f:port": {}, "f:nodePort": {}}));
    let cases = [
        Case {
            name: "without another writer, the owner gets its fields back",
            original: json!([owner]),
            now: json!([of_spec("owner", "1", &["selector"]), of_spec(MANAGER, "2", &["type", "clusterIP"])]),
            expected: json!([owner]),
        },
        Case {
            name: "an owner without fields gets them back",
            original: json!([owner_of_type]),
            now: json!([ours]),
            expected: json!([owner_of_type]),
        },
        Case {
            name: "an owner that took the selector during the move keeps it",
            original: json!([owner]),
            now: json!([ours, editor]),
            expected: json!([owner_of_type, editor]),
        },
        Case {
            name: "fields that the owner wrote during the move stay with the owner",
            original: json!([owner]),
            now: json!([of_spec("owner", "3", &["selector", "sessionAffinity"]), ours]),
            expected: json!([of_spec("owner", "3", &["selector", "sessionAffinity", "type"])]),
        },
        Case {
            name: "parts of a list, and a list itself",
            original: json!([of_port]),
            now: json!([
                of_list(json!({".": {}, "f:port": {}})),
                entry(MANAGER, "2", json!({"f:ports": {"k:80": {"f:nodePort": {}}}})),
            ]),
            expected: json!([of_port]),
        },
        Case {
            name: "without known owners, only the entry of the move is removed",
            original: json!([]),
            now: json!([owner, ours]),
            expected: json!([owner]),
        },
        Case {
            name: "a field set that is not a tree owns nothing",
            original: json!([{"manager": "owner", "fieldsV1": 5}]),
            now: json!([{"manager": "owner", "fieldsV1": {"f:x": 5}}]),
            expected: json!([{"manager": "owner", "fieldsV1": {"f:x": {}}}]),
        },
    ];
    for Case { name, original, now, expected } in cases {
        assert_eq!(restored_owners(&entries(original), entries(now).iter()), entries(expected), "{name}");
    }
}
