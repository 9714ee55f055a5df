//! Compares the EndpointSlices of Services.

use std::collections::BTreeSet;
use std::hash::Hasher;

use serde_json::Value;
use siphasher::sip::SipHasher24;

/// The ready addresses in EndpointSlices of a Service, each with a hash of its ports: a Service may have a thousand
/// ports, and as many endpoints.
pub fn ready(slices: &[Value]) -> BTreeSet<(String, u64)> {
    let mut all = BTreeSet::new();
    for slice in slices {
        let ports = ports(slice);
        for endpoint in slice.get("endpoints").and_then(Value::as_array).into_iter().flatten() {
            // An endpoint without the condition is ready (EndpointConditions of `discovery.k8s.io/v1`).
            if endpoint.pointer("/conditions/ready").and_then(Value::as_bool) == Some(false) {
                continue;
            }
            let addresses = endpoint.get("addresses").and_then(Value::as_array).into_iter().flatten();
            all.extend(addresses.filter_map(Value::as_str).map(|address| (address.to_owned(), ports)));
        }
    }
    all
}

/// The hash of the ports of a slice, in a fixed order.
fn ports(slice: &Value) -> u64 {
    let port = |port: &Value| {
        let field = |key: &str| port.get(key).map(Value::to_string).unwrap_or_default();
        format!("{} {} {},", field("name"), field("protocol"), field("port"))
    };
    let ports = slice.get("ports").and_then(Value::as_array).into_iter().flatten();
    let mut hasher = SipHasher24::new();
    ports.map(port).collect::<BTreeSet<_>>().iter().for_each(|port| hasher.write(port.as_bytes()));
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_ready_endpoints_count_and_their_order_does_not() {
        struct Case {
            name: &'static str,
            slices: Value,
            equal: bool,
        }
        let slice =
            |endpoints: Value| json!({"ports": [{"name": "", "protocol": "TCP", "port": 80}], "endpoints": endpoints});
        let one = |address: &str, ready: Value| json!({"addresses": [address], "conditions": {"ready": ready}});
        let both = json!([one("10.1.0.1", json!(true)), one("10.1.0.2", Value::Null)]);
        let cases = [
            Case {
                name: "in two slices, in another order",
                slices: json!([
                    slice(json!([one("10.1.0.2", json!(true))])),
                    slice(json!([one("10.1.0.1", json!(true))]))
                ]),
                equal: true,
            },
            Case {
                name: "one is not ready",
                slices: json!([slice(json!([one("10.1.0.1", json!(true)), one("10.1.0.2", json!(false))]))]),
                equal: false,
            },
            Case { name: "no slice yet", slices: json!([]), equal: false },
            Case {
                name: "another port",
                slices: json!([{"ports": [{"name": "", "protocol": "TCP", "port": 81}], "endpoints": both}]),
                equal: false,
            },
        ];
        let original = [slice(both)];
        for Case { name, slices, equal } in cases {
            let slices = slices.as_array().cloned().unwrap_or_default();
            assert_eq!(ready(&slices) == ready(&original), equal, "{name}");
        }
    }
}
