//! How a command that runs for long is told to end.

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// Comes back when this turns true.
pub async fn until(mut stopped: watch::Receiver<bool>) {
    // Where nobody is left to tell, it is over, too.
    let _ = stopped.wait_for(|stopped| *stopped).await;
}

/// Comes back at SIGTERM or SIGINT.
pub async fn told_to_stop() {
    let terminated = signal(SignalKind::terminate());
    let interrupted = signal(SignalKind::interrupt());
    let (Ok(mut terminated), Ok(mut interrupted)) = (terminated, interrupted) else {
        // Then only SIGKILL ends it.
        return std::future::pending().await;
    };
    tokio::select! {
        _ = terminated.recv() => {}
        _ = interrupted.recv() => {}
    }
}
