//! Of a review, only the fields that decisions use are in memory, and the answer is the same as if all of them were.

use clusterip::webhook::admission::{Reviewer as _, answer};
use clusterip_cluster::admission_review;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use serde_json::{Map, Value, json};
use tokio::runtime::Runtime;

use crate::reviews::Webhook;

fn body(request: &Value) -> Vec<u8> {
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}).to_string().into()
}

fn request(object: Value) -> Value {
    json!({
        "uid": "7", "kind": {"group": "", "version": "v1", "kind": "Service"}, "namespace": "shop", "name": "web",
        "operation": "CREATE", "object": object,
    })
}

fn owner(fields: &Value) -> Value {
    json!({"manager": "m", "operation": "Update", "fieldsType": "FieldsV1", "fieldsV1": fields})
}

/// The texts are not written from values, which would take a hundred times the memory.
#[test]
fn little_of_a_large_review_is_in_memory() {
    let list = |count: usize, item: &str| format!("[{}]", vec![item; count].join(","));
    let keys = |count: usize, prefix: &str, value: &str| {
        let entries: Vec<String> = (0..count).map(|nth| format!("\"{prefix}{nth}\":{value}")).collect();
        format!("{{{}}}", entries.join(","))
    };
    let chains = keys(3400, "f:", &["{\"f:a\":".repeat(110), "{}".to_owned(), "}".repeat(110)].concat());
    let owners = |count: usize, fields: &str| {
        let owner = format!(r#"{{"manager":"m","operation":"Update","fieldsType":"FieldsV1","fieldsV1":{fields}}}"#);
        format!(r#"{{"metadata":{{"managedFields":{}}}}}"#, list(count, &owner))
    };
    let of = |part: &str, field: &str, value: &str| format!(r#"{{"{part}":{{"{field}":{value}}}}}"#);
    let owning = r#"{"f:spec":{"f:clusterIP":{},"f:clusterIPs":{},"f:type":{}}}"#;
    let cases = [
        ("chains of owned fields", owners(1, &chains)),
        ("chains below spec", owners(1, &of("f:spec", "f:a", &chains))),
        ("chains in spec", owners(1, &format!(r#"{{"f:spec":{chains}}}"#))),
        ("chains in an unknown field", of("spec", "a", &chains)),
        ("owners", owners(7_500, owning)),
        ("owners of nothing", of("metadata", "managedFields", &list(250_000, "{}"))),
        ("ports", of("spec", "ports", &list(15_000, r#"{"name":"a","port":1,"protocol":"TCP","targetPort":1}"#))),
        ("labels", of("metadata", "labels", &keys(75_000, "", "\"\""))),
        ("annotations", of("metadata", "annotations", &keys(75_000, "a/", "\"\""))),
        ("own annotations", of("metadata", "annotations", &keys(30_000, "clusterip-policy/", "\"\""))),
        ("a selector", of("spec", "selector", &keys(75_000, "", "\"\""))),
        ("external addresses", of("spec", "externalIPs", &list(37_500, "\"10.0.0.1\""))),
        ("addresses", of("spec", "clusterIPs", &list(250_000, "\"\""))),
        ("a text that is a list", of("spec", "clusterIP", &list(250_000, "\"\""))),
        ("the status", of("status", "loadBalancer", &of("a", "ingress", &list(37_500, r#"{"ip":"10.0.0.1"}"#)))),
    ];
    for (name, object) in cases {
        let about = r#""uid":"7","kind":{"group":"","version":"v1","kind":"Service"},"namespace":"shop""#;
        let request = format!(r#"{{{about},"operation":"UPDATE","object":{object},"oldObject":{object}}}"#);
        let text = format!(r#"{{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{request}}}"#);
        let read = admission_review::read(text.as_bytes()).unwrap().to_string();
        assert!(text.len() > 800_000 && read.len() < 400_000, "{name}: {} of {} bytes", read.len(), text.len());
        // A map takes 640 bytes or more.
        let maps = read.matches('{').count();
        let most = match name {
            "ports" => 150,
            _ if name.starts_with("owners") => 4200,
            _ => 20,
        };
        assert!(maps < most, "{name}: {maps} maps");
    }
}

#[tokio::test]
async fn list_that_is_too_long_is_refused_and_many_other_fields_hide_none() {
    struct Case {
        name: &'static str,
        object: Value,
        /// A part of the message of the refusal.
        refused: Option<&'static str>,
    }
    let claiming = |count: usize| {
        let addresses = (0..count).map(|_| "10.1.2.3").chain(["10.9.0.5"]).collect::<Vec<_>>();
        json!({"metadata": {}, "spec": {"externalIPs": addresses}})
    };
    let owned = |count: usize| {
        let fields = json!({"f:spec": {"f:a": {}, "f:b": {}, "f:c": {}, "f:clusterIP": {}, "f:clusterIPs": {}}});
        json!({"metadata": {"managedFields": vec![owner(&fields); count]}})
    };
    let annotated = |key: &str, value: &str| {
        let other = |nth: usize| [format!("a/{nth}"), format!("clusterip-policy/a{nth}")].map(|key| (key, "".into()));
        let mut annotations: Map<String, Value> = (0..20_000).flat_map(other).collect();
        annotations.insert(key.to_owned(), value.into());
        json!({"metadata": {"annotations": annotations}})
    };
    let claims = Some("10.9.0.5");
    let too_long = Some("request.object.spec.externalIPs has 4096 or more items");
    let too_many = Some("request.object.metadata.managedFields has 512 or more items");
    let other_pool = Some("annotation clusterip-policy/pool names pool");
    let case = |name, object, refused| Case { name, object, refused };
    let cases = [
        case("external addresses", claiming(4090), claims),
        case("too many external addresses", claiming(5000), too_long),
        case("owners", owned(511), None),
        case("too many owners", owned(512), too_many),
        case("the pool behind many annotations", annotated("clusterip-policy/pool", "other"), other_pool),
        case("a claim behind many annotations", annotated("metallb.io/loadBalancerIPs", "10.9.0.5"), claims),
    ];
    for Case { name, object, refused } in cases {
        let webhook = Webhook::new("deny");
        // Another Service has the external address.
        let asks = json!({"name": "x", "annotations": {"clusterip-policy/external-address": "10.9.0.5"}});
        let balancer = json!({"type": "LoadBalancer", "loadBalancerClass": "clusterip-policy/external"});
        assert_eq!(webhook.create("bank", asks, balancer), None);
        let answered = answer(&webhook.admission, &body(&request(object))).map_err(|error| error.1).unwrap();
        let answered: Value = serde_json::from_slice(&answered).unwrap();
        let message = answered["response"]["status"]["message"].as_str();
        let is_as_expected = refused.map_or(message.is_none(), |part| message.unwrap_or_default().contains(part));
        assert!(is_as_expected, "{name}: {answered}");
        let owners = removed_owners(&answered);
        assert_eq!(owners, if name == "owners" { 2 * 511 } else { 0 }, "{name}");
    }
}

/// How many owners of an address the patch of an answer removes.
fn removed_owners(answered: &Value) -> usize {
    let Some(patch) = answered["response"]["patch"].as_str() else { return 0 };
    operations(patch).iter().filter(|operation| operation["op"] == "remove").count()
}

fn operations(patch: &str) -> Vec<Value> {
    use base64::Engine as _;
    serde_json::from_slice(&base64::engine::general_purpose::STANDARD.decode(patch).unwrap()).unwrap()
}

/// An object with some of these fields.
fn some_of(fields: Vec<(&'static str, BoxedStrategy<Value>)>) -> BoxedStrategy<Value> {
    let fields = fields.into_iter().map(|(key, value)| prop::option::of(value).prop_map(move |value| (key, value)));
    let object = |fields: Vec<(&'static str, Option<Value>)>| -> Value {
        let present = fields.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?)));
        present.collect::<Map<_, _>>().into()
    };
    fields.collect::<Vec<_>>().prop_map(object).boxed()
}

fn one_of(values: &[Value]) -> BoxedStrategy<Value> {
    select(values.to_vec()).boxed()
}

/// A list with some of these values, in this order.
fn list_of(values: &[Value]) -> BoxedStrategy<Value> {
    subsequence(values.to_vec(), 0..=values.len()).prop_map(Value::from).boxed()
}

fn owners() -> BoxedStrategy<Value> {
    let owned = || one_of(&[json!({}), json!({"f:a": {".": {}}}), json!(null)]);
    let keys = ["f:clusterIP", "f:clusterIPs", "f:ports", "f:selector", "f:type", "."];
    let spec = prop_oneof![9 => some_of(keys.map(|key| (key, owned())).to_vec()), 1 => owned()];
    let fields = some_of(vec![("f:metadata", owned()), ("f:spec", spec.boxed())]);
    let owner = prop_oneof![9 => fields.prop_map(|fields| owner(&fields)), 1 => Just(json!({"manager": "n"}))];
    prop::collection::vec(owner, 0..5).prop_map(Value::from).boxed()
}

fn annotations() -> BoxedStrategy<Value> {
    some_of(vec![
        ("a.example/b", one_of(&["c".into()])),
        ("clusterip-policy/external-address", one_of(&["10.9.0.5".into(), "".into()])),
        ("clusterip-policy/external-addresses", one_of(&["10.9.0.6".into(), "10.9.0.7".into()])),
        ("clusterip-policy/moev", one_of(&["now".into()])),
        ("clusterip-policy/os", one_of(&["linux".into(), "windows".into()])),
        ("clusterip-policy/pool", one_of(&["own".into(), "gold".into(), "".into(), "other".into()])),
        ("clusterip-policy/reason", one_of(&["pool own: default".into(), "mine".into()])),
        ("metallb.io/loadBalancerIPs", one_of(&["10.9.0.8".into(), "10.2.2.2".into()])),
        ("z.example/y", one_of(&["x".into()])),
    ])
}

fn service() -> BoxedStrategy<Value> {
    let metadata = some_of(vec![
        ("annotations", prop_oneof![8 => annotations(), 1 => Just(json!({})), 1 => Just(json!(null))].boxed()),
        ("deletionTimestamp", one_of(&["2026-01-02T03:04:05Z".into()])),
        ("finalizers", one_of(&[json!(["a"])])),
        ("generateName", one_of(&["web-".into()])),
        ("labels", one_of(&[json!({"tier": "gold"}), json!({"a": "b"}), json!({})])),
        ("managedFields", owners()),
        ("name", one_of(&["web".into()])),
        ("namespace", one_of(&["shop".into()])),
        ("uid", one_of(&["u".into()])),
    ]);
    let address = || one_of(&["".into(), "None".into(), "10.0.1.9".into(), "10.0.2.9".into(), "10.0.3.3".into()]);
    let spec = some_of(vec![
        ("clusterIP", address()),
        ("clusterIPs", list_of(&["10.0.1.9".into(), "".into(), "None".into(), "fd00::1".into()])),
        ("externalIPs", list_of(&["10.9.0.9".into(), "10.2.2.2".into()])),
        ("externalName", one_of(&["a.example".into()])),
        ("ipFamilies", list_of(&["IPv4".into(), "IPv6".into()])),
        ("ipFamilyPolicy", one_of(&["SingleStack".into(), "PreferDualStack".into(), "RequireDualStack".into()])),
        ("loadBalancerClass", one_of(&["clusterip-policy/external".into(), "other".into()])),
        ("loadBalancerIP", one_of(&["10.9.0.5".into(), "a.example".into()])),
        ("ports", one_of(&[json!([{"port": 80}])])),
        ("selector", one_of(&[json!({"app": "web"}), json!({})])),
        ("type", one_of(&["ClusterIP".into(), "LoadBalancer".into(), "LoadBalancer".into(), "ExternalName".into()])),
    ]);
    let typed = ("kind", one_of(&["Service".into()]));
    some_of(vec![typed, ("metadata", metadata), ("spec", spec), ("status", one_of(&[json!({"loadBalancer": {}})]))])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    /// The second review is about the object as the first one has changed it.
    #[test]
    fn answer_is_the_same_as_that_to_the_whole_review(
        object in service(),
        old in prop::option::weighted(0.3, service()),
        explicit in select(vec!["allow", "deny"]),
        annotates in any::<bool>(),
        dry_run in prop::option::weighted(0.3, any::<bool>()),
        is_node in prop::bool::weighted(0.1),
    ) {
        let runtime = Runtime::new().unwrap();
        let _entered = runtime.enter();
        let (masked, whole) = (Webhook::with_reasons(explicit, annotates), Webhook::with_reasons(explicit, annotates));
        let mut request = request(object);
        request["options"] = json!({"kind": "CreateOptions"});
        if let Some(old) = old {
            request["oldObject"] = old;
            request["operation"] = "UPDATE".into();
        }
        if let Some(dry_run) = dry_run {
            request["dryRun"] = dry_run.into();
        }
        if is_node {
            request["kind"]["kind"] = "Node".into();
        }
        for review in 0..2 {
            let expected = whole.admission.review(&request);
            let found = answer(&masked.admission, &body(&request)).map_err(|error| error.1).unwrap();
            let found: Value = serde_json::from_slice(&found).unwrap();
            prop_assert_eq!(&found["response"], &serde_json::to_value(&expected).unwrap(), "review {}", review);
            if let Some(patch) = &expected.patch {
                let patch: json_patch::Patch = serde_json::from_value(operations(patch).into()).unwrap();
                json_patch::patch(&mut request["object"], &patch).unwrap();
            }
        }
        prop_assert_eq!(masked.reserved(), whole.reserved());
    }
}
