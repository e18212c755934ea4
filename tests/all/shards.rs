//! A load split over several processes, and `mailrun merge`: one ledger, exact sums, and every inconsistency is
//! reported. The scripts in deploy/kubernetes and deploy/slurm run as these schedulers would run them.
use crate::party::{MAILRUN, Process, Sink, fates, mailrun, run, stage};
use crate::sink_rules::put_rules;
use mailrun_measurement::record::{Cause, ClockRow, LoadStageRow, Outcome, Record, SinkClockRow};
use mailrun_measurement::{Latencies, Ledger, Phase, Stage};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;

const MESSAGES: u64 = 901;

/// Returns a time two seconds from now, at which all parts of a load can start together.
fn soon() -> String {
    (jiff::Timestamp::now() + Duration::from_secs(2)).to_string()
}

fn word(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Parts of one load to a sink, sent at the same time, with their files in one directory.
struct Parts {
    place: TempDir,
    sink: Sink,
}

impl Parts {
    fn send(indices: &[u32], words: &[&str]) -> Self {
        let parts = Self { place: tempfile::tempdir().unwrap(), sink: Sink::start(&[]) };
        parts.send_more(indices, words);
        parts
    }

    /// Sends the parts with these indices, out of a load in three parts, and waits until they end.
    fn send_more(&self, indices: &[u32], words: &[&str]) {
        let start = soon();
        let to = self.sink.address();
        let messages = MESSAGES.to_string();
        let started: Vec<Process> = indices
            .iter()
            .map(|index| {
                let shard = format!("{index}/3");
                let out = self.directory(*index);
                let own = ["bench", &to, "--shard", &shard, "--start-at", &start, "--out", word(&out), "--quiet"];
                let load = ["--messages", &messages, "--sessions", "7", "--threshold", "accepted.count >= 901"];
                Process::start(MAILRUN, &[&own[..], &load, words].concat())
            })
            .collect();
        for part in started {
            let ended = part.finish();
            assert_eq!(ended.code, Some(0), "a part is not judged: {ended:?}");
        }
    }

    fn directory(&self, index: u32) -> PathBuf {
        self.place.path().join(format!("part-{index}"))
    }

    fn part(&self, index: u32) -> Record {
        record(&self.directory(index))
    }

    fn merge(&self, directories: &[PathBuf], sinks: &[&str]) -> (Option<i32>, Record) {
        let out = self.place.path().join("whole");
        let parts: Vec<&str> = directories.iter().map(|path| word(path)).collect();
        let sinks: Vec<&str> = sinks.iter().flat_map(|sink| ["--sink", sink]).collect();
        let ended = mailrun(&[&["merge"], &parts[..], &sinks, &["--out", word(&out)]].concat());
        assert!(out.join("run.json").exists(), "{ended:?}");
        assert!(out.join("report.md").exists() && out.join("report.html").exists());
        (ended.code, record(&out))
    }

    fn all(&self) -> Vec<PathBuf> {
        (0..3).map(|index| self.directory(index)).collect()
    }
}

fn record(directory: &Path) -> Record {
    Record::from_json(&fs::read(directory.join("run.json")).unwrap()).unwrap()
}

fn times(record: &Record, name: Stage) -> Latencies {
    Latencies::decode(stage(record, name).histogram.as_ref().unwrap()).unwrap()
}

fn ledger(path: &Path) -> Ledger {
    Ledger::read_from(File::open(path).unwrap()).unwrap()
}

#[test]
fn three_parts_are_one_run_with_the_sums_of_all_and_the_ledger_of_the_sink() {
    let parts = Parts::send(&[2, 0, 1], &[]);
    let (_, whole) = parts.merge(&parts.all(), &[parts.sink.url()]);
    assert_eq!(fates(&whole.ledger), [MESSAGES, MESSAGES, 0, 0, 0], "{:?}", whole.verdict);
    assert!(whole.verdict.closed, "{:?}", whole.verdict);
    assert_eq!((whole.workload.messages, whole.workload.sessions), (Some(MESSAGES), 7));
    assert_eq!((whole.thresholds[0].value, whole.thresholds[0].passed), (Some(MESSAGES as f64), true));
    let own: Vec<Record> = (0..3).map(|index| parts.part(index)).collect();
    let counts: Vec<_> = own.iter().map(|part| (part.workload.messages.unwrap(), part.workload.sessions)).collect();
    assert_eq!(counts, [(301, 3), (300, 2), (300, 2)]);
    assert!(own.iter().all(|part| part.run_id == whole.run_id && part.thresholds.is_empty()));
    assert!(own.iter().all(|part| part.verdict.outcome.is_none()));
    // Percentiles must come from the times of all parts together, and the rows of the seconds must sum up to all
    // messages.
    for name in [Stage::Sent, Stage::Accepted] {
        let mut sum = Latencies::default();
        own.iter().for_each(|part| sum.merge(&times(part, name)));
        assert_eq!(times(&whole, name), sum);
        assert_eq!(stage(&whole, name).count, MESSAGES);
    }
    let seconds =
        |count: fn(&mailrun_measurement::record::SeriesRow) -> u64| whole.series.iter().map(count).sum::<u64>();
    assert_eq!((seconds(|row| row.accepted), seconds(|row| row.delivered)), (MESSAGES, MESSAGES));
    assert!(whole.phases.iter().any(|row| row.name == Phase::Connect && row.count == MESSAGES));
    // No message may be in the ledgers of two parts. All ledgers together must have as many messages as the sink got.
    let mut sent = Ledger::default();
    for index in 0..3 {
        let units = ledger(&parts.directory(index).join("source.ledger"));
        assert_eq!(sent.merge(&units).again, 0, "no two parts send the same message");
    }
    let status = parts.sink.ask(&format!("/ledger/{}", whole.run_id));
    assert_eq!((sent.count(), status["delivered"].as_u64()), (MESSAGES, Some(MESSAGES)));
}

#[test]
fn the_stages_of_three_parts_are_those_of_one_load() {
    let parts = Parts::send(&[0, 1, 2], &["--stage", "calm=500ms:300/s", "--stage", "peak=500ms:900/s"]);
    let (_, whole) = parts.merge(&parts.all(), &[parts.sink.url()]);
    let own: Vec<Record> = (0..3).map(|index| parts.part(index)).collect();
    assert_eq!(whole.load_stages.iter().map(|row| row.name.as_str()).collect::<Vec<_>>(), ["calm", "peak"]);
    for (place, row) in whole.load_stages.iter().enumerate() {
        let count =
            |row: &LoadStageRow, name| row.stages.iter().find(|stage| stage.name == name).map(|stage| stage.count);
        let accepted: u64 = own.iter().map(|part| count(&part.load_stages[place], Stage::Accepted).unwrap()).sum();
        let counts =
            [count(row, Stage::Accepted), count(row, Stage::Delivered), row.ledger.accepted, row.ledger.delivered];
        assert_eq!(counts, [Some(accepted); 4], "{row:?}");
        assert_eq!(row.ledger.not_delivered, Some(0));
    }
    let delivered: u64 = whole.load_stages.iter().filter_map(|row| row.ledger.delivered).sum();
    assert_eq!(Some(delivered), whole.ledger.delivered);
}

#[test]
fn a_missing_part_a_repeated_one_and_files_that_are_none_are_named() {
    let parts = Parts::send(&[0, 1, 2], &[]);
    let given = [parts.directory(0), parts.directory(2), parts.directory(0)];
    let (code, whole) = parts.merge(&given, &[parts.sink.url()]);
    assert_eq!(fates(&whole.ledger), [601, 601, 0, 0, 0], "what arrived of a missing part is nobody's");
    assert_eq!((code, whole.verdict.outcome), (Some(3), Some(Outcome::Invalid)), "{:?}", whole.verdict);
    let says = |words: &str, whole: &Record| whole.verdict.reasons.iter().any(|reason| reason.contains(words));
    assert!(says("Part 1/3 is missing", &whole) && says("Part 0/3 was named twice", &whole), "{:?}", whole.verdict);
    // `mailrun merge` must name a truncated record, the ledger of another part, and a missing directory.
    let cut = parts.directory(1).join("run.json");
    let text = fs::read(&cut).unwrap();
    fs::write(&cut, &text[..text.len() / 2]).unwrap();
    let (_, whole) = parts.merge(&parts.all(), &[parts.sink.url()]);
    assert!(says("part-1 is not in the figures: ", &whole) && says("is no run record", &whole), "{:?}", whole.verdict);
    fs::write(&cut, text).unwrap();
    fs::copy(parts.directory(0).join("source.ledger"), parts.directory(1).join("source.ledger")).unwrap();
    let (_, whole) = parts.merge(&parts.all(), &[parts.sink.url()]);
    assert!(says("its ledger has messages of other parts", &whole), "{:?}", whole.verdict);
    let nothing = parts.place.path().join("nothing");
    let ended = mailrun(&["merge", word(&nothing)]);
    assert_eq!((ended.code, ended.err.lines().count()), (Some(2), 1), "{ended:?}");
    let ended = mailrun(&["merge", word(&parts.directory(0)), "--out", word(&parts.directory(0))]);
    assert!(ended.code == Some(2) && ended.err.contains("is the directory of a part"), "{ended:?}");
}

#[test]
fn parts_of_different_plans_are_refused() {
    let parts = Parts::send(&[0], &[]);
    parts.send_more(&[1], &["--message-size", "500"]);
    let ended = mailrun(&["merge", word(&parts.directory(0)), word(&parts.directory(1))]);
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.err.contains("part-1 has another plan than the others"), "{ended:?}");
    let late = mailrun(&[
        "bench",
        &parts.sink.address(),
        "--shard=0/1",
        "--start-at=2026-01-01T00:00:00Z",
        "--messages=10",
        "--out",
        word(&parts.directory(2)),
    ]);
    assert_eq!(late.code, Some(0), "{late:?}");
    assert!(late.out.contains("SENT") && late.out.contains("Part 0/1: mailrun merge judges all parts"), "{late:?}");
    let (_, whole) = parts.merge(&[parts.directory(2)], &[]);
    assert!(whole.verdict.why.contains("Part 0/1 began"), "{:?}", whole.verdict);
}

#[test]
fn accepted_mail_is_waited_for_although_as_much_has_arrived() {
    let parts = Parts::send(&[], &[]);
    let (to, start) = (parts.sink.address(), soon());
    let send = |shard: &str, out: u32| {
        let out = parts.directory(out);
        let ended =
            mailrun(&["bench", &to, "--shard", shard, "--start-at", &start, "--out", word(&out), "--messages=20"]);
        assert_eq!(ended.code, Some(0), "{ended:?}");
        out
    };
    put_rules(&parts.sink, &[".: lose reply"]);
    let arrived = send("0/2", 0);
    put_rules(&parts.sink, &["drop 100%"]);
    let accepted = send("1/2", 1);
    let out = parts.place.path().join("whole");
    let words = ["merge", word(&arrived), word(&accepted), "--sink", parts.sink.url(), "--out", word(&out)];
    let merging = Process::start(MAILRUN, &words);
    // While the merge waits, send the accepted mail again, as a server would from its queue.
    std::thread::sleep(Duration::from_millis(500));
    put_rules(&parts.sink, &[]);
    send("1/2", 2);
    let ended = merging.finish();
    let whole = record(&out);
    assert_eq!((whole.ledger.accepted, whole.ledger.lost), (Some(10), Some(0)), "{ended:?}");
}

#[test]
fn sinks_that_have_ended_are_joined() {
    let place = tempfile::tempdir().unwrap();
    let id = "0123456789abcdef0123456789abcdef";
    let outs = ["sink-a", "sink-b"].map(|name| place.path().join(name));
    let sinks = outs.each_ref().map(|out| Sink::start(&["--run-id", id, "--out", word(out)]));
    // All mail goes to the first sink, so the second one ends without mail.
    let start = soon();
    let source = |index: usize| {
        let out = place.path().join(format!("part-{index}"));
        let shard = format!("{index}/2");
        let to = sinks[0].address();
        let words = ["source", &to, "--shard", &shard, "--start-at", &start, "--run-id", id, "--messages", "100"];
        Process::start(MAILRUN, &[&words[..], &["--sessions", "4", "--quiet", "--out", word(&out)]].concat())
    };
    [0, 1].map(source).into_iter().for_each(|part| assert_eq!(part.finish().code, Some(0)));
    for Sink { process, .. } in sinks {
        process.terminate();
        assert_eq!(process.finish().code, Some(0));
    }
    let out = place.path().join("whole");
    let parts = [0, 1].map(|index| place.path().join(format!("part-{index}")));
    let words = ["merge", word(&parts[0]), word(&parts[1]), "--sink", word(&outs[0]), "--sink", word(&outs[1])];
    let ended = mailrun(&[&words[..], &["--out", word(&out)]].concat());
    assert_eq!(fates(&record(&out).ledger), [100, 100, 0, 0, 0], "{ended:?}");
    let ended = mailrun(&["merge", word(&parts[0]), "--sink", word(place.path()), "--out", word(&out)]);
    assert!(ended.code == Some(2) && ended.err.contains("run.json"), "{ended:?}");
    let ended = mailrun(&[&words[..], &["--out", word(&outs[0])]].concat());
    assert!(ended.code == Some(2) && ended.err.contains("is the directory of a sink"), "{ended:?}");
    assert!(outs[0].join("run.json").exists());
}

/// Changes the clock of a record, as if it came from another host.
fn change_clock(directory: &Path, change: impl Fn(&mut ClockRow)) {
    change_record(directory, |record| change(record.clock.as_mut().unwrap()));
}

fn change_record(directory: &Path, change: impl Fn(&mut Record)) {
    let mut changed = record(directory);
    change(&mut changed);
    fs::write(directory.join("run.json"), serde_json::to_vec(&changed).unwrap()).unwrap();
}

#[test]
fn every_sink_that_mail_arrived_at_needs_a_clock_that_was_compared() {
    let place = tempfile::tempdir().unwrap();
    let id = "0123456789abcdef0123456789abcdef";
    let [sink_a, sink_b, part_0, part_1, whole] =
        ["sink-a", "sink-b", "part-0", "part-1", "whole"].map(|name| place.path().join(name));
    let sinks = [&sink_a, &sink_b].map(|out| Sink::start(&["--run-id", id, "--out", word(out)]));
    let start = soon();
    let clocks = sinks.each_ref().map(|sink| format!("--sink={}", sink.url()));
    let parts = [(&part_0, "0/2"), (&part_1, "1/2")];
    let send = |(sink, (out, shard)): (&Sink, (&PathBuf, &str))| {
        let words = ["bench", &sink.address(), "--shard", shard, "--start-at", &start, "--quiet"];
        let load =
            ["--messages", "100", "--sessions", "4", &clocks[0], &clocks[1], "--out", word(out), "--", "--run-id", id];
        Process::start(MAILRUN, &[&words[..], &load].concat())
    };
    let sent: Vec<Process> = sinks.iter().zip(parts).map(send).collect();
    sent.into_iter().for_each(|part| assert_eq!(part.finish().code, Some(0)));
    for Sink { process, .. } in sinks {
        process.terminate();
        assert_eq!(process.finish().code, Some(0));
    }
    // Each part has sent to a server of its own. Give both parts the same plan, as if they had sent to one server that
    // delivers to both sinks.
    let plan = record(&part_0).shard.unwrap().plan;
    change_record(&part_1, |part| part.shard.as_mut().unwrap().plan.clone_from(&plan));
    let merged = || {
        let words = ["merge", word(&part_0), word(&part_1), "--sink", word(&sink_a), "--sink", word(&sink_b)];
        let ended = mailrun(&[&words[..], &["--threshold", "delivered.p99 < 1m", "--out", word(&whole)]].concat());
        assert!(whole.join("run.json").exists(), "{ended:?}");
        let whole = record(&whole);
        assert_eq!(fates(&whole.ledger), [100, 100, 0, 0, 0], "{ended:?}");
        (whole.verdict.causes.contains(&Cause::Clocks), whole.verdict.reasons.join(" "))
    };
    let (_, said) = merged();
    assert!(!said.contains("clock"), "all are on one host: {said}");
    change_clock(&sink_a, |clock| clock.boot = "aaaaaaaa".to_owned());
    change_clock(&sink_b, |clock| clock.boot = "bbbbbbbb".to_owned());
    let known = |boot: &str| SinkClockRow { boot: boot.to_owned(), error_ns: 20, exchanges: 32, ..Default::default() };
    for part in [&part_0, &part_1] {
        change_clock(part, |clock| clock.sinks = vec![known("aaaaaaaa")]);
    }
    let (is_invalid, said) = merged();
    assert!(is_invalid, "{said}");
    let unnamed = said.split("Not every part has compared its clock with that of ").nth(1).unwrap_or_default();
    assert!(unnamed.contains("sink-b.") && !unnamed.contains("sink-a"), "{said}");
    // The larger of the two sinks' clock errors counts. Here it is chrony's estimate for the second sink, so the report
    // names chrony.
    let by_chrony = SinkClockRow { chrony_bound_ns: Some(90), ..known("bbbbbbbb") };
    for part in [&part_0, &part_1] {
        change_clock(part, |clock| clock.sinks = vec![known("aaaaaaaa"), by_chrony.clone()]);
    }
    let (is_invalid, said) = merged();
    assert!(!is_invalid && said.contains("by chrony's estimates"), "{said}");
}

/// Returns the shell script that the container of this job in the manifest runs.
fn container_script(manifest: &str, job: &str) -> String {
    let program = "import sys, yaml, json
for document in yaml.safe_load_all(open(sys.argv[1])):
    if document['kind'] == 'Job' and document['metadata']['name'] == sys.argv[2]:
        spec = document['spec']
        container = spec['template']['spec']['containers'][0]
        assert container['command'] == ['sh', '-c'], container
        print(container['args'][0])";
    let ended = run("python3", &["-c", program, manifest, job]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    ended.out
}

/// Runs a script for a scheduler with the environment that the scheduler sets, and with a short load.
fn run_recipe(script: &str, place: &Path, environment: &[(&str, &str)]) {
    let short = script.replace("--duration 60s", "--duration 1s").replace("--rate 800/s", "--rate 80/s");
    let file = place.join("script");
    fs::write(&file, short).unwrap();
    let path = format!("PATH={}:{}", word(Path::new(MAILRUN).parent().unwrap()), std::env::var("PATH").unwrap());
    let set: Vec<String> = environment.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let set: Vec<&str> = set.iter().map(String::as_str).collect();
    let directory = word(place);
    let words = [&["-C", directory, &path][..], &set, &["sh", word(&file)]].concat();
    let ended = run("env", &words);
    // Any verdict is allowed: on a busy host, the parts of this short load begin at different times, and the rate is
    // missed. The counts of messages, which the caller checks, do not depend on that.
    assert!(matches!(ended.code, Some(0 | 1 | 3)), "{ended:?}");
}

#[test]
fn the_recipe_for_kubernetes_runs_with_the_environment_of_an_indexed_job() {
    if crate::party::peer("python3").is_none_or(|python| run(&python, &["-c", "import yaml"]).code != Some(0)) {
        return crate::party::skip("kubernetes", "python3 with yaml is not installed");
    }
    let root = env!("CARGO_MANIFEST_DIR");
    let load = container_script(&format!("{root}/deploy/kubernetes/shards.yaml"), "mailrun-load");
    let merge = container_script(&format!("{root}/deploy/kubernetes/merge.yaml"), "mailrun-merge");
    let place = tempfile::tempdir().unwrap();
    fs::create_dir(place.path().join("parts")).unwrap();
    let sinks = [Sink::start(&[]), Sink::start(&[])];
    let server = sinks[0].address();
    let sink_urls = sinks.each_ref().map(|sink| sink.url().to_owned());
    let start = soon();
    std::thread::scope(|scope| {
        for index in 0..8 {
            let index = index.to_string();
            let own = place.path().join(format!("pod-{index}"));
            fs::create_dir(&own).unwrap();
            std::os::unix::fs::symlink(place.path().join("parts"), own.join("parts")).unwrap();
            let set = [
                ("SERVER", server.clone()),
                ("START", start.clone()),
                ("SINK_0", sink_urls[0].clone()),
                ("SINK_1", sink_urls[1].clone()),
                ("JOB_COMPLETION_INDEX", index),
            ];
            let load = load.clone();
            scope.spawn(move || run_recipe(&load, &own, &set.each_ref().map(|(name, value)| (*name, value.as_str()))));
        }
    });
    run_recipe(&merge, place.path(), &[("SINK_0", sinks[0].url()), ("SINK_1", sinks[1].url())]);
    let whole = record(&place.path().join("whole"));
    assert_eq!(whole.ledger.created, whole.ledger.delivered, "{:?}", whole.verdict);
    assert_eq!((whole.ledger.lost, whole.parties.len() > 8), (Some(0), true));
    assert_eq!((whole.workload.rate_per_s, whole.thresholds.len()), (Some(80.0), 1));
}

#[test]
fn the_recipe_for_slurm_runs_with_the_environment_of_an_array() {
    let script = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/slurm/shards.sbatch")).unwrap();
    assert!(script.contains("#SBATCH --array=0-7"));
    let place = tempfile::tempdir().unwrap();
    fs::create_dir(place.path().join("parts")).unwrap();
    let sink = Sink::start(&[]);
    let server = sink.address();
    let start = soon();
    run_recipe(&script, place.path(), &[("SERVER", &server), ("START", &start), ("SLURM_ARRAY_TASK_ID", "7")]);
    let part = record(&place.path().join("parts/7"));
    let shard = part.shard.as_ref().unwrap();
    assert_eq!((shard.index, shard.count, part.workload.rate_per_s), (7, 8, Some(10.0)));
}

/// Three hosts with parts and a fourth with the sink, as network namespaces that end with the shell. chrony is faked,
/// and the third host has none.
///
/// A differing clock and a slow network are simulated by changing the sink's HTTP answer in transit. faketime would not
/// work, because it replaces libc's calls and mailrun asks the kernel directly. A time namespace would not work either,
/// because it does not shift Unix time.
const HOSTS: &str = r#"set -e
mkdir with-chrony
printf '#!/bin/sh\necho A29FC87B,10.9.0.1,3,1606314371.1,-0.000000400,0,0,0,0,0,0.000000600,0.000000300,64.5,Normal\n' > with-chrony/chronyc
chmod +x with-chrony/chronyc
without_chrony=$PATH
export PATH=$PWD/with-chrony:$PATH
mkdir -p /run/netns && mount -t tmpfs none /run/netns
ip link set lo up
ip link add hub type bridge && ip addr add 10.9.0.1/24 dev hub && ip link set hub up
for host in 0 1 2; do
  ip netns add host$host
  ip link add port$host type veth peer name eth0 netns host$host
  ip link set port$host master hub up
  ip -n host$host addr add 10.9.0.1$host/24 dev eth0
  ip -n host$host link set eth0 up
  ip -n host$host link set lo up
done
"$MAILRUN" sink --listen 10.9.0.1:2525 --http 10.9.0.1:8025 > sink.out 2>&1 &
for attempt in $(seq 600); do "$MAILRUN" source 10.9.0.1:2525 -m 1 -s 1 --quiet > /dev/null 2>&1 && break; sleep 0.1; done
cat > on_host <<'END'
mount --bind boot-$1 /proc/sys/kernel/random/boot_id && shift && exec "$MAILRUN" "$@"
END
for host in 0 1 2; do echo "$host$host$host$host$host$host$host$host-1111-2222-3333-444444444444" > boot-$host; done
start=$(date -u -d '+5 seconds' +%FT%TZ)
parts=
for host in 0 1 2; do
  [ $host = 2 ] && export PATH=$without_chrony
  ip netns exec host$host sh on_host $host bench 10.9.0.1:2525 --shard $host/3 --start-at $start --messages 300 --sessions 9 \
    --sink http://10.9.0.1:8025 --out part-$host --quiet > part-$host.out 2>&1 &
  parts="$parts $!"
done
for part in $parts; do wait $part; done
export PATH=$PWD/with-chrony:$PATH
"$MAILRUN" merge part-0 part-1 part-2 --sink http://10.9.0.1:8025 --out whole --quiet
cat > changed.py <<'END'
import http.server, json, threading, time, urllib.request
class Changed(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        answer = json.load(urllib.request.urlopen("http://10.9.0.1:8025" + self.path))
        if self.path == "/clock" and self.server.server_port == 8026:
            answer["unix_ns"] += 5_000_000_000
        elif self.path == "/clock":
            time.sleep(0.1)
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *words):
        pass
servers = [http.server.ThreadingHTTPServer(("10.9.0.1", port), Changed) for port in (8026, 8027)]
threading.Thread(target=servers[0].serve_forever).start()
servers[1].serve_forever()
END
python3 changed.py &
for attempt in $(seq 600); do python3 -c 'import socket; socket.create_connection(("10.9.0.1", 8027))' 2> /dev/null && break; sleep 0.1; done
send() {
  ip netns exec host$1 sh on_host $1 bench 10.9.0.1:2525 --shard 0/1 --start-at $(date -u -d '+7 seconds' +%FT%TZ) --messages 100 \
    --sink http://10.9.0.1:$2 --threshold "$3.p99 < 1m" --out $4-$3 --quiet
  "$MAILRUN" merge $4-$3 --sink http://10.9.0.1:8025 --out whole-$4-$3 --quiet || true
}
send 0 8026 delivered ahead
send 0 8026 accepted ahead
export PATH=$without_chrony
send 2 8027 delivered slow
"#;

#[test]
fn three_hosts_with_networks_of_their_own_are_one_run() {
    let tools = crate::party::peer("ip").is_some() && crate::party::peer("unshare").is_some();
    if !tools || !crate::party::is_root() {
        return crate::party::skip("three hosts", "network namespaces need root, ip and unshare");
    }
    let place = tempfile::tempdir().unwrap();
    fs::write(place.path().join("hosts"), HOSTS).unwrap();
    let script = format!(
        "cd {} && MAILRUN={MAILRUN} exec timeout -k 5 120 unshare --mount --net --pid --fork --kill-child bash hosts",
        word(place.path())
    );
    let ended = run("sh", &["-c", &script]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let whole = record(&place.path().join("whole"));
    assert_eq!(fates(&whole.ledger), [300, 300, 0, 0, 0], "{:?}", whole.verdict);
    assert_eq!((whole.ledger.duplicates, whole.parties.len()), (Some(0), 4));
    // Each part has compared its clock with the clock of the sink's host. All hosts of this test are one machine with
    // one clock, so the clocks must agree.
    let reasons = |record: &Record| record.verdict.reasons.join(" ");
    for host in 0..3 {
        let part = record(&place.path().join(format!("part-{host}")));
        let clock = part.clock.unwrap();
        let [sink] = &clock.sinks[..] else { panic!("{clock:?}") };
        assert!(sink.exchanges == 32 && sink.error_ns > 0 && sink.boot != clock.boot, "{clock:?}");
        assert!(sink.difference_ns.unsigned_abs() <= sink.error_ns, "{clock:?}");
        // For the first two hosts, chrony says that the part's clock and the sink's clock are each wrong by at most
        // 1,000 ns, which makes 2,000 ns in all.
        assert_eq!(sink.chrony_bound_ns, (host < 2).then_some(2000), "{clock:?}");
    }
    let said = reasons(&whole);
    assert!(said.contains("Delivered times are wrong by up to ") && said.contains("(by an exchange"), "{said}");
    // In the runs "ahead", the sink's clock is five seconds ahead, although chrony says otherwise. Thresholds on
    // delivered times cannot be judged then, but thresholds on accepted times can.
    let [delivered, accepted, slow] = ["whole-ahead-delivered", "whole-ahead-accepted", "whole-slow-delivered"]
        .map(|name| record(&place.path().join(name)));
    assert_eq!(delivered.verdict.outcome, Some(Outcome::Invalid), "{:?}", delivered.verdict);
    assert!(reasons(&delivered).contains("the clocks of the hosts differ by 5.0 s"), "{:?}", delivered.verdict);
    assert_eq!(accepted.verdict.outcome, Some(Outcome::Pass), "{:?}", accepted.verdict);
    assert!(reasons(&accepted).contains("too much to rely on them"), "{:?}", accepted.verdict);
    // Without chrony, an exchange that takes 100 ms leaves an error of 50 ms. Even if a busy host needs 400 ms for a
    // message, this error is more than a tenth of the measured times.
    assert_eq!(slow.verdict.outcome, Some(Outcome::Invalid), "{:?}", slow.verdict);
    assert!(reasons(&slow).contains("(by an exchange of messages): too much"), "{:?}", slow.verdict);
    let clock = record(&place.path().join("slow-delivered")).clock.unwrap();
    assert!(clock.sinks[0].error_ns >= 50_000_000, "{clock:?}");
}
