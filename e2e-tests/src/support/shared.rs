//! What tests share, such as a control plane. It ends with the last test that has it: an idle control plane needs
//! processor time, too.

use std::sync::{Arc, Weak};

use tokio::sync::Mutex;

pub struct Shared<T>(Mutex<Weak<T>>);

impl<T> Shared<T> {
    #[expect(clippy::new_without_default, reason = "a static needs a constant")]
    pub const fn new() -> Self {
        Self(Mutex::const_new(Weak::new()))
    }

    /// What other tests have now. Without such tests, `start` starts it.
    pub async fn get(&self, start: impl AsyncFnOnce() -> T) -> Arc<T> {
        let mut running = self.0.lock().await;
        if let Some(running) = running.upgrade() {
            return running;
        }
        let started = Arc::new(start().await);
        *running = Arc::downgrade(&started);
        started
    }
}
