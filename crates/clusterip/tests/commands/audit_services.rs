//! Runs `clusterip audit` as a user does: the findings about Services.

use crate::command::Folder;
use crate::command::service_snapshot::{audit, by_hand, cluster, findings, on, service, service_cidr};
use serde_json::{Value, json};

struct Case {
    name: &'static str,
    service: Value,
    expected: Vec<String>,
}

#[track_caller]
fn check(test: &str, rows: Vec<Case>) {
    let folder = Folder::new(test);
    for Case { name, service, expected } in rows {
        let done = audit(&folder, vec![cluster(), service], &["-o", "json"]);
        assert_eq!((done.status, done.stderr.as_str()), (0, ""), "{name}");
        assert_eq!(findings(&done), expected, "{name}");
    }
}

/// The message about a Service for the pool `windows`.
fn windows(verb: &str, address: &str) -> String {
    format!(
        "Service shop/web: {address} {verb}, and it belongs to pool windows (172.21.1.0/29): kubernetes.io/os=windows \
         (annotation clusterip-policy/os)"
    )
}

#[test]
fn address_outside_of_the_pool_of_a_service_is_a_finding() {
    let unowned = json!({"metadata": {"annotations": {"clusterip-policy/os": "windows"}, "managedFields": null}});
    check(
        "audit-found-misplaced",
        vec![
            Case { name: "where it belongs", service: service("web", "172.21.1.3", on("windows")), expected: vec![] },
            Case {
                name: "in the reserved part of its pool",
                service: service("web", "172.21.1.1", by_hand("windows")),
                expected: vec![],
            },
            Case {
                name: "in another pool",
                service: service("web", "172.21.0.70", on("windows")),
                expected: vec![format!(
                    "misplaced | 172.21.0.70 | windows | {}",
                    windows("lies in pool linux (172.21.0.0/24)", "172.21.0.70")
                )],
            },
            Case {
                name: "in another pool, set by hand",
                service: service("web", "172.21.0.70", by_hand("windows")),
                expected: vec![format!(
                    "by-hand | 172.21.0.70 | windows | {}",
                    windows("lies in pool linux (172.21.0.0/24)", "172.21.0.70")
                )],
            },
            Case {
                name: "in another pool, without a known author",
                service: service("web", "172.21.0.70", unowned),
                expected: vec![format!(
                    "misplaced | 172.21.0.70 | windows | {}",
                    windows("lies in pool linux (172.21.0.0/24)", "172.21.0.70")
                )],
            },
            Case {
                name: "in no pool",
                service: service("web", "172.21.9.9", on("windows")),
                expected: vec![format!(
                    "no-pool | 172.21.9.9 | windows | {}",
                    windows("lies in no pool", "172.21.9.9")
                )],
            },
            Case {
                name: "in no pool, set by hand",
                service: service("web", "172.21.9.9", by_hand("windows")),
                expected: vec![format!(
                    "no-pool | 172.21.9.9 | windows | {}; the address was set by hand",
                    windows("lies in no pool", "172.21.9.9")
                )],
            },
            Case {
                name: "in a pool other than the one that is assumed",
                service: service("web", "172.21.1.3", json!({})),
                expected: vec![],
            },
        ],
    );
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
            "misplaced | {address} | linux | Service shop/{name}: {address} lies in pool {pool}, and it belongs to pool \
             linux (172.21.4.0/29): kubernetes.io/os=linux (setting assumeOS)"
        )
    };
    let expected =
        [of("labels", "172.21.3.3", "labelled (172.21.3.0/29)"), of("namespace", "172.21.2.3", "team (172.21.2.0/29)")];
    assert_eq!(findings(&done), expected);
}

#[test]
fn service_without_a_pool_is_found_only_if_its_address_is_in_one() {
    check(
        "audit-found-unmatched",
        vec![
            Case {
                name: "without a pool, in one",
                service: service("web", "172.21.1.3", on("darwin")),
                expected: vec![
                "unmatched | 172.21.1.3 | windows | Service shop/web: 172.21.1.3 lies in pool windows (172.21.1.0/29), \
                 and no \
             pool matches it: kubernetes.io/os=darwin (annotation clusterip-policy/os)"
                    .to_owned(),
            ],
            },
            Case {
                name: "without a pool, in none",
                service: service("web", "172.21.9.9", on("darwin")),
                expected: vec![],
            },
        ],
    );
}

/// A finalizer may keep a Service that is being deleted.
#[test]
fn deleted_service_is_found_only_if_it_is_misplaced() {
    let deleted = |annotations: Value| json!({"metadata": {"annotations": annotations, "deletionTimestamp": "2026-01-01T00:00:00Z"}});
    let (os, nope) = (json!({"clusterip-policy/os": "windows"}), json!({"clusterip-policy/pool": "nope"}));
    check(
        "audit-found-deleted",
        vec![
            Case {
                name: "in its pool",
                service: service("web", "172.21.1.3", deleted(os.clone())),
                expected: vec![],
            },
            Case {
                name: "in another pool",
                service: service("web", "172.21.0.70", deleted(os)),
                expected: vec![format!(
                    "misplaced | 172.21.0.70 | windows | {}",
                    windows("lies in pool linux (172.21.0.0/24)", "172.21.0.70")
                )],
            },
            Case {
                name: "in a pool, and would be denied",
                service: service("web", "172.21.0.70", deleted(nope)),
                expected: vec![
                    "unmatched | 172.21.0.70 | linux | Service shop/web: 172.21.0.70 lies in pool linux (172.21.0.0/24), \
                     and no pool matches it: annotation clusterip-policy/pool names pool \"nope\", which is unknown: \
                     known are windows, linux"
                        .to_owned(),
                ],
            },
        ],
    );
    let folder = Folder::new("audit-explained-deleted");
    let web = service("web", "172.21.0.70", deleted(json!({"clusterip-policy/os": "windows"})));
    let told = audit(&folder, vec![cluster(), web], &["--service", "shop/web", "-o", "json"]).json();
    assert_eq!(told["move"], "does not move it: it is being deleted", "{told}");
    let remedy = "nothing moves it, because it is being deleted: find out why its finalizers stay";
    assert_eq!(told["findings"][0]["remedy"], remedy, "{told}");
}

#[test]
fn exempt_and_headless_services_are_not_found() {
    let exempt = json!({"metadata": {"namespace": "kube-system", "annotations": {"clusterip-policy/os": "windows"}}});
    check(
        "audit-found-none",
        vec![
            Case { name: "exempt", service: service("web", "172.21.0.70", exempt), expected: vec![] },
            Case { name: "headless", service: service("web", "None", on("windows")), expected: vec![] },
        ],
    );
}

#[test]
fn service_that_would_be_denied_or_was_left_by_a_move_is_found() {
    let dual = json!({
        "metadata": {"annotations": {"clusterip-policy/os": "windows"}},
        "spec": {"clusterIPs": ["172.21.1.3", "fd00::5"], "ipFamilies": ["IPv4", "IPv6"], "ipFamilyPolicy": "RequireDualStack"},
    });
    let stub = json!({"metadata": {"annotations": null}, "spec": {"clusterIP": null, "type": "ExternalName", "externalName": "moving.invalid"}});
    let torn = json!({"metadata": {"annotations": {"clusterip-policy/moving": "{"}}});
    check(
        "audit-found-broken",
        vec![
            Case {
                name: "in two families, of which its pool has one",
                service: service("web", "172.21.1.3", dual),
                expected: vec![
                "denied | 172.21.1.3,fd00::5 | windows | Service shop/web: it would be denied if it were created now: \
                 pool \
                 \"windows\" has no IPv6 range; chosen by kubernetes.io/os=windows (annotation clusterip-policy/os); \
                 add an \
                 IPv6 range to the pool, or set services.whenFull: unmanaged"
                    .to_owned(),
            ],
            },
            Case {
                name: "left by a move whose annotation is gone",
                service: service("web", "None", stub),
                expected: vec![
                    "half-moved |  | - | Service shop/web: it looks as if a move has begun and has not ended"
                        .to_owned(),
                ],
            },
            Case {
                name: "with an annotation that is torn",
                service: service("web", "172.21.1.3", torn),
                expected: vec![
                    "half-moved | 172.21.1.3 | - | Service shop/web: it looks as if a move has begun and has not ended"
                        .to_owned(),
                ],
            },
        ],
    );
}

#[test]
fn service_without_an_address_is_not_set_by_hand() {
    let folder = Folder::new("audit-headless");
    // kubectl owns `clusterIP: None`.
    let explained = |args: &[&str]| {
        let headless = service("web", "None", by_hand("windows"));
        audit(&folder, vec![cluster(), headless], &[&["--service", "shop/web"][..], args].concat())
    };
    let expected = "\
service     shop/web
address     none
decision    unchanged: headless
belongs to  no pool
evidence    none
move        `clusterip move` does not move it: headless
";
    assert_eq!(explained(&[]).stdout, expected);
    let told = explained(&["-o", "json"]).json();
    assert_eq!((&told["addresses"], &told["byHand"]), (&json!([]), &Value::Null), "{told}");
    let refused = explained(&["-o", "junit"]).stderr;
    assert!(refused.ends_with("error: --service can't be printed as junit: use -o table or -o json\n"), "{refused}");
}

#[test]
fn callers_of_a_misplaced_service_are_named_in_the_finding() {
    let folder = Folder::new("audit-called");
    let webhooks = json!([{"clientConfig": {"service": {"namespace": "shop", "name": "web"}}}]);
    let hook = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
                      "metadata": {"name": "web-hook"}, "webhooks": webhooks});
    let own = json!({"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": "v1.apps"}, "spec": {}});
    struct Row {
        name: &'static str,
        service: Value,
        more: Vec<Value>,
        called: bool,
        remedy: &'static str,
        notes: usize,
    }
    let by_option = "`clusterip move --called-by-control-plane NAMESPACE/NAME` moves it: the control plane can't call it for a moment";
    let rows = [
        Row {
            name: "called",
            service: service("web", "172.21.0.70", on("windows")),
            more: vec![hook.clone(), own.clone()],
            called: true,
            remedy: by_option,
            notes: 0,
        },
        Row {
            name: "called, in a snapshot without APIServices",
            service: service("web", "172.21.0.70", on("windows")),
            more: vec![hook.clone()],
            called: true,
            remedy: by_option,
            notes: 1,
        },
        Row {
            name: "another one is called",
            service: service("other", "172.21.0.70", on("windows")),
            more: vec![hook.clone(), own.clone()],
            called: false,
            remedy: "`clusterip move --seamless` moves it; `clusterip serve` moves it by itself if no ready endpoint can be reached at its address",
            notes: 0,
        },
        Row {
            name: "its address was set by hand",
            service: service("web", "172.21.0.70", by_hand("windows")),
            more: vec![hook],
            called: false,
            remedy: "nothing moves it: remove clusterIP from its manifest, or set an address of its pool, and create it again",
            notes: 0,
        },
    ];
    for row in rows {
        let items = [vec![cluster(), row.service], row.more].concat();
        let done = audit(&folder, items, &["-o", "json"]);
        let told: Value = serde_json::from_str(&done.stdout).unwrap();
        let message = told["findings"][0]["message"].as_str().unwrap();
        let called = message.ends_with("; it is called by ValidatingWebhookConfiguration web-hook");
        assert_eq!(called, row.called, "{}: {message}", row.name);
        assert_eq!(told["findings"][0]["remedy"], row.remedy, "{}", row.name);
        // One more note says which kinds the snapshot does not have.
        assert_eq!(told["notes"].as_array().unwrap().len(), row.notes + 1, "{}: {}", row.name, told["notes"]);
    }
}

#[test]
fn move_is_recommended_only_if_it_accepts_the_settings() {
    struct Case {
        name: &'static str,
        range: &'static str,
        remedy: &'static str,
        moves: &'static str,
    }
    let cases = [
        Case {
            name: "the pools are in the range of the cluster",
            range: "172.21.0.0/16",
            remedy: "`clusterip move --seamless` moves it; `clusterip serve` moves it by itself if no ready endpoint can be reached at its address",
            moves: "moves it to 172.21.1.",
        },
        Case {
            name: "the pools are outside",
            range: "10.96.0.0/16",
            remedy: "correct the settings, which `clusterip serve` and `clusterip move` refuse: they don't fit the Service \
                      ranges of the cluster",
            moves: "would move it to 172.21.1.",
        },
    ];
    let folder = Folder::new("audit-refused");
    for Case { name, range, remedy, moves } in cases {
        let items = || vec![service_cidr("kubernetes", range, json!({})), service("web", "172.21.0.70", on("windows"))];
        let told: Value = serde_json::from_str(&audit(&folder, items(), &["-o", "json"]).stdout).unwrap();
        let finding = told["findings"].as_array().unwrap().iter().find(|finding| finding["name"] == "web").unwrap();
        assert_eq!(finding["remedy"], remedy, "{name}");
        let why = audit(&folder, items(), &["-o", "json", "--service", "shop/web"]);
        let why: Value = serde_json::from_str(&why.stdout).unwrap();
        assert!(why["move"].as_str().unwrap().starts_with(moves), "{name}: {why}");
    }
}

#[test]
fn findings_of_one_namespace_are_selected() {
    let folder = Folder::new("audit-namespace");
    let items = || {
        let other = json!({"metadata": {"namespace": "bank", "annotations": {"clusterip-policy/os": "windows"}}});
        vec![cluster(), service("web", "172.21.0.70", on("windows")), service("web", "172.21.0.71", other)]
    };
    struct Case {
        args: &'static [&'static str],
        namespaces: &'static [&'static str],
        services: u64,
    }
    let cases = [
        Case { args: &[], namespaces: &["bank", "shop"], services: 2 },
        Case { args: &["-A"], namespaces: &["bank", "shop"], services: 2 },
        Case { args: &["-n", "shop"], namespaces: &["shop"], services: 1 },
    ];
    for Case { args, namespaces, services } in cases {
        let done = audit(&folder, items(), &[&["-o", "json"][..], args].concat());
        let told: Value = serde_json::from_str(&done.stdout).unwrap();
        let found = told["findings"].as_array().unwrap().iter();
        let found: Vec<&str> = found.map(|finding| finding["namespace"].as_str().unwrap()).collect();
        assert_eq!((found.as_slice(), &told["services"]), (namespaces, &json!(services)), "{args:?}");
    }
    let unknown = audit(&folder, items(), &["-n", "nope"]);
    assert_eq!(
        (unknown.status, unknown.stderr.as_str()),
        (2, "error: there is no namespace nope: check --namespace\n")
    );
}

#[test]
fn findings_of_services_with_certain_labels_are_selected() {
    let folder = Folder::new("audit-selector");
    let labelled = |namespace: &str, labels: Value| {
        let annotations = json!({"clusterip-policy/os": "windows"});
        json!({"metadata": {"namespace": namespace, "labels": labels, "annotations": annotations}})
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
    let pools = |told: &Value| told["pools"].clone();
    let whole: Value = audit(&folder, items(), &["-o", "json"]).json();
    struct Case {
        args: &'static [&'static str],
        found: &'static [&'static str],
    }
    let cases = [
        Case { args: &["-l", "app=web"], found: &["bank/web", "shop/web"] },
        Case { args: &["--selector", "app in (web, api)", "-n", "shop"], found: &["shop/api", "shop/web"] },
        Case { args: &["-l", "app,tier!=back"], found: &["bank/web", "shop/web"] },
        Case { args: &["-l", "!app"], found: &["shop/bare"] },
        Case { args: &["-l", "app=none"], found: &[] },
        Case { args: &["-l", ""], found: &["bank/web", "shop/api", "shop/bare", "shop/web"] },
    ];
    for Case { args, found } in cases {
        let done = audit(&folder, items(), &[&["-o", "json"][..], args].concat());
        let notice = "no Service has these labels\n";
        assert_eq!(done.stderr.contains(notice), found.is_empty(), "{args:?}: {done:?}");
        let told = done.json();
        let id = |finding: &Value| {
            format!("{}/{}", finding["namespace"].as_str().unwrap(), finding["name"].as_str().unwrap())
        };
        let services: Vec<String> = told["findings"].as_array().unwrap().iter().map(id).collect();
        assert_eq!(services, found, "{args:?}");
        assert_eq!(told["services"], json!(found.len()), "{args:?}");
        assert_eq!(pools(&told), pools(&whole), "{args:?}: the pools are those of the whole cluster");
    }
    let fails = ["--fail-on", "misplaced", "-l"];
    assert_eq!(audit(&folder, items(), &[&fails[..], &["app=web"]].concat()).status, 1);
    assert_eq!(audit(&folder, items(), &[&fails[..], &["app=none"]].concat()).status, 0);
}
