//! Shows the dashboard of the sample run until the user stops it (`q`, Ctrl-C). Tests of the
//! terminal use it because its screens are the same each time.
//!
//! ```text
//! dashboard_replay              says on standard output how it ended
//! dashboard_replay panic        panics as soon as the dashboard is shown
//! dashboard_replay error        ends with status 2 as soon as it is shown
//! dashboard_replay 20           shows new figures for 20 s, and then the processor time of its thread
//! ```
use mailrun_dashboard::live_display::LiveDisplay;
use mailrun_dashboard::sample;
use mailrun_process::interrupt::{Interrupt, StopRequest};
use mailrun_process::live::{LiveMode, LiveProgress};
use mailrun_process::live_line::{LiveLine, NonTerminalOutput};
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

fn main() -> anyhow::Result<ExitCode> {
    let interrupt = Interrupt::watch()?;
    let mut display = LiveDisplay::on_stderr(LiveMode::Dashboard, NonTerminalOutput::Nothing);
    for figures in sample::snapshots() {
        display.update(|| figures);
    }
    let ending = std::env::args().nth(1).unwrap_or_default();
    if let Ok(seconds) = ending.parse() {
        return measure(display, seconds);
    }
    mailrun_process::tell!("a line that was told meanwhile");
    while interrupt.requested() == StopRequest::Nothing {
        display.show(|| LiveLine::of(&LiveProgress::default(), 0, "accepted", 0.0));
        std::thread::sleep(Duration::from_millis(50));
        match ending.as_str() {
            "panic" => panic!("asked for"),
            "error" => return Ok(ExitCode::from(2)),
            _ => {}
        }
    }
    display.clear();
    writeln!(io::stdout(), "stopped, {:?}", interrupt.requested())?;
    Ok(ExitCode::SUCCESS)
}

/// Shows figures that change four times a second, as in a run, and then prints the CPU time that the dashboard's thread
/// has used.
fn measure(mut display: LiveDisplay, seconds: u64) -> anyhow::Result<ExitCode> {
    let last = sample::snapshots().pop().unwrap_or_default();
    for number in 1..=seconds * 4 {
        let mut now = last.clone();
        now.elapsed_s += number as f64 / 4.0;
        now.messages.sent += number * 250;
        now.messages.accepted += number * 240 + number * number % 50;
        now.messages.delivered = now.messages.delivered.map(|before| before + number * 240);
        now.queue = number * 37 % 200;
        display.update(|| now);
        std::thread::sleep(Duration::from_millis(250));
    }
    let used_s = thread_seconds();
    display.clear();
    let share = used_s * 100.0 / seconds as f64;
    writeln!(io::stdout(), "the dashboard used {used_s:.2} s in {seconds} s: {share:.2} % of a core")?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the CPU time of the thread that draws, which the kernel reports in ticks of 10 ms.
fn thread_seconds() -> f64 {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let times = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("stat")).ok());
    let drawn = times.filter(|stat| stat.contains("(dashboard)"));
    let fields =
        |stat: String| stat.rsplit(") ").next().map(|rest| rest.split(' ').map(str::to_owned).collect::<Vec<_>>());
    let ticks = |fields: Vec<String>| Some(fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?);
    drawn.filter_map(fields).filter_map(ticks).sum::<u64>() as f64 / 100.0
}
