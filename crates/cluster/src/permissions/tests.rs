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
    // Only a move writes the status of a Service.
    assert_eq!(rules(&[], &Duties { load_balancers: true, ..Duties::default() }), expected);
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
fn permissions_of_a_server_or_command_that_moves_nothing() {
    let previews = Duties { namespace: "own".into(), previews_moves: true, ..Duties::default() };
    let registered = Duties {
        namespace: "own".into(),
        registration: Some(Registration { name: "clusterip-policy".into(), own: false }),
        kubewarden_policy: Some("clusterip".into()),
        ..Duties::default()
    };
    let of_previews = r#"- {apiGroups: ["admissionregistration.k8s.io"], resources: ["mutatingwebhookconfigurations"], verbs: ["list", "watch"]}
- {apiGroups: ["admissionregistration.k8s.io"], resources: ["validatingwebhookconfigurations"], verbs: ["list", "watch"]}
- {apiGroups: ["apiregistration.k8s.io"], resources: ["apiservices"], verbs: ["list", "watch"]}
- {apiGroups: ["apiextensions.k8s.io"], resources: ["customresourcedefinitions"], verbs: ["list", "watch"]}
- {apiGroups: ["discovery.k8s.io"], resources: ["endpointslices"], verbs: ["list", "watch"]}
in a Role of namespace own:
- {apiGroups: ["apps"], resources: ["controllerrevisions"], verbs: ["get"]}"#;
    let of_registration = r#"- {apiGroups: ["admissionregistration.k8s.io"], resources: ["mutatingwebhookconfigurations"], resourceNames: ["clusterip-policy"], verbs: ["get", "list", "watch", "update"]}
- {apiGroups: ["policies.kubewarden.io"], resources: ["clusteradmissionpolicies"], resourceNames: ["clusterip"], verbs: ["get", "list", "watch"]}"#;
    for (duties, expected) in [(&previews, of_previews), (&registered, of_registration)] {
        let all = rules(&[], duties);
        let (_, more) =
            all.split_once("servicecidrs\"], verbs: [\"list\", \"watch\"]}\n").expect("the last that all need");
        assert_eq!(more, expected);
    }
    let moves = needs(&known(), &Duties { moves: true, previews_moves: false, ..previews.clone() });
    assert!(needs(&known(), &previews).iter().all(|need| moves.contains(need)), "a command that moves may show moves");
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
    let policy = r#"
- {apiGroups: ["policies.kubewarden.io"], resources: ["clusteradmissionpolicies"], resourceNames: ["clusterip"], verbs: ["get", "list", "watch"]}"#;
    let own = r#"
in a Role of namespace own:
- {apiGroups: ["coordination.k8s.io"], resources: ["leases"], verbs: ["get", "list", "watch", "create", "update", "delete"]}"#;
    let cases = [
        Case { name: "with a file", duties: agent(), expected: format!("{watched}{own}") },
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
