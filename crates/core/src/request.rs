//! The admission request, as far as it matters here.

use serde_json::Value;

use crate::json::{At, Mistyped};
use crate::node::Node;
use crate::service::Service;

/// An `AdmissionRequest` of `admission.k8s.io/v1`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// `uid`: new for every call of a webhook.
    pub uid: String,
    /// `operation`
    pub operation: Operation,
    /// The namespace of the object.
    pub namespace: String,
    /// The name of the object; empty where it is yet to be generated.
    pub name: String,
    /// What is created or updated.
    pub about: About,
}

/// What a request is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum About {
    /// A `v1` Service itself that is created or updated.
    Service(Box<Change<Service>>),
    /// A `v1` Node itself that is created or updated.
    Node(Change<Node>),
    /// Another kind, a sub-resource, or another operation.
    Other,
}

/// A creation or an update.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change<T> {
    /// The object as it is asked for.
    pub object: T,
    /// The object as it is; nothing for a creation.
    pub old: Option<T>,
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
    /// [`Mistyped`] for a field that is not what the API defines, or for a Service or Node without the
    /// object that its operation needs. Objects of other kinds are not looked into.
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
        let kind = match request.get("kind")? {
            Some(kind) if kind.text_of("group")?.is_some() || kind.text_of("version")? != Some("v1") => None,
            Some(kind) => kind.text_of("kind")?,
            None => {
                return Err(Mistyped { path: request.key_path("kind"), expected: "a kind", found: "nothing".into() });
            }
        };
        let itself = request.text_of("subResource")?.is_none() && operation != Operation::Other;
        let about = match kind.filter(|_| itself) {
            Some("Service") => About::Service(Box::new(change(&request, operation, "a Service", Service::read)?)),
            Some("Node") => About::Node(change(&request, operation, "a Node", Node::read)?),
            _ => About::Other,
        };
        let namespace = match (request.text_of("namespace")?, &about) {
            (Some(namespace), _) => Some(namespace),
            (None, About::Other) => None,
            (None, _) => match request.descend(&["object", "metadata"])? {
                Some(metadata) => metadata.text_of("namespace")?,
                None => None,
            },
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

/// The object of a request, and for an update the one that is there.
fn change<T>(
    request: &At<'_>,
    operation: Operation,
    expected: &'static str,
    read: impl Fn(&Value, &str) -> Result<T, Mistyped>,
) -> Result<Change<T>, Mistyped> {
    let object = |key: &str| request.get(key)?.map(|object| read(object.value, &object.path)).transpose();
    let missing = |key: &str| Mistyped { path: request.key_path(key), expected, found: "nothing".into() };
    let (new, old) = (object("object")?, object("oldObject")?);
    if operation == Operation::Update && old.is_none() && new.is_some() {
        return Err(missing("oldObject"));
    }
    Ok(Change { object: new.ok_or_else(|| missing("object"))?, old })
}
