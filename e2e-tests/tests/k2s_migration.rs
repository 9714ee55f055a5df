//! The migration in `docs/migrate-from-k2s.md` from the webhook of K2s to ours, on a cluster as K2s leaves it.

use serde_json::{Value, json};

use crate::support::cluster::Place;
use crate::support::documented_steps::{Operator, Step, steps_of, types};
use crate::support::eventually::eventually;
use crate::support::fake_kubelet::Installed;
use crate::support::k2s_webhook::K2sWebhook;
use crate::support::move_helpers::stored;

/// The steps below a heading of `docs/migrate-from-k2s.md`.
fn steps(heading: &str) -> Vec<Step> {
    steps_of("migrate-from-k2s.md", heading)
}

/// The ways in which a Pod requires Windows: those that K2s recognizes, and those that it does not.
fn selected() -> Value {
    json!({"nodeSelector": {"kubernetes.io/os": "windows"}})
}

fn by_field() -> Value {
    json!({"os": {"name": "windows"}})
}

async fn service(place: &Place, name: &str, spec: Value) -> String {
    let mut all = json!({"selector": {"app": name}});
    json_patch::merge(&mut all, &spec);
    let created = place.service_named(name, json!({}), all).await;
    created["spec"]["clusterIP"].as_str().unwrap_or_default().to_owned()
}

/// The Services that K2s has left: in the right pool, in the wrong pool, or set by hand.
async fn as_k2s_leaves_it(shop: &Place, office: &Place) {
    for (name, pods) in
        [("checkout", selected()), ("cart", by_field()), ("ledger", by_field()), ("returns", selected())]
    {
        shop.deployment(name, pods).await;
    }
    for name in ["catalog", "checkout", "cart", "ledger"] {
        service(shop, name, json!({})).await;
    }
    service(shop, "sessions", json!({"clusterIP": "172.21.0.20"})).await;
    service(shop, "returns", json!({"clusterIP": "172.21.0.21"})).await;
    service(shop, "members", json!({"clusterIP": "None"})).await;
    service(shop, "mail", json!({"type": "ExternalName", "externalName": "mail.example.com"})).await;
    // The webhook of K2s was unavailable or too slow.
    office.deployment("scanner", selected()).await;
    office.service_at("scanner", [172, 21, 0, 180], json!({}), json!({"selector": {"app": "scanner"}})).await;
    office.service_at("early", [172, 21, 77, 1], json!({}), json!({"selector": {"app": "early"}})).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn migration_keeps_services_and_moves_misplaced_ones() {
    let cluster = Installed::nothing().await;
    let (shop, office) = (cluster.place("shop").await, cluster.place("office").await);
    let theirs = K2sWebhook::start().await;
    theirs.install(&cluster.plane).await;
    theirs.is_active(&cluster.plane, "office").await;
    as_k2s_leaves_it(&shop, &office).await;
    let before = cluster.services().await;
    assert_eq!(before["shop/checkout"].1, "172.21.1.50");
    let operator = Operator::new(&cluster.plane, &cluster.node.url());
    theirs.set_url(&operator);

    let write_down = steps("1. Record the current state");
    let [first @ .., args, exempt] = &write_down[..] else { panic!("{write_down:?}") };
    operator.does_all(first).await;
    assert_eq!(
        operator.does(args).await,
        r#"["--linux-subnet=172.21.0.0/24","--windows-subnet=172.21.1.0/24","--reserved-ips=50"]"#
    );
    operator.does(exempt).await;
    let settings = operator.read("deploy/webhook/pools.yaml");
    assert!(settings.contains("exemptNamespaces: [k2s-webhook, kube-system, clusterip-policy]"), "{settings}");

    let see = steps("2. List misplaced Services");
    let [list, never] = &see[..] else { panic!("{see:?}") };
    let listed = operator.does(list).await;
    let rows: Vec<Vec<&str>> = listed.lines().map(|line| line.split_whitespace().take(3).collect()).collect();
    let named: Vec<(&str, &str)> =
        rows.iter().filter(|row| row.len() == 3 && row[0] != "clients").map(|row| (row[0], row[1])).collect();
    assert_eq!(
        named,
        [
            ("NAMESPACE", "SERVICE"),
            ("office", "early"),
            ("office", "scanner"),
            ("shop", "cart"),
            ("shop", "ledger"),
            ("shop", "returns"),
            ("stays:", "its"),
            ("4", "to"),
        ],
        "{listed}"
    );
    assert!(listed.ends_with("\n4 to move, 1 stay\n"), "{listed}");
    operator.does(never).await;
    let listed = operator.does(list).await;
    assert!(listed.contains("  stays: annotation clusterip-policy/move: never\n"), "{listed}");
    assert!(listed.ends_with("\n3 to move, 2 stay\n"), "{listed}");
    assert_eq!(cluster.services().await, before, "listing changes no Service");

    operator.does_all(&steps("3. Install clusterip without moves")).await;
    cluster.is_asked().await;
    // Both webhooks are called now, ours first.
    let theirs_gave = theirs.given();
    shop.deployment("payments", by_field()).await;
    eventually("an address in the pool of the Deployment", async || {
        let dry = "kubectl create service clusterip payments --tcp=80 \
                   --namespace shop --dry-run=server --output jsonpath='{.spec.clusterIP}'";
        operator.does(&Step::Type(dry.to_owned())).await.starts_with("172.21.1.").then_some(())
    })
    .await;
    let payments = service(&shop, "payments", json!({})).await;
    assert!(payments.starts_with("172.21.1."), "{payments}");
    assert_eq!(theirs.given(), theirs_gave, "the webhook of K2s changes a Service that has an address");
    let still = "clusterip_misplaced_services{reason=\"never\"} 4";
    eventually("reports of all misplaced Services", async || {
        let server = cluster.node.server().await;
        let (_, metrics) = server.as_ref()?.get("/metrics").await?;
        metrics.lines().any(|line| line == still).then_some(())
    })
    .await;
    let mut with_payments = before.clone();
    with_payments.insert("shop/payments".to_owned(), cluster.services().await["shop/payments"].clone());
    assert_eq!(cluster.services().await, with_payments, "a Service has moved");

    operator.does_all(&steps("4. Make the K2s webhook idle")).await;
    theirs.is_idle(&cluster.plane, "office").await;
    let asked = theirs.calls();
    let alone = service(&shop, "alone", json!({})).await;
    assert!(alone.starts_with("172.21.0."), "{alone}");
    assert_eq!(theirs.calls(), asked, "the webhook of K2s is still called");

    let move_all = steps("5. Move misplaced Services");
    let [one, rest] = &move_all[..] else { panic!("{move_all:?}") };
    assert!(operator.does(one).await.ends_with("moved 1 of 1, 2 stay\n"));
    let now = cluster.services().await;
    assert!(now["shop/cart"].1.starts_with("172.21.1."), "{now:?}");
    assert_eq!(now["office/scanner"], before["office/scanner"], "another namespace");
    assert!(operator.does(rest).await.ends_with("moved 2 of 2, 2 stay\n"));

    operator.does_all(&steps("6. Enable automatic moves")).await;
    assert!(!operator.read("deploy/webhook/deployment.yaml").contains("--move"));
    service(&shop, "late", json!({})).await;
    shop.deployment("late", selected()).await;
    eventually("the Service of a late Windows workload to move", async || {
        cluster.services().await["shop/late"].1.starts_with("172.21.1.").then_some(())
    })
    .await;

    let check = steps("7. Check the result");
    let [list, differ, misplaced] = &check[..] else { panic!("{check:?}") };
    assert!(types(differ, "diff"));
    operator.does(list).await;
    let differs = operator.tries(differ).await;
    let mut created: Vec<&str> = differs.stdout.lines().filter(|line| line.starts_with(['<', '>'])).collect();
    created.sort_by_key(|line| line.split_whitespace().last());
    let created: Vec<(&str, Option<&str>)> =
        created.iter().map(|line| (&line[..1], line.split_whitespace().last())).collect();
    assert_eq!(created, [(">", Some("alone")), (">", Some("late")), (">", Some("payments"))]);
    assert!(operator.does(misplaced).await.ends_with("\n0 to move, 2 stay\n"));

    let after = cluster.services().await;
    for (name, (uid, address)) in &before {
        let (now_uid, now) = &after[name];
        assert_eq!(now_uid, uid, "{name} was recreated");
        let pool = match name.as_str() {
            "shop/cart" | "office/scanner" => "172.21.1.",
            "office/early" => "172.21.0.",
            _ => address,
        };
        assert!(now.starts_with(pool) && (pool != address || now == address), "{name}: {now}");
    }
    assert_eq!(after.len(), before.len() + 3);
    // The Service of clusterip itself keeps the address that the API server gave it, and answers.
    assert!(stored(&cluster.client, "clusterip-policy", "clusterip").await.is_some());
}
