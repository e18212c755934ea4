//! Tests the watching of a mailbox with a stand-in for an IMAP server. The stand-in breaks connections, refuses logins,
//! and reports mail by IDLE or when it is asked. A Maildir needs no stand-in, so its test uses a temporary directory.
use super::super::active_rules::ActiveRules;
use super::super::rulebook::Rulebook;
use super::super::worker_state::{SinkContext, TallyTransfer};
use super::{MailboxOptions, MailboxTls, WatchedMailbox, Watchers};
use mailrun_lock::lock;
use mailrun_measurement::trace::{RecipientNumbering, ZeroPhase};
use mailrun_measurement::{RunId, RunTally, SinkTally, Trace};
use mailrun_net::{Endpoint, clock};
use mailrun_smtp::sasl::Credentials;
use mailrun_smtp::server::Protocol;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

const RUN: RunId = RunId([9; 16]);
const LIMIT: Duration = Duration::from_secs(20);

#[derive(Default)]
struct Inbox {
    /// Header field with the trace of each message in the mailbox. The UID of a message is its index plus one.
    fields: Vec<Vec<u8>>,
    /// When a test increases this number, the server closes all connections that it has accepted before.
    generation: u64,
    connections: u64,
    /// Number of times that the mailbox was created again. Each time, its UIDVALIDITY changes.
    renewals: u64,
    /// Set while the server closes new connections at once.
    is_away: bool,
}

#[derive(Clone, Default)]
struct Server {
    inbox: Arc<(Mutex<Inbox>, Condvar)>,
    has_idle: bool,
}

impl Server {
    fn start(has_idle: bool) -> (Self, SocketAddr) {
        let server = Self { has_idle, ..Self::default() };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let clone = server.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let server = clone.clone();
                std::thread::spawn(move || server.serve(&stream.unwrap()));
            }
        });
        (server, address)
    }

    fn change(&self, change: impl FnOnce(&mut Inbox)) {
        change(&mut lock(&self.inbox.0));
        self.inbox.1.notify_all();
    }

    fn deliver(&self, field: &[u8]) {
        self.change(|inbox| inbox.fields.push(field.to_vec()));
    }

    fn count(&self) -> usize {
        lock(&self.inbox.0).fields.len()
    }

    /// Serves a connection until it breaks, or until a test increases `generation`.
    fn serve(&self, stream: &TcpStream) -> Option<()> {
        let generation = {
            let mut inbox = lock(&self.inbox.0);
            inbox.connections += 1;
            if inbox.is_away {
                return None;
            }
            inbox.generation
        };
        let closer = (self.clone(), stream.try_clone().unwrap());
        std::thread::spawn(move || {
            let (server, stream) = closer;
            let inbox = lock(&server.inbox.0);
            drop(server.inbox.1.wait_while(inbox, |inbox| inbox.generation == generation));
            let _ = stream.shutdown(std::net::Shutdown::Both);
        });
        let mut lines = BufReader::new(stream).lines();
        let mut out = stream;
        let mut say = |text: &str| out.write_all(text.as_bytes()).ok();
        let idle = if self.has_idle { " IDLE" } else { "" };
        say(&format!("* OK [CAPABILITY IMAP4rev1 SASL-IR AUTH=PLAIN{idle}] ready\r\n"))?;
        let mut told = 0;
        while let Some(Ok(line)) = lines.next() {
            let (tag, command) = line.split_once(' ').unwrap_or((&line, ""));
            let tell = |told: &mut usize| {
                let count = self.count();
                let news = if count == *told { String::new() } else { format!("* {count} EXISTS\r\n") };
                *told = count;
                news
            };
            match command.split(' ').next().unwrap_or_default() {
                "AUTHENTICATE" if command.ends_with("AHVzZXIAc2VjcmV0") => {
                    say(&format!("{tag} OK [CAPABILITY IMAP4rev1{idle}] in\r\n"))?;
                }
                "AUTHENTICATE" => say(&format!("{tag} NO [AUTHENTICATIONFAILED] wrong password\r\n"))?,
                "EXAMINE" => {
                    told = self.count();
                    let next = told + 1;
                    let validity = lock(&self.inbox.0).renewals + 1;
                    say(&format!(
                        "* {told} EXISTS\r\n* OK [UIDVALIDITY {validity}] v\r\n* OK [UIDNEXT {next}] n\r\n{tag} OK open\r\n"
                    ))?;
                }
                "IDLE" => {
                    say("+ idling\r\n")?;
                    let inbox = lock(&self.inbox.0);
                    let is_quiet = |inbox: &mut Inbox| inbox.fields.len() == told && inbox.generation == generation;
                    drop(self.inbox.1.wait_while(inbox, is_quiet));
                    say(&tell(&mut told))?;
                    lines.next()?.ok().filter(|line| line == "DONE")?;
                    say(&format!("{tag} OK ended\r\n"))?;
                }
                "NOOP" => say(&format!("{}{tag} OK done\r\n", tell(&mut told)))?,
                "UID" => {
                    let first: usize = command.split([' ', ':']).nth(2)?.parse().ok()?;
                    let news = tell(&mut told);
                    let fields = lock(&self.inbox.0).fields.clone();
                    let mut text = news.into_bytes();
                    for (place, field) in fields.iter().enumerate().skip(first - 1) {
                        let number = place + 1;
                        let length = field.len();
                        text.extend_from_slice(
                            format!("* {number} FETCH (UID {number} RFC822.SIZE 400 BODY[HEADER.FIELDS (X-Mailrun)] {{{length}}}\r\n")
                                .as_bytes(),
                        );
                        text.extend_from_slice(field);
                        text.extend_from_slice(b")\r\n");
                    }
                    text.extend_from_slice(format!("{tag} OK fetched\r\n").as_bytes());
                    say(&String::from_utf8(text).unwrap())?;
                }
                _ => say(&format!("{tag} BAD unknown\r\n"))?,
            }
        }
        Some(())
    }
}

fn field(sequence: u64) -> Vec<u8> {
    let mut line = vec![0; Trace::HEADER_BYTES];
    let trace = Trace {
        run: RUN,
        sequence,
        zero: ZeroPhase::of(Duration::ZERO),
        numbering: RecipientNumbering::SINGLE,
        created: clock::now(),
        clock: mailrun_process::outputs::monotonic_clock(),
        checksum: 0,
    };
    trace.write(&mut line);
    [&line, b"\r\n".as_slice()].concat()
}

struct Watching {
    watchers: Watchers,
    tallies: Receiver<TallyTransfer>,
    total: SinkTally,
}

impl Watching {
    fn start(address: SocketAddr, password: &str, poll: Option<Duration>) -> anyhow::Result<Self> {
        let mailbox = WatchedMailbox {
            url: format!("imap://user@{address}").parse()?,
            address: "user@a.example".to_owned(),
            credentials: Some(Credentials::new("user", password)),
            server: Some(Endpoint::Tcp(address)),
        };
        Self::watch(mailbox, poll, None)
    }

    fn watch(mailbox: WatchedMailbox, poll: Option<Duration>, deletes: Option<RunId>) -> anyhow::Result<Self> {
        let options = MailboxOptions {
            mailboxes: vec![mailbox],
            poll,
            existing: false,
            whole: false,
            deletes,
            probe_mail: None,
            tls: MailboxTls::default(),
        };
        let rules = ActiveRules::new(Rulebook::default(), 1);
        let context = Arc::new(SinkContext::new(rules, None, None, None, Some(RUN), Protocol::Smtp));
        let (full, tallies) = channel();
        let watchers = Watchers::start(options, &context, full, &|| false).inspect_err(|_| {
            assert_eq!(Arc::strong_count(&context), 1, "the thread that watches has ended, or it would share this");
        })?;
        Ok(Self { watchers, tallies, total: SinkTally::keeping(Some(RUN)) })
    }

    fn await_total(&mut self, what: &str, is_there: impl Fn(&SinkTally) -> bool) {
        let limit = clock::now() + LIMIT;
        while !is_there(&self.total) {
            assert!(clock::now() < limit, "{what}: {:?}", self.total);
            if let Ok(mut transfer) = self.tallies.recv_timeout(Duration::from_millis(50)) {
                self.total.merge(&transfer.tally);
                transfer.tally.clear();
                transfer.give_back();
            }
        }
    }

    fn run(&self) -> &RunTally {
        self.total.runs.find(RUN).expect("something of the run arrived")
    }
}

#[test]
fn mail_in_a_mailbox_counts_once_however_often_the_connection_breaks() {
    let (server, address) = Server::start(true);
    server.deliver(&field(1000));
    let mut watching = Watching::start(address, "secret", None).unwrap();
    for sequence in 0..300 {
        server.deliver(&field(sequence));
        if sequence % 100 == 50 {
            server.change(|inbox| inbox.generation += 1);
        }
    }
    watching.await_total("300 messages", |total| total.messages >= 300);
    let run = watching.run();
    assert_eq!(
        (run.units.count(), run.duplicates),
        (300, 0),
        "what was there before is skipped, and nothing counts twice"
    );
    assert_eq!(run.told_messages, 300);
    assert!(run.told.quantile_ms(1.0) <= run.delivered.quantile_ms(1.0), "a message is read after it is announced");
    server.deliver(&field(7));
    server.deliver(b"\r\n");
    watching.await_total("two more", |total| total.messages >= 302);
    assert_eq!(watching.run().duplicates, 1, "a second delivery");
    assert_eq!(watching.total.untraced, 1, "mail of somebody else");
    let row = watching.watchers.counts().row();
    assert_eq!((row.count, row.idle, row.poll_ms), (1, 1, None));
    assert!(row.broken >= 1 && watching.total.errors.total() >= 1, "{row:?}");
    watching.watchers.stop();
}

#[test]
fn a_mailbox_that_is_made_anew_during_a_run_is_reported_and_watched_on() {
    let (server, address) = Server::start(true);
    let mut watching = Watching::start(address, "secret", None).unwrap();
    server.deliver(&field(0));
    watching.await_total("the first", |total| total.messages >= 1);
    server.change(|inbox| {
        inbox.fields.clear();
        inbox.renewals += 1;
        inbox.generation += 1;
    });
    let words = "mailbox: UIDVALIDITY changed from 1 to 2: messages that came meanwhile cannot be told from others";
    watching.await_total("the error", |total| total.errors.rows(0).iter().any(|row| row.text == words));
    server.deliver(&field(1));
    watching.await_total("the next", |total| total.messages >= 2);
    assert_eq!((watching.run().units.count(), watching.run().duplicates), (2, 0));
    let row = watching.watchers.counts().row();
    assert_eq!((row.closed, row.renumbered), (0, 1), "what came meanwhile may be there: {row:?}");
    watching.watchers.stop();
}

#[test]
fn a_server_without_idle_is_asked_and_the_record_says_how_often() {
    let (server, address) = Server::start(false);
    let mut watching = Watching::start(address, "secret", Some(Duration::from_millis(5))).unwrap();
    (0..50).for_each(|sequence| server.deliver(&field(sequence)));
    watching.await_total("50 messages", |total| total.messages >= 50);
    let row = watching.watchers.counts().row();
    assert_eq!((row.idle, row.poll_ms, watching.run().units.count()), (0, Some(5.0), 50));
    watching.watchers.stop();
}

#[test]
fn a_mailbox_is_closed_until_its_server_is_back() {
    let (server, address) = Server::start(true);
    let mut watching = Watching::start(address, "secret", None).unwrap();
    assert_eq!(watching.watchers.counts().closed(), 0);
    server.change(|inbox| {
        inbox.is_away = true;
        inbox.generation += 1;
    });
    let closed = |watching: &Watching| watching.watchers.counts().closed();
    watching.await_total("the error", |total| total.errors.total() >= 1);
    assert_eq!(closed(&watching), 1);
    server.deliver(&field(0));
    server.change(|inbox| inbox.is_away = false);
    watching.await_total("what came meanwhile", |total| total.messages >= 1);
    assert_eq!(closed(&watching), 0);
    watching.watchers.stop();
}

#[test]
fn a_mailbox_that_cannot_be_opened_is_an_error_at_once() {
    let (_server, address) = Server::start(true);
    let error = Watching::start(address, "wrong", None).err().unwrap().to_string();
    assert_eq!(error, format!("cannot watch imap://user@{address}: the server refused (login): wrong password"));
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = Watching::start(free, "secret", None).err().unwrap().to_string();
    assert!(error.starts_with(&format!("cannot watch imap://user@{free}: ")) && error.contains("refused"), "{error}");
}

#[test]
fn a_message_of_a_maildir_counts_when_it_can_be_read() {
    let root = tempfile::tempdir().unwrap();
    let path = |name: &str| root.path().join(name);
    for part in ["new", "cur", "tmp"] {
        std::fs::create_dir(path(part)).unwrap();
    }
    let mailbox = WatchedMailbox {
        url: format!("maildir:{}", root.path().display()).parse().unwrap(),
        address: "user@a.example".to_owned(),
        credentials: None,
        server: None,
    };
    let mut watching = Watching::watch(mailbox, None, Some(RUN)).unwrap();
    // Make the message unreadable at first, even for root, by a symbolic link that points to itself.
    std::os::unix::fs::symlink("1.a", path("new/1.a")).unwrap();
    watching.await_total("the error", |total| total.errors.total() >= 1);
    std::fs::write(path("tmp/1.a"), field(0)).unwrap();
    std::fs::rename(path("tmp/1.a"), path("new/1.a")).unwrap();
    watching.await_total("the message", |total| total.messages >= 1);
    assert_eq!((watching.run().units.count(), watching.run().duplicates), (1, 0));
    let counts = watching.watchers.counts();
    watching.watchers.stop();
    let row = counts.row();
    assert_eq!((row.broken, row.closed, row.deleted), (0, 0, 1), "{row:?}");
    assert!(!path("new/1.a").exists());
}
