//! The Service that an address is reserved for.

use clusterip_core::service_key::ServiceKey;

/// The Service that an address is reserved for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Owner {
    /// The Service with this namespace and name.
    Named(ServiceKey),
    /// A Service whose name is not generated yet. Only the request UID distinguishes two such requests.
    Unnamed {
        /// The namespace of the Service.
        namespace: String,
        /// The UID of the admission request.
        uid: String,
    },
}

impl Owner {
    /// The owner for the object of a request; `name` is empty if it is not generated yet.
    pub fn new(namespace: &str, name: &str, uid: &str) -> Self {
        if name.is_empty() {
            Self::Unnamed { namespace: namespace.to_owned(), uid: uid.to_owned() }
        } else {
            Self::Named(ServiceKey::new(namespace, name))
        }
    }

    /// Namespace and name of the Service. The name is empty if it is not generated yet.
    pub fn id(&self) -> (&str, &str) {
        match self {
            Self::Named(service) => (&service.namespace, &service.name),
            Self::Unnamed { namespace, .. } => (namespace, ""),
        }
    }

    /// The namespace of the Service.
    pub fn namespace(&self) -> &str {
        self.id().0
    }
}
