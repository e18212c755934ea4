//! Faulty recipes (descriptions of servers that the bench starts): each fault is reported in one clear line, and no
//! process is left behind.
use crate::docs_script::namespaces;
use crate::party::{Ended, Process, mailrun, peer, run, skip, wait_until};
use crate::relay::MAILRUN;
use mailrun_measurement::record::{Record, Role};
use std::fs;
use std::path::Path;
use std::time::Instant;

/// A Python server that accepts mail and discards it. Its last argument orders a fault: with `daemon`, for example, it
/// leaves a process behind when it stops.
const FORGETFUL: &str = r#"import os, signal, socket, sys, threading
host, port = sys.argv[1].split(":"); fault = sys.argv[3] if len(sys.argv) > 3 else ""
if fault == "early": sys.exit("cannot find my own teeth")
if fault == "daemon" and os.fork() == 0:
    os.setsid(); signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.pause()
def serve(client):
    file = client.makefile("rwb"); say = lambda line: (file.write(line + b"\r\n"), file.flush())
    say(b"220 forgetful"); data = False
    for line in file:
        if data:
            if line == b".\r\n":
                if fault == "children": work()
                data = False; say(b"250 taken")
        elif line.upper().startswith(b"DATA"): data = True; say(b"354 go on")
        elif line.upper().startswith(b"QUIT"): say(b"221 bye"); return client.close()
        else: say(b"250 fine")
if fault == "children": signal.signal(signal.SIGCHLD, signal.SIG_IGN)
def work():
    child = os.fork()
    if child == 0: sum(range(10**7)); os._exit(0)
    try: os.waitpid(child, 0)
    except ChildProcessError: pass
server = socket.socket(); server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
server.bind((host, int(port)))
print("at your service", file=sys.stderr, flush=True)
if fault != "silent": server.listen(100)
else: signal.pause()
while True: threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()
"#;

fn recipe(place: &Path, fault: &str, keys: &str) -> String {
    let path = place.join("false.toml");
    let text = format!(
        "durability = \"memory\"\ncommand = [\"python3\", \"-u\", \"{{dir}}/server.py\", \"{{listen}}\", \"{{to}}\", \
         \"{fault}\"]\n{keys}\n[[file]]\npath = \"server.py\"\ntext = '''\n{FORGETFUL}'''\n"
    );
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

fn bench(place: &Path, recipe: &str) -> Ended {
    let out = place.join("out");
    let out = out.to_str().unwrap();
    let words = ["bench", "--relay", recipe, "--messages", "5", "--sessions", "1", "--lost-after", "300ms"];
    mailrun(&[&words[..], &["--quiet", "--out", out]].concat())
}

/// Returns true if the server of a recipe can run here. Otherwise notes the skipped test, and what the server lacks.
pub(crate) fn is_here(recipe: &str) -> bool {
    let listed = mailrun(&["recipe", "list"]).out;
    let row = listed.lines().map(|line| line.split_whitespace().collect::<Vec<_>>()).find(|row| row[..1] == [recipe]);
    let row = row.unwrap_or_else(|| panic!("{recipe}: {listed}"));
    let is_here = row[2] == "yes";
    if !is_here {
        skip(recipe, &row[2..].join(" "));
    }
    is_here
}

pub(crate) fn processes_of(place: &Path) -> usize {
    processes_with(place.to_str().unwrap())
}

/// Number of processes whose command lines contain the text.
fn processes_with(text: &str) -> usize {
    let all = fs::read_dir("/proc").unwrap().flatten();
    let lines = all.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    lines.filter(|line| String::from_utf8_lossy(line).contains(text)).count()
}

#[test]
fn each_fault_of_a_recipe_is_one_line_with_its_file_and_key() {
    let Some(_) = peer("python3") else { return };
    let rows = [
        ("early", "", "3:11: command: ", "the relay ended before it listened: cannot find my own teeth"),
        ("silent", "ready_within = \"500ms\"", ": command: ", "did not listen within"),
        // 4 s is enough time for a busy machine to start Python.
        ("silent", "ready_within = \"4s\"", ": command: ", "its last output: at your service"),
        ("daemon", "", ": command: ", "the relay ended and left processes behind: python3 ("),
        ("", "prepare = [[\"sh\", \"-c\", \"echo no flour >&2; exit 3\"]]", ": prepare: ", "exit status 3: no flour"),
        ("", "prepare = [[\"fnord\"]]", ": prepare: ", "there is no program \"fnord\""),
        (
            "",
            "programs = [\"fnord\"]\ninstall = \"apt-get install fnord\"",
            ":3:12: programs: ",
            "to install it: apt-get install fnord",
        ),
        ("", "fnord = 1", ":3:1: ", "unknown key \"fnord\""),
    ];
    for (fault, keys, key, said) in rows {
        let place = tempfile::tempdir().unwrap();
        let ended = bench(place.path(), &recipe(place.path(), fault, keys));
        assert_eq!(ended.code, Some(2), "{ended:?}");
        let key = key.trim_start_matches("3:11");
        let line = ended.err.lines().find(|line| line.contains(said)).unwrap_or_else(|| panic!("{said}: {ended:?}"));
        assert!(line.contains("false.toml:") && line.contains(key), "{line}");
        assert_eq!(processes_of(place.path()), 0, "{said}: nothing of it runs on");
    }
}

#[test]
fn three_signals_leave_no_process_of_a_server() {
    let Some(_) = peer("python3") else { return };
    let place = tempfile::tempdir().unwrap();
    let recipe = recipe(place.path(), "daemon", "");
    let out = place.path().join("out");
    let words = ["bench", "--relay", &recipe, "--duration", "1h", "--rate", "1", "--lost-after", "300ms", "--quiet"];
    let bench = Process::start(MAILRUN, &[&words[..], &["--out", out.to_str().unwrap()]].concat());
    let servers = || processes_with(&format!("{}/relay.spool/", out.display()));
    let progress = || fs::read_to_string(out.join("source.stdout")).unwrap_or_default();
    wait_until("the load", || progress().contains("\"progress\"").then_some(()));
    assert_eq!(servers(), 2, "the server and its daemon");
    bench.terminate();
    // The server's first process exits when it is told to stop, but its daemon does not.
    wait_until("the server to exit", || (servers() == 1).then_some(()));
    for _ in 0..2 {
        bench.terminate();
        wait_until("the signal to be heard", || (bench.pending_signals() == 0).then_some(()));
    }
    let ended = bench.finish();
    assert_eq!(servers(), 0, "{ended:?}");
}

#[test]
fn mail_that_a_server_took_and_never_handed_on_is_not_delivered() {
    let Some(_) = peer("python3") else { return };
    let place = tempfile::tempdir().unwrap();
    let ended = bench(place.path(), &recipe(place.path(), "", ""));
    // The bench cannot look into this server's queue, so it cannot prove that a message is lost.
    assert_eq!(ended.code, Some(3), "{ended:?}");
    assert!(ended.out.contains("INCONCLUSIVE") && ended.out.contains("not delivered"), "{ended:?}");
    assert_eq!(processes_of(place.path()), 0);
}

/// Kills a bench with SIGKILL, and counts the server's processes that it left behind, before and after a second bench.
const KILLED: &str = r#"ip link set lo up
"$1" bench --relay "$2" --duration 1h --rate 1 --quiet --out "$3/killed" & first=$!
count() { grep -l MAILRUN_RECIPE= /proc/[0-9]*/environ | wc -l; }
for _ in $(seq 1000); do [ -s "$3/killed/relay.stderr" ] && [ "$(count)" = 2 ] && break; sleep 0.02; done
kill -9 $first; wait $first
echo "left: $(count)"
"$1" bench --relay "$2" --messages 5 --lost-after 300ms --quiet --out "$3/next"
echo "left: $(count)"
"#;

#[test]
fn what_a_killed_mailrun_left_is_removed_by_the_next_one_which_says_so() {
    let (Some(_), Some(flags)) = (peer("python3"), namespaces()) else { return };
    let place = tempfile::tempdir().unwrap();
    let file = recipe(place.path(), "daemon", "");
    let out = place.path().to_str().unwrap();
    let words = [flags.as_slice(), &["bash", "-c", KILLED, "bash", MAILRUN, &file, out]].concat();
    let ended = run("unshare", &words);
    assert!(ended.out.contains("left: 2") && ended.out.ends_with("left: 0\n"), "{ended:?}");
    let said = format!("killed what an earlier mailrun had left of the server in {out}/killed/relay.spool: python3 (");
    assert!(ended.err.contains(&said), "{ended:?}");
}

/// True if this test may make control groups of version 2.
pub(crate) fn has_control_groups() -> bool {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let mut fields = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let version_2 = fields.find(|fields| fields[2] == "cgroup2").map(|fields| Path::new(fields[1]).to_owned());
    let trial = version_2.map(|mount| mount.join(format!("test-{}", std::process::id())));
    trial.is_some_and(|trial| fs::create_dir(&trial).and_then(|()| fs::remove_dir(&trial)).is_ok())
}

/// The server ignores SIGCHLD, as Exim does, so the kernel forgets the CPU time of its children. The record must
/// include this time nevertheless.
#[test]
fn the_cpu_time_of_children_that_nobody_waits_for_is_the_servers() {
    let Some(_) = peer("python3") else { return };
    if !has_control_groups() {
        return skip("CPU time of processes that nobody waits for", "no control group of version 2 can be made here");
    }
    let place = tempfile::tempdir().unwrap();
    let ended = bench(place.path(), &recipe(place.path(), "children", ""));
    let record = Record::from_json(&fs::read(place.path().join("out/run.json")).unwrap()).unwrap();
    let server = record.parties.iter().find(|party| party.role == Role::Relay).unwrap();
    assert!(server.user_s.is_some_and(|user_s| user_s > 0.5), "{server:?} {ended:?}");
}

#[test]
fn a_server_gets_a_short_path_to_its_mail() {
    let Some(_) = peer("python3") else { return };
    let place = tempfile::tempdir().unwrap();
    let [seen, found] = ["seen", "found"].map(|name| place.path().join(name));
    let keys = format!(
        "prepare = [[\"sh\", \"-c\", \"echo {{state}} > {}; cd {{state}} && touch mail && find {{state}} -type f > \
         {}\"]]",
        seen.display(),
        found.display()
    );
    let long = place.path().join("a".repeat(100));
    fs::create_dir(&long).unwrap();
    let ended = bench(&long, &recipe(place.path(), "", &keys));
    let path = fs::read_to_string(&seen).unwrap_or_else(|error| panic!("{error}: {ended:?}"));
    assert!(path.len() <= 70 && long.join("out/run.json").exists(), "{path} {ended:?}");
    // `find` must find the mail below the short path, although this path contains a symbolic link.
    assert_eq!(fs::read_to_string(&found).unwrap().trim(), format!("{}/mail", path.trim()));
    assert!(fs::symlink_metadata(Path::new(path.trim()).parent().unwrap()).is_err(), "the link is removed");
}

/// The preparation of a server must not count as part of the run. Otherwise, the processes that unpack
/// a Debian root would be reported as processes that disturbed the run.
#[test]
fn what_prepares_a_server_is_no_part_of_the_time_in_which_the_host_is_watched() {
    let Some(_) = peer("python3") else { return };
    let place = tempfile::tempdir().unwrap();
    let began = Instant::now();
    bench(place.path(), &recipe(place.path(), "", "prepare = [[\"sleep\", \"3\"]]"));
    let took_s = began.elapsed().as_secs_f64();
    let record: Record = serde_json::from_str(&fs::read_to_string(place.path().join("out/run.json")).unwrap()).unwrap();
    let processors = fs::read_to_string("/proc/stat").unwrap().matches("\ncpu").count() as f64;
    let watched_s = record.surroundings.unwrap().processor_s.unwrap() / processors;
    assert!(watched_s < took_s - 2.9, "{watched_s} s of {took_s} s");
}
