//! A private Exim in its own Debian root, because Debian installs only one mail server at a time. The tests check
//! mailrun's conclusions about mail that Exim defers, mail that is lost behind Exim, and mail that Exim had accepted
//! when it was killed.
//!
//! `make test-slow PART=exim` makes that root and runs this file.
use crate::party::{Bench, Process, Sink, bench_as_typed, is_root, low_port, peer, run, skip, wait_until};
use mailrun_measurement::record::{LedgerRow, Outcome, Record};
use std::fs;
use std::net::TcpStream;
use std::path::PathBuf;
use tempfile::TempDir;

/// Accepts all mail and passes it on to a port of this host. Mail to some addresses is copied or redirected to others.
const CONFIGURATION: &str = "
primary_hostname = exim.test
daemon_smtp_ports = LISTEN
local_interfaces = 127.0.0.1
tls_advertise_hosts =
notifier_socket =
host_lookup =
rfc1413_query_timeout = 0s
smtp_accept_max = 100
acl_smtp_rcpt = take
acl_smtp_data = take
dsn_advertise_hosts = *
begin acl
take:
  accept
begin routers
copies:
  driver = redirect
  local_parts = bcc
  data = audit@other.example
  unseen
  redirect_router = onward
rewritten:
  driver = redirect
  local_parts = one : gone
  data = ${if eq{$local_part}{gone}{nobody@other.example}{other@other.example}}
  redirect_router = onward
onward:
  driver = manualroute
  transport = onward
  route_list = * 127.0.0.1
  self = send
begin rewrite
rule@bench.example other@other.example T
begin transports
onward:
  driver = smtp
  port = NEXT
  allow_localhost
begin retry
* * F,1h,1s
";

struct Exim {
    /// The daemon must be dropped before `root`, because dropping the daemon ends every process that runs in `root`.
    daemon: Option<Process>,
    root: TempDir,
    port: u16,
}

impl Exim {
    /// Starts an Exim that passes mail on to the port `next`. Returns `None`, and notes the skipped test, if Exim
    /// cannot run here.
    fn start(next: u16) -> Option<Self> {
        peer("unshare")?;
        let tar = concat!(env!("CARGO_MANIFEST_DIR"), "/target/roots/exim-trixie.tar");
        if !is_root() || fs::metadata(tar).is_err() {
            skip("exim", "packaging/tests/debian-root.sh exim trixie has made no Debian with it");
            return None;
        }
        let root = tempfile::tempdir().unwrap();
        assert_eq!(run("tar", &["-xf", tar, "-C", root.path().to_str().unwrap()]).code, Some(0));
        let port = low_port();
        let configuration = CONFIGURATION.replace("LISTEN", &port.to_string()).replace("NEXT", &next.to_string());
        fs::write(root.path().join("etc/exim4/exim4.conf"), configuration).unwrap();
        let mut exim = Self { daemon: None, root, port };
        exim.start_daemon();
        Some(exim)
    }

    /// Starts Exim without a queue runner, so deferred mail waits for `flush`.
    fn start_daemon(&mut self) {
        let root = self.root.path().to_str().unwrap();
        // Without `exit` at the end, the shell would replace itself by Exim. The signal of `--kill-child` would then
        // have no effect, because Exim is a set-user-ID program.
        let script = format!("chroot {root} /usr/sbin/exim4 -bdf; exit $?");
        let words = ["--pid", "--fork", "--kill-child", "sh", "-c", &script];
        self.daemon = Some(Process::start("unshare", &words));
        wait_until("Exim to listen", || TcpStream::connect(self.address()).ok());
    }

    /// Kills the daemon and its delivery processes.
    fn kill(&mut self) {
        self.daemon = None;
        wait_until("Exim to be gone", || TcpStream::connect(self.address()).is_err().then_some(()));
    }

    fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    fn command(&self, word: &str) -> String {
        let ended = run("chroot", &[self.root.path().to_str().unwrap(), "/usr/sbin/exim4", word]);
        assert_eq!(ended.code, Some(0), "{ended:?}");
        ended.out
    }

    fn log(&self) -> String {
        fs::read_to_string(self.path("var/log/exim4/mainlog")).unwrap()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    /// Reports whether the log has a line about the message with this flag: `<=` accepted, `=>` delivered, `==`
    /// deferred.
    fn has_logged(&self, id: &str, sign: &str) -> bool {
        self.log().contains(&format!(" {id} {sign} "))
    }

    fn deliver_all(&self) {
        wait_until("Exim to deliver what it has put off", || {
            self.command("-qff");
            (self.command("-bpc").trim() == "0").then_some(())
        });
    }
}

/// Exim's ids ("250 OK id=1xWZwm-000007-2E") of accepted messages that did not arrive.
fn undelivered(record: &Record) -> Vec<&str> {
    let replies = record.missing.iter().filter_map(|message| message.reply.as_ref());
    replies.filter_map(|reply| reply.split("id=").nth(1)?.split_whitespace().next()).collect()
}

#[test]
#[ignore = "slow: make test-slow PART=exim"]
fn mail_that_exim_puts_off_is_not_delivered_and_its_ids_are_named() {
    let sink = Sink::start(&["--fault", "rcpt: soft reject 20%"]);
    let Some(exim) = Exim::start(sink.smtp.port()) else { return };
    let words = [&exim.address(), "--sink", sink.url(), "--sessions", "5", "--messages", "100", "--lost-after", "3s"];
    let record = bench_as_typed(&words).record_of(3);
    let LedgerRow { created, accepted, delivered, lost, not_delivered, .. } = record.ledger;
    assert_eq!((created, accepted, lost), (Some(100), Some(100), None));
    let missing = not_delivered.unwrap();
    assert!(missing > 0 && delivered.unwrap() + missing == 100, "{:?}", record.ledger);
    assert_eq!(record.verdict.outcome, Some(Outcome::Inconclusive));
    let why = &record.verdict.why;
    assert!(
        why.contains("lost or still in Exim's queue.") && why.contains("Look into the queue with `exim -bp`."),
        "{why}"
    );
    // Exactly the undelivered messages must be in Exim's queue. Exim's log must say that they were deferred (`==`).
    let ids = undelivered(&record);
    assert_eq!(ids.len() as u64, missing, "{:?}", record.missing);
    let queue = exim.command("-bp");
    assert_eq!(exim.command("-bpc").trim(), missing.to_string(), "{queue}");
    for id in &ids {
        assert!(queue.contains(id) && exim.has_logged(id, "=="), "{id}: {queue}");
    }
    exim.deliver_all();
    assert!(ids.iter().all(|id| exim.has_logged(id, "=>")));
}

#[test]
#[ignore = "slow: make test-slow PART=exim"]
fn mail_that_is_lost_behind_exim_is_in_its_log_as_delivered() {
    let sink = Sink::start(&["--fault", "drop 0.05", "--fault", "duplicate 0.05"]);
    let Some(exim) = Exim::start(sink.smtp.port()) else { return };
    let words = [&exim.address(), "--sink", sink.url(), "--sessions", "5", "--messages", "200", "--lost-after", "3s"];
    let record = bench_as_typed(&words).record_of(1);
    let LedgerRow { accepted, delivered, lost, not_delivered, duplicates, .. } = record.ledger;
    assert_eq!((accepted, lost), (Some(200), None), "Exim may still have it in its queue");
    let missing = not_delivered.unwrap();
    assert!(missing > 0 && delivered.unwrap() + missing == 200 && duplicates > Some(0), "{:?}", record.ledger);
    // Exim's queue is empty, and its log says that it delivered the missing messages (`=>`). So they were lost after
    // Exim's delivery.
    assert_eq!(exim.command("-bpc").trim(), "0");
    let ids = undelivered(&record);
    assert_eq!(ids.len() as u64, missing, "{:?}", record.missing);
    assert!(ids.iter().all(|id| exim.has_logged(id, "=>")));
}

#[test]
#[ignore = "slow: make test-slow PART=exim"]
fn mail_that_a_killed_exim_had_accepted_is_never_called_lost() {
    let sink = Sink::start(&["--fault", "rcpt: soft reject 20%"]);
    let Some(mut exim) = Exim::start(sink.smtp.port()) else { return };
    let words = [&exim.address(), "--sink", sink.url(), "--sessions", "5", "--messages", "500", "--lost-after", "3s"];
    let bench = Bench::start_as_typed(&words);
    wait_until("Exim to put mail off", || (exim.log().matches(" == ").count() >= 3).then_some(()));
    exim.kill();
    let record = bench.finish().record_of(1);
    let LedgerRow { accepted, delivered, failed, lost, not_delivered, .. } = record.ledger;
    let missing = not_delivered.unwrap();
    assert!(lost.is_none() && missing > 0 && failed > Some(0), "{:?}", record.ledger);
    assert_eq!(delivered.unwrap() + missing, accepted.unwrap());
    let verdict = &record.verdict;
    assert!(verdict.why.starts_with("Exim stopped answering at "), "{}", verdict.why);
    assert!(verdict.reasons.iter().any(|reason| reason.contains("still in Exim's queue")), "{verdict:?}");
    let ids = undelivered(&record);
    assert_eq!(ids.len() as u64, missing, "{:?}", record.missing);
    let queue = exim.command("-bp");
    assert!(ids.iter().all(|id| queue.contains(id)), "{ids:?}: {queue}");
    exim.start_daemon();
    exim.deliver_all();
    assert!(ids.iter().all(|id| exim.has_logged(id, "=>")));
}

#[test]
#[ignore = "slow: make test-slow PART=exim"]
fn recipients_that_exim_rewrites_adds_or_gives_up_on_are_accounted_for() {
    let sink = Sink::start(&["--fault", "rcpt to nobody@: hard reject \"550 5.1.1 No such user\""]);
    let Some(exim) = Exim::start(sink.smtp.port()) else { return };
    let base = [&exim.address(), "--sink", sink.url(), "--sessions", "5", "--messages", "20", "--lost-after", "20s"];
    let [mut logged_deliveries, mut logged_failures] = [0; 2];
    for (words, [delivered, bounced, rewritten, copied], said) in [
        (&["--to", "plain@bench.example"][..], [20, 0, 0, 0], ""),
        // Exim passes ORCPT on only if the client also sends NOTIFY. It never does so if a router redirects the
        // recipient.
        (&["--to", "rule@bench.example"], [20, 0, 20, 0], "It may do so if the source sends ORCPT"),
        (
            &["--to", "rule@bench.example", "--", "--dsn-orcpt", "--dsn-notify", "failure"],
            [20, 0, 20, 0],
            "20 recipients were rewritten: rule@bench.example → other@other.example.",
        ),
        (&["--to", "one@bench.example"], [20, 0, 20, 0], "20 recipients were rewritten. Exim does not tell to what."),
        (
            &["--to", "one@bench.example", "--", "--dsn-orcpt", "--dsn-notify", "failure"],
            [20, 0, 20, 0],
            "20 recipients were rewritten. Exim does not tell to what.",
        ),
        (&["--to", "bcc@bench.example"], [20, 0, 0, 20], "20 copies arrived for addresses that were no recipients"),
        (
            &["--to", "bcc@bench.example", "--", "--dsn-orcpt"],
            [20, 0, 0, 20],
            "20 copies arrived for addresses that were no recipients",
        ),
        (&["--to", "nobody@bench.example"], [0, 20, 0, 0], "Bounced: 20 of 20 messages were given up"),
        (&["--to", "gone@bench.example"], [0, 20, 0, 0], "550 5.1.1 No such user"),
        (
            &["--to", "gone@bench.example", "--", "--dsn-orcpt", "--dsn-notify", "failure"],
            [0, 20, 0, 0],
            "550 5.1.1 No such user",
        ),
    ] {
        let record = bench_as_typed(&[&base, words].concat()).record_of(i32::from(bounced > 0));
        let ledger = &record.ledger;
        let found = [ledger.delivered, ledger.bounced, ledger.rewritten, ledger.copied];
        assert_eq!(
            found,
            [delivered, bounced, rewritten, copied].map(Some),
            "{words:?}: {ledger:?} {:?}",
            record.verdict
        );
        let others = [ledger.duplicates, ledger.foreign, ledger.not_delivered, ledger.failed, ledger.in_flight];
        assert_eq!(others, [Some(0); 5], "{words:?}: {ledger:?}");
        assert_eq!(delivered + bounced, ledger.created.unwrap(), "{words:?}");
        assert!(record.verdict.reasons.concat().contains(said), "{words:?}: {:?}", record.verdict);
        // Exim's log must agree with the record. For each bounced recipient, the log has a failure and also the
        // delivery of a notification.
        let log = exim.log();
        let [deliveries, failures] = [" => ", " ** "].map(|sign| log.matches(sign).count() as u64);
        let copies = log.matches(" -> ").count() as u64;
        assert_eq!(deliveries + copies - logged_deliveries, delivered + copied + bounced, "{words:?}: {log}");
        assert_eq!(failures - logged_failures, bounced, "{words:?}: {log}");
        [logged_deliveries, logged_failures] = [deliveries + copies, failures];
    }
}
