//! Results for people and programs.

pub mod columns;
pub mod filled;
pub mod json;
pub mod map;
pub mod moves;
pub mod style;
pub mod table;
pub mod terminal;
