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

/// Those of the deployed servers are compared with what the deployments grant, in `tests/policy/deployed_permissions.rs`.
#[test]
fn permissions_of_a_server_or_command_that_moves_nothing() {
    let own = || Duties { namespace: "own".into(), ..Duties::default() };
    let registration = |own: bool| Some(Registration { name: "clusterip-policy".into(), own });
    let previews = Duties { previews_moves: true, ..own() };
    let registered = Duties { registration: registration(false), kubewarden_policy: Some("clusterip".into()), ..own() };
    let registers = Duties {
        registration: registration(true),
        authority: Some("clusterip-authority".into()),
        external: true,
        ..own()
    };
    let of_previews = r#"- {apiGroups: ["admissionregistration.k8s.io"], resources: ["mutatingwebhookconfigurations"], verbs: ["list", "watch"]}
- {apiGroups: ["admissionregistration.k8s.io"], resources: ["validatingwebhookconfigurations"], verbs: ["list", "watch"]}
- {apiGroups: ["apiregistration.k8s.io"], resources: ["apiservices"], verbs: ["list", "watch"]}
- {apiGroups: ["apiextensions.k8s.io"], resources: ["customresourcedefinitions"], verbs: ["list", "watch"]}
- {apiGroups: ["discovery.k8s.io"], resources: ["endpointslices"], verbs: ["list", "watch"]}
in a Role of namespace own:
- {apiGroups: ["apps"], resources: ["controllerrevisions"], verbs: ["get"]}"#;
    let of_registered = r#"- {apiGroups: ["admissionregistration.k8s.io"], resources: ["mutatingwebhookconfigurations"], resourceNames: ["clusterip-policy"], verbs: ["get", "list", "watch", "update"]}
- {apiGroups: ["policies.kubewarden.io"], resources: ["clusteradmissionpolicies"], resourceNames: ["clusterip"], verbs: ["get", "list", "watch"]}"#;
    let of_registers = r#"- {apiGroups: [""], resources: ["services/status"], verbs: ["patch"]}
- {apiGroups: ["admissionregistration.k8s.io"], resources: ["mutatingwebhookconfigurations"], resourceNames: ["clusterip-policy"], verbs: ["get", "list", "watch", "update", "delete"]}
- {apiGroups: ["admissionregistration.k8s.io"], resources: ["mutatingwebhookconfigurations"], verbs: ["create"]}
in a Role of namespace own:
- {apiGroups: ["coordination.k8s.io"], resources: ["leases"], verbs: ["list", "watch"]}
- {apiGroups: [""], resources: ["secrets"], verbs: ["create"]}
- {apiGroups: [""], resources: ["secrets"], resourceNames: ["clusterip-authority"], verbs: ["get", "update", "delete"]}
- {apiGroups: ["coordination.k8s.io"], resources: ["leases"], resourceNames: ["clusterip-leader"], verbs: ["delete"]}"#;
    let requests = Duties { requests_moves: true, seamless: true, ..own() };
    // No permission to write Services or the Lease: the server writes these.
    let of_requests = format!(
        "{}\n{}",
        of_previews.replace(r#"verbs: ["get"]}"#, r#"verbs: ["get", "list", "create", "delete"]}"#),
        r#"- {apiGroups: ["coordination.k8s.io"], resources: ["leases"], resourceNames: ["clusterip-leader"], verbs: ["get"]}"#
    );
    for (duties, expected) in [
        (&previews, of_previews),
        (&requests, of_requests.as_str()),
        (&registered, of_registered),
        (&registers, of_registers),
    ] {
        let all = rules(&[], duties);
        let (_, more) =
            all.split_once("servicecidrs\"], verbs: [\"list\", \"watch\"]}\n").expect("the last that all need");
        assert_eq!(more, expected);
    }
    let moves = needs(&known(), &Duties { moves: true, previews_moves: false, ..previews.clone() });
    assert!(needs(&known(), &previews).iter().all(|need| moves.contains(need)), "a command that moves may show moves");
}

#[test]
fn permissions_of_an_agent_are_not_those_of_a_server() {
    let watched = r#"in a ClusterRole:
- {apiGroups: [""], resources: ["services"], verbs: ["list", "watch"]}
- {apiGroups: [""], resources: ["namespaces"], verbs: ["list", "watch"]}
- {apiGroups: [""], resources: ["nodes"], verbs: ["list", "watch"]}
- {apiGroups: ["discovery.k8s.io"], resources: ["endpointslices"], verbs: ["list", "watch"]}"#;
    let policy = r#"
- {apiGroups: ["policies.kubewarden.io"], resources: ["clusteradmissionpolicies"], resourceNames: ["clusterip"], verbs: ["get", "list", "watch"]}"#;
    let own = r#"
in a Role of namespace own:
- {apiGroups: ["coordination.k8s.io"], resources: ["leases"], verbs: ["get", "list", "watch", "create", "update", "delete"]}"#;
    let agent = Duties { namespace: "own".into(), agent: true, ..Duties::default() };
    let of_server = Duties { moves: true, nodes: true, external: true, claims: true, ..agent.clone() };
    let with_policy = Duties { kubewarden_policy: Some("clusterip".into()), ..agent };
    assert_eq!(rules(&known(), &of_server), format!("{watched}{own}"));
    assert_eq!(rules(&known(), &with_policy), format!("{watched}{policy}{own}"));
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
