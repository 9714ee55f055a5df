//! The admission request, as far as it matters here.

use serde_json::Value;

use crate::json::{At, Mistyped};
use crate::service::Service;

/// An `AdmissionRequest` of `admission.k8s.io/v1`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// `uid`: new for every call of a webhook.
    pub uid: String,
    /// `operation`
    pub operation: Operation,
    /// Whether the object is a `v1` Service itself, not another kind and not a sub-resource of it.
    pub is_service: bool,
    /// The namespace of the object.
    pub namespace: String,
    /// The name of the object; empty where it is yet to be generated.
    pub name: String,
    /// The Service as it is asked for; nothing for a deletion, or for another kind.
    pub object: Option<Service>,
    /// The Service as it is.
    pub old_object: Option<Service>,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// `CREATE`
    Create,
    /// `UPDATE`
    Update,
    /// `DELETE`, `CONNECT`, or one yet to be invented
    Other,
}

impl Request {
    /// Reads a request.
    ///
    /// # Errors
    /// [`Mistyped`] for a field that is not what the API defines, or for a Service without the object
    /// that its operation needs. Objects of other kinds are not looked into.
    pub fn read(request: &Value) -> Result<Self, Mistyped> {
        let request = At::new(request, "request");
        request.object()?;
        let operation = match request.text_of("operation")? {
            Some("CREATE") => Operation::Create,
            Some("UPDATE") => Operation::Update,
            Some(_) => Operation::Other,
            None => {
                return Err(Mistyped {
                    path: request.key_path("operation"),
                    expected: "an operation",
                    found: "nothing".into(),
                });
            }
        };
        let is_service = match request.get("kind")? {
            Some(kind) => {
                kind.text_of("group")?.is_none()
                    && kind.text_of("version")? == Some("v1")
                    && kind.text_of("kind")? == Some("Service")
            }
            None => {
                return Err(Mistyped { path: request.key_path("kind"), expected: "a kind", found: "nothing".into() });
            }
        };
        let is_service = is_service && request.text_of("subResource")?.is_none();
        let looked_into = is_service && operation != Operation::Other;
        let service = |key: &str| match request.get(key)? {
            Some(object) if looked_into => {
                Service::read(object.value, &object.path).map(|service| Some((object, service)))
            }
            _ => Ok(None),
        };
        let (object, old_object) = (service("object")?, service("oldObject")?);
        if looked_into && object.is_none() {
            return Err(Mistyped { path: request.key_path("object"), expected: "a Service", found: "nothing".into() });
        }
        if is_service && operation == Operation::Update && old_object.is_none() {
            return Err(Mistyped {
                path: request.key_path("oldObject"),
                expected: "a Service",
                found: "nothing".into(),
            });
        }
        let namespace = match (request.text_of("namespace")?, &object) {
            (Some(namespace), _) => Some(namespace),
            (None, Some((at, _))) => at.get("metadata")?.map_or(Ok(None), |metadata| metadata.text_of("namespace"))?,
            (None, None) => None,
        };
        let name = request.text_of("name")?.or(object.as_ref().map(|(_, service)| service.name.as_str()));
        Ok(Self {
            uid: request.text_of("uid")?.unwrap_or_default().to_owned(),
            operation,
            is_service,
            namespace: namespace.unwrap_or_default().to_owned(),
            name: name.unwrap_or_default().to_owned(),
            object: object.map(|(_, service)| service),
            old_object: old_object.map(|(_, service)| service),
        })
    }

    /// What an address is hashed from: namespace and name, or the request where the name is yet to be
    /// generated.
    pub fn hash_key(&self) -> String {
        format!("{}/{}", self.namespace, if self.name.is_empty() { &self.uid } else { &self.name })
    }

    /// The Service in words: `shop/web`.
    pub fn subject(&self) -> String {
        format!("{}/{}", self.namespace, if self.name.is_empty() { "(name yet to be generated)" } else { &self.name })
    }
}
