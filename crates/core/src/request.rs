//! The fields of an admission request that a decision reads.

use serde_json::Value;

use crate::json::{Located, TypeMismatch};
use crate::nodes::Node;
use crate::service::Service;

/// An `AdmissionRequest` of `admission.k8s.io/v1`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The API server sets a new one for each call of a webhook.
    pub uid: String,
    pub operation: Operation,
    pub namespace: String,
    /// The name of the object; empty if the API server has yet to generate it.
    pub name: String,
    pub about: About,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum About {
    /// A `v1` Service (not a sub-resource) that is created or updated.
    Service(Box<Change<Service>>),
    /// A `v1` Node (not a sub-resource) that is created or updated.
    Node(Change<Node>),
    /// Any other kind, sub-resource or operation.
    Other,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change<T> {
    pub object: T,
    /// The existing object; `None` for a creation.
    pub old: Option<T>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Create,
    Update,
    Other,
}

impl Request {
    /// Reads a request. Objects of kinds other than Service and Node are not read.
    pub fn read(request: &Value) -> Result<Self, TypeMismatch> {
        let request = Located::new(request, "request");
        request.object()?;
        let missing =
            |key: &str, expected| TypeMismatch { path: request.key_path(key), expected, found: "nothing".into() };
        let operation = match request.text_of("operation")? {
            Some("CREATE") => Operation::Create,
            Some("UPDATE") => Operation::Update,
            Some(_) => Operation::Other,
            None => return Err(missing("operation", "an operation")),
        };
        let kind = match request.get("kind")? {
            Some(kind) if kind.text_of("group")?.is_some() || kind.text_of("version")? != Some("v1") => None,
            Some(kind) => kind.text_of("kind")?,
            None => return Err(missing("kind", "a kind")),
        };
        let itself = request.text_of("subResource")?.is_none() && operation != Operation::Other;
        let about = match kind.filter(|_| itself) {
            Some("Service") => {
                let mut change = change(&request, operation, "a Service", Service::read)?;
                if let Some(stored) = &change.old {
                    change.object.complete(stored);
                }
                About::Service(Box::new(change))
            }
            Some("Node") => About::Node(change(&request, operation, "a Node", Node::read)?),
            _ => About::Other,
        };
        let namespace = match (request.text_of("namespace")?, &about) {
            (Some(namespace), _) => Some(namespace),
            (None, About::Other) => None,
            (None, _) => request.at("object")?.at("metadata")?.text_of("namespace")?,
        };
        let name = request.text_of("name")?.or(match &about {
            About::Service(service) => Some(service.object.name.as_str()),
            About::Node(node) => Some(node.object.name.as_str()),
            About::Other => None,
        });
        Ok(Self {
            uid: request.text_of("uid")?.unwrap_or_default().to_owned(),
            operation,
            namespace: namespace.unwrap_or_default().to_owned(),
            name: name.unwrap_or_default().to_owned(),
            about,
        })
    }

    /// A request to create a Service or, with the `old` one, to update it. The error names the field as [`Self::read`] does.
    pub fn of_service(uid: &str, object: &Value, old: Option<&Value>) -> Result<Self, TypeMismatch> {
        let object_read = Service::read(object, "request.object")?;
        let old = old.map(|old| Service::read(old, "request.oldObject")).transpose()?;
        let namespace = Located::new(object, "request.object").at("metadata")?.text_of("namespace")?;
        Ok(Self::of_change(uid, namespace.unwrap_or_default(), Change { object: object_read, old }))
    }

    /// As [`Self::of_service`], of Services that are read already.
    pub fn of_change(uid: &str, namespace: &str, mut change: Change<Service>) -> Self {
        let mut operation = Operation::Create;
        if let Some(stored) = &change.old {
            operation = Operation::Update;
            change.object.complete(stored);
        }
        let (uid, namespace, name) = (uid.to_owned(), namespace.to_owned(), change.object.name.clone());
        Self { uid, operation, namespace, name, about: About::Service(Box::new(change)) }
    }

    pub fn of_node(change: Change<Node>) -> Self {
        let operation = if change.old.is_some() { Operation::Update } else { Operation::Create };
        let (name, about) = (change.object.name.clone(), About::Node(change));
        Self { uid: String::new(), operation, namespace: String::new(), name, about }
    }

    /// The key that an address is hashed from: namespace and name, or namespace and UID if the name has yet to be
    /// generated.
    pub fn hash_key(&self) -> String {
        format!("{}/{}", self.namespace, if self.name.is_empty() { &self.uid } else { &self.name })
    }

    /// The Service as messages name it: `shop/web`.
    pub fn subject(&self) -> String {
        format!("{}/{}", self.namespace, if self.name.is_empty() { "(name yet to be generated)" } else { &self.name })
    }
}

/// The new object of a request, and for an update the existing one.
fn change<T>(
    request: &Located<'_>,
    operation: Operation,
    expected: &'static str,
    read: impl Fn(&Value, &str) -> Result<T, TypeMismatch>,
) -> Result<Change<T>, TypeMismatch> {
    let object = |key: &str| request.get(key)?.map(|object| read(object.value, &object.path)).transpose();
    let missing = |key: &str| TypeMismatch { path: request.key_path(key), expected, found: "nothing".into() };
    let (new, old) = (object("object")?, object("oldObject")?);
    if operation == Operation::Update && old.is_none() && new.is_some() {
        return Err(missing("oldObject"));
    }
    Ok(Change { object: new.ok_or_else(|| missing("object"))?, old })
}
