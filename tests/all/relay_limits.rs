//! Clients that would use up the relay's memory or sessions, or guess passwords. Strangers are clients with loopback
//! addresses that the key `networks` does not list.
use crate::party::wait_until;
use crate::relay::{Den, Relay, all_to, expect, introduced, metric};
use crate::secured::{Files, PASSWORD, USER};
use crate::wire::Wire;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use mailrun_smtp::sasl::client::ClientExchange;
use mailrun_smtp::sasl::{Credentials, Mechanism};
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

const TRUSTED: [u8; 4] = [127, 0, 0, 1];

/// A relay that trusts only 127.0.0.1. Strangers may send to one mailbox.
fn guarded(text: &str) -> Den {
    guarded_with(Files::new(), text)
}

fn guarded_with(files: Files, text: &str) -> Den {
    files.keep("boxes", "postmaster\n");
    let local = "local.domains = [\"home.example\"]\nlocal.users = \"boxes\"\nlocal.maildir = \"mail/{user}\"\n";
    Den::with(files, &format!("networks = [\"127.0.0.1\"]\n{text}{local}"))
}

fn open(den: &Den) -> Relay {
    den.open_with(&["--http", "127.0.0.1:0"])
}

/// Connects from the address `from` and says EHLO. Returns the session, or the reply that the relay sent instead of a
/// greeting.
fn greeted(relay: &Relay, from: [u8; 4]) -> Result<Wire, String> {
    introduce(Wire::connect_from(from, relay.smtp[0]))
}

/// Says EHLO on a new connection, if the relay greets.
fn introduce(mut wire: Wire) -> Result<Wire, String> {
    let greeting = wire.reply().expect("a greeting");
    if !greeting.starts_with("220 ") {
        return Err(greeting);
    }
    expect(&mut wire, "EHLO client.example", "250");
    Ok(wire)
}

fn begin(wire: &mut Wire, parameters: &str) {
    expect(wire, &format!("MAIL FROM:<a@b.example>{parameters}"), "250");
    expect(wire, "RCPT TO:<postmaster@home.example>", "250");
    expect(wire, "DATA", "354");
}

/// Sends a message of about `bytes` bytes. Returns the reply to it.
fn bring(wire: &mut Wire, bytes: usize) -> String {
    begin(wire, &format!(" SIZE={bytes}"));
    wire.send("Subject: long\r\n\r\n");
    wire.send(b"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcd\r\n".repeat(bytes / 64));
    wire.send(".\r\n");
    wire.reply().expect("an answer to the message")
}

#[test]
fn who_announces_much_and_sends_nothing_keeps_nobody_out() {
    let den = guarded("");
    let relay = open(&den);
    let mut strangers: Vec<Wire> =
        (0..40).map(|number| greeted(&relay, [127, 0, 0, 2 + number % 3]).unwrap()).collect();
    for (number, wire) in strangers.iter_mut().enumerate() {
        begin(wire, " SIZE=10000000");
        if number % 2 == 0 {
            wire.send("Subject: a drip\r\n");
        }
    }
    for from in [TRUSTED, [127, 0, 0, 9], [127, 0, 0, 2]] {
        let reply = bring(&mut greeted(&relay, from).unwrap(), 10_000_000);
        assert!(reply.starts_with("250 2.0.0"), "{from:?}: {reply}");
    }
    assert!(metric(&relay, "incoming_strangers_bytes") < 16 << 20);
    relay.stop();
}

#[test]
fn a_mailbox_gets_one_copy_however_often_and_by_whatever_alias_it_is_named() {
    let files = Files::new();
    let names: Vec<String> = (0..101).map(|number| format!("m{number}")).collect();
    files.keep("aliases", &format!("list: {}\nfew: m0, M1, few2\nfew2: m1, m2\n", names.join(", ")));
    files.keep("users", &(names.join("\n") + "\npostmaster\n"));
    let local = "local.users = \"users\"\nlocal.aliases = \"aliases\"\nlocal.maildir = \"mail/{user}\"\n";
    let den = Den::with(files, &format!("limits.max_recipients = 100\nlocal.domains = [\"home.example\"]\n{local}"));
    let relay = den.open();
    let mut wire = introduced(&relay);
    let original = format!(" ORCPT=rfc822;{}", "x".repeat(470));
    expect(&mut wire, "MAIL FROM:<a@b.example>", "250");
    for recipient in ["few", "M0", "\"m1\"", "few", "m2"] {
        expect(&mut wire, &format!("RCPT TO:<{recipient}@Home.example>{original}"), "250");
    }
    expect(&mut wire, "RCPT TO:<list@home.example>", "452 4.5.3");
    expect(&mut wire, "DATA", "354");
    expect(&mut wire, ".", "250");
    // An alias may have more members than `limits.max_recipients` if it is the only recipient of a transaction.
    expect(&mut wire, "MAIL FROM:<a@b.example>", "250");
    (0..70).for_each(|_| drop(expect(&mut wire, &format!("RCPT TO:<list@home.example>{original}"), "250")));
    expect(&mut wire, "RCPT TO:<postmaster@home.example>", "452 4.5.3");
    expect(&mut wire, "DATA", "354");
    expect(&mut wire, ".", "250");
    let copies = |number: usize| crate::relay::mailbox(&den.path(&format!("mail/m{number}"))).len();
    wait_until("all mail", || (copies(100) == 1 && (0..3).all(|number| copies(number) == 2)).then_some(()));
    relay.stop();
    assert!((0..3).all(|number| copies(number) == 2) && (3..=100).all(|number| copies(number) == 1));
}

#[test]
fn who_sends_much_and_never_ends_it_keeps_nobody_else_out() {
    let den = guarded("limits.max_message_size = \"4M\"\nlimits.max_incoming_size = \"32M\"\n");
    let relay = open(&den);
    let mut greedy: Vec<Wire> = (0..45).map(|_| greeted(&relay, [127, 0, 0, 2]).unwrap()).collect();
    let piece = b"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcd\r\n".repeat(16 << 10);
    let mut inside = 0;
    for wire in &mut greedy {
        expect(wire, "MAIL FROM:<a@b.example> SIZE=4000000", "250");
        let reply = wire.say("RCPT TO:<postmaster@home.example>");
        if reply.starts_with("250") && wire.say("DATA").starts_with("354") {
            wire.send(&piece);
            inside += 1;
        }
    }
    assert!(inside > 10, "{inside}");
    let most = metric(&relay, "incoming_strangers_limit_bytes");
    wait_until("the stranger to have what it may", || {
        (metric(&relay, "incoming_strangers_bytes") > most / 2).then_some(())
    });
    assert!(metric(&relay, "incoming_strangers_bytes") <= most / 4 * 3);
    for (from, bytes) in [([127, 0, 0, 3], 1_000_000), (TRUSTED, 4_000_000), ([127, 0, 0, 4], 1_000_000)] {
        let reply = bring(&mut greeted(&relay, from).unwrap(), bytes);
        assert!(reply.starts_with("250 2.0.0"), "{from:?}: {reply}");
    }
    drop(greedy);
    wait_until("everything to be given back", || (metric(&relay, "incoming_bytes") == 0).then_some(()));
    relay.stop();
}

#[test]
fn each_strangers_address_has_so_many_connections_and_trusted_ones_as_many_as_they_like() {
    let den = guarded("limits.client.connections = 3\nlimits.client.connections_per_minute = 20\n");
    let relay = open(&den);
    let mut held: Vec<Wire> = (0..3).map(|_| greeted(&relay, [127, 0, 0, 2]).unwrap()).collect();
    for _ in 0..5 {
        let Err(reply) = greeted(&relay, [127, 0, 0, 2]) else { panic!("a fourth one") };
        assert!(reply.starts_with("421 4.7.0 Too many connections from your address"), "{reply}");
    }
    held.extend((0..20).map(|_| greeted(&relay, TRUSTED).unwrap()));
    held.extend((0..3).map(|_| greeted(&relay, [127, 0, 0, 3]).unwrap()));
    assert_eq!(metric(&relay, "limited_connections"), 6);
    assert_eq!(metric(&relay, "client_refused_total{limit=\"connections\"}"), 5);
    // Now open connections one after another. The relay must accept only 20 of them per minute.
    drop(held);
    wait_until("them to be gone", || (metric(&relay, "limited_connections") == 0).then_some(()));
    let refusal = (0..40).find_map(|_| {
        wait_until("a place", || match greeted(&relay, [127, 0, 0, 4]) {
            Err(reply) if reply.contains("connections from") => None,
            other => Some(other.err()),
        })
    });
    let refusal = refusal.expect("there were too many");
    assert!(refusal.starts_with("421 4.7.0 Too many connections a minute"), "{refusal}");
    let ended = relay.stop();
    let lines = ended.err.matches("client limit reached: client=127.0.0.2 limit=connections refused=1").count();
    assert_eq!((lines, ended.err.matches("client=127.0.0.2").count()), (1, 1), "{}", ended.err);
}

#[test]
fn the_last_sessions_are_kept_for_trusted_clients() {
    for way in ["", "proxy_protocol = true\n", "xclient = [\"127.0.0.1\"]\n"] {
        let den = guarded(&format!("limits.max_sessions = 8\n{way}"));
        let relay = open(&den);
        let arrive = |from: [u8; 4]| {
            let address = Ipv4Addr::from(from);
            if way.is_empty() {
                return greeted(&relay, from);
            }
            if way.starts_with("proxy") {
                let mut wire = Wire::connect_from(TRUSTED, relay.smtp[0]);
                wire.send(format!("PROXY TCP4 {address} 127.0.0.1 40000 25\r\n"));
                return introduce(wire);
            }
            let mut wire = greeted(&relay, TRUSTED)?;
            let reply = wire.say(&format!("XCLIENT ADDR={address}"));
            if reply.starts_with("220 ") { Ok(wire) } else { Err(reply) }
        };
        let strangers: Vec<_> = (2..10).map(|last| arrive([127, 0, 0, last])).collect();
        let taken = strangers.iter().filter(|session| session.is_ok()).count();
        assert_eq!(taken, 6, "{way}");
        let refused = |reply: &String| reply.starts_with("421 4.3.2");
        assert!(strangers.iter().filter_map(|session| session.as_ref().err()).all(refused), "{way}");
        // Behind a proxy, a stranger occupies a session until the relay refuses the stranger. So wait for a session.
        let trusted = [(); 2].map(|()| wait_until("a session", || arrive(TRUSTED).ok()));
        // All sessions are taken, so the relay refuses the connection at once. It reads no PROXY header, so send none.
        let reply = Wire::connect_from(TRUSTED, relay.smtp[0]).reply();
        assert!(reply.is_some_and(|reply| reply.starts_with("421 4.3.2")), "{way}");
        drop((strangers, trusted));
        relay.stop();
    }
}

#[test]
fn messages_and_recipients_have_a_rate_until_the_client_logs_in() {
    let files = Files::new();
    let users = files.users();
    let den = guarded_with(
        files,
        &format!(
            "auth.users = \"{users}\"\nlimits.client.messages_per_minute = 2\n\
             limits.client.recipients_per_minute = 3\n"
        ),
    );
    let relay = open(&den);
    let mut wire = greeted(&relay, [127, 0, 0, 2]).unwrap();
    expect(&mut wire, "MAIL FROM:<a@b.example>", "250");
    for code in ["250", "250", "250", "450 4.7.0", "450 4.7.0"] {
        expect(&mut wire, "RCPT TO:<postmaster@home.example>", code);
    }
    expect(&mut wire, "DATA", "354");
    expect(&mut wire, ".", "250 2.0.0");
    expect(&mut wire, "MAIL FROM:<a@b.example>", "250");
    expect(&mut wire, "RSET", "250");
    expect(&mut wire, "MAIL FROM:<a@b.example>", "421 4.7.0 Too many messages a minute");
    assert!(wire.reply().is_none(), "the session is over");
    let mut wire = greeted(&relay, [127, 0, 0, 2]).unwrap();
    assert!(log_in(&mut wire, Mechanism::Plain, USER, PASSWORD).starts_with("235"));
    for _ in 0..5 {
        begin(&mut wire, "");
        expect(&mut wire, ".", "250 2.0.0");
    }
    let mut wire = greeted(&relay, TRUSTED).unwrap();
    for _ in 0..5 {
        begin(&mut wire, "");
        expect(&mut wire, ".", "250 2.0.0");
    }
    relay.stop();
}

#[test]
fn a_session_that_brings_no_message_does_not_last() {
    let den = guarded("limits.without_message = \"2s\"\n");
    let relay = open(&den);
    let mut wire = greeted(&relay, TRUSTED).unwrap();
    let last = wait_until("the session to be ended", || {
        let reply = wire.say("NOOP");
        if !reply.starts_with("250") {
            return Some(reply);
        }
        // Wait in between, because too many NOOPs would end the session by themselves.
        wire.hears_within(Duration::from_millis(100)).then(|| wire.reply().unwrap())
    });
    assert!(last.starts_with("421 4.7.0 Too long without a message"), "{last}");
    relay.stop();
}

#[test]
fn a_message_that_comes_octet_by_octet_does_not_keep_its_session() {
    let den = guarded("limits.idle_timeout = \"4s\"\n");
    let relay = open(&den);
    // This client sends at twice the minimum rate. Its session begins before the slow sessions, and must outlast them.
    let mut steady = greeted(&relay, TRUSTED).unwrap();
    begin(&mut steady, "");
    let starts = ["DATA\r\n", "BDAT 100000\r\n"];
    let mut slow = starts.map(|start| {
        let mut wire = greeted(&relay, TRUSTED).unwrap();
        expect(&mut wire, "MAIL FROM:<a@b.example>", "250");
        expect(&mut wire, "RCPT TO:<c@d.example>", "250");
        wire.send(start);
        if start.starts_with("DATA") {
            assert!(wire.reply().unwrap().starts_with("354"));
        }
        wire
    });
    let mut ended = [false; 2];
    wait_until("the slow sessions to be ended", || {
        for (wire, ended) in slow.iter_mut().zip(&mut ended).filter(|(_, ended)| !**ended) {
            if wire.hears_within(Duration::from_millis(50)) {
                *ended = true;
                assert!(wire.reply().unwrap().starts_with("421 4.4.2"));
            } else {
                wire.send("x");
            }
        }
        std::thread::sleep(Duration::from_millis(50));
        steady.send([b'x'; 150]);
        steady.send("\r\n");
        (ended == [true; 2]).then_some(())
    });
    expect(&mut steady, ".", "250 2.0.0");
    relay.stop();
}

/// Tries to log in with `mechanism`. Returns the server's last reply, which accepts or refuses the login.
fn log_in(wire: &mut Wire, mechanism: Mechanism, user: &str, password: &str) -> String {
    let credentials = Credentials::new(user, password);
    let mut client = ClientExchange::new(mechanism, &credentials, Some(&[7; 18])).unwrap();
    let mut line = format!("AUTH {}", mechanism.name());
    if let Some(initial) = client.initial() {
        line = format!("{line} {}", STANDARD.encode(initial));
        client = client.initial_sent();
    }
    loop {
        wire.send([&line, "\r\n"].concat());
        let reply = wire.reply().unwrap_or_else(|| "closed".to_owned());
        let Some(challenge) = reply.strip_prefix("334 ") else { return reply };
        let challenge = STANDARD.decode(challenge.trim_end()).unwrap();
        let Ok((response, next)) = client.respond(&challenge) else {
            wire.send("*\r\n");
            return wire.reply().unwrap_or_else(|| "closed".to_owned());
        };
        line = STANDARD.encode(response);
        client = next;
    }
}

const MECHANISMS: [Mechanism; 4] = [Mechanism::Plain, Mechanism::Login, Mechanism::CramMd5, Mechanism::ScramSha256];

#[test]
fn guesses_of_passwords_are_counted_and_locked_out_by_every_mechanism_together() {
    let files = Files::new();
    let users = files.users();
    // Make the waits after failed logins as short as possible. The tests of `login_limits` check the waits.
    let den = guarded_with(files, &format!("auth.users = \"{users}\"\nauth.delay = \"1ms\"\n"));
    let relay = open(&den);
    let guesses = AtomicUsize::new(0);
    thread::scope(|scope| {
        for number in 0..8 {
            let relay = &relay;
            let guesses = &guesses;
            scope.spawn(move || {
                for round in 0..100 {
                    let mut wire = greeted(relay, TRUSTED).unwrap();
                    // Guess for an existing and for an unknown user in turn, several times in each session.
                    let user = if round % 2 == 0 { USER } else { "nobody" };
                    while let reply = log_in(&mut wire, MECHANISMS[number % 4], user, &format!("guess {round}"))
                        && reply.starts_with("535")
                    {
                        guesses.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    assert_eq!(guesses.load(Ordering::Relaxed), 10, "of 800 and more");
    assert_eq!([metric(&relay, "logins_failed_total"), metric(&relay, "login_locks_total")], [10, 1]);
    assert!(metric(&relay, "logins_refused_total") >= 700);
    for mechanism in MECHANISMS {
        let reply = log_in(&mut greeted(&relay, TRUSTED).unwrap(), mechanism, USER, PASSWORD);
        assert!(reply.starts_with("421 4.7.0 Too many failed logins, try again later"), "{mechanism:?}: {reply}");
        // Clients at another address must not be affected.
        let reply = log_in(&mut greeted(&relay, [127, 0, 0, 2]).unwrap(), mechanism, USER, PASSWORD);
        assert!(reply.starts_with("235"), "{mechanism:?}: {reply}");
    }
    // The relay refuses only logins, and must still accept mail.
    assert!(bring(&mut greeted(&relay, TRUSTED).unwrap(), 1000).starts_with("250 2.0.0"));
    let ended = relay.stop();
    let lines: Vec<&str> = ended.err.lines().filter(|line| line.contains("authentication ")).collect();
    assert!((2..=4).contains(&lines.len()), "few lines for all of them: {lines:#?}");
    assert!(lines[0].contains("authentication failed: client=127.0.0.1 user="), "{lines:#?}");
    assert!(lines.iter().any(|line| line.contains("authentication locked: client=127.0.0.1 user=any for_s=600")));
    assert!(!ended.err.contains("guess"), "no password is logged");
}

#[test]
fn a_session_has_so_many_failed_logins() {
    let files = Files::new();
    let users = files.users();
    let text = format!("auth.users = \"{users}\"\nauth.delay = \"1ms\"\nauth.failures = 100\n");
    let den = guarded_with(files, &text);
    let relay = open(&den);
    // Use other addresses each time, because every failure doubles the wait of the next login.
    for (number, mechanism) in MECHANISMS.into_iter().enumerate() {
        let mut wire = greeted(&relay, [127, 0, 0, 10 + number as u8]).unwrap();
        for _ in 0..5 {
            let reply = log_in(&mut wire, mechanism, &format!("user{number}"), "wrong");
            assert!(reply.starts_with("535 5.7.8"), "{mechanism:?}: {reply}");
        }
        let last = wire.replies();
        assert!(last.len() == 1 && last[0].starts_with("421 4.7.0 Too many failed logins"), "{mechanism:?}: {last:?}");
    }
    relay.stop();
}

#[test]
fn a_client_that_leaves_before_its_proof_has_come_has_not_failed() {
    let files = Files::new();
    let users = files.users();
    let den = guarded_with(files, &format!("auth.users = \"{users}\"\nauth.failures = 3\n"));
    let relay = open(&den);
    let scram = STANDARD.encode(format!("n,,n={USER},r=client"));
    for _ in 0..5 {
        for lines in [
            vec!["AUTH PLAIN".to_owned()],
            vec!["AUTH LOGIN".to_owned(), STANDARD.encode(USER)],
            vec!["AUTH CRAM-MD5".to_owned()],
            vec![format!("AUTH SCRAM-SHA-256 {scram}")],
        ] {
            for leaves in [true, false] {
                let mut wire = greeted(&relay, TRUSTED).unwrap();
                lines.iter().for_each(|line| drop(expect(&mut wire, line, "334")));
                if !leaves {
                    expect(&mut wire, "*", "501 5.7.0");
                }
            }
        }
    }
    let failed = ["logins_failed_total", "logins_refused_total", "login_locks_total"].map(|name| metric(&relay, name));
    assert_eq!(failed, [0, 0, 0]);
    assert!(log_in(&mut greeted(&relay, TRUSTED).unwrap(), Mechanism::Plain, USER, PASSWORD).starts_with("235"));
    assert!(!relay.stop().err.contains("authentication "));
}

/// The salt and iteration count that SCRAM-SHA-256 sends for a user, and the reply to a wrong proof.
fn scram(relay: &Relay, user: &str) -> (String, String) {
    let mut wire = greeted(relay, TRUSTED).unwrap();
    let first = STANDARD.encode(format!("n,,n={user},r=client"));
    let reply = expect(&mut wire, &format!("AUTH SCRAM-SHA-256 {first}"), "334 ");
    let challenge = String::from_utf8(STANDARD.decode(reply[4..].trim_end()).unwrap()).unwrap();
    let (nonce, rest) = challenge.split_once(",s=").unwrap();
    let proof = STANDARD.encode([0; 32]);
    let last = STANDARD.encode(format!("c=biws,{nonce},p={proof}"));
    (rest.to_owned(), wire.say(&last))
}

#[test]
fn nobody_is_told_which_users_there_are() {
    let files = Files::new();
    let users = files.users();
    let text = format!("auth.users = \"{users}\"\nauth.delay = \"1ms\"\nauth.failures = 1000\n");
    let den = guarded_with(files, &text);
    let relay = open(&den);
    let [(known, refused), (unknown, refused_too)] = [USER, "nobody"].map(|user| scram(&relay, user));
    assert!(refused.starts_with("535 5.7.8") && refused == refused_too);
    assert!(known.ends_with(",i=4096") && unknown.ends_with(",i=4096") && known.len() == unknown.len());
    for (user, salt) in [(USER, &known), ("nobody", &unknown)] {
        assert_eq!(scram(&relay, user).0, *salt, "{user}: the same each time");
    }
    assert!(known != unknown && scram(&relay, "nobody else").0 != unknown);
    for mechanism in MECHANISMS {
        let replies = [USER, "nobody"]
            .map(|user| log_in(&mut greeted(&relay, [127, 0, 0, 20]).unwrap(), mechanism, user, "wrong"));
        assert!(replies[0].starts_with("535 5.7.8") && replies[0] == replies[1], "{mechanism:?}: {replies:?}");
    }
    relay.stop();
}

#[test]
fn nobody_acts_as_somebody_else() {
    let files = Files::new();
    let users = files.users();
    let den = guarded_with(files, &format!("auth.users = \"{users}\"\n"));
    let relay = open(&den);
    let mut wire = greeted(&relay, TRUSTED).unwrap();
    let plain = |acts_as: &str| format!("AUTH PLAIN {}", STANDARD.encode(format!("{acts_as}\0{USER}\0{PASSWORD}")));
    expect(&mut wire, &plain("admin"), "535 5.7.8");
    expect(&mut wire, &plain(USER), "235");
    relay.stop();
}

/// Asserts that RCPT for a foreign domain gets the reply code `code`, which is 250 only for clients that may relay.
fn relays(wire: &mut Wire, code: &str) {
    expect(wire, "MAIL FROM:<a@b.example>", "250");
    expect(wire, "RCPT TO:<x@elsewhere.example>", code);
    expect(wire, "RSET", "250");
}

#[test]
fn only_a_named_client_may_speak_for_others_with_xclient() {
    let den = guarded("xclient = [\"127.0.0.5\"]\n");
    let relay = open(&den);
    let mut stranger = greeted(&relay, [127, 0, 0, 9]).unwrap();
    expect(&mut stranger, "XCLIENT ADDR=127.0.0.1", "550 5.7.0");
    expect(&mut stranger, "XCLIENT LOGIN=ann", "550 5.7.0");
    relays(&mut stranger, "554 5.7.1");
    let mut gateway = greeted(&relay, [127, 0, 0, 5]).unwrap();
    relays(&mut gateway, "554 5.7.1");
    for (told, code) in [
        ("ADDR=127.0.0.1", "250"),
        ("ADDR=127.0.0.5", "554 5.7.1"),
        ("LOGIN=ann", "250"),
        // A client without a known address must get neither the rights of the previous client nor the gateway's rights.
        ("ADDR=127.0.0.1", "250"),
        ("ADDR=[UNAVAILABLE]", "554 5.7.1"),
        ("ADDR=127.0.0.1", "250"),
        ("ADDR=[TEMPUNAVAIL]", "554 5.7.1"),
        ("ADDR=[UNAVAILABLE] LOGIN=ann", "250"),
    ] {
        expect(&mut gateway, &format!("XCLIENT {told}"), "220");
        expect(&mut gateway, "EHLO client.example", "250");
        relays(&mut gateway, code);
    }
    // The attribute LOGIN of XCLIENT says as which user the client has logged in. If it is [UNAVAILABLE], the client
    // must not count as authenticated, although the previous client did.
    expect(&mut gateway, "XCLIENT ADDR=127.0.0.5 LOGIN=[UNAVAILABLE]", "220");
    expect(&mut gateway, "EHLO client.example", "250");
    relays(&mut gateway, "554 5.7.1");
}

#[test]
fn limits_apply_to_the_client_that_xclient_names() {
    let den =
        guarded("xclient = [\"127.0.0.1\"]\nlimits.client.connections = 2\nlimits.client.messages_per_minute = 1\n");
    let relay = open(&den);
    let named = |told: &str, code: &str| {
        let mut gateway = greeted(&relay, TRUSTED).unwrap();
        expect(&mut gateway, &format!("XCLIENT {told}"), code);
        gateway
    };
    let mut held = named("ADDR=192.0.2.7", "220");
    let second = named("ADDR=192.0.2.7", "220");
    let mut third = named("ADDR=192.0.2.7", "421 4.7.0 Too many connections from your address");
    assert!(third.reply().is_none(), "the session is over");
    // A gateway that sends XCLIENT again passes on another client's mail. From then on, the connection must count only
    // for the new client.
    expect(&mut held, "XCLIENT ADDR=192.0.2.8", "220");
    assert_eq!(metric(&relay, "limited_connections"), 2);
    drop(named("ADDR=192.0.2.7", "220"));
    expect(&mut held, "EHLO client.example", "250");
    expect(&mut held, "MAIL FROM:<a@b.example>", "250");
    expect(&mut held, "RSET", "250");
    expect(&mut held, "MAIL FROM:<a@b.example>", "421 4.7.0 Too many messages a minute");
    // After a login, the limits on rates no longer apply. Clients in `networks` and clients without a known address
    // have no limits.
    for told in ["ADDR=192.0.2.9 LOGIN=ann", "ADDR=127.0.0.1", "ADDR=[UNAVAILABLE]"] {
        let mut wire = named(told, "220");
        expect(&mut wire, "EHLO client.example", "250");
        for _ in 0..3 {
            expect(&mut wire, "MAIL FROM:<a@b.example>", "250");
            expect(&mut wire, "RSET", "250");
        }
    }
    drop(second);
    relay.stop();
}

#[test]
fn behind_a_proxy_the_header_says_who_the_client_is() {
    let den = guarded("proxy_protocol = true\n");
    let relay = open(&den);
    let header = |from: &str| format!("PROXY TCP4 {from} 127.0.0.1 40000 25\r\n");
    for (from, code) in [("127.0.0.1", "250"), ("127.0.0.9", "554 5.7.1")] {
        let mut wire = Wire::connect_from(TRUSTED, relay.smtp[0]);
        wire.send(header(from));
        assert!(wire.reply().expect("a greeting").starts_with("220 "));
        expect(&mut wire, "EHLO client.example", "250");
        relays(&mut wire, code);
    }
    let mut bare = Wire::connect_from(TRUSTED, relay.smtp[0]);
    bare.send("EHLO client.example\r\n");
    assert_eq!(bare.reply(), None, "a connection without a header is closed");
}

#[test]
fn a_recipient_above_what_an_envelope_holds_is_refused_at_rcpt() {
    let text = "limits.max_recipients = 100000\nlimits.max_incoming_size = \"1G\"\n";
    let den = Den::new(&format!("{text}{}", all_to("127.0.0.1:9")));
    let relay = den.open();
    let mut wire = introduced(&relay);
    expect(&mut wire, "MAIL FROM:<a@b.example>", "250");
    for first in (0..65_535).step_by(257) {
        let commands: String =
            (first..first + 257).map(|number| format!("RCPT TO:<r{number}@d.example>\r\n")).collect();
        wire.send(commands);
        for _ in 0..257 {
            let reply = wire.reply().unwrap();
            assert!(reply.starts_with("250"), "{first}: {reply}");
        }
    }
    expect(&mut wire, "RCPT TO:<one-more@d.example>", "452 4.5.3 Too many recipients");
    expect(&mut wire, "DATA", "354");
    wire.send("Subject: x\r\n\r\nx\r\n.\r\n");
    let reply = wire.reply().unwrap();
    assert!(reply.starts_with("250 2.0.0"), "{reply}");
    relay.stop();
}
