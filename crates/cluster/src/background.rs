//! Threads for work that no admission request waits for.
//!
//! A server evaluates admission requests on the blocking threads of its runtime. Work that only looks (a survey of
//! the cluster, an audit, the evaluation of one Service by a controller) must not take those threads, so it runs
//! here instead:
//!
//! - [`run`] is for short work, such as one evaluation. It runs on a thread of its own, in the order of the calls.
//! - [`run_long`] is for work that takes as long as the cluster is large, such as an audit. It runs on another
//!   thread, so that short work does not wait for it. While all processors are busy, this thread gets a smaller share
//!   of them than the threads that answer requests.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, OnceLock, PoisonError, mpsc};
use std::thread;

use thiserror::Error;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// Work that gave no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum BackgroundError {
    /// The work panicked.
    #[error("the background work panicked")]
    Panicked,
    /// The thread can't be started.
    #[error("the thread for background work can't be started")]
    NoThread,
}

static SHORT: Lane = Lane::new("background", 0);
static LONG: Lane = Lane::new("background-long", NICENESS_OF_LONG_WORK);

/// Runs short work on the thread for short work. Work whose future is dropped before its turn is not run; work that
/// has begun runs to its end. `work` may block, and may use the runtime of the caller (`Handle::current`).
///
/// # Errors
/// [`BackgroundError`] if the work panics, or if its thread can't be started.
pub fn run<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> impl Future<Output = Result<T, BackgroundError>> + Send {
    SHORT.run(work)
}

/// As [`run`], on the thread for long work, such as a survey or an audit.
///
/// # Errors
/// [`BackgroundError`] if the work panics, or if its thread can't be started.
pub fn run_long<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> impl Future<Output = Result<T, BackgroundError>> + Send {
    LONG.run(work)
}

/// A thread with this niceness gets a third of the processor time of a usual thread while both are busy.
const NICENESS_OF_LONG_WORK: i32 = 5;

type Job = Box<dyn FnOnce() + Send>;

/// A thread with a queue of jobs. The first job starts it, and it lives as long as the process.
struct Lane {
    name: &'static str,
    niceness: i32,
    queue: OnceLock<Option<Mutex<mpsc::Sender<Job>>>>,
}

impl Lane {
    const fn new(name: &'static str, niceness: i32) -> Self {
        Self { name, niceness, queue: OnceLock::new() }
    }

    fn run<T: Send + 'static>(
        &'static self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> impl Future<Output = Result<T, BackgroundError>> + Send {
        let (done, result) = oneshot::channel();
        let runtime = Handle::try_current().ok();
        let job = move || {
            if done.is_closed() {
                return;
            }
            let _entered = runtime.as_ref().map(Handle::enter);
            // A panic drops `done`, so that the caller sees it. A caller may be gone.
            let _ = catch_unwind(AssertUnwindSafe(work)).map(|result| done.send(result));
        };
        let queued = self.send(Box::new(job));
        async move {
            if !queued {
                return Err(BackgroundError::NoThread);
            }
            result.await.map_err(|_| BackgroundError::Panicked)
        }
    }

    fn send(&self, job: Job) -> bool {
        let queue = self.queue.get_or_init(|| {
            let (sender, jobs) = mpsc::channel::<Job>();
            let niceness = self.niceness;
            let worker = move || {
                increase_niceness(niceness);
                jobs.iter().for_each(|job| job());
            };
            thread::Builder::new().name(self.name.to_owned()).spawn(worker).ok().map(|_| Mutex::new(sender))
        });
        let Some(queue) = queue else { return false };
        queue.lock().unwrap_or_else(PoisonError::into_inner).send(job).is_ok()
    }
}

/// Increases the niceness of this thread. On Linux, each thread has its own. Elsewhere, nothing changes.
fn increase_niceness(niceness: i32) {
    #[cfg(target_os = "linux")]
    if niceness != 0
        && let Err(error) = rustix::process::nice(niceness)
    {
        tracing::debug!(%error, "long work runs with the priority of other work");
    }
    #[cfg(not(target_os = "linux"))]
    let _ = niceness;
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, Barrier};

    use super::*;

    #[tokio::test]
    async fn work_runs_on_a_thread_of_its_own() {
        let name = || thread::current().name().map(str::to_owned);
        assert_eq!(run(name).await, Ok(Some("background".to_owned())));
        assert_eq!(run_long(name).await, Ok(Some("background-long".to_owned())));
    }

    #[test]
    fn work_needs_no_blocking_thread() {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).max_blocking_threads(1).build().unwrap();
        runtime.block_on(async {
            let (free, wait) = mpsc::channel::<()>();
            let busy = tokio::task::spawn_blocking(move || wait.recv());
            assert_eq!(run_long(|| 7).await, Ok(7));
            assert_eq!(run(|| 8).await, Ok(8));
            // Work that runs here takes no blocking thread from other work.
            let (end, ended) = mpsc::channel::<()>();
            let work = tokio::spawn(run_long(move || ended.recv().is_ok()));
            free.send(()).unwrap();
            busy.await.unwrap().unwrap();
            assert_eq!(tokio::task::spawn_blocking(|| 9).await.unwrap(), 9);
            end.send(()).unwrap();
            assert_eq!(work.await.unwrap(), Ok(true));
        });
    }

    #[tokio::test]
    async fn short_work_does_not_wait_for_long_work() {
        let barrier = Arc::new(Barrier::new(2));
        let long = Arc::clone(&barrier);
        let long = tokio::spawn(run_long(move || long.wait().is_leader()));
        run(move || barrier.wait().is_leader()).await.unwrap();
        long.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn work_may_use_the_runtime_of_the_caller() {
        let work = || Handle::current().block_on(async { 5 });
        assert_eq!(run(work).await, Ok(5));
        assert_eq!(run(|| tokio::task::block_in_place(|| 6)).await, Ok(6));
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn long_work_gives_way_to_other_work() {
        let niceness = || rustix::process::getpriority_process(None).unwrap();
        let own = niceness();
        assert_eq!(run(niceness).await, Ok(own));
        assert_eq!(run_long(niceness).await, Ok((own + NICENESS_OF_LONG_WORK).min(19)));
    }

    #[tokio::test]
    async fn a_panic_ends_only_its_own_work() {
        #[allow(clippy::panic)]
        let failed: Result<(), _> = run_long(|| panic!("on purpose")).await;
        assert_eq!(failed, Err(BackgroundError::Panicked));
        assert_eq!(run_long(|| 1).await, Ok(1));
    }

    #[tokio::test]
    async fn work_whose_future_was_dropped_is_not_begun() {
        let barrier = Arc::new(Barrier::new(2));
        let first = Arc::clone(&barrier);
        let first = tokio::spawn(run_long(move || first.wait().is_leader()));
        let begun = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&begun);
        drop(run_long(move || flag.store(true, Ordering::Relaxed)));
        barrier.wait();
        first.await.unwrap().unwrap();
        run_long(|| ()).await.unwrap();
        assert!(!begun.load(Ordering::Relaxed));
    }
}
