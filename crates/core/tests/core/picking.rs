//! Which address of its pool a Service gets, and which look-ups this needs.

use clusterip_core::lookups::LookupError;
use serde_json::{Value, json};

use crate::support::{ASSUMED, FakeCluster, allocated, answer, by, denied, extended, selecting, unchanged};

fn cluster() -> FakeCluster {
    FakeCluster::default()
}

/// One pool for all Services with these fields besides its name.
fn pool(fields: Value, order: &str) -> Value {
    json!({"services": {"pools": [extended(json!({"name": "all"}), &fields)], "order": order}})
}

#[track_caller]
fn gets(name: &str, settings: &Value, cluster: &FakeCluster, address: &str, questions: &[&str]) {
    let object = selecting();
    let expected = allocated(&object, &[address], by("all", "default"), &[]);
    assert_eq!(answer(&object, settings, cluster), expected, "{name}");
    assert_eq!(cluster.questions(), questions, "{name}: questions");
}

/// The walk of shop/web through the 205 addresses from 10.0.0.50 on, derived as in address_order.rs.
const WALK: [u8; 20] =
    [59, 50, 246, 237, 228, 219, 210, 201, 192, 183, 174, 165, 156, 147, 138, 129, 120, 111, 102, 93];

fn k2s_like(order: &str) -> Value {
    pool(json!({"cidrs": ["10.0.0.0/24"], "reserved": 50}), order)
}

fn get(last: u8) -> String {
    format!("get IPAddress 10.0.0.{last}")
}

/// A cluster in which the first `count` addresses of the walk are taken, by Services and `IPAddress` objects.
fn taken(count: usize) -> FakeCluster {
    WALK[..count].iter().fold(cluster(), |cluster, last| cluster.service("x/y", &format!("10.0.0.{last}")))
}

#[test]
fn spread_lists_services_only_after_sixteen_taken_addresses() {
    for count in 0..WALK.len() {
        let cluster = taken(count);
        let mut questions: Vec<String> = WALK[..=count.min(15)].iter().map(|&last| get(last)).collect();
        if count >= 16 {
            // The list tells which addresses are taken; the free one is looked up all the same.
            questions.extend(["list Service".to_owned(), get(WALK[count])]);
        }
        let questions: Vec<&str> = questions.iter().map(String::as_str).collect();
        gets(&format!("{count} taken"), &k2s_like("spread"), &cluster, &format!("10.0.0.{}", WALK[count]), &questions);
    }
}

#[test]
fn lowest_lists_once_and_then_looks_up_the_first_unused_address() {
    let services = || cluster().service("x/y", "10.0.0.50").service("x/z", "10.0.0.51").service("x/z", "10.0.0.53");
    gets("none taken", &k2s_like("lowest"), &cluster(), "10.0.0.50", &["list Service", &get(50)]);
    gets("some taken", &k2s_like("lowest"), &services(), "10.0.0.52", &["list Service", &get(52)]);
    gets(
        "an IPAddress that no Service has yet",
        &k2s_like("lowest"),
        &services().ip_address("10.0.0.52"),
        "10.0.0.54",
        &["list Service", &get(52), &get(54)],
    );
    gets(
        "a Service whose address the look-up does not know, such as one that moves",
        &k2s_like("lowest"),
        &cluster().service_without_ip_address("x/y", "10.0.0.50"),
        "10.0.0.51",
        &["list Service", &get(51)],
    );
    gets(
        "what the Service itself has does not count as used",
        &k2s_like("lowest"),
        &cluster().service_without_ip_address("shop/web", "10.0.0.50").service("other/web", "10.0.0.51"),
        "10.0.0.50",
        &["list Service", &get(50)],
    );
}

#[test]
fn without_ip_address_objects_the_list_of_services_decides() {
    let old = |cluster: FakeCluster| cluster.without_ip_address_api();
    gets("spread, free", &k2s_like("spread"), &old(cluster()), "10.0.0.59", &[&get(59), "list Service"]);
    gets("spread, three taken", &k2s_like("spread"), &old(taken(3)), "10.0.0.237", &[&get(59), "list Service"]);
    gets(
        "lowest",
        &k2s_like("lowest"),
        &old(cluster().service("x/y", "10.0.0.50")),
        "10.0.0.51",
        &["list Service", &get(51)],
    );
}

#[test]
fn static_band_is_used_when_the_dynamic_band_is_full() {
    let banded = |order| pool(json!({"cidrs": ["10.0.0.0/27"], "bands": true}), order);
    let fill = |lasts: std::ops::RangeInclusive<u8>| {
        lasts.fold(cluster(), |cluster, last| cluster.service("x/y", &format!("10.0.0.{last}")))
    };
    let lowest = |name: &str, cluster: FakeCluster, last: u8| {
        gets(name, &banded("lowest"), &cluster, &format!("10.0.0.{last}"), &["list Service", &get(last)]);
    };
    lowest("nothing taken", cluster(), 17);
    lowest("the static band taken", fill(1..=16), 17);
    lowest("the dynamic band all but full", fill(17..=29), 30);
    lowest("the dynamic band full", fill(17..=30), 1);
    // Each band has its own walk: that of shop/web through 16 positions starts at 14.
    let answer = answer(&selecting(), &banded("spread"), &fill(17..=30));
    assert_eq!(answer, allocated(&selecting(), &["10.0.0.15"], by("all", "default"), &[]));
}

#[test]
fn address_of_the_kubernetes_service_is_never_assigned() {
    let mut settings = pool(json!({"cidrs": ["10.0.0.0/29"]}), "lowest");
    settings["services"]["serviceCIDRs"] = json!(["10.0.0.0/16"]);
    gets("first of the primary range", &settings, &cluster(), "10.0.0.2", &["list Service", &get(2)]);
    settings["services"]["serviceCIDRs"] = json!(["10.1.0.0/16", "10.0.0.0/16"]);
    gets("first of another range", &settings, &cluster(), "10.0.0.1", &["list Service", &get(1)]);
}

#[test]
fn full_pool_is_denied_or_left_to_kubernetes_as_when_full_says() {
    let full = || (50..=254).fold(cluster(), |cluster, last| cluster.service("x/y", &format!("172.21.0.{last}")));
    let why = "pool \"linux\" (172.21.0.0/24) is full: 205 of 205 addresses used, the first 50 of each range reserved";
    let denial = format!(
        "Service shop/web: {why}; chosen by kubernetes.io/os=linux (setting assumeOS); add a range to the pool, delete Services that are not needed, or set services.whenFull: unmanaged"
    );
    for order in ["lowest", "spread"] {
        let settings = |when_full: &str| json!({"services": {"order": order, "whenFull": when_full}});
        assert_eq!(answer(&selecting(), &settings("deny"), &full()), denied(500, &denial, ASSUMED, &[]), "{order}");
        let reason = format!("{why}: Kubernetes picks the address");
        assert_eq!(
            answer(&selecting(), &settings("unmanaged"), &full()),
            unchanged(&reason, ASSUMED, &[&reason]),
            "{order}"
        );
    }
}

/// What a pool says counts more than what the settings say for all pools.
#[test]
fn full_pool_has_a_setting_of_its_own() {
    let full = (1..=254).fold(cluster(), |cluster, last| cluster.service("x/y", &format!("10.0.0.{last}")));
    let why = "pool \"all\" (10.0.0.0/24) is full: 254 of 254 addresses used, the first 0 of each range reserved";
    let left = format!("{why}: Kubernetes picks the address");
    let denial = |field: &str| {
        format!(
            "Service shop/web: {why}; chosen by default; add a range to the pool, delete Services that are not needed, \
             or set services.{field}: unmanaged"
        )
    };
    let denied = |field: &str| denied(500, &denial(field), by("all", "default"), &[]);
    let unchanged = || unchanged(&left, by("all", "default"), &[&left]);
    for (of_pool, of_all, expected) in [
        (json!(null), "deny", denied("whenFull")),
        (json!(null), "unmanaged", unchanged()),
        (json!("deny"), "unmanaged", denied("pools[].whenFull")),
        (json!("unmanaged"), "deny", unchanged()),
    ] {
        let settings = json!({"services": {"whenFull": of_all,
            "pools": [{"name": "all", "cidrs": ["10.0.0.0/24"], "whenFull": of_pool}]}});
        assert_eq!(answer(&selecting(), &settings, &full), expected, "{of_pool} {of_all}");
    }
}

#[test]
fn pool_is_full_even_if_only_ip_address_objects_exist() {
    let orphans = (50..=254).fold(cluster(), |cluster, last| cluster.ip_address(&format!("10.0.0.{last}")));
    let message = "Service shop/web: pool \"all\" (10.0.0.0/24) is full: 205 of 205 addresses used, the first 50 of each range reserved; chosen by default; add a range to the pool, delete Services that are not needed, or set services.whenFull: unmanaged";
    for order in ["lowest", "spread"] {
        let expected = denied(500, message, by("all", "default"), &[]);
        assert_eq!(answer(&selecting(), &k2s_like(order), &orphans), expected, "{order}");
    }
}

#[test]
fn address_is_not_free_if_its_look_up_fails() {
    let error = LookupError::Failed { resource: "networking.k8s.io/v1 IPAddress".into(), detail: "oh".into() };
    let reason =
        "looking up networking.k8s.io/v1 IPAddress failed: oh; try again; if it still fails, see the log of the host";
    let expected = denied(500, &format!("Service shop/web: {reason}"), by("all", "default"), &[]);
    for (question, order) in [("get IPAddress", "spread"), ("get IPAddress", "lowest"), ("list Service", "lowest")] {
        let cluster = cluster().failing(question, error.clone());
        assert_eq!(answer(&selecting(), &k2s_like(order), &cluster), expected, "{question}, {order}");
    }
    let cluster = taken(16).failing("list Service", error);
    assert_eq!(answer(&selecting(), &k2s_like("spread"), &cluster), expected, "the list in the middle of spread");
}

#[test]
fn addresses_of_unusable_service_cidrs_are_not_assigned() {
    let deleted = "ServiceCIDR team-a (10.2.0.0/16) is being deleted";
    let none = format!(
        "pool \"all\" (10.2.0.0/29) has no usable address: {deleted}; chosen by default; add a range to the pool that \
         the API server accepts, or set services.whenFull: unmanaged"
    );
    let full = format!(
        "pool \"all\" (10.2.0.0/29, 10.1.0.0/30) is full: 2 of 2 addresses used, the first 0 of each range reserved; \
         {deleted}; chosen by default; add a range to the pool, delete Services that are not needed, or set \
         services.whenFull: unmanaged"
    );
    for (cidrs, unusable, expected) in [
        (json!(["10.2.0.0/29"]), json!({}), Ok("10.2.0.1")),
        (json!(["10.2.0.0/29", "10.0.0.0/29"]), json!({"10.2.0.0/16": deleted}), Ok("10.0.0.2")),
        (json!(["10.2.0.0/29"]), json!({"10.2.0.0/16": deleted}), Err(none)),
        (json!(["10.2.0.0/29", "10.1.0.0/30"]), json!({"10.2.0.0/16": deleted}), Err(full)),
    ] {
        let mut settings = pool(json!({ "cidrs": cidrs }), "lowest");
        settings["services"]["serviceCIDRs"] = json!(["10.0.0.0/16", "10.1.0.0/16", "10.2.0.0/16"]);
        settings["services"]["unusableServiceCIDRs"] = unusable;
        let used = cluster().service("x/a", "10.1.0.1").service("x/b", "10.1.0.2");
        let object = selecting();
        let expected = match expected {
            Ok(address) => allocated(&object, &[address], by("all", "default"), &[]),
            Err(message) => denied(500, &format!("Service shop/web: {message}"), by("all", "default"), &[]),
        };
        assert_eq!(answer(&object, &settings, &used), expected, "{cidrs}");
    }
}
