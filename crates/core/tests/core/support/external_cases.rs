//! The pools of the tests of external addresses, and the check of whole answers.

use super::{FakeCluster, Now, Row, created, external_answer, now};
use serde_json::{Value, json};

/// The reason why admission assigns no external address.
pub const NOT_IN_ADMISSION: &str =
    "external addresses are assigned by the controller of `clusterip serve`, not in admission";

/// The warning to a Service that had an address of the pool `gold` and no longer matches this pool.
pub const GOLD_IS_LOST: &str = "10.0.7.7 lies in pool \"gold\", which does not admit this Service: serviceSelector does not \
     match: the Service can't have it";

/// A pool for the namespace shop with six addresses minus an excluded one, another one for Services that request its
/// addresses, and pools for others.
pub fn settings() -> Value {
    json!({"external": {"pools": [
        {"name": "edge", "cidrs": ["10.0.9.8/29", "fd00::9:1-fd00::9:2"], "exclude": ["10.0.9.12"], "match": {"namespaces": ["shop"]}},
        {"name": "spare", "cidrs": ["10.0.8.7/32"], "match": {"namespaceSelector": {"matchLabels": {"team": "a"}}}},
        {"name": "gold", "cidrs": ["10.0.7.7-10.0.7.8"], "match": {"serviceSelector": {"matchLabels": {"tier": "gold"}}}},
        {"name": "other", "cidrs": ["10.0.6.0/24"], "match": {"namespaces": ["other"]}},
    ]}})
}

pub fn cluster() -> FakeCluster {
    FakeCluster::default().namespace("shop", &[("team", "a")], &[])
}

/// `object` with the label that the pool `gold` matches.
pub fn gold(mut object: Value) -> Value {
    object["metadata"]["labels"] = json!({"tier": "gold"});
    object
}

/// The held addresses with their holders; `None` if the host does not send them.
pub type Held<'a> = Option<&'a [(&'a str, &'a str)]>;

pub const NONE_HELD: Held<'static> = Some(&[]);

/// Compares the whole answer to each request while these addresses are held.
#[track_caller]
pub fn check(held: Held<'_>, rows: Vec<Row<'_>>) {
    for (name, request, expected) in rows {
        assert_eq!(external_answer(&request, &settings(), held, &cluster()), Value::from(expected), "{name}");
    }
}

/// The creation of `object`, which gets these addresses.
pub fn gets<'a>(name: &'a str, object: Value, pool: &str, addresses: &str) -> Row<'a> {
    (name, created(object.clone()), given(&object, pool, addresses))
}

/// The expected answer that records these addresses in `object`.
pub fn given(object: &Value, pool: &str, addresses: &str) -> Now {
    now("recorded").pool(pool).addresses(addresses).recorded_in(object)
}

/// The expected answer that leaves the record as it is.
pub fn kept(pool: &str, addresses: &str) -> Now {
    now("unchanged").pool(pool).addresses(addresses).because("already recorded")
}
