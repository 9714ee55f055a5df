//! Why a request is refused.

/// A refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denial {
    /// The HTTP status that the API server answers with.
    pub code: u16,
    /// Object, range, evidence and the way out.
    pub message: String,
}
