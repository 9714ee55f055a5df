//! Runs `clusterip audit` as a user does: the findings about Services.

use crate::command::service_snapshot::{audit, by_hand, cluster, on, service};
use crate::command::{Folder, check_fail_on, merged, service_cidr};
use serde_json::{Value, json};

/// The example has the other causes of these findings.
#[test]
fn each_problem_of_a_service_is_a_finding() {
    let folder = Folder::new("audit-services");
    let windows = |more: Value| merged(on("windows"), more);
    let deleted = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
    let dual = json!({"spec": {"clusterIPs": ["172.21.1.4", "fd00::5"], "ipFamilies": ["IPv4", "IPv6"],
                               "ipFamilyPolicy": "RequireDualStack"}});
    let stub = json!({"spec": {"clusterIP": null, "type": "ExternalName", "externalName": "moving.invalid"}});
    let services = vec![
        service("right", "172.21.1.3", on("windows")),
        service("reserved", "172.21.1.1", by_hand("windows")),
        service("elsewhere", "172.21.0.70", on("windows")),
        service("unowned", "172.21.0.71", windows(json!({"metadata": {"managedFields": null}}))),
        service("by-hand", "172.21.0.72", by_hand("windows")),
        service("by-hand-in-none", "172.21.9.9", by_hand("windows")),
        service("not-where-assumed", "172.21.1.2", json!({})),
        service("unmatched-in-none", "172.21.9.10", on("darwin")),
        service("exempt", "172.21.0.73", windows(json!({"metadata": {"namespace": "kube-system"}}))),
        service("headless", "None", on("windows")),
        service(
            "never",
            "172.21.0.74",
            windows(json!({"metadata": {"annotations": {"clusterip-policy/move": "never"}}})),
        ),
        service("balancer", "172.21.0.75", windows(json!({"spec": {"type": "LoadBalancer"}}))),
        service("called", "172.21.0.76", on("windows")),
        service("closed", "172.21.0.79", on("windows")),
        // A finalizer may keep a Service that is being deleted.
        service("deleted-right", "172.21.1.5", windows(deleted.clone())),
        service("deleted", "172.21.0.77", windows(deleted.clone())),
        service(
            "deleted-denied",
            "172.21.0.78",
            merged(deleted, json!({"metadata": {"annotations": {"clusterip-policy/pool": "nope"}}})),
        ),
        service("denied", "172.21.1.4", windows(dual)),
        service("left", "None", stub),
        service("torn", "172.21.9.11", json!({"metadata": {"annotations": {"clusterip-policy/moving": "{"}}})),
    ];
    let webhook = |name: &str| json!({"clientConfig": {"service": {"namespace": "shop", "name": name}}});
    let closed = json!({
        "name": "closed.example.org", "failurePolicy": "Fail",
        "rules": [{"apiGroups": [""], "operations": ["UPDATE"], "resources": ["services"]}],
    });
    let called = [webhook("called"), webhook("by-hand"), merged(webhook("closed"), closed)];
    let hook = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
                      "metadata": {"name": "web-hook"}, "webhooks": called});
    let own = json!({"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": "v1.apps"}, "spec": {}});
    let items = [services, vec![cluster(), hook]].concat();
    let whole = [items.clone(), vec![own]].concat();
    let done = audit(&folder, whole.clone(), &["-o", "json"]);
    assert_eq!((done.status, done.stderr.as_str()), (0, ""));
    let windows =
        "it belongs to pool windows (172.21.1.0/29): kubernetes.io/os=windows (annotation clusterip-policy/os)";
    let lies = |kind: &str, name: &str, address: &str, place: &str, more: &str| {
        format!(
            "{kind} | - | {address} | windows | Service shop/{name}: {address} lies in {place}, and {windows}{more}"
        )
    };
    let in_linux =
        |name: &str, address: &str, more: &str| lies("misplaced", name, address, "pool linux (172.21.0.0/24)", more);
    let expected = [
        "half-moved | - |  | - | Service shop/left: it looks as if a move has begun and has not ended".to_owned(),
        "half-moved | - | 172.21.9.11 | - | Service shop/torn: it looks as if a move has begun and has not \
         ended"
            .to_owned(),
        in_linux("balancer", "172.21.0.75", ""),
        in_linux("called", "172.21.0.76", "; it is called by ValidatingWebhookConfiguration web-hook"),
        in_linux("closed", "172.21.0.79", "; it is called by ValidatingWebhookConfiguration web-hook"),
        in_linux("deleted", "172.21.0.77", ""),
        in_linux("elsewhere", "172.21.0.70", ""),
        in_linux("never", "172.21.0.74", ""),
        in_linux("unowned", "172.21.0.71", ""),
        lies("by-hand", "by-hand", "172.21.0.72", "pool linux (172.21.0.0/24)", ""),
        lies("no-pool", "by-hand-in-none", "172.21.9.9", "no pool", "; the address was set by hand"),
        "unmatched | - | 172.21.0.78 | linux | Service shop/deleted-denied: 172.21.0.78 lies in pool linux \
         (172.21.0.0/24), and no pool matches it: annotation clusterip-policy/pool names pool \"nope\", which is \
         unknown: known are windows, linux"
            .to_owned(),
        "denied | - | 172.21.1.4,fd00::5 | windows | Service shop/denied: it would be denied if it were created now: \
         pool \"windows\" has no IPv6 range; chosen by kubernetes.io/os=windows (annotation clusterip-policy/os); add \
         an IPv6 range to the pool, or set services.whenFull: unmanaged"
            .to_owned(),
    ];
    assert_eq!(done.findings(), expected);
    let told = done.json();
    let remedy_of = |name: &str| {
        let found = told["findings"].as_array().unwrap().iter().find(|finding| finding["name"] == name).unwrap();
        found["remedy"].as_str().unwrap().to_owned()
    };
    let remedy_of_closed = "for the time of the move, set failurePolicy: Ignore and timeoutSeconds: 1 in webhook \
                            closed.example.org of ValidatingWebhookConfiguration web-hook, because the API server \
                            refuses the requests of the move without an answer of the webhook";
    let by_itself = "moves it by itself if no ready endpoint can be reached at its address";
    for (name, remedy) in [
        ("elsewhere", format!("`clusterip move --seamless` moves it; `clusterip serve` {by_itself}")),
        (
            "balancer",
            format!(
                "`clusterip move --load-balancers` moves it; `clusterip serve --move-load-balancers` \
                              {by_itself}"
            ),
        ),
        (
            "called",
            "`clusterip move --called-by-control-plane NAMESPACE/NAME` moves it: the control plane can't call \
                    it for a moment"
                .to_owned(),
        ),
        (
            "closed",
            format!("{remedy_of_closed}; then `clusterip move --called-by-control-plane NAMESPACE/NAME` moves it"),
        ),
        ("never", "nothing moves it as long as its annotation clusterip-policy/move says never".to_owned()),
        (
            "by-hand",
            "nothing moves it: remove clusterIP from its manifest, or set an address of its pool, and create \
                     it again"
                .to_owned(),
        ),
        ("deleted", "nothing moves it, because it is being deleted: find out why its finalizers stay".to_owned()),
    ] {
        assert_eq!(remedy_of(name), remedy, "{name}");
    }
    // Without APIServices, a note says that callers are not known.
    let notes = |told: &Value| told["notes"].as_array().unwrap().len();
    assert_eq!(notes(&audit(&folder, items, &["-o", "json"]).json()), notes(&told) + 1);
    check_fail_on(|args| audit(&folder, whole.clone(), args));

    let stays =
        format!("does not move it: it is called by ValidatingWebhookConfiguration web-hook; {remedy_of_closed}");
    for (name, moves) in [
        ("shop/closed", stays.as_str()),
        ("shop/deleted", "does not move it: it is being deleted"),
        ("shop/torn", "finishes the move that has begun"),
    ] {
        let explained = audit(&folder, whole.clone(), &["--service", name, "-o", "json"]).json();
        assert_eq!(explained["move"], moves, "{name}");
    }
}

/// The setting assumeOS decides where these Services belong.
#[test]
fn address_of_a_pool_that_excludes_the_service_is_a_finding() {
    let folder = Folder::new("audit-found-intruders");
    let settings = json!({"services": {"pools": [
        {"name": "team", "cidrs": ["172.21.2.0/29"], "match": {"namespaces": ["team"]}},
        {"name": "labelled", "cidrs": ["172.21.3.0/29"], "match": {"serviceSelector": {"matchLabels": {"a": "b"}}}},
        {"name": "windows", "cidrs": ["172.21.1.0/29"], "match": {"os": "windows"}},
        {"name": "linux", "cidrs": ["172.21.4.0/29"], "match": {"os": "linux"}},
    ]}});
    let services = [("namespace", "172.21.2.3"), ("labels", "172.21.3.3"), ("system", "172.21.1.3")];
    let services = services.map(|(name, address)| service(name, address, json!({})));
    let done = folder.audit(&settings.to_string(), &[vec![cluster()], services.to_vec()].concat(), &["-o", "json"]);
    let of = |name: &str, address: &str, pool: &str| {
        format!(
            "misplaced | - | {address} | linux | Service shop/{name}: {address} lies in pool {pool}, and it belongs to \
             pool linux (172.21.4.0/29): kubernetes.io/os=linux (setting assumeOS)"
        )
    };
    let expected =
        [of("labels", "172.21.3.3", "labelled (172.21.3.0/29)"), of("namespace", "172.21.2.3", "team (172.21.2.0/29)")];
    assert_eq!(done.findings(), expected);
}

#[test]
fn service_without_an_address_is_not_set_by_hand() {
    let folder = Folder::new("audit-headless");
    // kubectl owns `clusterIP: None`.
    let explained = |output: &str| {
        let items = vec![cluster(), service("web", "None", by_hand("windows"))];
        audit(&folder, items, &["--service", "shop/web", "-o", output])
    };
    let expected = "\
service     shop/web
address     none
decision    unchanged: headless
belongs to  no pool
evidence    none
move        `clusterip move` does not move it: headless
";
    assert_eq!(explained("table").stdout, expected);
    let told = explained("json").json();
    assert_eq!((&told["addresses"], &told["byHand"]), (&json!([]), &Value::Null), "{told}");
    let refused = explained("junit").stderr;
    assert!(refused.ends_with("error: --service can't be printed as junit: use -o table or -o json\n"), "{refused}");
}

/// The example is a cluster whose ranges are not those of the settings.
#[test]
fn move_is_announced_only_if_it_accepts_the_settings() {
    let folder = Folder::new("audit-refused");
    for (range, moves) in [("172.21.0.0/16", "moves it to 172.21.1."), ("10.96.0.0/16", "would move it to 172.21.1.")] {
        let items = vec![service_cidr("kubernetes", range, json!({})), service("web", "172.21.0.70", on("windows"))];
        let why = audit(&folder, items, &["-o", "json", "--service", "shop/web"]).json();
        assert!(why["move"].as_str().unwrap().starts_with(moves), "{range}: {why}");
    }
}

#[test]
fn findings_of_a_namespace_and_of_services_with_certain_labels_are_selected() {
    struct Case {
        args: &'static [&'static str],
        found: &'static [&'static str],
    }
    let folder = Folder::new("audit-selected");
    let labelled = |namespace: &str, labels: Value| {
        merged(on("windows"), json!({"metadata": {"namespace": namespace, "labels": labels}}))
    };
    let items = || {
        vec![
            cluster(),
            service("api", "172.21.0.70", labelled("shop", json!({"app": "api", "tier": "back"}))),
            service("web", "172.21.0.71", labelled("shop", json!({"app": "web"}))),
            service("web", "172.21.0.72", labelled("bank", json!({"app": "web"}))),
            service("bare", "172.21.0.73", on("windows")),
        ]
    };
    let whole = audit(&folder, items(), &["-o", "json"]).json();
    let all: &[&str] = &["bank/web", "shop/api", "shop/bare", "shop/web"];
    let cases = [
        Case { args: &[], found: all },
        Case { args: &["-A"], found: all },
        Case { args: &["-l", ""], found: all },
        Case { args: &["-n", "bank"], found: &["bank/web"] },
        Case { args: &["-l", "app=web"], found: &["bank/web", "shop/web"] },
        Case { args: &["--selector", "app in (web, api)", "-n", "shop"], found: &["shop/api", "shop/web"] },
        Case { args: &["-l", "!app"], found: &["shop/bare"] },
        Case { args: &["-l", "app=none"], found: &[] },
    ];
    for Case { args, found } in cases {
        let done = audit(&folder, items(), &[&["-o", "json", "--fail-on", "misplaced"][..], args].concat());
        assert_eq!(done.status, i32::from(!found.is_empty()), "{args:?}");
        assert_eq!(done.stderr.contains("no Service has these labels\n"), found.is_empty(), "{args:?}: {done:?}");
        let told = done.json();
        let id = |finding: &Value| format!("{}/{}", finding["namespace"], finding["name"]).replace('"', "");
        let services: Vec<String> = told["findings"].as_array().unwrap().iter().map(id).collect();
        assert_eq!(services, found, "{args:?}");
        assert_eq!(told["services"], json!(found.len()), "{args:?}");
        assert_eq!(told["pools"], whole["pools"], "{args:?}: the pools are those of the whole cluster");
    }
    let unknown = audit(&folder, items(), &["-n", "nope"]);
    assert_eq!(
        (unknown.status, unknown.stderr.as_str()),
        (2, "error: there is no namespace nope: check --namespace\n")
    );
}
