//! The progress line of a run, on a terminal of 80 columns and elsewhere.
use crate::party::{Bench, Process, Sink, mailrun, numbers, wait_until};
use crate::terminal::{OnTerminal, Screen, Seen};

fn has_bar(line: &str) -> bool {
    let rest = line.trim_start_matches(['━', '─']);
    rest.starts_with(' ') && (8..=24).contains(&(line.chars().count() - rest.chars().count()))
}

/// Returns the frames that show the progress line, which is recognized by its bar.
fn drawings(screen: &Screen) -> Vec<&String> {
    screen.frames.iter().filter(|frame| has_bar(frame)).collect()
}

/// Runs a command on a terminal of 80 columns, and checks that no progress line is wider. Also returns the frames that
/// show the progress line.
fn drawn(words: &[&str]) -> (Seen, Vec<String>) {
    let seen = OnTerminal::start(80, &[], words).finish();
    let frames: Vec<String> = drawings(&seen.screen).into_iter().cloned().collect();
    assert!(!frames.is_empty(), "{words:?}: {:#?}", seen.screen);
    for frame in &frames {
        assert!(frame.chars().count() < 80, "{frame}");
    }
    assert!(!seen.screen.wrapped.iter().any(|frame| frame.contains("msg/s ·")), "{:#?}", seen.screen.wrapped);
    let stays = seen.screen.lines.iter().find(|line| has_bar(line));
    assert_eq!(stays, None, "the line is removed at the end");
    (seen, frames)
}

fn full(frame: &str) -> usize {
    frame.chars().filter(|letter| *letter == '━').count()
}

#[test]
fn a_bench_shows_time_count_rate_and_latency_and_its_bar_moves() {
    let (seen, frames) =
        drawn(&["bench", "--relay", "none", "--duration", "2s", "--sessions", "4", "--reuse", "--out", "out"]);
    assert!(seen.code.is_some());
    let last = frames.iter().rfind(|frame| frame.contains(" / 2 s · ")).expect("the goal");
    assert!([" delivered · ", " msg/s", "p99 "].iter().all(|part| last.contains(part)), "{last}");
    assert!(full(last) > full(&frames[0]), "{frames:#?}");
    let count = last.split(" · ").nth(1).unwrap().replace(" delivered", "");
    assert!(count.len() <= 3 || count.contains(','), "{last}");
}

#[test]
fn a_count_moves_the_bar_too() {
    let words =
        ["bench", "--relay", "none", "--messages", "30", "--sessions", "1", "--fault", "delay 50ms", "--out", "out"];
    let (_, frames) = drawn(&words);
    assert!(frames.iter().any(|frame| frame.contains(" / 30 delivered · ")), "{frames:#?}");
    assert!(frames.iter().map(|frame| full(frame)).max() > frames.iter().map(|frame| full(frame)).min());
}

#[test]
fn a_source_and_a_sink_have_the_same_line() {
    let sink = OnTerminal::start(80, &[], &["sink", "--listen", "127.0.0.1:0"]);
    let listening = sink.wait_for("the sink to listen", |frame| frame.contains("listening on"));
    let to = listening.split("listening on ").nth(1).unwrap().trim().to_owned();
    let (seen, frames) = drawn(&["source", &to, "--duration", "1500ms", "--sessions", "2", "--reuse"]);
    assert_eq!(seen.code, Some(0));
    assert!(frames.iter().any(|frame| frame.contains(" accepted · ") && frame.contains(" msg/s")), "{frames:#?}");
    let frame = sink.wait_for("mail at the sink", |frame| frame.contains(" received · ") && numbers(frame)[1] > 0);
    assert!(frame.contains(" s · ") && frame.contains(" msg/s"), "{frame}");
    sink.terminate();
    assert_eq!(sink.finish().code, Some(0));
}

#[test]
fn mades_has_it_and_its_bar_moves() {
    let (_, frames) = drawn(&["bench", "mades", "--duration", "2s", "--rate", "50", "--out", "out"]);
    assert!(frames.iter().any(|frame| frame.contains(" / 2 s · ") && frame.contains(" delivered · ")), "{frames:#?}");
    assert!(frames.iter().map(|frame| full(frame)).max() > Some(10), "{frames:#?}");
    let endpoint = OnTerminal::start(80, &[], &["mades-endpoint", "--embedded", "--listen", "127.0.0.1:0"]);
    let ready = endpoint.wait_for("the endpoint", |frame| frame.contains("ready: AMQP 1.0 on "));
    let address = ready.split(" on ").nth(1).unwrap().split(',').next().unwrap().to_owned();
    let url = format!("amqp://{address}");
    let (_, frames) = drawn(&["mades", "--broker", &url, "--duration", "1500ms", "--rate", "50"]);
    assert!(frames.iter().any(|frame| frame.contains(" delivered · ")), "{frames:#?}");
    endpoint.wait_for("messages at the endpoint", |frame| frame.contains(" taken · ") && numbers(frame)[1] > 0);
    endpoint.terminate();
    assert!(endpoint.finish().code.is_some());
}

#[test]
fn a_relay_has_one_below_its_log() {
    let sink = Sink::start(&[]);
    let to = sink.address();
    let words = ["relay", "--listen", "127.0.0.1:0", "--to", &to, "--spool", "spool", "--log", "info"];
    let relay = OnTerminal::start(80, &[], &words);
    let listening = relay.wait_for("the relay to listen", |frame| frame.contains("listening on "));
    let at = listening.split("listening on ").nth(1).unwrap().split(',').next().unwrap().trim().to_owned();
    let ended = mailrun(&["source", &at, "--messages", "20", "--sessions", "2", "--quiet"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let frame = relay.wait_for("deliveries", |frame| frame.contains("20 accepted") && frame.contains("0 queued"));
    assert!(frame.contains(" msg/s") && frame.contains(" delivered, ") && frame.contains(" per second"), "{frame}");
    relay.terminate();
    let seen = relay.finish();
    assert_eq!(seen.code, Some(0));
    let left: Vec<&String> = seen.screen.lines.iter().filter(|line| line.contains(" queued")).collect();
    assert!(left.iter().all(|line| !line.contains("msg/s")), "the line is removed: {left:#?}");
}

#[test]
fn a_wait_says_for_what_and_how_long() {
    let words = [
        "bench",
        "--relay",
        "none",
        "--messages",
        "40",
        "--sessions",
        "2",
        "--fault",
        "drop 50%",
        "--seed",
        "1",
        "--out",
        "out",
    ];
    let (_, frames) = drawn(&words);
    let wait = frames.iter().find(|frame| frame.contains("waiting for")).expect("a wait");
    assert!(wait.contains("sent 40; waiting for ") && wait.contains(" at the sink, at most "), "{wait}");
    assert!(wait.ends_with(" s more"), "{wait}");
}

#[test]
fn an_interrupted_source_says_what_it_waits_for() {
    let sink = Sink::start(&["--fault", ".: delay 60s"]);
    let to = sink.address();
    let words = ["source", &to, "--duration", "60s", "--sessions", "3", "--no-preflight"];
    let source = OnTerminal::start(80, &[], &words);
    source.wait_for("the line", |frame| frame.contains(" accepted · "));
    source.terminate();
    let wait = source.wait_for("the wait", |frame| frame.contains("waiting for"));
    assert!(wait.contains("sent 3; waiting for 3 answers, at most ") && wait.ends_with(" s more"), "{wait}");
    assert_eq!(source.finish().code, Some(130));
}

#[test]
fn a_narrow_terminal_gets_less_and_a_plain_one_ascii() {
    let words = [
        "bench",
        "--relay",
        "none",
        "--duration",
        "1s",
        "--sessions",
        "2",
        "--reuse",
        "--out",
        "out",
        "--report",
        "none",
    ];
    let narrow = OnTerminal::start(40, &[], &words).finish();
    let frames: Vec<&String> = narrow.screen.frames.iter().filter(|frame| frame.contains(" / 1 s")).collect();
    assert!(!frames.is_empty() && frames.iter().all(|frame| frame.chars().count() < 40), "{frames:#?}");
    for variable in [("LC_ALL", "C"), ("TERM", "dumb")] {
        let plain = OnTerminal::start(80, &[variable], &words).finish();
        let frames: Vec<&String> = plain.screen.frames.iter().filter(|frame| frame.contains(" / 1 s")).collect();
        assert!(!frames.is_empty() && frames.iter().all(|frame| frame.is_ascii()), "{variable:?}: {frames:#?}");
        assert!(frames.iter().any(|frame| frame.starts_with('=') || frame.starts_with('-')), "{frames:#?}");
    }
}

#[test]
fn runs_of_a_comparison_are_counted() {
    let words = [
        "bench",
        "relay-400",
        "--messages",
        "200",
        "--sessions",
        "5",
        "--rounds",
        "2",
        "--relay",
        "mailrun",
        "--out",
        "out",
    ];
    let seen = OnTerminal::start(100, &[], &words).finish();
    let has = |part: &str| seen.screen.frames.iter().any(|frame| frame.contains(part));
    assert!(has("run 1 of 2: mailrun") && has("run 2 of 2: mailrun"), "{:#?}", seen.screen.frames);
    let words = ["bench", "smtp-source-table", "--messages", "5", "--sessions", "1", "--rounds", "2"];
    let seen = OnTerminal::start(80, &[], &words).finish();
    let counted: Vec<&String> = seen.screen.frames.iter().filter(|frame| frame.contains("run ")).collect();
    assert!(counted.iter().any(|frame| frame.contains("run 1 of ")), "{:#?}", seen.screen.frames);
    let left = |frame: &&&String| frame.contains(" left");
    assert!(counted.iter().filter(left).all(|frame| !frame.contains('.')), "whole seconds: {counted:#?}");
}

#[test]
fn elsewhere_it_is_a_line_every_five_seconds_or_nothing() {
    let words = ["--duration", "60s", "--sessions", "1", "--rate", "20"];
    let [loud, quiet] = [Bench::start(&words), Bench::start(&[words.as_slice(), &["--quiet"]].concat())];
    let line = wait_until("a line", || {
        loud.process.complained().lines().find(|line| line.contains("msg/s")).map(str::to_owned)
    });
    assert!(line.starts_with("mailrun: ") && line.contains(" / 60 s · ") && line.contains(" delivered · "), "{line}");
    assert!(!line.contains('━') && !line.contains('\r') && !line.contains('\u{1b}'), "{line}");
    assert!(!quiet.process.complained().contains("msg/s"), "{}", quiet.process.complained());
    let stop = |bench: Bench| {
        let process: &Process = &bench.process;
        process.terminate();
        bench.finish().ended
    };
    assert_eq!(stop(loud).code, Some(130));
    let quiet = stop(quiet);
    assert!(quiet.code == Some(130) && !quiet.err.contains("msg/s"), "{quiet:?}");
}
