//! Waits for the signals that stop a long-running command.

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// Completes when `stopped` becomes true.
pub async fn until(mut stopped: watch::Receiver<bool>) {
    // If the sender was dropped, the command has ended.
    let _ = stopped.wait_for(|stopped| *stopped).await;
}

/// Completes at SIGTERM or SIGINT.
pub async fn shutdown_signal() {
    let terminated = signal(SignalKind::terminate());
    let interrupted = signal(SignalKind::interrupt());
    let (Ok(mut terminated), Ok(mut interrupted)) = (terminated, interrupted) else {
        // Without signal handlers only SIGKILL ends the process.
        return std::future::pending().await;
    };
    tokio::select! {
        _ = terminated.recv() => {}
        _ = interrupted.recv() => {}
    }
}
