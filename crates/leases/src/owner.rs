//! The Service that an address is held for.

/// The Service that an address is reserved for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Owner {
    /// The Service with this namespace and name.
    Named {
        /// The namespace of the Service.
        namespace: String,
        /// The name of the Service.
        name: String,
    },
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
        let namespace = namespace.to_owned();
        if name.is_empty() {
            Self::Unnamed { namespace, uid: uid.to_owned() }
        } else {
            Self::Named { namespace, name: name.to_owned() }
        }
    }

    /// Namespace and name of the Service. The name is empty if it is not generated yet.
    pub fn id(&self) -> (&str, &str) {
        match self {
            Self::Named { namespace, name } => (namespace, name),
            Self::Unnamed { namespace, .. } => (namespace, ""),
        }
    }

    /// The namespace of the Service.
    pub fn namespace(&self) -> &str {
        self.id().0
    }
}
