//! Waits for the signals that stop a long-running command.

use futures::future::{LocalBoxFuture, Shared};
#[cfg(unix)]
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// Completes at SIGTERM or Ctrl-C. All clones complete.
pub type Interrupt = Shared<LocalBoxFuture<'static, ()>>;

/// Completes when `stopped` becomes true.
pub async fn until(mut stopped: watch::Receiver<bool>) {
    // If the sender was dropped, the command has ended.
    let _ = stopped.wait_for(|stopped| *stopped).await;
}

/// Completes at SIGTERM or Ctrl-C. Windows has no SIGTERM.
pub async fn shutdown_signal() {
    #[cfg(unix)]
    let terminated = async {
        match signal(SignalKind::terminate()) {
            Ok(mut terminated) => drop(terminated.recv().await),
            Err(_) => std::future::pending().await,
        }
    };
    #[cfg(not(unix))]
    let terminated = std::future::pending::<()>();
    tokio::select! {
        () = terminated => {}
        // Without a handler, Ctrl-C ends the process at once.
        Ok(()) = tokio::signal::ctrl_c() => {}
    }
}
