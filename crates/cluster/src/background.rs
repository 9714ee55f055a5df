//! Threads that evaluate requests and Services. The work of each namespace waits in a queue of its own, and a namespace
//! whose work takes long leaves the threads to the others.
//!
//! A server reviews admission requests on [`Threads`] of their own. Of the work that no admission request waits for,
//! [`run`] does what is short, such as one evaluation. [`run_long`] does what takes as long as the cluster is large,
//! such as an audit, on one other thread, in the order of the calls. While all processors are busy, this thread gets a
//! smaller share of them than the threads that answer requests.

use std::future::Future;
use std::sync::{Arc, LazyLock};
use std::thread;
use std::time::Instant;

use anyhow::{Context, anyhow};
use parking_lot::{Condvar, Mutex};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::fair_queue::{FairQueue, Places, Requester};
use crate::panics;

const PANICKED: &str = "the background work panicked";

/// One namespace has at most one of the two threads.
static SHORT: LazyLock<Threads> = LazyLock::new(|| {
    let places = Places { all: 2, of_peer: 2, of_namespace: 1 };
    Threads::start("background", 0, places)
});
static LONG: LazyLock<Threads> = LazyLock::new(|| {
    let places = Places { all: 1, of_peer: 1, of_namespace: 1 };
    Threads::start("background-long", NICENESS_OF_LONG_WORK, places)
});

/// Runs short work for an object of this namespace. Work whose future is dropped before its turn is not run; work that
/// has begun runs to its end. `work` may block, and may use the runtime of the caller (`Handle::current`).
pub fn run<T: Send + 'static, W: FnOnce() -> T + Send + 'static>(
    namespace: &str,
    work: W,
) -> impl Future<Output = anyhow::Result<T>> + Send + use<T, W> {
    SHORT.run(Requester::own(namespace), work)
}

/// As [`run`], on the thread for long work, such as a survey or an audit.
pub fn run_long<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> impl Future<Output = anyhow::Result<T>> + Send {
    LONG.run(Requester::default(), work)
}

/// A third of the processor time of a usual thread, while both are busy.
const NICENESS_OF_LONG_WORK: i32 = 5;

type Job = Box<dyn FnOnce() + Send>;

/// Threads with a queue of jobs, one thread for each place. They end when this is dropped.
pub struct Threads(Arc<Shared>);

struct Shared {
    /// `None` after the threads were dropped, or if none could be started.
    queue: Mutex<Option<FairQueue<Job>>>,
    changed: Condvar,
}

impl Threads {
    pub fn start(name: &str, niceness: i32, places: Places) -> Self {
        let queue = Mutex::new(Some(FairQueue::new(places)));
        let shared = Arc::new(Shared { queue, changed: Condvar::new() });
        let start = |_: &usize| {
            let shared = Arc::clone(&shared);
            let worker = move || {
                increase_niceness(niceness);
                shared.work();
            };
            thread::Builder::new().name(name.to_owned()).spawn(worker).is_ok()
        };
        if (0..places.all).filter(start).count() == 0 {
            *shared.queue.lock() = None;
        }
        Self(shared)
    }

    pub fn run<T: Send + 'static, W: FnOnce() -> T + Send + 'static>(
        &self,
        requester: Requester,
        work: W,
    ) -> impl Future<Output = anyhow::Result<T>> + Send + use<T, W> {
        let (done, result) = oneshot::channel();
        let runtime = Handle::try_current().ok();
        let job = move || {
            let _entered = runtime.as_ref().map(Handle::enter);
            // A panic drops `done`, so that the caller sees it. A caller may be gone.
            let _ = panics::catch(work).map(|result| done.send(result));
        };
        let place = self.0.push(&requester, Box::new(job));
        let place = place.map(|number| Place { shared: Arc::clone(&self.0), requester, number });
        async move {
            let _place = place.context("the thread for background work can't be started")?;
            result.await.map_err(|_| anyhow!(PANICKED))
        }
    }
}

/// The place of a job in the queue. A job whose caller is gone leaves the queue at once: otherwise a client that gives
/// up its requests could fill the queue.
struct Place {
    shared: Arc<Shared>,
    requester: Requester,
    number: u64,
}

impl Drop for Place {
    fn drop(&mut self) {
        let job = self.shared.queue.lock().as_mut().and_then(|queue| queue.remove(&self.requester, self.number));
        drop(job);
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        *self.0.queue.lock() = None;
        self.0.changed.notify_all();
    }
}

impl Shared {
    /// `None` if there are no threads.
    fn push(&self, requester: &Requester, job: Job) -> Option<u64> {
        let number = self.queue.lock().as_mut()?.push(requester.clone(), job);
        self.changed.notify_one();
        Some(number)
    }

    fn work(&self) {
        let mut queue = self.queue.lock();
        while let Some(jobs) = queue.as_mut() {
            let Some((requester, job)) = jobs.take(Instant::now()) else {
                self.changed.wait(&mut queue);
                continue;
            };
            drop(queue);
            // Also the time in which the job waited for an answer of the API server: no other used the thread then.
            let begin = Instant::now();
            job();
            let end = Instant::now();
            queue = self.queue.lock();
            if let Some(jobs) = queue.as_mut() {
                jobs.done(&requester, end - begin, end);
            }
            // The place that is free again may be one that another thread waited for.
            self.changed.notify_one();
        }
    }
}

/// On Linux, each thread has its own. Elsewhere, nothing changes.
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
    use std::sync::{Barrier, mpsc};
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn work_runs_on_a_thread_of_its_own() {
        let name = || thread::current().name().map(str::to_owned);
        assert_eq!(run("shop", name).await.unwrap(), Some("background".to_owned()));
        assert_eq!(run_long(name).await.unwrap(), Some("background-long".to_owned()));
    }

    #[test]
    fn work_needs_no_blocking_thread() {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).max_blocking_threads(1).build().unwrap();
        runtime.block_on(async {
            let (free, wait) = mpsc::channel::<()>();
            let busy = tokio::task::spawn_blocking(move || wait.recv());
            assert_eq!(run_long(|| 7).await.unwrap(), 7);
            assert_eq!(run("shop", || 8).await.unwrap(), 8);
            // Work that runs here takes no blocking thread from other work.
            let (end, ended) = mpsc::channel::<()>();
            let work = tokio::spawn(run_long(move || ended.recv().is_ok()));
            free.send(()).unwrap();
            busy.await.unwrap().unwrap();
            assert_eq!(tokio::task::spawn_blocking(|| 9).await.unwrap(), 9);
            end.send(()).unwrap();
            assert!(work.await.unwrap().unwrap());
        });
    }

    #[tokio::test]
    async fn short_work_does_not_wait_for_long_work() {
        let barrier = Arc::new(Barrier::new(2));
        let long = Arc::clone(&barrier);
        let long = tokio::spawn(run_long(move || long.wait().is_leader()));
        run("shop", move || barrier.wait().is_leader()).await.unwrap();
        long.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn work_of_a_namespace_does_not_wait_for_the_long_work_of_another() {
        let (end, ended) = mpsc::channel::<()>();
        let hangs = tokio::spawn(run("mallory", move || ended.recv().is_ok()));
        let waits = tokio::spawn(run("mallory", || 1));
        for nth in 0..10 {
            assert_eq!(run("shop", move || nth).await.unwrap(), nth);
        }
        assert!(!waits.is_finished(), "each namespace has one thread at most");
        end.send(()).unwrap();
        assert_eq!((hangs.await.unwrap().unwrap(), waits.await.unwrap().unwrap()), (true, 1));
    }

    #[tokio::test]
    async fn namespace_whose_work_waits_leaves_the_next_turn_to_another() {
        let threads = Threads::start("test", 0, Places { all: 1, of_peer: 1, of_namespace: 1 });
        threads.run(Requester::own("mallory"), || thread::sleep(Duration::from_millis(200))).await.unwrap();
        let (end, ended) = mpsc::channel::<()>();
        let busy = threads.run(Requester::own("other"), move || ended.recv().is_ok());
        let (say, said) = mpsc::channel();
        let work = ["mallory", "shop"].map(|namespace| {
            let say = say.clone();
            threads.run(Requester::own(namespace), move || say.send(namespace).unwrap())
        });
        end.send(()).unwrap();
        busy.await.unwrap();
        for done in work {
            done.await.unwrap();
        }
        drop(say);
        assert_eq!(said.iter().collect::<Vec<_>>(), ["shop", "mallory"]);
    }

    #[tokio::test]
    async fn work_that_is_given_up_leaves_the_queue_and_dropped_threads_end() {
        let threads = Threads::start("test", 0, Places { all: 1, of_peer: 1, of_namespace: 1 });
        let (begun, begin) = mpsc::channel::<()>();
        let (end, ended) = mpsc::channel::<()>();
        let first = tokio::spawn(threads.run(Requester::own("a"), move || {
            begun.send(()).unwrap();
            ended.recv().is_ok()
        }));
        tokio::task::spawn_blocking(move || begin.recv().unwrap()).await.unwrap();
        let second = tokio::spawn(threads.run(Requester::own("a"), || ()));
        let held = Arc::new(());
        let given_up: Vec<_> = (0..100)
            .map(|_| {
                let held = Arc::clone(&held);
                threads.run(Requester::own("a"), move || drop(held))
            })
            .collect();
        assert_eq!(Arc::strong_count(&held), 101);
        drop(given_up);
        assert_eq!(Arc::strong_count(&held), 1);
        drop(threads);
        end.send(()).unwrap();
        assert!(first.await.unwrap().unwrap());
        let second = second.await.unwrap().unwrap_err();
        assert_eq!(second.to_string(), PANICKED, "it waited when the threads were dropped");
    }

    #[tokio::test]
    async fn work_may_use_the_runtime_of_the_caller() {
        let work = || Handle::current().block_on(async { 5 });
        assert_eq!(run("shop", work).await.unwrap(), 5);
        assert_eq!(run("shop", || tokio::task::block_in_place(|| 6)).await.unwrap(), 6);
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn long_work_gives_way_to_other_work() {
        let niceness = || rustix::process::getpriority_process(None).unwrap();
        let own = niceness();
        assert_eq!(run("shop", niceness).await.unwrap(), own);
        assert_eq!(run_long(niceness).await.unwrap(), (own + NICENESS_OF_LONG_WORK).min(19));
    }

    #[tokio::test]
    async fn a_panic_ends_only_its_own_work() {
        #[allow(clippy::panic)]
        let failed: Result<(), _> = run_long(|| panic!("on purpose")).await;
        assert_eq!(failed.unwrap_err().to_string(), PANICKED);
        assert_eq!(run_long(|| 1).await.unwrap(), 1);
    }
}
