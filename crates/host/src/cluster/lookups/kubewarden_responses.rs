//! Answers to look-ups that are not read from objects, in the format of policy-server.

use std::net::IpAddr;

use serde_json::{Value, json};

/// The error for an object that does not exist.
pub fn not_found(api_version: &str, kind: &str, name: &str, namespace: Option<&str>) -> String {
    format!("Cannot find {api_version}/{kind} named '{name}' inside of namespace '{namespace:?}'")
}

/// The answer to the look-up of one `IPAddress`. The policy asks only whether the object exists.
///
/// # Errors
/// [`not_found`] if the address is free.
pub fn ip_address(api_version: &str, name: &str, namespace: Option<&str>, is_free: bool) -> Result<Vec<u8>, String> {
    const KIND: &str = "IPAddress";
    if is_free {
        return Err(not_found(api_version, KIND, name, namespace));
    }
    let object = json!({"apiVersion": api_version, "kind": KIND, "metadata": {"name": name}});
    serde_json::to_vec(&object).map_err(|error| error.to_string())
}

/// A reserved address as an item of the list of Services.
pub fn in_flight(address: IpAddr, namespace: &str, name: &str) -> Value {
    json!({"metadata": {"namespace": namespace, "name": name}, "spec": {"clusterIP": address.to_string()}})
}
