//! What a panic does: it ends the process, unless a function of this module catches it.
//!
//! A task that has panicked leaves its process half alive: without the task that renews a Lease, or the one that follows
//! a kind, the other tasks go on with what they knew last. A process that ends is started again.

use std::any::Any;
use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::panic::{self, AssertUnwindSafe, PanicHookInfo};
use std::pin::pin;
use std::process;
use std::task::Poll;

use clusterip_core::service_key::ServiceKey;
use tokio::task::spawn_blocking;
use tracing::dispatcher::has_been_set;

const PANICKED: i32 = 101;

thread_local! {
    static CATCHES: Cell<bool> = const { Cell::new(false) };
}

/// Makes each panic that is not caught by a function of this module end the process with status 101, whichever thread or
/// task panics. If the process has a log, the panic is logged, so that text of a user in its message is escaped as in
/// other lines.
pub fn end_the_process() {
    let print = panic::take_hook();
    panic::set_hook(Box::new(move |panic: &PanicHookInfo<'_>| {
        if has_been_set() {
            let location = panic.location().map(ToString::to_string);
            tracing::error!(location, cause = text(panic.payload()), "the program panicked, which is a defect");
        } else {
            print(panic);
        }
        if !CATCHES.get() {
            process::exit(PANICKED);
        }
    }));
}

/// Does the work. The error is the text of its panic.
pub fn catch<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    let before = CATCHES.replace(true);
    let done = panic::catch_unwind(AssertUnwindSafe(work));
    CATCHES.set(before);
    done.map_err(|cause| text(cause.as_ref()).to_owned())
}

/// Decides about an object. A panic of the core is logged, and must not end the decisions about others. The error says
/// that the decision failed, and why.
pub fn catch_about<T>(object: &ServiceKey, decide: impl FnOnce() -> T) -> Result<T, String> {
    catch(decide).map_err(|cause| {
        let ServiceKey { namespace, name } = object;
        tracing::error!(namespace, name, cause, "the decision about an object failed");
        format!("the decision failed: {cause}")
    })
}

/// The error is the text of its panic, or why it was not done.
pub async fn catch_blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, String> {
    spawn_blocking(|| catch(work)).await.unwrap_or_else(|error| Err(error.to_string()))
}

/// The work for another thread, which this thread joins. If this thread catches panics, a panic of the work does not end
/// the process: this thread gets it when it joins the other one.
pub fn joined<T>(work: impl FnOnce() -> T) -> impl FnOnce() -> T {
    let catches = CATCHES.get();
    move || {
        CATCHES.set(catches);
        work()
    }
}

/// The error is the text of its panic, after which the work is not polled again.
pub async fn catch_polls<T>(work: impl Future<Output = T>) -> Result<T, String> {
    let mut work = pin!(work);
    poll_fn(|context| match catch(|| work.as_mut().poll(context)) {
        Ok(polled) => polled.map(Ok),
        Err(cause) => Poll::Ready(Err(cause)),
    })
    .await
}

fn text(cause: &(dyn Any + Send)) -> &str {
    let text = cause.downcast_ref::<&str>().copied();
    text.or_else(|| cause.downcast_ref::<String>().map(String::as_str)).unwrap_or("for an unknown reason")
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use std::env;
    use std::process::Command;
    use std::time::Duration;

    use tokio::runtime::Builder;
    use tokio::task::yield_now;
    use tokio::time::sleep;

    use super::*;

    /// Names the case in the process that panics.
    const CASE: &str = "CLUSTERIP_TEST_PANIC";

    #[test]
    fn only_a_panic_that_is_not_caught_ends_the_process() {
        struct Case {
            name: &'static str,
            status: i32,
        }
        let cases = [
            Case { name: "in a task", status: PANICKED },
            Case { name: "in a thread", status: PANICKED },
            Case { name: "after a caught one", status: PANICKED },
            Case { name: "caught", status: 0 },
            Case { name: "caught in a task", status: 0 },
            Case { name: "caught on a thread that may block", status: 0 },
            Case { name: "caught by the thread that joins", status: 0 },
            Case { name: "in a thread that is joined", status: PANICKED },
        ];
        if let Ok(name) = env::var(CASE) {
            end_the_process();
            Builder::new_multi_thread().worker_threads(1).enable_time().build().unwrap().block_on(panics(&name));
            process::exit(0);
        }
        let this = concat!(module_path!(), "::only_a_panic_that_is_not_caught_ends_the_process");
        let (_, this) = this.split_once("::").unwrap();
        for Case { name, status } in cases {
            let child =
                Command::new(env::current_exe().unwrap()).args([this, "--exact"]).env(CASE, name).output().unwrap();
            assert_eq!(child.status.code(), Some(status), "{name}: {}", String::from_utf8_lossy(&child.stdout));
        }
    }

    fn panics_in_joined_thread() {
        let panics = joined(|| panic!("on purpose"));
        std::thread::scope(|scope| scope.spawn(panics).join().unwrap_or_else(|cause| panic::resume_unwind(cause)))
    }

    async fn panics(name: &str) {
        let in_task = async {
            yield_now().await;
            panic!("on purpose");
        };
        match name {
            "in a task" => drop(tokio::spawn(in_task)),
            "in a thread" => drop(std::thread::spawn(|| panic!("on purpose"))),
            "after a caught one" => {
                assert_eq!(catch(|| panic!("on purpose")), Err::<(), _>("on purpose".to_owned()));
                tokio::spawn(in_task);
            }
            "caught" => return assert_eq!(catch(|| panic!("on {}", "purpose")), Err::<(), _>("on purpose".to_owned())),
            "caught in a task" => {
                let caught = tokio::spawn(catch_polls(in_task)).await.unwrap();
                return assert_eq!(caught, Err::<(), _>("on purpose".to_owned()));
            }
            "caught on a thread that may block" => {
                let caught = catch_blocking(|| panic!("on purpose")).await;
                return assert_eq!(caught, Err::<(), _>("on purpose".to_owned()));
            }
            "caught by the thread that joins" => {
                return assert_eq!(catch(panics_in_joined_thread), Err("on purpose".to_owned()));
            }
            "in a thread that is joined" => panics_in_joined_thread(),
            other => panic!("{other} is no case"),
        }
        sleep(Duration::from_secs(60)).await;
    }
}
