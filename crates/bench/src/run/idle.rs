//! Measurements that are too small for a row, or depend on the machine too much.

use std::hint::black_box;
use std::sync::mpsc;
use std::time::{Duration, Instant};
use std::{fs, thread};

use cnikit_process::Deadline;
use cnikit_skel::log;

use crate::figures::median;

/// The cost of one log step while the log is off, in nanoseconds, without the work of the step: the smallest of a few measurements,
/// which the machine disturbed least. It is 0 or negative if the compiler removed the step.
pub(crate) fn log_step() -> f64 {
    let bare = least_time(&|n| n);
    let step = least_time(&|n| log::step(format_args!("step {n}"), || Ok(n)).unwrap_or_default());
    step - bare
}

/// The least time of a piece of work in nanoseconds, each time an average of many runs.
fn least_time(work: &dyn Fn(u32) -> u32) -> f64 {
    const STEPS: u32 = 200_000;
    const TIMES: usize = 5;
    let mut least = f64::INFINITY;
    for _ in 0..TIMES {
        let began = Instant::now();
        for n in 0..STEPS {
            black_box(work(black_box(n)));
        }
        least = least.min(began.elapsed().as_secs_f64() * 1e9 / f64::from(STEPS));
    }
    least
}

/// The time in microseconds until a sleeping thread runs after it is woken. It is half the time of many small calls, depends on
/// idle states of the machine and on its host, and is not part of a fixed piece of work.
pub(crate) fn waking() -> f64 {
    const TIMES: usize = 100;
    let (wake, woken) = mpsc::channel::<Instant>();
    let sleeper = thread::spawn(move || woken.iter().map(|sent| sent.elapsed().as_secs_f64() * 1e6).collect());
    for _ in 0..TIMES {
        Deadline::never().pause(Duration::from_millis(1)); // until it sleeps too
        let _ = wake.send(Instant::now());
    }
    drop(wake);
    let took: Vec<f64> = sleeper.join().unwrap_or_default();
    median(&took)
}

/// The share of the last ten seconds, in percent, in which a process had to wait for a processor. It needs a kernel with pressure
/// stall information; see `Documentation/accounting/psi.rst` of the kernel.
fn pressure() -> Result<f64, String> {
    const FILE: &str = "/proc/pressure/cpu";
    let text = fs::read_to_string(FILE).map_err(|error| format!("{FILE}: {error}"))?;
    share(&text).ok_or_else(|| format!("{FILE}: not understood: {text}"))
}

/// `avg10` of a line such as `some avg10=0.00 avg60=0.12 avg300=0.05 total=1234`.
fn share(text: &str) -> Option<f64> {
    let words = text.lines().find_map(|line| line.strip_prefix("some "))?;
    words.split(' ').find_map(|word| word.strip_prefix("avg10="))?.parse().ok()
}

/// Waits until hardly any process waits for a processor.
///
/// # Errors
/// It is not so after ten minutes, or this kernel cannot tell.
pub(crate) fn wait_for_quiet() -> Result<(), String> {
    const MOST: f64 = 1.0;
    let deadline = Deadline::after(Duration::from_mins(10));
    loop {
        let pressure = pressure()?;
        if pressure < MOST {
            return Ok(());
        }
        if deadline.passed() {
            return Err(format!(
                "the machine is too busy to measure on: {pressure} % of the time a process waits for a processor"
            ));
        }
        deadline.pause(Duration::from_secs(1));
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_pressure_of_ten_seconds_is_read() {
        let text = "some avg10=0.12 avg60=7.00 avg300=9.00 total=12\nfull avg10=3.00 avg60=0.00 avg300=0.00 total=0\n";
        assert_eq!(super::share(text), Some(0.12));
        assert_eq!(super::share("full avg10=3.00"), None);
    }

    #[test]
    fn a_disabled_log_step_and_a_wakeup_are_measured() {
        let step = super::log_step();
        assert!(step > 0.0 && step < 10_000.0, "{step} ns");
        assert!((0.1..1e6).contains(&super::waking()));
    }
}
