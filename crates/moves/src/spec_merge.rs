//! Restores a Service's spec as it was before a move, and keeps what others changed meanwhile.

use serde_json::{Map, Value};

type Fields = Map<String, Value>;

/// Merges three versions of a spec. A field that is `now` as the API server left it when the address was `released`
/// becomes as it was in the `original`. A field that was changed since then stays as it is now.
pub fn merged(original: &Fields, released: &Fields, now: &Fields) -> Fields {
    let mut names: Vec<&String> = original.keys().chain(released.keys()).chain(now.keys()).collect();
    names.sort_unstable();
    names.dedup();
    let value = |name: &String| {
        let (original, released, now) = (original.get(name), released.get(name), now.get(name));
        if now == released {
            return original.cloned();
        }
        match (original, released, now) {
            _ if original == released => now.cloned(),
            (Some(Value::Object(original)), Some(Value::Object(released)), Some(Value::Object(now))) => {
                Some(merged(original, released, now).into())
            }
            (Some(Value::Array(original)), Some(Value::Array(released)), Some(Value::Array(now)))
                if name == "ports" =>
            {
                Some(ports(original, released, now).into())
            }
            _ => now.cloned(),
        }
    };
    names.into_iter().filter_map(|name| Some((name.clone(), value(name)?))).collect()
}

/// The present ports, each with the fields that the release removed. A port is known by its protocol and number.
fn ports(original: &[Value], released: &[Value], now: &[Value]) -> Vec<Value> {
    let same = |one: &Value, other: &Value| ["protocol", "port"].iter().all(|key| one.get(key) == other.get(key));
    let find = |ports: &[Value], port: &Value| {
        ports.iter().find(|other| same(other, port)).and_then(Value::as_object).cloned()
    };
    let merge = |port: &Value| match (find(original, port), find(released, port), port.as_object()) {
        (Some(original), Some(released), Some(now)) => merged(&original, &released, now).into(),
        _ => port.clone(),
    };
    now.iter().map(merge).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn fields_changed_by_others_stay_and_the_rest_is_restored() {
        struct Case {
            name: &'static str,
            change: Value,
            expected: Value,
        }
        let original = json!({
            "type": "NodePort", "clusterIP": "172.21.0.7", "selector": {"app": "web"}, "externalTrafficPolicy": "Local",
            "ports": [{"protocol": "TCP", "port": 80, "nodePort": 30080}, {"protocol": "UDP", "port": 80, "nodePort": 30081}],
        });
        let released = json!({
            "type": "ExternalName", "externalName": "moving.invalid", "selector": {"app": "web"},
            "ports": [{"protocol": "TCP", "port": 80}, {"protocol": "UDP", "port": 80}],
        });
        let with = |base: &Value, changes: Value| {
            let mut base = base.clone();
            json_patch::merge(&mut base, &changes);
            base
        };
        let cases = [
            Case { name: "nothing changed", change: json!({}), expected: json!({}) },
            Case {
                name: "a selector",
                change: json!({"selector": {"app": "shop", "tier": "x"}}),
                expected: json!({"selector": {"app": "shop", "tier": "x"}}),
            },
            Case { name: "no selector", change: json!({"selector": null}), expected: json!({"selector": null}) },
            Case {
                name: "a new field",
                change: json!({"sessionAffinity": "ClientIP"}),
                expected: json!({"sessionAffinity": "ClientIP"}),
            },
            Case {
                name: "a field that the release had removed",
                change: json!({"externalTrafficPolicy": "Cluster"}),
                expected: json!({"externalTrafficPolicy": "Cluster"}),
            },
            Case {
                name: "a port renamed, one removed, one added",
                change: json!({"ports": [{"protocol": "UDP", "port": 80, "name": "dns"}, {"protocol": "TCP", "port": 443}]}),
                expected: json!({"ports": [{"protocol": "UDP", "port": 80, "name": "dns", "nodePort": 30081}, {"protocol": "TCP", "port": 443}]}),
            },
        ];
        for Case { name, change, expected } in cases {
            let now = with(&released, change);
            let merged = merged(original.as_object().unwrap(), released.as_object().unwrap(), now.as_object().unwrap());
            assert_eq!(Value::from(merged), with(&original, expected), "{name}");
        }
    }
}
