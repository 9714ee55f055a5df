//! Reads many items on all processors, and uses the results in the order of the items.

use std::num::NonZero;
use std::panic::resume_unwind;
use std::sync::mpsc::sync_channel;
use std::thread::{self, available_parallelism};

use crate::panics;

/// How many items a thread reads before it hands the results over.
const GROUP: usize = 64;
/// How many groups of a thread may wait.
const WAITING: usize = 4;

/// Calls `read` with each item on other threads, and `visit` on this thread with each item and its result, in their order.
/// If `read` panics, so does this function, after other threads have ended.
pub fn in_order<I: Sync, R: Send>(items: &[I], read: impl Fn(&I) -> R + Sync, mut visit: impl FnMut(&I, R)) {
    let threads = available_parallelism().map_or(1, NonZero::get).min(items.len() / GROUP);
    if threads < 2 {
        return items.iter().for_each(|item| visit(item, read(item)));
    }
    thread::scope(|scope| {
        let read = &read;
        let spawn = |nth| {
            let (sender, results) = sync_channel::<Vec<R>>(WAITING);
            let read_groups = move || {
                for group in items.chunks(GROUP).skip(nth).step_by(threads) {
                    if sender.send(group.iter().map(read).collect()).is_err() {
                        return;
                    }
                }
            };
            // The system may refuse further threads.
            let thread = thread::Builder::new().spawn_scoped(scope, panics::joined(read_groups));
            Some((results, thread.ok()?))
        };
        let running: Vec<_> = (0..threads).map_while(spawn).collect();
        if running.len() < threads {
            drop(running);
            return items.iter().for_each(|item| visit(item, read(item)));
        }
        for (group, (results, _)) in items.chunks(GROUP).zip(running.iter().cycle()) {
            // Without results, the thread has panicked.
            let Ok(results) = results.recv() else { break };
            group.iter().zip(results).for_each(|(item, result)| visit(item, result));
        }
        for (results, thread) in running {
            drop(results);
            thread.join().unwrap_or_else(|cause| resume_unwind(cause));
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_the_order_of_their_items() {
        for count in [0, 1, GROUP, 2 * GROUP, 3 * GROUP + 1, 100 * GROUP - 1] {
            let items: Vec<usize> = (0..count).collect();
            let mut seen = Vec::new();
            in_order(&items, |item| item * 2, |item, double| seen.push((*item, double)));
            assert_eq!(seen, items.iter().map(|item| (*item, item * 2)).collect::<Vec<_>>(), "{count} items");
        }
    }

    #[test]
    fn panic_of_a_reader_reaches_the_caller() {
        let items: Vec<usize> = (0..100 * GROUP).collect();
        let odd = |item: &usize| assert!(*item != 3 * GROUP, "item {item}");
        let failed = panics::catch(|| in_order(&items, odd, |_, ()| {}));
        assert_eq!(failed, Err(format!("item {}", 3 * GROUP)));
    }
}
