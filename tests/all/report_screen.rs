//! The report at the end of a run: on a terminal of 80×24, on other terminals, and in a pipe.
use crate::party::{Ended, Sink, mailrun};
use crate::terminal::OnTerminal;
use serde_json::Value;

struct Shown {
    code: Option<i32>,
    report: Vec<String>,
}

fn shown(columns: u16, variables: &[(&str, &str)], words: &[&str]) -> Shown {
    let seen = OnTerminal::start(columns, variables, words).finish();
    let lines: Vec<String> = seen.screen.lines.iter().map(|line| line.trim_end().to_owned()).collect();
    let begin = lines.iter().position(|line| line.starts_with("mailrun ") && line.contains(": messages of"));
    let begin = begin.unwrap_or_else(|| panic!("no report among {lines:#?}"));
    let end = lines.iter().rposition(|line| !line.is_empty()).map_or(begin, |last| last + 1);
    Shown { code: seen.code, report: lines[begin..end].to_vec() }
}

impl Shown {
    fn text(&self) -> String {
        self.report.join("\n")
    }

    /// Asserts that the report fits a terminal of 80×24 with a prompt below it, and that it shows the rate, p50 and
    /// p99, the reason, and the verdict last.
    fn expect(&self, code: i32, verdict: &str, why: &str) {
        let text = self.text();
        assert_eq!(self.code, Some(code), "{text}");
        assert!(self.report.len() <= 23, "{} lines\n{text}", self.report.len());
        assert!(self.report.iter().all(|line| line.chars().count() <= 80), "{text}");
        let last = self.report.iter().rev().take(2).any(|line| line.starts_with(verdict));
        assert!(last, "{verdict} in the last two lines of\n{text}");
        for word in ["p50", "p99", "msg/s", "details: mailrun-results/"] {
            assert!(text.contains(word), "{word} in\n{text}");
        }
        let said = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(said.contains(why), "{why} in\n{text}");
        assert!(!text.contains(" 0 lost") && !text.contains("lost 0"), "a zero is no news\n{text}");
    }
}

const SMALL: [&str; 6] = ["--messages", "400", "--sessions", "4", "--reuse", "--relay=none"];

fn small<'a>(words: &[&'a str]) -> Vec<&'a str> {
    [&["bench"][..], &SMALL[..], words].concat()
}

#[test]
fn a_run_that_passes_is_on_one_screen() {
    let shown = shown(80, &[], &["bench", "--messages", "400", "--sessions", "4"]);
    if shown.code == Some(0) && shown.text().contains("\nPASS") {
        shown.expect(0, "PASS ", "400 delivered, none lost");
        assert!(shown.text().contains("CPU, memory: source "), "{}", shown.text());
    } else {
        // The run is invalid if this machine was the bottleneck.
        shown.expect(0, "INVALID ", "");
    }
}

#[test]
fn a_run_that_fails_says_why_on_the_same_screen() {
    let rejected = shown(80, &[], &small(&["--fault", "rcpt: hard reject 5%", "--threshold", "rejected <= 0.1%"]));
    rejected.expect(1, "FAIL ", "Threshold missed: rejected <= 0.1%");
    let text = rejected.text();
    assert!(text.contains("MISSED") && text.contains("at rcpt: ") && text.contains("· rejected "), "{text}");
    let lost = shown(80, &[], &small(&["--fault", "drop 0.05", "--threshold", "lost <= 0"]));
    lost.expect(1, "FAIL ", "Threshold missed: lost <= 0");
    assert!(lost.text().contains("· lost "), "{}", lost.text());
    let late = shown(80, &[], &small(&["--threshold", "accepted.p99 < 1us", "--threshold", "accepted.p50 < 1m"]));
    late.expect(1, "FAIL ", "Threshold missed: accepted.p99 < 1us");
}

#[test]
fn a_server_that_goes_away_is_on_the_screen_with_its_second() {
    let sink = Sink::start(&["--max-messages", "40"]);
    let address = sink.address();
    let gone = shown(80, &[], &["bench", &address, "--sessions", "4", "--duration", "4s"]);
    gone.expect(1, "FAIL ", "The server stopped answering at ");
    assert!(gone.text().contains("errors in second"), "{}", gone.text());
}

#[test]
fn a_rate_that_was_not_offered_is_on_the_screen() {
    let words =
        ["bench", "--relay=none", "--rate", "200", "--duration", "2s", "--sessions", "2", "--fault", "delay 100ms"];
    shown(80, &[], &words).expect(3, "INVALID ", "of the 200/s asked for");
}

#[test]
fn a_run_that_is_interrupted_has_its_report() {
    let run = OnTerminal::start(80, &[], &["bench", "--relay=none", "--duration", "60s", "--sessions", "2"]);
    run.wait_for("the load to begin", |frame| frame.contains("msg/s"));
    run.terminate();
    let seen = run.finish();
    let text = seen.screen.lines.join("\n");
    assert_eq!(seen.code, Some(130), "{text}");
    assert!(text.contains("The run was interrupted before its end.") && text.contains("p99"), "{text}");
}

#[test]
fn mades_has_the_same_screen() {
    let quiet = ["--quiet", "--report", "short"];
    let load = ["bench", "mades", "--preset", "ideal", "--messages", "200", "--max-in-transit", "20"];
    let words = [load.as_slice(), &quiet].concat();
    let shown = shown(80, &[], &words);
    let verdict = if shown.text().contains("\nPASS") { "PASS " } else { "INVALID " };
    shown.expect(0, verdict, "(mode endpoint)");
    assert!(shown.text().contains(" RECEIVED "), "{}", shown.text());
}

#[test]
fn other_widths_split_no_number() {
    for columns in [40, 200] {
        for report in ["short", "full"] {
            let shown = OnTerminal::start(columns, &[], &small(&["--quiet", "--report", report])).finish().screen;
            let folded = shown.wrapped.iter().all(|line| line.ends_with("report.md"));
            assert!(folded, "only the path may be folded: {:?}", shown.wrapped);
            let row = shown.lines.iter().find(|line| line.starts_with(" accepted ")).expect("a row of the stage");
            let is_whole = |word: &&str| word.replace(',', "").parse::<f64>().is_ok();
            let figures = row.split_whitespace().skip(1).filter(|word| !["source", "created"].contains(word));
            assert!(figures.clone().count() >= 2 && figures.clone().all(|word| is_whole(&word)), "{row}");
        }
    }
}

#[test]
fn where_the_locale_has_no_utf_8_all_is_ascii() {
    for variables in [[("LC_ALL", "C"), ("TERM", "xterm")], [("LC_ALL", "C.UTF-8"), ("TERM", "dumb")]] {
        for report in ["short", "full"] {
            let screen = OnTerminal::start(80, &variables, &small(&["--quiet", "--report", report])).finish().screen;
            let odd = screen.lines.iter().find(|line| !line.is_ascii());
            assert_eq!(odd, None, "{variables:?}");
        }
    }
    let screen = OnTerminal::start(80, &[], &small(&["--quiet", "--report", "full"])).finish().screen;
    assert!(screen.lines.iter().any(|line| line.contains('─')), "{:?}", screen.lines);
}

fn json(ended: &Ended) -> Value {
    serde_json::from_str(&ended.out).unwrap_or_else(|error| panic!("{error}: {ended:?}"))
}

#[test]
fn json_on_standard_output_is_alone_there() {
    let ended = mailrun(&small(&["--json", "-"]));
    assert_eq!(json(&ended)["format"], "mailrun-run/1");
    assert!(ended.err.contains("details: mailrun-results/"), "{}", ended.err);
    let sink = Sink::start(&[]);
    let ended = mailrun(&["source", &sink.address(), "--messages", "20", "--json", "-", "--report", "none"]);
    assert_eq!((json(&ended)["ledger"]["accepted"].as_u64(), ended.err.as_str()), (Some(20), ""));
    let mades = ["bench", "mades", "--preset", "ideal", "--messages", "20", "--max-in-transit", "5", "--quiet"];
    let ended = mailrun(&[mades.as_slice(), &["--json", "-"]].concat());
    assert_eq!(json(&ended)["ledger"]["created"].as_u64(), Some(20));
    assert_eq!(ended.err.lines().count(), 1, "the verdict alone: {}", ended.err);
    let refused = mailrun(&["source", &sink.address(), "--live", "json", "--json", "-"]);
    assert!(refused.code == Some(2) && refused.err.contains("standard output"), "{refused:?}");
    let ended = mailrun(&["bench", "--json", "/dev/null/run.json"]);
    assert!(ended.code == Some(2) && ended.err.contains("cannot write /dev/null/run.json"), "{ended:?}");
}

#[test]
fn quiet_is_the_verdict_and_none_is_nothing() {
    let quiet = mailrun(&small(&["--quiet"]));
    assert_eq!((quiet.out.lines().count(), quiet.err.as_str()), (1, ""), "{quiet:?}");
    assert!(quiet.out.contains(" msg/s, p99 "), "{quiet:?}");
    let failed = mailrun(&small(&["--threshold", "accepted.p99 < 1us", "--report", "none", "--quiet"]));
    assert_eq!((failed.code, failed.out.as_str(), failed.err.as_str()), (Some(1), "", ""), "{failed:?}");
    let full = mailrun(&small(&["--report", "full", "--quiet"]));
    for title in ["WORKLOAD", "LATENCY", "PHASES", "LEDGER", "PROCESSES", "HOST"] {
        assert!(full.out.contains(title), "{title} in\n{}", full.out);
    }
    let last = full.out.lines().last().unwrap_or_default();
    assert!(last.starts_with("PASS ") || last.starts_with("INVALID "), "{}", full.out);
}

#[test]
fn colours_are_used_where_they_are_wanted() {
    assert!(!mailrun(&small(&["--quiet"])).out.contains('\u{1b}'), "a pipe has none");
    assert!(mailrun(&small(&["--quiet", "--color", "always"])).out.contains("\u{1b}["));
}

const CONTEST: [&str; 8] = ["bench", "relay-400", "--messages", "100", "--sessions", "4", "--rounds", "1"];

#[test]
fn a_contest_has_its_figures_and_its_verdict_on_one_screen() {
    let seen =
        OnTerminal::start(80, &[], &[&CONTEST[..], &["--compare", "mailrun,none,mailrun:write"]].concat()).finish();
    let lines: Vec<&str> = seen.screen.lines.iter().map(|line| line.trim_end()).collect();
    let begin = lines.iter().position(|line| line.starts_with("relay-400: ")).expect("a table");
    let end = lines.iter().rposition(|line| !line.is_empty()).expect("a last line") + 1;
    let shown = &lines[begin..end];
    let text = lines[begin..end].join("\n");
    assert!(shown.len() <= 23 && shown.iter().all(|line| line.chars().count() <= 80), "{} lines\n{text}", shown.len());
    for word in ["accepted/s", "delivered/s", " mailrun", " none", "details: "] {
        assert!(text.contains(word), "{word} in\n{text}");
    }
    let verdict = shown
        .iter()
        .rev()
        .take(3)
        .any(|line| ["PASS 3 runs", "INVALID ", "FAIL "].iter().any(|start| line.starts_with(start)));
    assert!(verdict && text.contains("/table.txt\n"), "{text}");
    assert_eq!(seen.code, Some(i32::from(text.contains("\nFAIL "))), "{text}");
}

#[test]
fn scenarios_take_the_options_of_a_report_that_mean_something() {
    let quiet = mailrun(&[&CONTEST[..], &["--relay", "none", "--quiet", "--color", "always"]].concat());
    assert_eq!((quiet.out.lines().count(), quiet.err.as_str()), (1, ""), "{quiet:?}");
    assert!(quiet.out.starts_with("\u{1b}[1;3"), "the verdict in its colour: {quiet:?}");
    let check = ["bench", "smtp-source-table", "--messages", "5", "--sessions", "1"];
    let none = mailrun(&[&check[..], &["--quiet", "--report", "none"]].concat());
    assert_eq!((none.code, none.out.as_str(), none.err.as_str()), (Some(0), "", ""), "{none:?}");
    let screen =
        OnTerminal::start(80, &[("LC_ALL", "C")], &[&check[..], &["--report", "full"]].concat()).finish().screen;
    assert!(screen.lines.iter().any(|line| line.starts_with("PASS ")), "{screen:?}");
    assert_eq!(screen.lines.iter().find(|line| !line.is_ascii()), None);
}

#[test]
fn scenarios_take_the_same_options_of_a_report() {
    for scenario in
        ["relay-400", "relay-64k", "relay-100k", "relay-latency", "backlog", "relay-soak", "smtp-source-table"]
            .into_iter()
            .chain(["mades-compare", "kotlin-profile", "sizes", "large-message"])
    {
        let ended = mailrun(&["bench", scenario, "--json", "/dev/null/table.json"]);
        assert_eq!((ended.code, ended.out.as_str(), ended.err.lines().count()), (Some(2), "", 1), "{ended:?}");
        assert!(ended.err.contains("/dev/null/table.json"), "it is refused before the first run: {ended:?}");
        let help = mailrun(&["bench", scenario, "--help"]).out;
        for option in ["--report <WHICH>", "--quiet", "--color <WHEN>", "--json <FILE>"] {
            assert!(help.contains(option), "{option} of {scenario}: {help}");
        }
    }
}

#[test]
fn a_scenario_leaves_a_record_with_the_figures_of_each_run() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("table.json").display().to_string();
    let table = ["bench", "smtp-source-table", "--messages", "5", "--sessions", "1", "--rounds", "2"];
    let ended = mailrun(&[&table[..], &["--report", "full", "--json", &file]].concat());
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let shown = mailrun(&["report", &file]);
    let verdict = ended.out.lines().last().unwrap();
    assert_eq!((shown.code, shown.out.lines().last()), (Some(0), Some(verdict)), "{shown:?}");
    let runs = shown.out.split("\n\n").find(|part| part.starts_with(" run of")).unwrap();
    let own = runs.lines().filter(|line| line.starts_with(" mailrun smtp-source → mailrun sink, 1 session, -d"));
    assert_eq!(own.count(), 2, "one for each round: {runs}");
    let short = mailrun(&["report", &file, "--format", "short"]).out;
    assert!(!short.contains(" run of") && short.contains(" mailrun "), "{short}");
    let markdown = mailrun(&["report", &file, "--format", "md"]).out;
    assert!(markdown.starts_with("## smtp-source-table: 5 messages") && markdown.contains("\n| mailrun"), "{markdown}");
    assert_eq!(mailrun(&["report", &file, "--format", "json"]).out, std::fs::read_to_string(&file).unwrap());
    for (words, expected) in [
        (&["report", &file, "--format", "junit"][..], "has no format junit, but text, short, md and json"),
        (&["report", &file, &file], "name it alone"),
        (&["compare", &file, "--against", &file], "is of a comparison of several runs"),
    ] {
        let refused = mailrun(words);
        assert!(refused.code == Some(2) && refused.err.contains(expected), "{refused:?}");
    }
    let last = mailrun(&[&table[..], &["--json", "-"]].concat());
    assert!(last.out.starts_with('{') && last.err.lines().any(|line| line.starts_with("PASS ")), "{last:?}");
}

/// Returns the titles with which the lines of a report begin, and the word of its verdict, without the figures.
fn labels(report: &str) -> Vec<String> {
    let starts = ["mailrun bench:", "accepted/s", " in ms", " accepted", " delivered", "slowest phase:", "created"];
    let ends = ["CPU, memory:", "details:", "PASS", "INVALID", "FAIL"];
    let of = |line: &str| starts.into_iter().chain(ends).find(|start| line.starts_with(start)).map(str::to_owned);
    report.lines().filter_map(of).collect()
}

#[test]
fn the_sample_in_the_readme_is_a_report_of_today() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md");
    let readme = std::fs::read_to_string(path).unwrap();
    let block =
        readme.split("```text").find(|block| block.trim_start().starts_with("mailrun bench:")).expect("a sample");
    let block = block.split("```").next().unwrap_or(block);
    let sample = block.trim_matches('\n');
    assert!(sample.lines().count() <= 23 && sample.lines().all(|line| line.chars().count() <= 80), "{sample}");
    let shown = shown(80, &[], &["bench", "--duration", "2s", "--sessions", "4"]);
    let today = labels(&shown.text());
    let sample = labels(sample);
    let without_verdict = |labels: &[String]| labels[..labels.len() - 1].to_vec();
    assert_eq!(without_verdict(&sample), without_verdict(&today), "{}", shown.text());
    assert_eq!(sample.last().map(String::as_str), Some("PASS"));
}
