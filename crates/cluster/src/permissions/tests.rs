use super::*;

fn known() -> Vec<ApiResource> {
    WorkloadKind::known().iter().map(|kind| kinds::regular(&kinds::of_workload(kind))).collect()
}

/// The needs as rules, without the sentence before them.
fn rules(workloads: &[ApiResource], duties: &Duties) -> String {
    let missing = Missing { user: None, needs: needs(workloads, duties) }.to_string();
    missing.split_once('\n').expect("rules").1.to_owned()
}

#[test]
fn permissions_to_watch_only() {
    let expected = r#"in a ClusterRole:
- {apiGroups: [""], resources: ["services"], verbs: ["list", "watch"]}
- {apiGroups: [""], resources: ["namespaces"], verbs: ["list", "watch"]}
- {apiGroups: [""], resources: ["nodes"], verbs: ["list", "watch"]}
- {apiGroups: ["node.k8s.io"], resources: ["runtimeclasses"], verbs: ["list", "watch"]}
- {apiGroups: ["networking.k8s.io"], resources: ["ipaddresses"], verbs: ["list", "watch"]}
- {apiGroups: ["networking.k8s.io"], resources: ["servicecidrs"], verbs: ["list", "watch"]}"#;
    assert_eq!(rules(&[], &Duties::default()), expected);
}

#[test]
fn permissions_of_a_server_with_all_duties() {
    let duties = Duties {
        namespace: "clusterip-policy".into(),
        moves: true,
        previews_moves: false,
        load_balancers: true,
        seamless: false,
        nodes: true,
        external: true,
        agents_namespace: None,
        agent: false,
        claims: false,
        authority: Some("clusterip-authority".into()),
        registration: Some(Registration { name: "clusterip-policy".into(), own: true }),
        pools: true,
        kubewarden_policy: None,
    };
    let expected = r#"in a ClusterRole:
- {apiGroups: [""], resources: ["services"], verbs: ["list", "watch", "get", "update", "patch"]}
- {apiGroups: [""], resources: ["namespaces"], verbs: ["list", "watch"]}
- {apiGroups: [""], resources: ["nodes"], verbs: ["list", "watch", "get", "patch"]}
- {apiGroups: ["node.k8s.io"], resources: ["runtimeclasses"], verbs: ["list", "watch"]}
- {apiGroups: ["networking.k8s.io"], resources: ["ipaddresses"], verbs: ["list", "watch", "get"]}
- {apiGroups: ["networking.k8s.io"], resources: ["servicecidrs"], verbs: ["list", "watch"]}
- {apiGroups: ["apps"], resources: ["deployments"], verbs: ["list", "watch"]}
- {apiGroups: ["apps"], resources: ["statefulsets"], verbs: ["list", "watch"]}
- {apiGroups: ["apps"], resources: ["daemonsets"], verbs: ["list", "watch"]}
- {apiGroups: ["apps"], resources: ["replicasets"], verbs: ["list", "watch"]}
- {apiGroups: [""], resources: ["replicationcontrollers"], verbs: ["list", "watch"]}
- {apiGroups: ["batch"], resources: ["jobs"], verbs: ["list", "watch"]}
- {apiGroups: ["batch"], resources: ["cronjobs"], verbs: ["list", "watch"]}
- {apiGroups: [""], resources: ["pods"], verbs: ["list", "watch"]}
- {apiGroups: ["admissionregistration.k8s.io"], resources: ["mutatingwebhookconfigurations"], verbs: ["list", "watch", "create"]}
- {apiGroups: ["admissionregistration.k8s.io"], resources: ["validatingwebhookconfigurations"], verbs: ["list", "watch"]}
- {apiGroups: ["apiregistration.k8s.io"], resources: ["apiservices"], verbs: ["list", "watch"]}
- {apiGroups: ["apiextensions.k8s.io"], resources: ["customresourcedefinitions"], verbs: ["list", "watch"]}
- {apiGroups: ["discovery.k8s.io"], resources: ["endpointslices"], verbs: ["list", "watch"]}
- {apiGroups: ["events.k8s.io"], resources: ["events"], verbs: ["create", "patch"]}
- {apiGroups: [""], resources: ["services/status"], verbs: ["update", "patch"]}
- {apiGroups: ["admissionregistration.k8s.io"], resources: ["mutatingwebhookconfigurations"], resourceNames: ["clusterip-policy"], verbs: ["get", "list", "watch", "update", "delete"]}
- {apiGroups: ["clusterip-policy.io"], resources: ["servicepools"], verbs: ["list", "watch"]}
- {apiGroups: ["clusterip-policy.io"], resources: ["externalpools"], verbs: ["list", "watch"]}
- {apiGroups: ["clusterip-policy.io"], resources: ["nodeblockpools"], verbs: ["list", "watch"]}
- {apiGroups: ["clusterip-policy.io"], resources: ["clusterippolicies"], verbs: ["list", "watch"]}
- {apiGroups: ["clusterip-policy.io"], resources: ["servicepools/status"], verbs: ["patch"]}
- {apiGroups: ["clusterip-policy.io"], resources: ["externalpools/status"], verbs: ["patch"]}
- {apiGroups: ["clusterip-policy.io"], resources: ["nodeblockpools/status"], verbs: ["patch"]}
- {apiGroups: ["clusterip-policy.io"], resources: ["clusterippolicies/status"], verbs: ["patch"]}
in a Role of namespace clusterip-policy:
- {apiGroups: ["coordination.k8s.io"], resources: ["leases"], verbs: ["create", "list", "watch"]}
- {apiGroups: ["coordination.k8s.io"], resources: ["leases"], resourceNames: ["clusterip-leader"], verbs: ["get", "update", "delete"]}
- {apiGroups: ["apps"], resources: ["controllerrevisions"], verbs: ["get", "list", "watch", "create", "delete"]}
- {apiGroups: [""], resources: ["secrets"], verbs: ["create"]}
- {apiGroups: [""], resources: ["secrets"], resourceNames: ["clusterip-authority"], verbs: ["get", "update", "delete"]}"#;
    assert_eq!(rules(&known(), &duties), expected);
}

#[test]
fn permissions_to_show_moves_only_read() {
    let duties = Duties { namespace: "own".into(), previews_moves: true, ..Duties::default() };
    let all = rules(&[], &duties);
    let (_, more) = all.split_once("servicecidrs\"], verbs: [\"list\", \"watch\"]}\n").expect("the last that all need");
    let expected = r#"- {apiGroups: ["admissionregistration.k8s.io"], resources: ["mutatingwebhookconfigurations"], verbs: ["list", "watch"]}
- {apiGroups: ["admissionregistration.k8s.io"], resources: ["validatingwebhookconfigurations"], verbs: ["list", "watch"]}
- {apiGroups: ["apiregistration.k8s.io"], resources: ["apiservices"], verbs: ["list", "watch"]}
- {apiGroups: ["apiextensions.k8s.io"], resources: ["customresourcedefinitions"], verbs: ["list", "watch"]}
- {apiGroups: ["discovery.k8s.io"], resources: ["endpointslices"], verbs: ["list", "watch"]}
in a Role of namespace own:
- {apiGroups: ["apps"], resources: ["controllerrevisions"], verbs: ["get"]}"#;
    assert_eq!(more, expected);
    let read = |need: &Need| matches!(need.verb, "get" | "list" | "watch");
    assert!(needs(&known(), &duties).iter().all(read), "{all}");
    let moves = needs(&known(), &Duties { moves: true, previews_moves: false, ..duties.clone() });
    assert!(needs(&known(), &duties).iter().all(|need| moves.contains(need)), "a command that moves may show moves");
}

#[test]
fn permissions_of_a_replica_that_claims_addresses() {
    let duties = Duties { namespace: "own".into(), moves: true, claims: true, ..Duties::default() };
    let all = rules(&[], &duties);
    let (_, own) = all.split_once("in a Role of namespace own:\n").expect("rules of the namespace");
    // In the order in which the needs are added.
    let expected = r#"- {apiGroups: ["coordination.k8s.io"], resources: ["leases"], verbs: ["create", "get", "list", "watch", "update", "delete"]}
- {apiGroups: ["coordination.k8s.io"], resources: ["leases"], resourceNames: ["clusterip-leader"], verbs: ["get", "update"]}
- {apiGroups: ["apps"], resources: ["controllerrevisions"], verbs: ["get", "list", "watch", "create", "delete"]}"#;
    assert_eq!(own, expected);
}

#[test]
fn permissions_of_an_agent() {
    struct Case {
        name: &'static str,
        duties: Duties,
        expected: String,
    }
    let agent = || Duties { namespace: "own".into(), agent: true, ..Duties::default() };
    let watched = r#"in a ClusterRole:
- {apiGroups: [""], resources: ["services"], verbs: ["list", "watch"]}
- {apiGroups: [""], resources: ["namespaces"], verbs: ["list", "watch"]}
- {apiGroups: [""], resources: ["nodes"], verbs: ["list", "watch"]}"#;
    let ranges = r#"
- {apiGroups: ["networking.k8s.io"], resources: ["servicecidrs"], verbs: ["list", "watch"]}"#;
    let pools = r#"
- {apiGroups: ["clusterip-policy.io"], resources: ["servicepools"], verbs: ["list", "watch"]}
- {apiGroups: ["clusterip-policy.io"], resources: ["externalpools"], verbs: ["list", "watch"]}
- {apiGroups: ["clusterip-policy.io"], resources: ["nodeblockpools"], verbs: ["list", "watch"]}
- {apiGroups: ["clusterip-policy.io"], resources: ["clusterippolicies"], verbs: ["list", "watch"]}"#;
    let policy = r#"
- {apiGroups: ["policies.kubewarden.io"], resources: ["clusteradmissionpolicies"], resourceNames: ["clusterip"], verbs: ["get", "list", "watch"]}"#;
    let own = r#"
in a Role of namespace own:
- {apiGroups: ["coordination.k8s.io"], resources: ["leases"], verbs: ["get", "list", "watch", "create", "update", "delete"]}"#;
    let cases = [
        Case { name: "with a file", duties: agent(), expected: format!("{watched}{own}") },
        Case {
            name: "with the pools of the cluster",
            duties: Duties { pools: true, ..agent() },
            expected: format!("{watched}{ranges}{pools}{own}"),
        },
        Case {
            name: "with a policy of Kubewarden",
            duties: Duties { kubewarden_policy: Some("clusterip".into()), ..agent() },
            expected: format!("{watched}{policy}{own}"),
        },
        Case {
            name: "duties of a server add nothing",
            duties: Duties { moves: true, nodes: true, external: true, claims: true, ..agent() },
            expected: format!("{watched}{own}"),
        },
    ];
    for Case { name, duties, expected } in cases {
        assert_eq!(rules(&known(), &duties), expected, "{name}");
    }
}

#[test]
fn permissions_for_external_addresses() {
    let moves = Duties { namespace: "own".into(), moves: true, ..Duties::default() };
    let before = needs(&[], &moves);
    let more: Vec<Need> = needs(&[], &Duties { external: true, agents_namespace: Some("agents".into()), ..moves })
        .into_iter()
        .filter(|need| !before.contains(need))
        .collect();
    let told = Missing { user: None, needs: more }.to_string();
    let expected = r#"in a ClusterRole:
- {apiGroups: [""], resources: ["services"], verbs: ["patch"]}
- {apiGroups: [""], resources: ["services/status"], verbs: ["patch"]}
in a Role of namespace agents:
- {apiGroups: ["coordination.k8s.io"], resources: ["leases"], verbs: ["list", "watch"]}"#;
    assert_eq!(told.split_once('\n').expect("rules").1, expected);
}

#[test]
fn only_moves_of_load_balancers_write_the_status_of_services() {
    struct Case {
        name: &'static str,
        duties: Duties,
        expected: Vec<&'static str>,
    }
    let cases = [
        Case { name: "no moves", duties: Duties { load_balancers: true, ..Duties::default() }, expected: vec![] },
        Case { name: "moves", duties: Duties { moves: true, ..Duties::default() }, expected: vec![] },
        Case {
            name: "moves of load balancers",
            duties: Duties { moves: true, load_balancers: true, ..<_>::default() },
            expected: vec!["update"],
        },
    ];
    for Case { name, duties, expected } in cases {
        let needs = needs(&known(), &duties);
        let verbs: Vec<_> =
            needs.iter().filter(|need| need.resource.ends_with("/status")).map(|need| need.verb).collect();
        assert_eq!(verbs, expected, "{name}");
    }
}

#[test]
fn permissions_of_a_server_that_moves_nothing() {
    let duties = Duties {
        namespace: "own".into(),
        registration: Some(Registration { name: "clusterip-policy".into(), own: false }),
        kubewarden_policy: Some("clusterip".into()),
        ..Duties::default()
    };
    let all = rules(&[], &duties);
    let (_, own) = all.split_once("servicecidrs\"], verbs: [\"list\", \"watch\"]}\n").expect("the last that all need");
    let expected = r#"- {apiGroups: ["admissionregistration.k8s.io"], resources: ["mutatingwebhookconfigurations"], resourceNames: ["clusterip-policy"], verbs: ["get", "list", "watch", "update"]}
- {apiGroups: ["policies.kubewarden.io"], resources: ["clusteradmissionpolicies"], resourceNames: ["clusterip"], verbs: ["get", "list", "watch"]}"#;
    assert_eq!(own, expected);
}

#[test]
fn needs_are_unique_and_never_create_or_delete_services() {
    let duties = Duties { moves: true, external: true, ..Duties::default() };
    let mut workloads = known();
    workloads.extend(known());
    let needs = needs(&workloads, &duties);
    for (index, need) in needs.iter().enumerate() {
        assert!(!needs[..index].contains(need), "{need:?}");
        let services = need.resource == "services";
        assert!(!services || matches!(need.verb, "get" | "list" | "watch" | "update" | "patch"), "{need:?}");
    }
}

#[test]
fn the_message_names_the_user_and_the_missing_rules() {
    let mut lacks = needs(&[], &Duties::default());
    lacks.truncate(1);
    let missing = Missing { user: Some("system:serviceaccount:a:b".into()), needs: lacks };
    let expected = "system:serviceaccount:a:b lacks permissions; these rules grant what is missing:\n\
                    in a ClusterRole:\n\
                    - {apiGroups: [\"\"], resources: [\"services\"], verbs: [\"list\"]}";
    assert_eq!(missing.to_string(), expected);
}
