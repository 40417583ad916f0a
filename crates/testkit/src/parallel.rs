//! Runs work on several threads.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

/// Runs `work` and catches its panic.
///
/// # Errors
/// The message of the panic.
pub fn catch_panic<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| panic_text(panic.as_ref()))
}

/// Returns the text of a panic.
fn panic_text(panic: &(dyn Any + Send)) -> String {
    if let Some(text) = panic.downcast_ref::<String>() {
        return text.clone();
    }
    panic.downcast_ref::<&str>().copied().unwrap_or_default().to_owned()
}

/// Calls `work` for each item on this many threads. A free thread takes the next item. Each thread has its own `tool`.
pub fn for_each<T: Sync, Tool>(
    workers: usize,
    items: &[T],
    tool: impl Fn() -> Tool + Sync,
    work: impl Fn(&mut Tool, &T) + Sync,
) {
    let next = AtomicUsize::new(0);
    let worker = || take_items(&next, items, tool(), &work);
    thread::scope(|scope| (0..workers.min(items.len())).for_each(|_| drop(scope.spawn(worker))));
}

/// Calls `work` for the item at `next` and increments `next`, until there are no more items.
fn take_items<T, Tool>(next: &AtomicUsize, items: &[T], mut tool: Tool, work: impl Fn(&mut Tool, &T)) {
    while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
        work(&mut tool, item);
    }
}

/// Runs `work` while other threads repeat `others`. The last repetitions end after `work`. Panics with the panic of `work`, or else
/// with the first panic of `others`.
pub fn while_repeating<T>(others: Vec<impl Fn() + Send>, work: impl FnOnce() -> T) -> T {
    let done = &AtomicBool::new(false);
    thread::scope(|scope| {
        let mut threads = Vec::new();
        for other in others {
            threads.push(scope.spawn(move || repeat_until(done, other)));
        }
        let worked = catch_unwind(AssertUnwindSafe(work));
        done.store(true, Ordering::Relaxed);
        let mut first_panic = None;
        for thread in threads {
            if let Err(panic) = thread.join() {
                first_panic.get_or_insert(panic);
            }
        }
        match (worked, first_panic) {
            (Ok(result), None) => result,
            (Err(panic), _) | (Ok(_), Some(panic)) => resume_unwind(panic),
        }
    })
}

/// Repeats `work` until `done` is set.
fn repeat_until(done: &AtomicBool, work: impl Fn()) {
    while !done.load(Ordering::Relaxed) {
        work();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn each_item_is_processed_once_and_a_panic_has_its_text() {
        let items = (0..100).collect::<Vec<usize>>();
        let taken = Mutex::new(Vec::new());
        let tools = AtomicUsize::new(0);
        for_each(7, &items, || tools.fetch_add(1, Ordering::Relaxed), |_, item| taken.lock().unwrap().push(*item));
        let mut taken = taken.into_inner().unwrap();
        taken.sort_unstable();
        assert_eq!((taken, tools.into_inner()), (items, 7));
        assert_eq!(catch_panic(|| panic!("a text")), Err::<(), _>("a text".to_owned()));
        assert_eq!(catch_panic(|| panic!("{} of it", 1)), Err::<(), _>("1 of it".to_owned()));
        assert_eq!(catch_panic(|| 3), Ok(3));
    }

    /// Waits until another thread has incremented a counter three times. That thread panics after `most` increments.
    fn wait_for_increments(most: usize) -> Result<&'static str, String> {
        let times = &AtomicUsize::new(0);
        let increment = || assert!(times.fetch_add(1, Ordering::Relaxed) < most, "too often");
        catch_panic(|| while_repeating(vec![increment], || wait_for_three(times)))
    }

    fn wait_for_three(times: &AtomicUsize) -> &'static str {
        while times.load(Ordering::Relaxed) <= 2 {
            thread::yield_now();
        }
        "done"
    }

    #[test]
    fn repetitions_run_until_the_work_ends_and_report_failures() {
        assert_eq!(wait_for_increments(usize::MAX), Ok("done"));
        assert_eq!(wait_for_increments(2), Err("too often".to_owned()));
        assert_eq!(
            catch_panic(|| while_repeating(vec![|| ()], || panic!("the work"))),
            Err::<(), _>("the work".to_owned())
        );
    }
}
