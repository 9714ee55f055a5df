//! Agents that hold external addresses on a fake network, several in one process, with a real API server.

mod assignments;
mod pool_versions;
mod readiness;
mod support;
mod takeovers;
