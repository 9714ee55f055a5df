//! Which Service something is about.

use std::fmt;
use std::str::FromStr;

use serde_json::Value;

/// The namespace and the name of a Service, ordered by namespace first. It is displayed as `NAMESPACE/NAME`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceKey {
    pub namespace: String,
    pub name: String,
}

impl ServiceKey {
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }

    /// The key of a Service as the API server stores it.
    pub fn of(service: &Value) -> Self {
        let metadata = service.get("metadata");
        let text = |key| metadata.and_then(|metadata| metadata.get(key)).and_then(Value::as_str).unwrap_or_default();
        Self::new(text("namespace"), text("name"))
    }
}

impl FromStr for ServiceKey {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        match text.split_once('/') {
            Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() && !name.contains('/') => {
                Ok(Self::new(namespace, name))
            }
            _ => Err("expected NAMESPACE/NAME, such as shop/web"),
        }
    }
}

impl fmt::Display for ServiceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_is_a_namespace_and_a_name() {
        assert_eq!("shop/web".parse(), Ok(ServiceKey::new("shop", "web")));
        for text in ["", "web", "/", "/web", "shop/", "shop/web/"] {
            assert_eq!(text.parse::<ServiceKey>(), Err("expected NAMESPACE/NAME, such as shop/web"), "{text:?}");
        }
    }
}
