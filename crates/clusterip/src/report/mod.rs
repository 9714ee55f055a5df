//! Results for people and programs.

pub mod filled;
pub mod json;
pub mod table;
pub mod terminal;
