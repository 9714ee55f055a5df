//! `clusterip move` without a server.

use std::net::IpAddr;

use axum::http::Method;
use serde_json::{Value, json};

use crate::support::cluster::Place;
use crate::support::command::{self, Ended};
use crate::support::control_plane::ControlPlane;
use crate::support::lent_control_plane::LentControlPlane;
use crate::support::move_helpers::{send, stored};

/// Two pools: one for Windows, and one for the rest.
const SETTINGS: &str = "
services:
  pools:
  - {name: windows, cidrs: [172.21.1.0/29], reserved: 2, match: {os: windows}}
  - {name: linux, cidrs: [172.21.0.0/24], reserved: 50, match: {os: linux}}
";

async fn clusterip(plane: &ControlPlane, arguments: &[&str]) -> Ended {
    clusterip_with(plane, SETTINGS, arguments).await
}

/// Runs `clusterip move` with these settings.
async fn clusterip_with(plane: &ControlPlane, text: &str, arguments: &[&str]) -> Ended {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("FILE"), text).unwrap();
    let arguments = [&["move", "--settings", "FILE"], arguments].concat();
    command::clusterip(folder.path(), plane.kubeconfig(), &arguments).await
}

/// Creates a Service at this address, without an owner of the address, as if the API server had picked it.
async fn service(place: &Place, name: &str, address: [u8; 4], os: &str) {
    let annotations = json!({"annotations": {"clusterip-policy/os": os}});
    place.service_at(name, address, annotations, json!({"selector": null})).await;
}

async fn place(plane: &ControlPlane, name: &str) -> Place {
    Place { client: plane.client(), namespace: plane.namespace(name).await }
}

/// The address and the annotations of a Service.
async fn address(place: &Place, name: &str) -> String {
    let service = stored(&place.client, &place.namespace, name).await.unwrap();
    let annotations = service["metadata"].get("annotations").map(Value::to_string).unwrap_or_default();
    format!("{} {annotations}", service["spec"]["clusterIP"].as_str().unwrap())
}

/// `cart` and `web` are misplaced, `placed` is in its pool, and the address of `fixed` was set by hand.
async fn misplaced_services(plane: &ControlPlane) -> Place {
    let late = place(plane, "late").await;
    service(&late, "cart", [172, 21, 0, 70], "windows").await;
    service(&late, "web", [172, 21, 99, 9], "linux").await;
    service(&late, "placed", [172, 21, 0, 80], "linux").await;
    late.service_named("fixed", json!({}), json!({"clusterIP": "172.21.99.10", "selector": null})).await;
    late
}

/// What `clusterip move -n late --dry-run` prints about [`misplaced_services`].
const LISTED: &str = "\
NAMESPACE  SERVICE  FROM          TO            METHOD  WHY
late       cart     172.21.0.70   172.21.1.4    plain   it lies in pool linux, and belongs to pool windows: kubernetes.io/os=windows (annotation clusterip-policy/os)
  clients notice nothing: no endpoint is ready
late       fixed    172.21.99.10  stays         -       it lies in no pool, and belongs to pool linux: kubernetes.io/os=linux (setting assumeOS)
  stays: its address was set by hand, as `metadata.managedFields` shows
late       web      172.21.99.9   172.21.0.103  plain   it lies in no pool, and belongs to pool linux: kubernetes.io/os=linux (annotation clusterip-policy/os)
  clients notice nothing: no endpoint is ready

2 to move, 1 stay
";

#[tokio::test(flavor = "multi_thread")]
async fn misplaced_services_are_listed_and_moved_after_confirmation() {
    let plane = &LentControlPlane::get().await;
    let late = misplaced_services(plane).await;
    let shown = clusterip(plane, &["-n", "late", "--dry-run"]).await;
    assert_eq!((shown.status, shown.stderr.as_str()), (0, "settings: FILE\n"));
    assert_eq!(shown.stdout, LISTED);
    // Without their titles, columns may be narrower.
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let (_, untitled) = shown.stdout.split_once('\n').unwrap();
    let without_titles = clusterip(plane, &["-n", "late", "--dry-run", "--no-headers"]).await;
    assert_eq!((without_titles.status, words(&without_titles.stdout)), (0, words(untitled)));

    for (selector, expected) in [("!app", LISTED), ("app=web", "nothing is misplaced\n")] {
        let selected = clusterip(plane, &["-n", "late", "--dry-run", "-l", selector]).await;
        assert_eq!((selected.status, selected.stdout.as_str()), (0, expected), "{selector}");
    }
    let placed = clusterip(plane, &["-n", "late", "--service", "placed"]).await;
    assert_eq!((placed.status, placed.stdout.as_str()), (0, "nothing is misplaced\n"));
    let confirm = "standard input is not a terminal: use --yes to move without asking, or --dry-run to only list the \
                   moves";
    for (arguments, error) in [
        (&["--service", "missing", "--yes"][..], "there is no Service late/missing"),
        (
            &["--dry-run", "--called-by-control-plane", "late/missing"],
            "there is no Service late/missing: check --called-by-control-plane",
        ),
        (&[], confirm),
    ] {
        let refused = clusterip(plane, &[&["-n", "late"], arguments].concat()).await;
        assert_eq!((refused.status, refused.stderr), (2, format!("settings: FILE\nerror: {error}\n")));
    }
    assert_eq!(address(&late, "cart").await, r#"172.21.0.70 {"clusterip-policy/os":"windows"}"#, "nothing was moved");

    let one = clusterip(plane, &["-n", "late", "--service", "cart", "--yes"]).await;
    assert_eq!(one.status, 0, "{}", one.stderr);
    assert_eq!(one.stdout.lines().last(), Some("moved 1 of 1, 0 stay"));
    assert_eq!(address(&late, "cart").await, r#"172.21.1.4 {"clusterip-policy/os":"windows"}"#);
    assert_eq!(address(&late, "web").await, r#"172.21.99.9 {"clusterip-policy/os":"linux"}"#, "not meant");
    let rest = clusterip(plane, &["-n", "late", "--yes"]).await;
    assert_eq!(rest.status, 0, "{}", rest.stderr);
    assert_eq!(address(&late, "web").await, r#"172.21.0.103 {"clusterip-policy/os":"linux"}"#);
    assert_eq!(address(&late, "fixed").await, "172.21.99.10 ", "set by hand");

    // A Service whose pool is full stays, which is a failure.
    let busy = place(plane, "busy").await;
    let settings = "{services: {pools: [{name: windows, cidrs: [172.21.9.0/30], match: {os: windows}}, \
                     {name: linux, cidrs: [172.21.0.0/24], reserved: 50, match: {os: linux}}]}}";
    for last in 1..3 {
        service(&busy, &format!("taken-{last}"), [172, 21, 9, last], "windows").await;
    }
    service(&busy, "cart", [172, 21, 0, 71], "windows").await;
    let full = clusterip_with(plane, settings, &["-n", "busy", "--yes"]).await;
    let stays = "stays: Service busy/cart: pool \"windows\" (172.21.9.0/30) is full: 2 of 2 addresses used";
    assert!(full.status == 1 && full.stdout.contains(stays), "{}: {}", full.status, full.stdout);
    assert!(full.stdout.ends_with("\n0 to move, 1 stay\n"), "{}", full.stdout);
}

#[tokio::test(flavor = "multi_thread")]
async fn service_keeps_its_address_if_a_step_of_its_move_is_forbidden() {
    const FORBIDDEN: &str = "moves are forbidden in this namespace";
    // The policies are only for namespaces of this test, so the next one may get the control plane.
    let plane = &LentControlPlane::get().await;
    let settings = "{services: {pools: [{name: windows, cidrs: [172.21.10.0/24], match: {os: windows}}, \
                    {name: linux, cidrs: [172.21.0.0/24], reserved: 50, match: {os: linux}}]}}";
    struct Case {
        /// The step that is forbidden, and the name of the namespace.
        name: &'static str,
        /// The CEL expression that is true of the allowed updates.
        allowed: &'static str,
        address: [u8; 4],
        /// The beginning and the end of the reason in the report.
        reason: [&'static str; 2],
    }
    let cases = [
        Case {
            name: "forbidden-release",
            allowed: "object.spec.type != 'ExternalName'",
            address: [172, 21, 0, 72],
            reason: [
                "Service forbidden-release/cart can't be moved: the step \"release\" was refused: ",
                "; nothing was changed",
            ],
        },
        Case {
            name: "forbidden-target",
            allowed: "!has(object.spec.clusterIP) || !object.spec.clusterIP.startsWith('172.21.10.')",
            address: [172, 21, 0, 73],
            reason: ["kept 172.21.0.73: it lies in pool linux, and belongs to pool windows: ", ""],
        },
    ];
    for Case { name, allowed, address: before, reason: [begin, end] } in cases {
        let place = place(plane, name).await;
        service(&place, "cart", before, "windows").await;
        plane.allow_only(name, allowed, FORBIDDEN).await;
        let moved = clusterip_with(plane, settings, &["-n", name, "--server-namespace", name, "--yes"]).await;
        assert_eq!(moved.status, 1, "{name}: {}", moved.stderr);
        assert_eq!(moved.stdout.lines().last(), Some("moved 0 of 1, 0 stay"), "{name}");
        let line = moved.stderr.lines().last().unwrap_or_default();
        assert!(line.starts_with(&format!("error: {name}/cart was not moved: {begin}")), "{name}: {line}");
        assert!(line.ends_with(&format!("{FORBIDDEN}{end}")), "{name}: {line}");
        let expected = format!(r#"{} {{"clusterip-policy/os":"windows"}}"#, IpAddr::from(before));
        assert_eq!(address(&place, "cart").await, expected, "{name}");
        let records = format!("/apis/apps/v1/namespaces/{name}/controllerrevisions");
        let records = send(&place.client, Method::GET, &records, None).await.unwrap();
        assert_eq!(records["items"], json!([]), "{name}: the record of the move is left");
    }
}
