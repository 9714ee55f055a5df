//! Decides the steps of a move of a Service to another address, and what each step writes. Pure and synchronous: no
//! requests, no clock.
//!
//! | module | purpose |
//! | --- | --- |
//! | [`journal`] | the data that is needed to finish a move |
//! | [`step`] | decides the next step of a move, and what it writes to the Service |
//! | [`seamless`] | the steps of a move during which both addresses answer, and their requests |
//! | [`temporary`] | the temporary Services of such a move |
//! | [`method`] | whether a Service can be moved like that |
//! | [`corefile`] | how long DNS may answer with an old address |
//! | `restore` | keeps what others changed meanwhile, and restores which manager owns which field |
//! | [`outcome`] | how a move ended, and why the API server refused a request |

pub mod corefile;
pub mod journal;
pub mod method;
pub mod outcome;
mod restore;
pub mod seamless;
pub mod step;
pub mod temporary;
