//! The certificate authority that the API server trusts, kept in a Secret.
