//! Tests against a real control plane: what the API server does is part of what is tested.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

mod certificates;
mod control_plane;
mod crashes;
mod deploy_webhook;
mod leader;
mod move_command;
mod moves;
mod permissions;
mod proxy;
mod settings;
