//! `mailrun capacity`: a search finds the rate that a server with a limit can take. Lost mail, overload and Ctrl-C end
//! the search, each with its own result.
use crate::party::{Ended, MAILRUN, Process, Sink, mailrun, skip, wait_until};
use crate::stand_in_endpoint::Endpoint;
use serde_json::Value;
use std::fs;
use std::path::Path;

/// Options for a search that takes only seconds, with five trials of 200 ms per load.
const SHORT: [&str; 6] = ["--quick", "--trial", "200ms", "--confirm", "200ms", "--reuse"];

fn capacity(words: &[&str], out: &Path) -> (Ended, Value) {
    let (before, after) = words.split_at(words.iter().position(|word| *word == "--").unwrap_or(words.len()));
    let ended = mailrun(&[&["capacity"], before, &["--out", out.to_str().unwrap()], after].concat());
    let json = fs::read_to_string(out.join("capacity.json")).unwrap_or_else(|_| panic!("{ended:?}"));
    (ended, serde_json::from_str(&json).unwrap())
}

#[test]
fn a_server_with_a_limit_reads_that_limit() {
    let place = tempfile::tempdir().unwrap();
    let sink = Sink::start(&["--fault", "mail: limit 400/s burst 40"]);
    let server = sink.address();
    let words = [&[server.as_str(), "--goal", "rejected <= 2%", "--peak", "600/s", "--json", "-"], &SHORT[..]].concat();
    let (ended, written) = capacity(&words, place.path());
    let result: Value = serde_json::from_str(&ended.out).unwrap();
    assert_eq!((&result, &result["format"]), (&written, &"mailrun-capacity/1".into()));
    assert!(!result["trials"].as_array().unwrap().is_empty(), "{result}");
    if ended.code == Some(3) || result["goals"][0]["finding"] != "found" {
        // Skip the test, because a machine that is busy with other tests cannot always offer the rate.
        return skip("mailrun capacity", &format!("{}", result["capacity"]["verdict"]));
    }
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let rate = result["capacity"]["rate_per_s"].as_f64().unwrap();
    // The sink's limit is 400/s, but the range is wide. In a trial of 0.8 s, the sink accepts 320 messages and the
    // burst of 40, which makes 450/s. If the machine stalls, the source sends bursts, and the sink refuses a part of
    // them.
    assert!((200.0..=600.0).contains(&rate), "{rate}: {result}");
    let plan = &result["plan"];
    assert!((plan["stable_per_s"].as_f64().unwrap() - rate * 0.6).abs() < 0.01, "{plan}");
    assert!(plan["instances"].as_u64().unwrap() >= 1, "{plan}");
    let text = fs::read_to_string(place.path().join("capacity.txt")).unwrap();
    assert!(text.contains("rejected <= 2%") && text.contains("good  bad  void") && text.contains("Plan: "), "{text}");
    assert!(text.lines().last().unwrap().starts_with("CAPACITY  "), "{text}");
    let page = fs::read_to_string(place.path().join("capacity.html")).unwrap();
    assert!(page.contains("</span> CAPACITY</strong>") && page.contains("id=\"knee\""), "{page}");
}

#[test]
fn a_server_has_as_many_cores_as_each_search_gives_it() {
    let place = tempfile::tempdir().unwrap();
    let out = place.path().join("out");
    let script = place.path().join("relay.sh");
    let start = format!(
        "grep Cpus_allowed_list /proc/self/status >> {}/cpus\nexec {MAILRUN} relay --listen \"$1\" --to \"$2\" --spool \"$3\"\n",
        place.path().display()
    );
    fs::write(&script, start).unwrap();
    let relay = format!("/bin/sh {} {{listen}} {{to}} {{spool}}", script.display());
    let counts = if std::thread::available_parallelism().unwrap().get() > 1 { "2,1" } else { "1" };
    let words = ["capacity", "--relay", &relay, "--server-cores", counts, "--max-rate", "40/s", "--min-rate", "20/s"];
    let ended = mailrun(&[&words, &SHORT[..5], &["--json", "-", "--out", out.to_str().unwrap()]].concat());
    let result: Value = serde_json::from_str(&ended.out).unwrap_or_else(|_| panic!("{ended:?}"));
    let rows = result["by_cores"].as_array().unwrap();
    assert_eq!(rows.len(), counts.split(',').count(), "{result}");
    for (row, cores) in rows.iter().zip(1u32..) {
        assert_eq!(row["cores"], cores, "{result}");
        let per_core = row["rate_per_s"].as_f64().map(|per_s| per_s / f64::from(cores));
        assert_eq!(row["per_core_per_s"].as_f64(), per_core, "{result}");
        assert!(Path::new(row["directory"].as_str().unwrap()).join("capacity.json").is_file(), "{result}");
    }
    // In the first trial, the relay is limited to one processor, so its list of processors is a single number.
    let lists = fs::read_to_string(place.path().join("cpus")).unwrap();
    let first = lists.lines().next().unwrap().trim_start_matches("Cpus_allowed_list:").trim();
    assert!(first.parse::<u32>().is_ok(), "{lists}");
}

#[test]
fn all_trials_have_one_relay() {
    let place = tempfile::tempdir().unwrap();
    let script = place.path().join("relay.sh");
    let start = format!(
        "echo $$ >> {}/pids\nexec {MAILRUN} relay --listen \"$1\" --to \"$2\" --spool \"$3\"\n",
        place.path().display()
    );
    fs::write(&script, start).unwrap();
    let relay = format!("/bin/sh {} {{listen}} {{to}} {{spool}}", script.display());
    let words = ["--relay", &relay, "--min-rate", "20/s", "--max-rate", "40/s"];
    let (ended, result) = capacity(&[&words, &SHORT[..]].concat(), &place.path().join("out"));
    assert!(result["trials"].as_array().unwrap().len() > 1, "{ended:?}");
    // On a busy machine a trial may leave mail in the queue. The bench then restarts the relay.
    let restarts = result["remarks"].as_array().unwrap().iter().filter_map(Value::as_str).find_map(|remark| {
        let times = remark.strip_prefix("The server was started anew ")?.split(' ').next()?;
        Some(times.parse().unwrap_or(1))
    });
    let pids = fs::read_to_string(place.path().join("pids")).unwrap();
    // There may be fewer processes: if mail is left after the last trial, the remark counts a restart, but the bench
    // only stops the relay.
    let most = 1 + restarts.unwrap_or(0);
    assert!((1..=most).contains(&pids.lines().count()), "{pids} {result}");
    assert!(!place.path().join("out/relay-1/relay.spool").exists(), "{ended:?}");
}

#[test]
fn trials_of_random_arrival_have_bursts_of_their_own() {
    let place = tempfile::tempdir().unwrap();
    let words = ["--min-rate", "100/s", "--max-rate", "200/s", "--", "--arrival", "poisson"];
    let (ended, result) = capacity(&[&SHORT[..], &words].concat(), place.path());
    let mut seeds = Vec::new();
    for trial in result["trials"].as_array().unwrap().iter().filter(|trial| !trial["rate_per_s"].is_null()) {
        let record = fs::read(place.path().join(trial["directory"].as_str().unwrap()).join("run.json")).unwrap();
        let record: Value = serde_json::from_slice(&record).unwrap();
        assert_eq!(record["workload"]["arrival"], "poisson", "{ended:?}");
        seeds.push(record["workload"]["seed"].as_u64().unwrap());
    }
    assert!(!seeds.is_empty(), "{ended:?}");
    seeds.sort_unstable();
    assert!(seeds.windows(2).all(|pair| pair[0] != pair[1]), "{seeds:?}");
}

#[test]
fn a_goal_that_is_missed_at_the_lowest_rate_fails() {
    let place = tempfile::tempdir().unwrap();
    let sink = Sink::start(&["--fault", "reject 100%"]);
    let server = sink.address();
    let words = [&[server.as_str(), "--min-rate", "500/s", "--max-rate", "800/s"], &SHORT[..]].concat();
    let (ended, result) = capacity(&words, place.path());
    if ended.code == Some(3) {
        return skip("mailrun capacity", &format!("{}", result["capacity"]["verdict"]));
    }
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.out.ends_with("FAIL  Missed at 500/s: accepted.within(60s) >= 100%\n"), "{ended:?}");
    assert_eq!(
        (&result["capacity"]["rate_per_s"], &result["goals"][0]["finding"]),
        (&Value::Null, &"lowest_rate_missed".into())
    );
}

#[test]
fn changed_mail_ends_the_search() {
    let place = tempfile::tempdir().unwrap();
    let sink = Sink::start(&["--fault", "corrupt 20%"]);
    let server = sink.address();
    let words = [&[server.as_str(), "--sink", sink.url(), "--goal", "delivered.p99 < 1s"], &SHORT[..]].concat();
    let (ended, result) = capacity(&words, place.path());
    assert_eq!((ended.code, result["trials"].as_array().map(Vec::len)), (Some(1), Some(1)), "{ended:?}");
    let verdict = ended.out.lines().last().unwrap();
    assert!(verdict.starts_with("FAIL  Corrupt: "), "{ended:?}");
}

#[test]
fn mail_that_another_server_did_not_deliver_ends_the_search() {
    let place = tempfile::tempdir().unwrap();
    let sink = Sink::start(&["--fault", "drop 20%"]);
    let server = sink.address();
    let words = [server.as_str(), "--sink", sink.url(), "--goal", "delivered.p99 < 1s", "--lost-after", "500ms"];
    let (ended, result) = capacity(&[&words, &SHORT[..]].concat(), place.path());
    // On a busy machine, earlier trials may be void. The search must still end because of lost mail.
    assert_eq!((ended.code, &result["capacity"]["ending"]), (Some(3), &"mail_lost".into()), "{ended:?}");
    let verdict = ended.out.lines().last().unwrap();
    assert!(verdict.starts_with("INCONCLUSIVE  ") && verdict.contains("were not delivered within 0.5 s"), "{ended:?}");
}

#[test]
fn ctrl_c_prints_what_is_known() {
    let place = tempfile::tempdir().unwrap();
    let out = place.path().join("out");
    let running = Process::start(MAILRUN, &["capacity", "--trial", "500ms", "--out", out.to_str().unwrap()]);
    wait_until("the second trial", || out.join("trial-002").is_dir().then_some(()));
    running.interrupt_group();
    let ended = running.finish();
    assert_eq!(ended.code, Some(130), "{ended:?}");
    assert!(ended.out.lines().last().unwrap().starts_with("Interrupted"), "{ended:?}");
    assert!(ended.out.contains("flat out (closed loop): "), "{ended:?}");
    let result: Value = serde_json::from_str(&fs::read_to_string(out.join("capacity.json")).unwrap()).unwrap();
    assert_eq!(result["capacity"]["ending"], "stopped", "{result}");
}

#[test]
fn a_trial_that_cannot_run_leaves_the_trials_before_it() {
    let place = tempfile::tempdir().unwrap();
    fs::write(place.path().join("trial-002"), "the trial cannot have a directory of this name").unwrap();
    let (ended, result) = capacity(&SHORT, place.path());
    assert_eq!((ended.code, result["trials"].as_array().unwrap().len()), (Some(2), 1), "{ended:?} {result}");
    assert_eq!(result["capacity"]["ending"], "stopped", "{result}");
    let remarks = result["remarks"].to_string();
    assert!(remarks.contains("The search ended early") && ended.err.contains("trial-002"), "{remarks} {ended:?}");
    assert!(ended.out.lines().last().unwrap().starts_with("Ended early"), "{ended:?}");
}

const MADES: [&str; 7] = ["mades", "--quick", "--trial", "300ms", "--confirm", "300ms", "--payload-size=100"];

#[test]
fn messages_that_an_endpoint_lost_end_the_search() {
    let place = tempfile::tempdir().unwrap();
    let words = ["--drop", "50%", "--message-timeout", "2s", "--max-in-transit", "20"];
    let (ended, result) = capacity(&[&MADES[..], &words].concat(), place.path());
    assert_eq!((ended.code, result["trials"].as_array().map(Vec::len)), (Some(1), Some(1)), "{ended:?}");
    assert!(ended.out.lines().last().unwrap().starts_with("FAIL  Lost: "), "{ended:?}");
}

#[test]
fn an_endpoint_that_is_running_is_searched_too() {
    let place = tempfile::tempdir().unwrap();
    let endpoint = Endpoint::embedded(&[]);
    let words = ["--broker", &endpoint.url, "--min-rate", "20/s", "--max-rate", "40/s", "--arrival", "poisson"];
    let (ended, result) = capacity(&[&MADES[..], &words].concat(), place.path());
    assert!(result["trials"].as_array().unwrap().len() > 1, "{ended:?}");
    assert!(!place.path().join("trial-001/plan.toml").exists(), "no stand-in was started");
    let record = fs::read(place.path().join("trial-002/run.json")).unwrap();
    let record: Value = serde_json::from_slice(&record).unwrap();
    assert_eq!(record["mades"]["mode"], "endpoint");
    assert_eq!(
        (&record["workload"]["arrival"], &record["workload"]["target"]),
        (&"poisson".into(), &endpoint.url.as_str().into())
    );
    assert_eq!(endpoint.stop().code, Some(0));
}
