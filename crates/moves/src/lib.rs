//! Decides the steps of a move of a Service to another address, and what each step writes. Pure and synchronous: no
//! requests, no clock.
//!
//! | module | purpose |
//! | --- | --- |
//! | [`journal`] | the data that is needed to finish a move |
//! | [`step`] | decides the next step of a move, and what it writes to the Service |
//! | [`seamless`] | the steps of a move during which both addresses answer |
//! | [`spec_merge`] | keeps what others changed in the spec meanwhile |
//! | [`field_ownership`] | restores which manager owns which field |
//! | [`refusal`] | interprets why the API server refused a request |
//! | [`outcome`] | how a move ended |

pub mod field_ownership;
pub mod journal;
pub mod outcome;
pub mod refusal;
pub mod seamless;
pub mod spec_merge;
pub mod step;
