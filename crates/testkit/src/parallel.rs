//! Many things at once.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

/// Runs `work` and catches its panic.
///
/// # Errors
/// The message of the panic.
pub fn catch_panic<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| said(panic.as_ref()))
}

/// The text of a panic.
fn said(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
}

/// Calls `work` for each item, with this many workers: a worker that is free takes the next item. Each worker has a tool of its
/// own.
pub fn for_each<T: Sync, Tool>(
    workers: usize,
    items: &[T],
    tool: impl Fn() -> Tool + Sync,
    work: impl Fn(&mut Tool, &T) + Sync,
) {
    let next = AtomicUsize::new(0);
    let worker = || {
        let mut tool = tool();
        while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
            work(&mut tool, item);
        }
    };
    thread::scope(|scope| (0..workers.min(items.len())).for_each(|_| drop(scope.spawn(worker))));
}

/// Runs `work` while the others repeat theirs; their last repetition ends after it. Panics with its panic, or else with the
/// first of theirs.
pub fn while_repeating<T>(others: Vec<impl Fn() + Send>, work: impl FnOnce() -> T) -> T {
    let done = &AtomicBool::new(false);
    let (worked, went) = thread::scope(|scope| {
        let go_on = |other: &dyn Fn()| {
            while !done.load(Ordering::Relaxed) {
                other();
            }
        };
        let others: Vec<_> = others.into_iter().map(|other| scope.spawn(move || go_on(&other))).collect();
        let worked = catch_unwind(AssertUnwindSafe(work));
        done.store(true, Ordering::Relaxed);
        let went: Vec<_> = others.into_iter().map(thread::ScopedJoinHandle::join).collect();
        (worked, went.into_iter().find_map(Result::err))
    });
    match (worked, went) {
        (Ok(done), None) => done,
        (Err(panic), _) | (Ok(_), Some(panic)) => resume_unwind(panic),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn each_is_taken_once_and_a_panic_says_its_text() {
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

    #[test]
    fn others_go_on_until_the_work_is_done_and_what_befell_them_is_known() {
        let times = &AtomicUsize::new(0);
        let until = |most: usize| {
            let other = move || {
                assert!(times.fetch_add(1, Ordering::Relaxed) < most, "too often");
            };
            catch_panic(|| {
                while_repeating(vec![other], || {
                    while times.load(Ordering::Relaxed) <= 2 {
                        thread::yield_now();
                    }
                    "done"
                })
            })
        };
        assert_eq!(until(usize::MAX), Ok("done"));
        times.store(0, Ordering::Relaxed);
        assert_eq!(until(2), Err("too often".to_owned()));
        assert_eq!(
            catch_panic(|| while_repeating(vec![|| ()], || panic!("the work"))),
            Err::<(), _>("the work".to_owned())
        );
    }
}
