//! The page `docs/tenancy.md`, as it is written: tenants with ranges that labels give them.

use std::net::IpAddr;

use axum::http::Method;
use serde_json::{Value, json};

use crate::fence::support::{create, send};
use crate::support::documented_steps::{Operator, Step, steps_of};
use crate::support::eventually::eventually;
use crate::support::fake_kubelet::Installed;
use crate::support::move_helpers::path;
use crate::support::webhook_cluster::{address, service, within};

const ABC123: &str = "172.22.1.0/29";
const DEF456: &str = "172.22.2.0/29";

#[tokio::test(flavor = "multi_thread")]
async fn tenants_have_the_ranges_with_their_label() {
    let cluster = Installed::nothing().await;
    if !cluster.plane.tells_addresses() {
        return cluster.plane.does_not_apply("ServiceCIDRs with labels");
    }
    let operator = Operator::new(&cluster.plane, &cluster.node.url());
    cluster.install(&operator).await;
    operator.does(&Step::Type("kubectl apply -k deploy/fence".to_owned())).await;
    operator.does_all(&steps_of("tenancy.md", "Ranges and pools")).await;

    let gets = steps_of("tenancy.md", "What the tenants get");
    let [make, get, thief] = &gets[..] else { panic!("{gets:?}") };
    operator.does(make).await;
    let first: IpAddr = operator.does(get).await.parse().unwrap();
    assert!(within(first, ABC123), "{first}");
    let refused = eventually("the fence", async || {
        let tried = operator.tries(thief).await;
        (tried.status != 0).then_some(tried.stderr)
    })
    .await;
    // The words of the page, without the dots.
    let expected = "172.22.1.6 lies in ServicePool \"tenant-abc123\", which does not admit this Service of namespace \
                    def456-shop: match.namespaceSelector does not match";
    assert!(refused.contains(expected), "{refused}");

    // Both ranges become full.
    let client = cluster.plane.client();
    let make = async |namespace: &str, name: &str| create(&client, namespace, &service(name, json!({}))).await;
    for nth in 0..6 {
        let made = make("def456-shop", &format!("web-{nth}")).await.unwrap();
        assert!(within(address(&made), DEF456), "{made}");
        if nth > 0 {
            let made = make("abc123-shop", &format!("web-{nth}")).await.unwrap();
            assert!(within(address(&made), ABC123), "{made}");
        }
    }
    let refused = make("abc123-shop", "late").await.unwrap_err();
    assert!(refused.contains("pool \"tenant-abc123\" (172.22.1.0/29) is full"), "{refused}");
    assert!(refused.contains("set spec.whenFull: Unmanaged in the ServicePool"), "{refused}");
    // Kubernetes picks an address, which may be one that the fence refuses.
    let late = eventually("an address of Kubernetes", async || make("def456-shop", "late").await.ok()).await;
    let late = address(&late);
    assert!(!within(late, ABC123) && !within(late, DEF456), "{late}");

    // The Service is misplaced as long as there is room in its range.
    send(&client, Method::DELETE, &path("def456-shop", "web-0"), &Value::Null).await.unwrap();
    eventually("the move of the Service", async || {
        let moved = operator.does(&Step::Type("clusterip move --namespace def456-shop --yes".to_owned())).await;
        let now = send(&client, Method::GET, &path("def456-shop", "late"), &Value::Null).await.ok()?;
        (now["spec"]["clusterIP"] != "" && within(now["spec"]["clusterIP"].as_str()?.parse().ok()?, DEF456))
            .then_some(moved)
    })
    .await;

    // Another ServiceCIDR with the label extends the pool.
    operator.does_all(&steps_of("tenancy.md", "When a range is full")).await;
    let more = eventually("an address of the new range", async || make("abc123-shop", "late").await.ok()).await;
    assert!(within(address(&more), "172.22.3.0/24"), "{more}");
}
