//! Why a request is refused.

/// The refusal of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denial {
    /// The HTTP status that the API server answers with.
    pub code: u16,
    /// The object, the range, the evidence and the remedy.
    pub message: String,
}
