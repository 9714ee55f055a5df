//! Waits for the signals that stop a long-running command.

#[cfg(unix)]
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// Completes when `stopped` becomes true.
pub async fn until(mut stopped: watch::Receiver<bool>) {
    // If the sender was dropped, the command has ended.
    let _ = stopped.wait_for(|stopped| *stopped).await;
}

/// Completes at SIGTERM or SIGINT.
#[cfg(unix)]
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

/// Completes at Ctrl-C. Windows has no SIGTERM.
#[cfg(not(unix))]
pub async fn shutdown_signal() {
    if tokio::signal::ctrl_c().await.is_err() {
        // Without a handler, Ctrl-C ends the process at once.
        std::future::pending().await
    }
}
