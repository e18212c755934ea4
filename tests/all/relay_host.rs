//! A relay and its host: too few descriptors, a log that nobody reads, directories that others can change.
use crate::party::{LIMIT, Process, Sink, is_root, peer, run, skip, source, wait_until};
use crate::relay::{Den, MAILRUN, QUICK, Relay, all_to, await_recipients, http, introduced, metric, submit};
use crate::wire::Wire;
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

const DISCARD: &str = "[[route]]\nto = \"*\"\ndiscard = true\n";
const HTTP: &str = "http = \"127.0.0.1:0\"\n";

fn http_address(relay: &Relay) -> SocketAddr {
    let listening: Value = serde_json::from_str(relay.process.said().lines().next().unwrap()).unwrap();
    listening["http"].as_str().unwrap().parse().unwrap()
}

fn status_for(address: SocketAddr, path: &str, host: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").as_bytes()).unwrap();
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    line
}

#[test]
fn health_says_whether_a_relay_and_a_sink_work() {
    let den = Den::new(&format!("{HTTP}{DISCARD}"));
    let relay = den.open();
    let address = http_address(&relay);
    let sink = Sink::start(&[]);
    let bare = sink.url().trim_start_matches("http://").to_owned();
    let pages = [format!("http://{address}/health"), format!("{address}/ready"), format!("{}/status", sink.url())];
    for url in pages.into_iter().chain([address.to_string(), bare]) {
        let works = run(MAILRUN, &["health", &url]);
        assert_eq!((works.code, works.out.as_str()), (Some(0), "ok\n"), "{url}: {}", works.err);
    }
    let unknown = run(MAILRUN, &["health", &format!("http://{address}/nothing")]);
    assert_eq!(unknown.code, Some(1));
    assert!(unknown.err.starts_with("mailrun: ") && unknown.err.contains("404"), "{}", unknown.err);
    relay.stop();
    let gone = run(MAILRUN, &["health", &format!("http://{address}/health")]);
    assert_eq!(gone.code, Some(1), "{}", gone.err);
    assert_eq!(run(MAILRUN, &["health", "ftp://a.example"]).code, Some(2));
}

#[test]
fn idle_connections_to_the_metrics_port_cost_no_mail() {
    mailrun_net::open_files::raise(2_000);
    let den = Den::new(&format!("{HTTP}limits.max_sessions = 50\n{DISCARD}"));
    let relay = den.open();
    let address = http_address(&relay);
    let before = relay.process.descriptors();
    let idle: Vec<TcpStream> = (0..400).map(|_| TcpStream::connect(address).unwrap()).collect();
    wait_until("most of them to be displaced", || (metric(&relay, "http_displaced_total") > 300).then_some(()));
    assert!(relay.process.descriptors() < before + 80, "{} after {before}", relay.process.descriptors());
    let mut wire = introduced(&relay);
    for _ in 0..50 {
        assert!(submit(&mut wire, "<a@b.example>", &["<c@d.example>"], "x\r\n").starts_with("250"));
    }
    assert_eq!(http(&relay, "/health").0, 200);
    drop(idle);
    relay.stop();
}

#[test]
fn a_page_whose_name_leads_here_learns_nothing() {
    let den = Den::new(&format!("{HTTP}{DISCARD}"));
    let relay = den.open();
    let sink = Sink::start(&["--hostname", "sink.example"]);
    let ours = [http_address(&relay), sink.url().trim_start_matches("http://").parse().unwrap()];
    for (address, path, name) in [(ours[0], "/metrics", "relay.example"), (ours[1], "/rules", "sink.example")] {
        for host in ["evil.example", "localhost.evil.example", &format!("evil.example:{}", address.port())] {
            assert!(status_for(address, path, host).starts_with("HTTP/1.1 421"), "{host}");
        }
        for host in [name, "localhost:1", "127.0.0.1", "[::1]:80", &address.to_string()] {
            assert!(status_for(address, path, host).starts_with("HTTP/1.1 200"), "{host}");
        }
    }
    assert_eq!(metric(&relay, "http_misdirected_total"), 3);
    relay.stop();
    sink.stop();
}

fn piped(den: &Den, words: &[&str]) -> (Relay, std::io::PipeReader) {
    let (reader, pipe) = std::io::pipe().unwrap();
    let config = den.path("relay.toml");
    let own = ["relay", "--config", &config, "--live", "json"];
    let process = Process::start_saying(MAILRUN, &[&own, words].concat(), Stdio::from(pipe));
    (Relay::listening(process), reader)
}

#[test]
fn a_log_that_nobody_reads_holds_up_no_mail_and_no_end() {
    let den = Den::new(&format!("{HTTP}{DISCARD}"));
    let (relay, reader) = piped(&den, &["--log", "info"]);
    let mut taken = 0;
    wait_until("a log that is too much", || {
        let words = ["--messages", "2000", "--recipients", "10", "--sessions", "10", "--reuse"];
        let ours = source(&relay.address(), &words);
        assert_eq!(ours.ended.code, Some(0), "{:?}", ours.ended);
        taken += 20_000;
        (metric(&relay, "unlogged_total") > 0).then_some(())
    });
    wait_until("all to be delivered", || (metric(&relay, "delivered_total") == taken).then_some(()));
    relay.process.terminate();
    assert_eq!(relay.process.finish().code, Some(0));
    drop(reader);
}

#[test]
fn a_log_that_is_read_again_says_what_it_has_left_out() {
    let den = Den::new(&format!("{HTTP}{DISCARD}"));
    let (relay, reader) = piped(&den, &["--log", "info"]);
    let mut taken = 0;
    wait_until("a log that is too much", || {
        let words = ["--messages", "2000", "--recipients", "10", "--sessions", "10", "--reuse"];
        assert_eq!(source(&relay.address(), &words).ended.code, Some(0));
        taken += 20_000;
        (metric(&relay, "unlogged_total") > 0).then_some(())
    });
    wait_until("all to be delivered", || (metric(&relay, "delivered_total") == taken).then_some(()));
    let lines = Arc::new(Mutex::new(Vec::new()));
    let read = {
        let lines = Arc::clone(&lines);
        std::thread::spawn(move || {
            BufReader::new(reader).lines().for_each(|line| lines.lock().unwrap().push(line.unwrap()));
        })
    };
    // Wait, because a worker keeps log entries for up to 100 ms. Only then does it write them to the pipe, or count
    // them as unlogged if the pipe has no room.
    let logged = || lines.lock().unwrap().iter().filter(|line| line.contains("status=delivered")).count() as u64;
    wait_until("each delivery to be logged or counted", || {
        let unlogged = metric(&relay, "unlogged_total");
        (logged() + unlogged == taken).then_some(())
    });
    let unlogged = metric(&relay, "unlogged_total");
    relay.stop();
    read.join().unwrap();
    let lines = lines.lock().unwrap();
    let told = lines.iter().filter(|line| line.contains("deliveries were not logged"));
    let told: u64 = told.map(|line| line.rsplit_once("lines=").unwrap().1.parse::<u64>().unwrap()).sum();
    assert_eq!(told, unlogged);
}

#[test]
fn the_last_line_of_a_relay_that_cannot_run_reaches_its_reader() {
    let (mut reader, pipe) = std::io::pipe().unwrap();
    let words = ["relay", "--to", "127.0.0.1:1", "--spool", "/dev/null/spool"];
    let status = Command::new(MAILRUN).args(words).stderr(pipe).status().unwrap();
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    assert_eq!(status.code(), Some(2));
    assert!(text.starts_with("mailrun: ") && text.ends_with('\n') && text.lines().count() == 1, "{text:?}");
}

/// Starts a relay with a low hard limit of descriptors that it may not raise. Returns `None`, and notes the skipped
/// test, if setpriv(1) is not installed.
fn confined(den: &Den, descriptors: u32) -> Option<Relay> {
    let setpriv = peer("setpriv")?;
    let config = den.path("relay.toml");
    let script = format!("ulimit -n {descriptors} && exec \"$@\"");
    let without = ["--bounding-set=-sys_resource", "--inh-caps=-sys_resource"];
    let without = if is_root() { &without[..] } else { &[] };
    let words = [&["-c", &script, "sh", &setpriv], without, &[MAILRUN, "relay", "--config", &config, "--live", "json"]];
    Some(Relay::listening(Process::start("sh", &words.concat())))
}

#[test]
fn a_relay_with_few_descriptors_refuses_sessions_and_loses_no_spool() {
    mailrun_net::open_files::raise(2_000);
    // Use small segments, so that the spool often opens new ones.
    let next_hop = format!("127.0.0.1:{}", crate::party::low_port());
    let text = format!("{HTTP}workers = 1\nspool.max_size = \"16M\"\nlimits.max_message_size = \"1M\"\n{QUICK}");
    let den = Den::to(&next_hop, &text);
    let Some(relay) = confined(&den, 400) else { return };
    assert!(relay.process.complained().contains("ulimit -n"), "{}", relay.process.complained());
    // With so few descriptors, the relay applies lower limits than its file sets. A reload must compare the new file
    // with the old file, and not with the lower limits.
    let unchanged = fs::read_to_string(den.path("relay.toml")).unwrap();
    for (count, line) in [(1, ""), (2, "limits.max_sessions = 9000\n")] {
        den.files.keep("relay.toml", &format!("{line}{unchanged}"));
        relay.process.hang_up();
        wait_until("the reload", || {
            (relay.process.complained().matches("was reloaded").count() == count).then_some(())
        });
    }
    let mut first = introduced(&relay);
    let greetings: Vec<_> =
        (0..500).map(|_| Wire::connect(relay.smtp[0])).map(|mut wire| (wire.reply(), wire)).collect();
    let refused =
        greetings.iter().filter(|(reply, _)| reply.as_ref().is_none_or(|reply| reply.starts_with("421"))).count();
    assert!((100..499).contains(&refused), "{refused}");
    let http_address = http_address(&relay);
    let idle: Vec<TcpStream> = (0..100).map(|_| TcpStream::connect(http_address).unwrap()).collect();
    let body = "x".repeat(76) + "\r\n";
    let mut send = || submit(&mut first, "<a@b.example>", &["<c@d.example>"], body.repeat(800));
    let mut taken = 0;
    while send().starts_with("250") {
        taken += 1;
    }
    assert!(taken > 100, "{taken}");
    assert_eq!(http(&relay, "/health").0, 200);
    drop((greetings, idle));
    let sink = Sink::start_at(&next_hop, &[]);
    await_recipients(&sink, taken);
    wait_until("room again", || send().starts_with("250").then_some(()));
    drop(first);
    let err = relay.stop().err;
    let told: Vec<&str> = err.lines().filter(|line| line.contains("require a restart")).collect();
    assert!(told.len() == 1 && told[0].contains("keys=\"limits\""), "{told:?}");
}

#[test]
fn a_spool_that_can_open_no_segment_refuses_for_a_while_and_has_not_failed() {
    let next_hop = format!("127.0.0.1:{}", crate::party::low_port());
    // With this size, a segment has 8 MiB, so the spool soon needs new segments.
    let text = format!("{HTTP}spool.max_size = \"64M\"\nlimits.max_message_size = \"1M\"\n{QUICK}");
    let den = Den::to(&next_hop, &text);
    let relay = den.open();
    let body = ("x".repeat(76) + "\r\n").repeat(4_000);
    let mut wire = introduced(&relay);
    let mut send = || submit(&mut wire, "<a@b.example>", &["<c@d.example>"], &body);
    assert!(send().starts_with("250"));
    let usual = relay.process.limit_descriptors(3);
    let mut taken = 1;
    let mut refused = 0;
    while refused < 20 {
        match send() {
            reply if reply.starts_with("250") => taken += 1,
            reply => {
                assert!(reply.starts_with("452"), "{reply}");
                refused += 1;
            }
        }
        assert!(taken < 100, "there is room for no more than two segments");
    }
    relay.process.limit_descriptors(usual);
    wait_until("room again", || send().starts_with("250").then_some(()));
    assert_eq!(http(&relay, "/health").0, 200);
    assert_eq!(metric(&relay, "spool_failed"), 0);
    let sink = Sink::start_at(&next_hop, &[]);
    await_recipients(&sink, taken + 1);
    relay.stop();
}

#[test]
fn a_relay_with_too_few_descriptors_does_not_begin_and_says_what_to_do() {
    let Some(setpriv) = peer("setpriv") else { return };
    let den = Den::new(DISCARD);
    let config = den.path("relay.toml");
    let without = ["--bounding-set=-sys_resource", "--inh-caps=-sys_resource"];
    let without = if is_root() { &without[..] } else { &[] };
    let words =
        [&["-c", "ulimit -n 100 && exec \"$@\"", "sh", &setpriv], without, &[MAILRUN, "relay", "--config", &config]];
    let ended = run("sh", &words.concat());
    assert_eq!(ended.code, Some(2));
    let last = ended.err.lines().last().unwrap();
    assert!(last.contains("limit of open files (ulimit -n) is 100") && last.contains("LimitNOFILE="), "{last}");
}

/// Runs a relay that must refuse to start, and returns its error.
fn refusal(den: &Den) -> String {
    let ended = den.fails(&[]);
    assert_eq!(ended.code, Some(2), "{}", ended.err);
    ended.err
}

fn chmod(path: &str, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn mode_of(path: &str) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn a_spool_that_others_can_change_is_refused_and_one_that_they_can_read_is_closed() {
    let den = Den::new(DISCARD);
    let spool = den.path("spool");
    den.open().stop();
    assert_eq!(mode_of(&spool), 0o700);
    for entry in fs::read_dir(&spool).unwrap().flatten() {
        assert_eq!(entry.metadata().unwrap().permissions().mode() & 0o077, 0, "{:?}", entry.path());
    }
    for mode in [0o770, 0o702, 0o1777] {
        chmod(&spool, mode);
        let said = refusal(&den);
        assert!(said.contains("is writable for other users") && said.contains("chmod 700"), "{said}");
        assert_eq!(mode_of(&spool), mode);
    }
    chmod(&spool, 0o755);
    den.open().stop();
    assert_eq!(mode_of(&spool), 0o700);
    // The relay must not change the mode of a directory that is not a spool.
    fs::remove_dir_all(&spool).unwrap();
    fs::create_dir(&spool).unwrap();
    den.files.keep("spool/something", "of somebody's");
    chmod(&spool, 0o755);
    let ended = den.open().stop();
    assert!(ended.err.contains("other users can read"), "{}", ended.err);
    assert_eq!(mode_of(&spool), 0o755);
}

#[test]
fn a_spool_behind_a_link_or_where_everybody_can_rename_it_is_refused() {
    let den = Den::new(DISCARD);
    let spool = den.path("spool");
    den.open().stop();
    fs::rename(&spool, den.path("elsewhere")).unwrap();
    std::os::unix::fs::symlink(den.path("elsewhere"), &spool).unwrap();
    let said = refusal(&den);
    assert!(said.contains("is a symbolic link"), "{said}");
    fs::remove_file(&spool).unwrap();
    fs::rename(den.path("elsewhere"), &spool).unwrap();
    let place = den.path(".");
    chmod(&place, 0o777);
    let said = refusal(&den);
    assert!(said.contains("any user can replace it"), "{said}");
    chmod(&place, 0o1777);
    den.open().stop();
    // A symbolic link in place of a spool file must not be followed.
    let lock = format!("{spool}/lock");
    fs::remove_file(&lock).unwrap();
    let victim = den.files.keep("victim", "untouched");
    std::os::unix::fs::symlink(&victim, &lock).unwrap();
    let said = refusal(&den);
    assert!(said.contains("cannot open the spool"), "{said}");
    assert_eq!(fs::read_to_string(victim).unwrap(), "untouched");
}

#[test]
fn the_spool_of_a_running_relay_is_refused_even_without_its_lock_file() {
    let den = Den::new(DISCARD);
    let relay = den.open();
    let first = fs::read_to_string(den.path("relay.toml")).unwrap();
    let second = den.files.keep("second.toml", &format!("control = \"second.sock\"\n{first}"));
    let spool = den.path("spool");
    for _ in 0..2 {
        let ended = run(MAILRUN, &["relay", "--config", &second]);
        assert_eq!(ended.code, Some(2), "{}", ended.err);
        assert!(ended.err.contains("another process has this spool open"), "{}", ended.err);
        let ended = run(MAILRUN, &["spool", "check", &spool]);
        assert!(ended.err.contains("a relay is using it"), "{}", ended.err);
        let _ = fs::remove_file(format!("{spool}/lock"));
    }
    relay.stop();
    let ended = run(MAILRUN, &["spool", "check", &spool]);
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    den.open().stop();
}

#[test]
fn a_spool_of_somebody_elses_is_refused() {
    if !is_root() {
        return skip("chown", "only root can give a directory away");
    }
    let den = Den::new(DISCARD);
    den.open().stop();
    std::os::unix::fs::chown(den.path("spool"), Some(65_534), None).unwrap();
    let said = refusal(&den);
    assert!(said.contains("belongs to another user"), "{said}");
}

/// The relay must report a limit of file sizes that is too low, because the kernel would end the process by a signal
/// without an error message.
#[test]
fn a_limit_of_file_sizes_that_is_too_low_is_named() {
    let den = Den::new(&all_to("127.0.0.1:9"));
    let config = den.path("relay.toml");
    let ended = run("sh", &["-c", "ulimit -f 100 && exec \"$@\"", "sh", MAILRUN, "relay", "--config", &config]);
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.err.contains("(ulimit -f)") && ended.err.contains(&den.path("spool")), "{}", ended.err);
}
