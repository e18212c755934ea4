//! `mailrun locust worker` with real Locust masters of three versions, which scripts/install-locust.sh installs below
//! target. The tests cover ramps, workers that join, leave, hang or are killed, a restarted master, and the web page.
//! Locust's totals, the merged histogram and the sink's ledger must agree.
use crate::party::{Ended, LIMIT, MAILRUN, Process, Sink, mailrun, wait_until};
use crate::skipped::skip;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Python code that is appended to the locustfile. It writes Locust's totals to `totals.json`, and works with all
/// versions of Locust.
const TOTALS: &str = r#"
def totals(**_):
    stats = STATE["environment"].runner.stats
    rows = {name: [row.num_requests, sum(row.response_times.values())] for (name, _), row in stats.entries.items()}
    with open(os.path.join(os.path.dirname(__file__), "totals.json"), "w") as file:
        json.dump(rows, file)


events.quit._handlers.insert(0, totals)
"#;
/// Pause of each session after a message, because on a busy machine the masters need processor time too.
const THINK: &str = "5ms";
/// Maximum number of messages that a user can send per second, because of the pause of 5 ms.
const MOST_PER_USER: u64 = 200;
/// Maximum time until the other workers have taken over the users of a killed worker.
const TAKEOVER_LIMIT: Duration = Duration::from_secs(6);

struct Cluster {
    program: PathBuf,
    place: TempDir,
    port: u16,
    sink: Sink,
    workers: Vec<Process>,
}

/// Returns the path of `locust` in this version. Returns `None`, and notes the skipped test, if it is not installed.
fn locust(version: &str) -> Option<PathBuf> {
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("target/locust-{version}/bin/locust"));
    if !program.exists() {
        skip(&format!("locust {version}"), "not installed; scripts/install-locust.sh does it");
        return None;
    }
    Some(program)
}

fn signal(process: &Process, signal: Signal) {
    kill_process(Pid::from_raw(i32::try_from(process.id()).unwrap()).unwrap(), signal).unwrap();
}

impl Cluster {
    /// Starts a sink and workers for a master of this Locust version. Returns `None` if the version is not installed.
    fn new(version: &str, workers: usize) -> Option<Self> {
        let program = locust(version)?;
        let place = tempfile::tempdir().unwrap();
        let locustfile = mailrun(&["locust", "file"]).out + TOTALS;
        fs::write(place.path().join("locustfile.py"), locustfile).unwrap();
        // The port is only free, not reserved: another program may take it before the master binds it.
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut cluster = Self { program, place, port, sink: Sink::start(&[]), workers: Vec::new() };
        (0..workers).for_each(|_| cluster.join(&["--think-time", THINK]));
        Some(cluster)
    }

    /// Starts one more worker with these arguments.
    fn join(&mut self, words: &[&str]) {
        let port = self.port.to_string();
        let address = self.sink.address();
        let own = ["--worker", "--master-host", "127.0.0.1", "--master-port", &port, &address, "--reuse"];
        self.workers.push(Process::start(MAILRUN, &[&own, words].concat()));
    }

    fn path(&self, name: &str) -> String {
        self.place.path().join(name).to_str().unwrap().to_owned()
    }

    fn master(&self, words: &[&str]) -> Process {
        let port = self.port.to_string();
        let file = self.path("locustfile.py");
        let report = self.path("report.json");
        let own = ["-f", &file, "--master", "--master-bind-host", "127.0.0.1", "--master-bind-port", &port];
        let results = ["--enable-rebalancing", "--mailrun-report", &report];
        Process::start(self.program.to_str().unwrap(), &[&own, results.as_slice(), words].concat())
    }

    /// Starts a master that waits for all workers, and then runs these stages.
    fn headless(&self, stages: &str, words: &[&str]) -> Process {
        let workers = self.workers.len().to_string();
        let own = ["--headless", "--expect-workers", &workers, "--mailrun-stages", stages, "--mailrun-drain", "2s"];
        self.master(&[&own, words].concat())
    }

    fn messages(&self) -> u64 {
        self.sink.ask("/status")["messages"].as_u64().unwrap()
    }

    fn await_mail(&self, more: u64) {
        let before = self.messages();
        wait_until("more mail", || (self.messages() > before + more).then_some(()));
    }

    fn json(&self, name: &str) -> Value {
        serde_json::from_str(&fs::read_to_string(self.path(name)).unwrap()).unwrap()
    }

    /// Returns the report, and four counts of the messages: the requests and the response times in Locust's table, the
    /// values in the merged histogram, and the deliveries in the sink's ledger.
    fn totals(&self, ended: &Ended) -> ([u64; 4], Value) {
        let said = || format!("{}{}", ended.out, ended.err);
        assert!(Path::new(&self.path("report.json")).exists(), "{}", said());
        let report = self.json("report.json");
        let message = &self.json("totals.json")["message"];
        let ledger = self.sink.ask(&format!("/ledger/{}", report["run_id"].as_str().unwrap()));
        assert_eq!((&ledger["duplicates"], &ledger["corrupt"]), (&0.into(), &0.into()), "{}", said());
        let count = |value: &Value| value.as_u64().unwrap_or_else(|| panic!("{value} {}", said()));
        (
            [count(&message[0]), count(&message[1]), count(&report["histogram_count"]), count(&ledger["delivered"])],
            report,
        )
    }

    /// Checks that Locust's test passed, and that all counts of the messages agree. Returns the count and the report.
    fn agreed(&self, ended: &Ended) -> (u64, Value) {
        assert_eq!(ended.code, Some(0), "{}{}", ended.out, ended.err);
        let (totals, report) = self.totals(ended);
        assert!(totals[0] > 0 && totals.iter().all(|total| *total == totals[0]), "{totals:?} {report}");
        assert_eq!(report["verdict"], "PASS", "{report}");
        (totals[0], report)
    }
}

/// Waits until the master prints `word` after the position `from` in its output. Returns the position behind it.
fn await_word(master: &Process, from: usize, word: &str) -> usize {
    wait_until(word, || {
        master.complained().get(from..).and_then(|told| told.find(word)).map(|at| from + at + word.len())
    })
}

fn ramp_and_drain(version: &str, workers: usize) {
    let Some(cluster) = Cluster::new(version, workers) else { return };
    let thresholds = ["--mailrun-thresholds", "p99<20s,failed<=0,count>=100"];
    let ended = cluster.headless("3s:1..12,2s:12,1s:5", &thresholds).finish();
    let (messages, report) = cluster.agreed(&ended);
    assert!(messages > 100, "{messages}");
    assert_eq!(report["workers"].as_u64(), Some(workers as u64));
    // The report has the measured offset of each worker's clock from the master's clock. All of them use this host's
    // clock, so the offset must be zero within its error bound.
    let clocks = report["clocks"].as_object().unwrap();
    assert_eq!(clocks.len(), workers, "{report}");
    for clock in clocks.values() {
        assert!(clock["offset_s"].as_f64().unwrap().abs() <= clock["bound_s"].as_f64().unwrap() + 0.001, "{clock}");
    }
}

/// Kills a worker under load. Returns the time until the other worker had all users.
fn kill_one(version: &str) -> Option<Duration> {
    let mut cluster = Cluster::new(version, 2)?;
    let master = cluster.headless("16s:6", &[]);
    cluster.await_mail(100);
    await_word(&master, 0, "All users spawned");
    let killed = Instant::now();
    drop(cluster.workers.pop());
    let missed = await_word(&master, 0, "failed to send heartbeat");
    await_word(&master, missed, "All users spawned: {\"MailrunSession\": 6}");
    let took = killed.elapsed();
    let ended = master.finish();
    assert_eq!(ended.code, Some(3), "{}{}", ended.out, ended.err);
    assert!(ended.out.contains("worker lost") && ended.out.contains("its last report came"), "{}", ended.out);
    let ([requests, times, merged, delivered], report) = cluster.totals(&ended);
    // The killed worker had three users, and reported every 3 s. At most the mail since its last report may be missing.
    // Allow 4 s instead of 3 s.
    let most = 3 * MOST_PER_USER * 4;
    assert!(requests == times && times == merged, "{requests} {times} {merged}");
    assert!(merged <= delivered && delivered - merged <= most, "{merged} {delivered}");
    assert_eq!((report["lost_workers"].as_array().unwrap().len(), report["lost_reports"].as_u64()), (1, Some(0)));
    Some(took)
}

fn killed(version: &str) {
    let mut took = Vec::new();
    // Try up to four times, because a machine that stalls for seconds may spoil an attempt.
    while took.last().is_none_or(|took| *took > TAKEOVER_LIMIT) {
        assert!(took.len() < 4, "{took:?}");
        match kill_one(version) {
            Some(time) => took.push(time),
            None => return,
        }
    }
}

fn terminated(version: &str) {
    let Some(mut cluster) = Cluster::new(version, 2) else { return };
    let master = cluster.headless("9s:6", &[]);
    cluster.await_mail(100);
    let leaver = cluster.workers.pop().unwrap();
    leaver.terminate();
    assert_eq!(leaver.finish().code, Some(0));
    await_word(&master, 0, "All users spawned: {\"MailrunSession\": 6}");
    let (_, report) = cluster.agreed(&master.finish());
    assert_eq!((report["workers"].as_u64(), report["lost_workers"].as_array().unwrap().len()), (Some(2), 0));
}

fn joined(version: &str) {
    let Some(mut cluster) = Cluster::new(version, 1) else { return };
    let master = cluster.headless("12s:6,2s:3", &[]);
    cluster.await_mail(100);
    cluster.join(&["--think-time", THINK]);
    let (_, report) = cluster.agreed(&master.finish());
    assert_eq!(report["workers"].as_u64(), Some(2), "{report}");
}

/// Suspends a worker until the master misses it, and then lets it resume and leave. The other worker must go on with
/// the test, and no count may be lost.
fn hung(version: &str) {
    let Some(mut cluster) = Cluster::new(version, 2) else { return };
    let master = cluster.headless("16s:6", &[]);
    cluster.await_mail(100);
    let hung = cluster.workers.pop().unwrap();
    signal(&hung, Signal::STOP);
    await_word(&master, 0, "failed to send heartbeat");
    hung.terminate();
    signal(&hung, Signal::CONT);
    assert_eq!(hung.finish().code, Some(0));
    cluster.await_mail(100);
    assert!(!master.complained().contains("last worker"), "{}", master.complained());
    let (_, report) = cluster.agreed(&master.finish());
    assert_eq!(report["workers"].as_u64(), Some(2), "{report}");
}

fn restarted(version: &str) {
    let Some(cluster) = Cluster::new(version, 2) else { return };
    let first = cluster.headless("60s:4", &[]);
    cluster.await_mail(50);
    drop(first);
    let ended = cluster.headless("4s:4", &[]).finish();
    let (messages, report) = cluster.agreed(&ended);
    assert!(messages > 50, "{messages}");
    let names: Vec<&String> = report["clocks"].as_object().unwrap().keys().collect();
    assert_eq!((report["workers"].as_u64(), names.len()), (Some(2), 2), "{report}");
    // Each worker must have registered with the second master under a new identity.
    let is_fresh =
        |name: &&String| ended.err.contains(&format!("{name}-")) && !ended.err.contains(&format!("{name}-1 "));
    assert!(names.iter().all(is_fresh), "{}", ended.err);
}

/// In an open loop, the rate follows the number of users, and the offered load is counted.
fn open_loop(version: &str) {
    let Some(mut cluster) = Cluster::new(version, 0) else { return };
    (0..2).for_each(|_| cluster.join(&["--rate", "20", "--sessions", "4", "--arrival", "poisson"]));
    let (messages, _) = cluster.agreed(&cluster.headless("3s:2,3s:10", &[]).finish());
    // 3 s at 40/s and 3 s at 200/s make 720 messages. The range is wide, because a master changes the number of users
    // in steps of one second.
    assert!((300..1_200).contains(&messages), "{messages}");
}

fn reset(version: &str) {
    let Some(cluster) = Cluster::new(version, 2) else { return };
    let ended = cluster.headless("5s:1..8,3s:8", &["--reset-stats"]).finish();
    assert_eq!(ended.code, Some(0), "{}{}", ended.out, ended.err);
    let ([requests, times, merged, delivered], report) = cluster.totals(&ended);
    assert!(requests == times && times == merged, "{requests} {times} {merged}");
    let left_out = report["left_out"].as_u64().unwrap();
    assert!(left_out > 0 && merged > 0 && merged + left_out == delivered, "{merged} {left_out} {delivered}");
}

fn from_a_file(version: &str) {
    let Some(cluster) = Cluster::new(version, 1) else { return };
    let test = cluster.path("test.toml");
    let report = cluster.path("report.json");
    let port = cluster.port;
    let text = format!("stages = [\"2s:3\"]\ndrain = \"2s\"\nlisten = \"127.0.0.1:{port}\"\nreport = \"{report}\"\n");
    fs::write(&test, format!("{text}thresholds = [\"count>=10\", \"max<=0\"]\n")).unwrap();
    let ended = mailrun(&["locust", "master", &test, "--locust", cluster.program.to_str().unwrap()]);
    assert_eq!(ended.code, Some(1), "{}{}", ended.out, ended.err);
    assert!(ended.out.contains("met: count>=10") && ended.out.contains("MISSED: max<=0"), "{}", ended.out);
    let merged = cluster.json("report.json")["histogram_count"].as_u64();
    assert_eq!(merged, Some(cluster.messages()));
}

/// The web page shows our rows, and accepts a changed number of users.
fn web_page(version: &str) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/browser/locust.mjs");
    let modules = script.with_file_name("node_modules");
    let Some(cluster) = Cluster::new(version, 2) else { return };
    if !modules.exists() || chromium().is_none() {
        return skip(
            "the web page of Locust",
            "no Chromium, node or npm; scripts/install-test-peers.sh browser does it",
        );
    }
    let web = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let master = cluster.master(&["--web-host", "127.0.0.1", "--web-port", &web]);
    await_word(&master, 0, "2 workers connected");
    let url = format!("http://127.0.0.1:{web}/");
    let limit = LIMIT.as_millis().to_string();
    let browser = chromium().unwrap();
    let page = crate::party::run("node", &[script.to_str().unwrap(), &url, &browser, &limit]);
    assert_eq!(page.code, Some(0), "{}{}{}", page.out, page.err, master.complained());
    assert!(page.out.contains("9 users"), "{}", page.out);
    master.terminate();
    let (_, report) = cluster.agreed(&master.finish());
    assert_eq!(report["workers"].as_u64(), Some(2), "{report}");
}

/// Returns the path of Chromium, under either of the names that distributions give it.
fn chromium() -> Option<String> {
    let paths = std::env::var_os("PATH")?;
    let names = ["chromium", "chromium-browser"];
    let found =
        std::env::split_paths(&paths).flat_map(|path| names.map(|name| path.join(name))).find(|path| path.exists());
    found.map(|path| path.to_string_lossy().into_owned())
}

macro_rules! under {
    ($module:ident, $version:literal, $($test:ident: $scenario:ident($($argument:expr),*);)*) => {
        mod $module {
            $(
                #[test]
                #[ignore = "slow: make test-slow PART=locust"]
                fn $test() {
                    super::$scenario($version $(, $argument)*);
                }
            )*
        }
    };
}

macro_rules! all_under {
    ($module:ident, $version:literal) => {
        under! { $module, $version,
            two_workers_ramp_and_drain_and_nothing_is_lost: ramp_and_drain(2);
            four_workers_ramp_and_drain_and_nothing_is_lost: ramp_and_drain(4);
            the_users_of_a_killed_worker_go_to_the_others_and_the_report_says_so: killed();
            a_worker_that_is_terminated_takes_nothing_with_it: terminated();
            a_worker_that_comes_late_gets_users: joined();
            a_worker_that_hung_leaves_and_the_test_goes_on: hung();
            workers_find_a_master_that_is_started_again: restarted();
            the_rate_follows_the_users: open_loop();
            what_was_sent_before_a_reset_is_left_out_and_counted: reset();
            a_test_in_a_file_is_run_by_the_master: from_a_file();
        }
    };
}

all_under!(locust_2_12_1, "2.12.1");
all_under!(locust_2_43_3, "2.43.3");
all_under!(locust_newest, "newest");
under! { page_2_43_3, "2.43.3", the_web_page_shows_the_rows_and_takes_a_changed_user_count: web_page(); }
under! { page_newest, "newest", the_web_page_shows_the_rows_and_takes_a_changed_user_count: web_page(); }
