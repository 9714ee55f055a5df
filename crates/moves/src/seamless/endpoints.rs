//! Compares the EndpointSlices of Services.

use std::collections::BTreeSet;

use serde_json::Value;

/// The ready addresses in the EndpointSlices of a Service, each with its ports.
pub fn ready(slices: &[Value]) -> BTreeSet<(String, String)> {
    let mut all = BTreeSet::new();
    for slice in slices {
        let ports = ports(slice);
        for endpoint in slice.get("endpoints").and_then(Value::as_array).into_iter().flatten() {
            // An endpoint without the condition is ready (EndpointConditions of `discovery.k8s.io/v1`).
            if endpoint.pointer("/conditions/ready").and_then(Value::as_bool) == Some(false) {
                continue;
            }
            let addresses = endpoint.get("addresses").and_then(Value::as_array).into_iter().flatten();
            all.extend(addresses.filter_map(Value::as_str).map(|address| (address.to_owned(), ports.clone())));
        }
    }
    all
}

/// The ports of a slice as text, in a fixed order.
fn ports(slice: &Value) -> String {
    let port = |port: &Value| {
        let field = |key: &str| port.get(key).map(Value::to_string).unwrap_or_default();
        format!("{} {} {}", field("name"), field("protocol"), field("port"))
    };
    let ports = slice.get("ports").and_then(Value::as_array).into_iter().flatten();
    ports.map(port).collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>().join(",")
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
