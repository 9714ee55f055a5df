//! Answers to look-ups that are not read from objects, in the format of policy-server.

/// The error for an object that does not exist.
pub fn not_found(api_version: &str, kind: &str, name: &str, namespace: Option<&str>) -> String {
    format!("Cannot find {api_version}/{kind} named '{name}' inside of namespace '{namespace:?}'")
}
