//! The webhook configuration: who calls us, and whom it trusts.
