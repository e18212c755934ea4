//! Malformed input to the relay from both sides. Nothing may be smuggled in or out, strangers cannot relay, limits
//! hold, and every message that got a 250 arrives unchanged.
use crate::dialog::{Dialog, Whose};
use crate::dialogs::{dialogs, play};
use crate::hostile_clients::{is_hung_up_on, other_protocols};
use crate::party::{Sink, accepted, errors, low_port, mailrun, source, wait_until};
use crate::recorder::{Heard, Listen, Recorder, Script};
use crate::relay::{
    Den, Kept, Mount, QUICK, all_to, await_kept, await_recipients, expect, introduced, kept, metric, submit,
};
use crate::secured::Files;
use crate::stand_in::{Act, At, StandIn};
use crate::wire::Wire;
use mailrun_measurement::Phase;
use std::fmt::Write as _;

/// Byte sequences that some servers mistake for the end of a message.
const ENDINGS: [&[u8]; 16] = [
    b"\n.\n",
    b"\r.\r",
    b"\r.\n",
    b"\n.\r",
    b"\n.\r\n",
    b"\r\n.\n",
    b"\r.\r\n",
    b"\r\n.\r",
    b"\r\n.\r\r\n",
    b"\r\r\n.\r\r\n",
    b"\r\n\0.\r\n",
    b"\r\n.\0\r\n",
    b"\n\r\n.\n",
    b"\r\r.\r\r\n",
    b"\r\n.\n\r\n",
    b"\x85.\x85",
];

const SMUGGLED: &[u8] =
    b"MAIL FROM:<evil@b.example>\r\nRCPT TO:<smuggled@d.example>\r\nDATA\r\nSubject: smuggled\r\n\r\nx";

/// A recording next hop, and a relay that delivers to it.
fn recorded(script: Script) -> (Recorder, Den, tempfile::TempDir) {
    let place = tempfile::tempdir().unwrap();
    let recorder = Recorder::start(Listen::V4, script, place.path());
    let den = Den::to(&format!("127.0.0.1:{}", recorder.port), "");
    (recorder, den, place)
}

/// Returns the messages as a strict server would find them, and the commands between them.
fn strictly(heard: &[Heard]) -> (Vec<Vec<u8>>, Vec<String>) {
    let mut messages = Vec::new();
    let mut commands = Vec::new();
    for Heard { octets, .. } in heard {
        let mut rest = &octets[..];
        while let Some(end) = rest.windows(2).position(|two| two == b"\r\n") {
            let line = String::from_utf8_lossy(&rest[..end]).into_owned();
            rest = &rest[end + 2..];
            if line == "DATA" {
                let end = if rest.starts_with(b".\r\n") {
                    0
                } else {
                    rest.windows(5).position(|five| five == b"\r\n.\r\n").expect("an end of data") + 2
                };
                messages.push(rest[..end].to_vec());
                rest = &rest[end + 3..];
            }
            commands.push(line);
        }
        assert!(rest.is_empty(), "{}", String::from_utf8_lossy(rest));
    }
    (messages, commands)
}

/// Asserts that every line end is CRLF and that there is no NUL.
fn is_clean(octets: &[u8]) {
    for (at, byte) in octets.iter().enumerate() {
        match byte {
            b'\r' => assert_eq!(octets.get(at + 1), Some(&b'\n'), "a bare CR at {at}"),
            b'\n' => assert!(at > 0 && octets[at - 1] == b'\r', "a bare LF at {at}"),
            0 => panic!("a NUL at {at}"),
            _ => {}
        }
    }
}

/// Sends by BDAT a message with lines that would end it in DATA. The relay must dot-stuff them on the way out.
fn send_dots_by_bdat(wire: &mut Wire) {
    let inner = b"Subject: carrier\r\n\r\nfirst\r\n.\r\nMAIL FROM:<evil@b.example>\r\n.\r\n..\r\n";
    expect(wire, "MAIL FROM:<a@b.example>", "250");
    expect(wire, "RCPT TO:<carrier@d.example>", "250");
    wire.send(format!("BDAT {} LAST\r\n", inner.len()));
    wire.send(inner);
    assert!(wire.reply().unwrap().starts_with("250 2.0.0"));
}

#[test]
fn nothing_is_smuggled_in_or_out() {
    let extensions = ["250 PIPELINING", "250-PIPELINING\r\n250 8BITMIME"];
    for offer in extensions {
        let script = Script::default().say("EHLO", 0, &format!("250-peer.example\r\n{offer}"));
        let (recorder, den, _place) = recorded(script);
        let relay = den.open();
        let mut wire = introduced(&relay);
        let mut taken = 0;
        // Declare 8BITMIME only if the next hop offers it, because the message would bounce otherwise.
        let body = if offer.contains("8BITMIME") { " BODY=8BITMIME" } else { "" };
        let mail = format!("MAIL FROM:<a@b.example>{body}");
        for ending in ENDINGS {
            let lead = b"Subject: carrier\r\n\r\nfirst".as_slice();
            expect(&mut wire, &mail, "250");
            expect(&mut wire, "RCPT TO:<carrier@d.example>", "250");
            expect(&mut wire, "DATA", "354");
            wire.send([lead, ending, SMUGGLED, b"\r\n.\r\n"].concat());
            let reply = wire.reply().unwrap();
            let is_refused = reply.starts_with("550 5.5.2") || reply.starts_with("550 5.6");
            assert!(is_refused || reply.starts_with("250 2.0.0"), "{ending:?}: {reply}");
            assert_eq!(is_refused, ending != b"\x85.\x85", "{ending:?}: {reply}");
            taken += u32::from(!is_refused);
            expect(&mut wire, "NOOP", "250");
            // Send the same message by BDAT, once in one chunk and twice split within the ending.
            let message = [lead, ending, SMUGGLED, b"\r\n"].concat();
            for split in [message.len(), lead.len() + 1, lead.len() + 2] {
                expect(&mut wire, &mail, "250");
                expect(&mut wire, "RCPT TO:<carrier@d.example>", "250");
                wire.send(format!("BDAT {split}\r\n"));
                wire.send(&message[..split]);
                let first = wire.reply().unwrap();
                wire.send(format!("BDAT {} LAST\r\n", message.len() - split));
                wire.send(&message[split..]);
                let reply = wire.reply().unwrap();
                let is_taken = first.starts_with("250") && reply.starts_with("250");
                assert_eq!(is_taken, ending == b"\x85.\x85", "{ending:?} at {split}: {first} {reply}");
                taken += u32::from(is_taken);
                expect(&mut wire, "RSET", "250");
            }
        }
        send_dots_by_bdat(&mut wire);
        taken += 1;
        wait_until("all of it at the next hop", || (recorder.times(".") >= taken as usize).then_some(()));
        relay.stop();
        let all = recorder.finish();
        all.iter().for_each(|one| is_clean(&one.octets));
        let (messages, commands) = strictly(&all);
        assert_eq!(messages.len() as u32, taken);
        assert!(!commands.iter().any(|line| line.contains("evil") || line.contains("smuggled")), "{commands:?}");
        assert!(
            messages.iter().any(|one| one.ends_with(b"first\r\n..\r\nMAIL FROM:<evil@b.example>\r\n..\r\n...\r\n"))
        );
    }
}

/// Dialogs that do not apply to a relay, with the reason.
const NOT_OF_A_RELAY: [(&str, &str); 1] =
    [("binarymime", "it is not offered, see relay_delivery::binary_messages_are_neither_asked_for_nor_taken")];

/// A dialog's limits as configuration, or `None` if the relay does not allow them.
fn limits_of(dialog: &Dialog) -> Option<String> {
    let limit = |(name, number): &(String, u64)| match (name.as_str(), number) {
        ("recipients", 100..) => Some(format!("limits.max_recipients = {number}\n")),
        ("message_bytes", 65_536..) => Some(format!("limits.max_message_size = \"{number}\"\n")),
        _ => None,
    };
    let refuses = dialog.said().windows(7).any(|part| part == b"refuse-");
    let is_left_out = NOT_OF_A_RELAY.iter().any(|(name, _)| dialog.name.contains(name));
    dialog.limits.iter().map(limit).collect::<Option<String>>().filter(|_| !refuses && !is_left_out)
}

/// The dialogs of commands, limits, syntax, dots, chunks and line endings apply to the relay as well. Each message that
/// the relay accepts in a dialog must arrive unchanged.
#[test]
fn dialogs_hold_and_their_messages_arrive() {
    let mut played = 0;
    let mut by_limits = std::collections::BTreeMap::<String, Vec<Dialog>>::new();
    for dialog in dialogs() {
        if let Some(limits) = limits_of(&dialog) {
            by_limits.entry(limits).or_default().push(dialog);
        }
    }
    for (limits, dialogs) in by_limits {
        let files = Files::new();
        let dump = files.path("dump");
        files.keep("boxes", "postmaster\n");
        let sink = Sink::start(&["--dump-file", &dump]);
        let local = "local.domains = [\"home.example\"]\nlocal.users = \"boxes\"\nlocal.maildir = \"mail/{user}\"\n";
        let den = Den::with(files, &format!("{limits}{local}{}", all_to(&sink.address())));
        let relay = den.open();
        let mut expected: Vec<Vec<u8>> = Vec::new();
        for dialog in &dialogs {
            for piece_bytes in [usize::MAX, 1].into_iter().take(if dialog.said().len() < 5000 { 2 } else { 1 }) {
                play(dialog, relay.smtp[0], Whose::Ours, piece_bytes);
                expected.extend_from_slice(&dialog.messages);
                played += 1;
            }
        }
        let arrived = || {
            let mut all: Vec<Vec<u8>> = kept(&dump).iter().map(|one| one.as_sent().to_vec()).collect();
            all.sort();
            all
        };
        expected.sort();
        expected.dedup();
        wait_until("every message", || {
            let arrived = arrived();
            expected.iter().all(|one| arrived.binary_search(one).is_ok()).then_some(())
        });
        relay.stop();
        for Kept { octets, .. } in kept(&dump) {
            is_clean(&octets);
        }
    }
    assert!(played >= 60, "{played}");
}

#[test]
fn a_client_that_is_silent_or_drips_is_left() {
    let den = Den::new("limits.idle_timeout = \"4s\"\n[[route]]\nto = \"*\"\ndiscard = true\n");
    let relay = den.open();
    let mut silent = introduced(&relay);
    let mut dripping = introduced(&relay);
    let mut in_message = introduced(&relay);
    expect(&mut in_message, "MAIL FROM:<a@b.example>", "250");
    expect(&mut in_message, "RCPT TO:<c@d.example>", "250");
    expect(&mut in_message, "DATA", "354");
    in_message.send("Subject: x\r\n");
    let drip = std::thread::spawn(move || {
        // Send single bytes, which never complete a command, until the session times out.
        while dripping.try_send("N").is_ok() && !dripping.hears_within(std::time::Duration::from_millis(100)) {}
        dripping.replies()
    });
    for wire in [&mut silent, &mut in_message] {
        let last = wire.replies();
        assert!(last.len() == 1 && last[0].starts_with("421 4.4.2"), "{last:?}");
    }
    let last = drip.join().unwrap();
    assert!(last.len() == 1 && last[0].starts_with("421 4.4.2"), "{last:?}");
    relay.stop();
}

#[test]
fn who_talks_before_the_greeting_is_answered_in_order_and_once() {
    let files = Files::new();
    let dump = files.path("dump");
    let sink = Sink::start(&["--dump-file", &dump]);
    let den = Den::to(&sink.address(), "");
    let relay = den.open();
    let mut wire = Wire::connect(relay.smtp[0]);
    // Send the whole dialog at once, with a second transaction after the first message.
    let transaction = "MAIL FROM:<a@b.example>\r\nRCPT TO:<c@d.example>\r\nDATA\r\nSubject: early\r\n\r\nx\r\n.\r\n";
    wire.send(["EHLO client.example\r\n", transaction, transaction, "QUIT\r\n"].concat());
    let replies = wire.replies();
    let codes: Vec<&str> = replies.iter().map(|reply| &reply[..3]).collect();
    assert_eq!(codes, ["220", "250", "250", "250", "354", "250", "250", "250", "354", "250", "221"], "{replies:?}");
    await_recipients(&sink, 2);
    relay.stop();
    assert_eq!(kept(&dump).len(), 2);
}

#[test]
fn what_was_said_before_tls_is_forgotten() {
    let files = Files::new();
    let [certificate, key] = files.certificate("it", &["localhost"]);
    let text = format!("tls.cert = \"{certificate}\"\ntls.key = \"{key}\"\n[[route]]\nto = \"*\"\ndiscard = true\n");
    let den = Den::with(files, &text);
    let relay = den.open();
    let mut wire = introduced(&relay);
    wire.send("STARTTLS\r\nMAIL FROM:<injected@b.example>\r\nRCPT TO:<c@d.example>\r\n");
    assert!(wire.reply().unwrap().starts_with("220"));
    assert!(!wire.hears_within(std::time::Duration::from_millis(300)), "nothing is answered in the clear");
    relay.stop();
}

#[test]
fn a_password_is_not_asked_for_in_the_clear_but_on_this_host() {
    let files = Files::new();
    let [certificate, key] = files.certificate("it", &["localhost"]);
    let users = files.users();
    let text = format!(
        "listen = [\"0.0.0.0:0\", \"127.0.0.1:0\"]\ntls.cert = \"{certificate}\"\ntls.key = \"{key}\"\n\
         auth.users = \"{users}\"\n[[route]]\nto = \"*\"\ndiscard = true\n"
    );
    let den = Den::with(files, &text);
    let relay = den.open();
    let anywhere = std::net::SocketAddr::from(([127, 0, 0, 1], relay.smtp[0].port()));
    for (address, is_offered) in [(anywhere, false), (relay.smtp[1], true)] {
        let mut wire = Wire::greeted(address);
        let offer = expect(&mut wire, "EHLO client.example", "250");
        assert!(offer.contains("STARTTLS") && offer.contains("AUTH ") == is_offered, "{address}: {offer}");
        let reply = wire.say("AUTH PLAIN AHVzZXIAbm90IGl0");
        assert!(reply.starts_with(if is_offered { "535" } else { "538" }), "{address}: {reply}");
    }
    relay.stop();
}

#[test]
fn nothing_is_relayed_for_strangers() {
    let sink = Sink::start(&[]);
    let files = Files::new();
    files.keep("boxes", "ann\npostmaster\n");
    let text = format!(
        "networks = [\"10.0.0.0/8\"]\nlocal.domains = [\"home.example\"]\nlocal.users = \"boxes\"\n\
         local.maildir = \"mail/{{user}}\"\n{}",
        all_to(&sink.address())
    );
    let den = Den::with(files, &text);
    let relay = den.open();
    let probes = [
        "<user@far.example>",
        "<user%far.example@home.example>",
        "<user%far.example@[127.0.0.1]>",
        "<user%far.example>",
        "<far.example!user>",
        "<far.example!user@home.example>",
        "<\"user@far.example\"@home.example>",
        "<\"user@far.example\">",
        "<\"user%far.example\">",
        "<@home.example:user@far.example>",
        "<@home.example,@relay.example:user@far.example>",
        "<@[127.0.0.1]:user@far.example>",
        "<user@far.example@home.example>",
        "<user@home.example@far.example>",
        "<user@home.example.far.example>",
        "<user@[127.0.0.1]>",
        "<user@[IPv6:::1]>",
        "<user@relay.example>",
        "<user@localhost>",
        "<user>",
        "<>",
        "<nobody@home.example>",
        "<ann/../../etc/passwd@home.example>",
        "<../ann@home.example>",
        "<user@far.example> ORCPT=rfc822;ann@home.example",
    ];
    let senders = ["<>", "<ann@home.example>", "<user@far.example>", "<user@[127.0.0.1]>", "<root@relay.example>"];
    for sender in senders {
        let mut wire = introduced(&relay);
        expect(&mut wire, &format!("MAIL FROM:{sender}"), "250");
        for probe in probes {
            let reply = wire.say(&format!("RCPT TO:{probe}"));
            assert!(reply.starts_with('5'), "{sender} {probe}: {reply}");
        }
        expect(&mut wire, "DATA", "5");
        expect(&mut wire, "RSET", "250");
        // These recipients are local, so the relay must accept mail for them.
        let reply = submit(&mut wire, sender, &["<Ann@home.example>", "<Postmaster>"], "x\r\n");
        assert!(reply.starts_with("250 2.0.0"), "{reply}");
    }
    for name in ["ann", "postmaster"] {
        let path = den.path(&format!("mail/{name}"));
        wait_until("mail in the box", || (crate::relay::mailbox(&path).len() == senders.len()).then_some(()));
    }
    relay.stop();
    assert_eq!(sink.took().messages, 0);
}

const MALFORMED_AT_MAIL: [&str; 12] = [
    " RET=BOTH",
    " RET",
    " RET=",
    " RET=FULL RET=FULL",
    " SIZE=x",
    " SIZE=-1",
    " SIZE=99999999999999999999999",
    " BODY=9BIT",
    " BODY=BINARYMIME",
    " SMTPUTF8=1",
    " NOTIFY=NEVER",
    " FOO=BAR",
];

const MALFORMED_AT_RCPT: [&str; 9] = [
    " NOTIFY=",
    " NOTIFY",
    " NOTIFY=FOO",
    " NOTIFY=NEVER,SUCCESS",
    " NOTIFY=SUCCESS,NEVER",
    " NOTIFY=SUCCESS,,DELAY",
    " NOTIFY=SUCCESS NOTIFY=DELAY",
    " RET=FULL",
    " FOO=BAR",
];

#[test]
fn malformed_parameters_are_refused_by_name() {
    let den = Den::new("[[route]]\nto = \"*\"\ndiscard = true\n");
    let relay = den.open();
    let mut wire = introduced(&relay);
    for parameters in MALFORMED_AT_MAIL {
        let reply = wire.say(&format!("MAIL FROM:<a@b.example>{parameters}"));
        assert!(reply.starts_with('5'), "{parameters}: {reply}");
        expect(&mut wire, "RSET", "250");
    }
    // Open a new session, because the relay closes a session with so many errors.
    let mut wire = introduced(&relay);
    expect(&mut wire, "MAIL FROM:<a@b.example> RET=HDRS ENVID=a+2Bb", "250");
    for parameters in MALFORMED_AT_RCPT {
        let reply = wire.say(&format!("RCPT TO:<c@d.example>{parameters}"));
        assert!(reply.starts_with('5'), "{parameters}: {reply}");
    }
    expect(&mut wire, "RCPT TO:<c@d.example> NOTIFY=SUCCESS,FAILURE,DELAY ORCPT=rfc822;a+2Bb@c", "250");
    expect(&mut wire, "DATA", "354");
    expect(&mut wire, ".", "250");
    relay.stop();
}

#[test]
fn other_protocols_are_hung_up_on_and_bring_no_mail() {
    let den = Den::new("http = \"127.0.0.1:0\"\n[[route]]\nto = \"*\"\ndiscard = true\n");
    let relay = den.open();
    let all = other_protocols();
    all.iter().for_each(|said| is_hung_up_on(relay.smtp[0], said));
    expect(&mut introduced(&relay), "QUIT", "221");
    assert_eq!(metric(&relay, "accepted_total"), 0);
    assert_eq!(metric(&relay, "hung_up_total"), all.len() as u64);
    relay.stop();
}

#[test]
fn commands_without_mail_have_a_limit() {
    let den = Den::new("limits.max_junk_commands = 10\n[[route]]\nto = \"*\"\ndiscard = true\n");
    let relay = den.open();
    let mut wire = introduced(&relay);
    for command in ["NOOP", "RSET", "VRFY a", "HELP"].repeat(2) {
        expect(&mut wire, command, "2");
    }
    let reply = submit(&mut wire, "<a@b.example>", &["<c@d.example>"], "\r\nx\r\n");
    assert!(reply.starts_with("250 2.0.0"), "{reply}");
    // After each message, the count of junk commands, such as NOOP, starts again at zero.
    for command in ["NOOP", "RSET", "VRFY a", "HELP", "EHLO client.example"].repeat(2) {
        expect(&mut wire, command, "2");
    }
    expect(&mut wire, "NOOP", "421 4.7.0");
    assert!(wire.replies().is_empty() && !wire.was_reset());
    relay.stop();
}

#[test]
fn a_message_that_goes_in_circles_is_refused() {
    for (limit, most) in [("", 100), ("limits.max_hops = 250\n", 250)] {
        let den = Den::new(&format!("{limit}[[route]]\nto = \"*\"\ndiscard = true\n"));
        let relay = den.open();
        let mut wire = introduced(&relay);
        let mut with = |hops: usize| {
            let message = "Received: by x\r\n\twith SMTP\r\n".repeat(hops) + "Subject: x\r\n\r\nReceived: no field\r\n";
            submit(&mut wire, "<a@b.example>", &["<c@d.example>"], message)
        };
        for (hops, code) in [(most, "250 2.0.0"), (most + 1, "554 5.4.6"), (20_000, "554 5.4.6"), (0, "250 2.0.0")] {
            let reply = with(hops);
            assert!(reply.starts_with(code), "{hops} hops: {reply}");
        }
        relay.stop();
    }
}

#[test]
fn mail_that_would_come_back_at_once_is_bounced() {
    let files = Files::new();
    let dump = files.path("dump");
    let sink = Sink::start(&["--dump-file", &dump]);
    let home = format!("[[route]]\nto = \"b.example\"\nsmtp = \"{}\"\n", sink.address());
    // Two routes would bring mail back to the relay: one leads to a server that greets with the relay's own name, the
    // other to an address literal of the relay.
    let twin = Sink::start(&["--hostname", "Relay.Example"]);
    let [port, other] = [low_port(), low_port()];
    let listen = format!("listen = [\"127.0.0.1:{port}\"]\n");
    let mx = format!("[[route]]\nto = \"[127.0.0.1]\"\nmx = true\nport = {port}\n");
    let den = Den::new(&format!("{listen}{home}{mx}{}", all_to(&twin.address())));
    let relay = den.open();
    for (count, recipient) in [(1, "<c@d.example>"), (2, "<c@[127.0.0.1]>")] {
        assert!(submit(&mut introduced(&relay), "<a@b.example>", &[recipient], "x\r\n").starts_with("250 2.0.0"));
        let bounce = &await_kept(&dump, count)[count - 1];
        assert!(bounce.recipients == ["a@b.example"] && bounce.text().contains("5.4.6"), "{}", bounce.text());
        assert!(bounce.text().contains("\r\nDiagnostic-Code: x-mailrun; "), "no server has replied: {}", bounce.text());
    }
    relay.stop();
    assert_eq!((twin.took().messages, kept(&dump).len()), (0, 2));
    // The relay must not start if its configuration has a route to the relay itself.
    for to in [format!("localhost:{port}"), format!("[::ffff:127.0.0.1]:{port}"), format!("lmtp:127.0.0.1:{port}")] {
        let den = Den::new(&format!("{listen}{}", all_to(&to)));
        for words in [&["--check"][..], &[]] {
            let ended = den.fails(words);
            assert!(
                ended.code == Some(2) && [&*ended.out, &*ended.err].concat().contains("is an address of this relay"),
                "{to}: {ended:?}"
            );
        }
        let words = ["relay", "--listen", &format!("127.0.0.1:{port}"), "--to", &to, "--spool", &den.path("s")];
        let ended = mailrun(&words);
        assert!(
            ended.code == Some(2) && [&*ended.out, &*ended.err].concat().contains("is an address of this relay"),
            "{to}: {ended:?}"
        );
    }
    let den = Den::new(&format!("{listen}{}", all_to(&format!("127.0.0.1:{other}"))));
    assert_eq!(den.fails(&["--check"]).code, Some(0));
}

#[test]
fn two_relays_that_feed_each_other_stop() {
    let [one, two] = [low_port(), low_port()].map(|port| format!("127.0.0.1:{port}"));
    let home = Files::new();
    let dump = home.path("dump");
    let sink = Sink::start(&["--dump-file", &dump]);
    let den = |name: &str, listen: &str, to: &str| {
        let home = format!("[[route]]\nto = \"b.example\"\nsmtp = \"{}\"\n", sink.address());
        Den::new(&format!("hostname = \"{name}.example\"\nlisten = [\"{listen}\"]\n{home}{}", all_to(to)))
    };
    let dens = [den("one", &one, &two), den("two", &two, &one)];
    let relays = dens.iter().map(Den::open).collect::<Vec<_>>();
    assert!(submit(&mut introduced(&relays[0]), "<a@b.example>", &["<c@d.example>"], "x\r\n").starts_with("250 2.0.0"));
    let bounce = &await_kept(&dump, 1)[0];
    assert!(bounce.recipients == ["a@b.example"] && bounce.text().contains("5.4.6"), "{}", bounce.text());
    relays.into_iter().for_each(|relay| drop(relay.stop()));
    assert_eq!(kept(&dump).len(), 1);
}

#[test]
fn bombs_meet_limits() {
    let den = Den::new(
        "limits.max_message_size = \"4M\"\nlimits.max_recipients = 100\n[[route]]\nto = \"*\"\ndiscard = true\n",
    );
    let relay = den.open_with(&["--http", "127.0.0.1:0"]);
    let mut wire = introduced(&relay);
    // Send a header of 2 MB, first with many fields and then with one field that is folded again and again.
    for line in ["X-Field: a value that is long enough to count\r\n", " folded and folded and folded again\r\n"] {
        let header = format!("Subject: x\r\n{}", line.repeat((2 << 20) / line.len()));
        let reply = submit(&mut wire, "<a@b.example>", &["<c@d.example>"], header);
        assert!(reply.starts_with("552 5.3.4"), "{reply}");
    }
    let reply = submit(&mut wire, "<a@b.example>", &["<c@d.example>"], "\r\n".to_owned() + &"x\r\n".repeat(2 << 20));
    assert!(reply.starts_with("552 5.3.4"), "{reply}");
    expect(&mut wire, "MAIL FROM:<a@b.example> SIZE=5000000", "552");
    let long = format!("\r\n{}\r\n", "x".repeat(10_000));
    let reply = submit(&mut wire, "<a@b.example>", &["<c@d.example>"], long);
    assert!(reply.starts_with('5'), "a line of 10,000 octets: {reply}");
    let reply = submit(&mut wire, "<a@b.example>", &["<c@d.example>"], "\r\na bare\nline feed\r\n");
    assert!(reply.starts_with("550 5.5.2"), "{reply}");
    // All five messages were rejected at their end, so all of them must count. This includes the last three messages,
    // whose faults the SMTP session found, and not the relay.
    assert_eq!(metric(&relay, "refused_total"), 5);
    expect(&mut wire, "MAIL FROM:<a@b.example>", "250");
    for number in 0..100 {
        expect(&mut wire, &format!("RCPT TO:<c{number}@d.example>"), "250");
    }
    for number in 100..120 {
        expect(&mut wire, &format!("RCPT TO:<c{number}@d.example>"), "452 4.5.3");
    }
    expect(&mut wire, "DATA", "354");
    expect(&mut wire, ".", "250 2.0.0");
    assert!(relay.process.peak_bytes() < 128 << 20, "{}", relay.process.peak_bytes());
    relay.stop();
}

#[test]
fn what_a_small_spool_can_never_hold_is_too_large() {
    let den = Den::new("spool.max_size = \"1M\"\n[[route]]\nto = \"*\"\ndiscard = true\n");
    let relay = den.open();
    let mut wire = relay.greeted();
    let offer = expect(&mut wire, "EHLO client.example", "250");
    assert!(offer.contains("SIZE 262144"), "{offer}");
    expect(&mut wire, "MAIL FROM:<a@b.example> SIZE=300000", "552");
    let message = "x\r\n".repeat(80_000);
    assert!(submit(&mut wire, "<a@b.example>", &["<c@d.example>"], message).starts_with("250 2.0.0"));
    relay.stop();
    // For this spool, the default limit of a message is 262,144 bytes. The configuration file may set a higher limit,
    // as long as an empty spool has room for such a message.
    let text = "http = \"127.0.0.1:0\"\nspool.max_size = \"1M\"\nlimits.max_message_size = ";
    let den = Den::new(&format!("{text}\"315000\"\n[[route]]\nto = \"*\"\ndiscard = true\n"));
    let relay = den.open();
    let mut wire = introduced(&relay);
    for _ in 0..3 {
        let message = "x\r\n".repeat(104_000);
        assert!(submit(&mut wire, "<a@b.example>", &["<c@d.example>"], message).starts_with("250 2.0.0"));
        wait_until("the spool to be empty", || (metric(&relay, "spool_messages") == 0).then_some(()));
    }
    relay.stop();
    let refused = Den::new(&format!("{text}\"400000\"\n")).fails(&[]);
    let complaint = [&*refused.out, &*refused.err].concat();
    assert!(refused.code == Some(2) && complaint.contains("increase spool.max_size"), "{refused:?}");
}

#[test]
fn sessions_have_a_limit() {
    let den = Den::new("limits.max_sessions = 5\n[[route]]\nto = \"*\"\ndiscard = true\n");
    let relay = den.open();
    let mut wires: Vec<Wire> = (0..5).map(|_| introduced(&relay)).collect();
    assert!(Wire::connect(relay.smtp[0]).reply().unwrap().starts_with("421"));
    expect(&mut wires[0], "QUIT", "221");
    wires.remove(0);
    wait_until("a place", || Wire::connect(relay.smtp[0]).reply().filter(|reply| reply.starts_with("220")));
}

#[test]
fn a_client_may_be_cut_off_at_every_byte() {
    let sink = Sink::start(&[]);
    let den = Den::to(&sink.address(), "");
    let relay = den.open();
    let one = "MAIL FROM:<a@b.example>\r\nRCPT TO:<c@d.example>\r\nDATA\r\nSubject: x\r\n\r\nHello.\r\n..\r\n.\r\n";
    let two = "MAIL FROM:<a@b.example>\r\nRCPT TO:<c@d.example>\r\nBDAT 5\r\nabcd\rBDAT 7 LAST\r\n\n..\r\nx\r";
    let two = two.replace("abcd\r", "abc\r\n").replace("\n..\r\nx\r", "..\r\nx\r\n");
    let whole = ["EHLO client.example\r\n", one, &two, "QUIT\r\n"].concat();
    let mut answered = 0;
    for end in 0..=whole.len() {
        let mut wire = Wire::connect(relay.smtp[0]);
        wire.send(&whole[..end]);
        wire.half_close();
        answered += wire.replies().iter().filter(|reply| reply.contains("queued as")).count() as u64;
        let mut wire = Wire::connect(relay.smtp[0]);
        wire.send(&whole[..end]);
        wire.reset();
    }
    assert!(answered > 50, "{answered}");
    await_recipients(&sink, answered);
    relay.stop();
    let took = sink.took();
    // A client may have sent a whole message before it reset its connection. The relay may or may not accept such a
    // message. It must not accept half a message.
    assert!(took.messages >= answered && took.messages <= 2 * answered + 2, "{took:?} {answered}");
}

#[test]
fn a_next_hop_may_cut_at_every_stage() {
    let stages = [At::Greeting, At::Hello, At::Mail, At::Recipient, At::Data, At::Body, At::Message, At::Quit];
    let acts = [Act::Close, Act::Reset, Act::Say("421 4.3.2 Going down"), Act::Say("this is not a reply")];
    let mut hops = Vec::new();
    let mut text = format!("{QUICK}delivery.overall = 64\n");
    for stage in stages {
        for act in acts {
            if act == Act::Say("this is not a reply") && stage == At::Body {
                continue;
            }
            let hop = StandIn::start(move |moment| (moment.at == stage && moment.connection == 0).then_some(act));
            let name = format!("h{}.example", hops.len());
            write!(text, "[[route]]\nto = \"{name}\"\nsmtp = \"{}\"\n", hop.address()).unwrap();
            hops.push((hop, name, stage, act));
        }
    }
    let den = Den::new(&text);
    let relay = den.open();
    let mut wire = introduced(&relay);
    for (_, name, ..) in &hops {
        for number in 0..3 {
            let to = format!("<c{number}@{name}>");
            assert!(submit(&mut wire, "<>", &[&to], "Subject: x\r\n\r\nx\r\ny\r\n").starts_with("250 2.0.0"));
        }
    }
    for (hop, _, stage, act) in &hops {
        wait_until(&format!("{act:?} at {stage:?} to be got over"), || (hop.taken() >= 3).then_some(()));
        assert!(hop.taken() <= 6, "{act:?} at {stage:?}: {} messages", hop.taken());
    }
    relay.stop();
}

/// Each next hop once sends a positive reply that does not accept the message. The relay must then deliver the message
/// in another attempt.
#[test]
fn only_a_yes_to_the_message_is_a_delivery() {
    let rows = [
        (At::Data, "250 2.0.0 Ok"),
        (At::Data, "220 x"),
        (At::Message, "354 Go on"),
        (At::Message, "334 x"),
        (At::Recipient, "354 Go on"),
        (At::Mail, "354 Go on"),
    ];
    let mut text = QUICK.to_owned();
    let mut hops = Vec::new();
    for (number, (stage, reply)) in rows.into_iter().enumerate() {
        let act = Act::Say(reply);
        let hop = StandIn::start(move |moment| {
            (moment.at == stage && moment.connection == 0 && moment.before == 0).then_some(act)
        });
        write!(text, "[[route]]\nto = \"h{number}.example\"\nsmtp = \"{}\"\n", hop.address()).unwrap();
        hops.push((hop, stage, reply));
    }
    let den = Den::new(&text);
    let relay = den.open();
    let mut wire = introduced(&relay);
    for number in 0..hops.len() {
        let to = format!("<c@h{number}.example>");
        assert!(submit(&mut wire, "<>", &[&to], "Subject: x\r\n\r\nx\r\n").starts_with("250 2.0.0"));
    }
    for (hop, stage, reply) in &hops {
        wait_until(&format!("{reply:?} at {stage:?} to be got over"), || (hop.taken() == 1).then_some(()));
    }
    relay.stop();
}

#[test]
fn lmtp_recipients_that_were_not_answered_come_again_and_the_others_do_not() {
    for fault in ["hang up", "reset", "soft reject \"421 4.3.2 Going down\""] {
        let files = Files::new();
        let dump = files.path("dump");
        let rule = format!(". to second@c.example: {fault}");
        let sink = Sink::start(&["--lmtp", "--dump-file", &dump, "--fault", &rule]);
        let den = Den::to(&format!("lmtp:{}", sink.address()), QUICK);
        let relay = den.open();
        let to = ["<first@c.example>", "<second@c.example>", "<third@c.example>"];
        assert!(
            submit(&mut introduced(&relay), "<a@b.example>", &to, "Subject: x\r\n\r\nx\r\n").starts_with("250 2.0.0")
        );
        wait_until(&format!("a second try after {fault}"), || {
            (sink.ask("/status")["rules"][0]["acted"].as_u64()? >= 2).then_some(())
        });
        let agent: ureq::Agent = ureq::Agent::config_builder().proxy(None).build().into();
        agent.put(format!("{}/rules", sink.url())).send("{\"rules\": []}").unwrap();
        let count =
            |name: &str| kept(&dump).iter().flat_map(|one| one.recipients.clone()).filter(|to| to == name).count();
        wait_until(&format!("all three after {fault}"), || {
            to.iter().all(|to| count(to.trim_matches(['<', '>'])) >= 1).then_some(())
        });
        relay.stop();
        assert_eq!(to.map(|to| count(to.trim_matches(['<', '>']))), [1, 1, 1], "{fault}");
    }
}

#[test]
fn a_next_hop_that_floods_costs_no_memory() {
    let flood = StandIn::start(|moment| (moment.at == At::Hello).then_some(Act::Flood(b"250-x\r\n")));
    let endless = StandIn::start(|moment| (moment.at == At::Mail).then_some(Act::Flood(b"xxxxxxxxxxxxxxxx")));
    let route = |name: &str, hop: &StandIn| format!("[[route]]\nto = \"{name}\"\nsmtp = \"{}\"\n", hop.address());
    let sink = Sink::start(&[]);
    let text =
        format!("{QUICK}{}{}{}", route("one.example", &flood), route("two.example", &endless), all_to(&sink.address()));
    let den = Den::new(&text);
    let relay = den.open();
    let mut wire = introduced(&relay);
    for to in ["<x@one.example>", "<x@two.example>", "<x@three.example>"] {
        assert!(submit(&mut wire, "<a@b.example>", &[to], "x\r\n").starts_with("250 2.0.0"));
    }
    await_recipients(&sink, 1);
    wait_until("both to have been given up once", || {
        (relay.process.complained().matches("cannot be reached").count() >= 1).then_some(())
    });
    assert!(relay.process.peak_bytes() < 64 << 20, "{}", relay.process.peak_bytes());
    relay.stop();
}

/// Fills the spool while the next hop is away, then starts the next hop. Everything that got a 250 arrives, and the
/// spool has room again.
fn fills(den: &Den, next_hop: &str) {
    let relay = den.open();
    let words = ["--messages", "1200", "--sessions", "5", "--reuse", "--message-size", "64k"];
    let ours = source(&relay.address(), &words);
    let taken = accepted(&ours.record);
    let refused = errors(&ours.record, Phase::Reply, 452);
    assert!(taken > 10 && refused > 0 && taken + refused == 1200, "{taken} {refused}: {:?}", ours.record.errors);
    let sink = Sink::start_at(next_hop, &[]);
    wait_until("all that was taken", || (sink.ask("/ledger")[0]["delivered"] == taken).then_some(()));
    let mut wire = introduced(&relay);
    wait_until("room again", || {
        submit(&mut wire, "<a@b.example>", &["<c@d.example>"], "x\r\n").starts_with("250 2.0.0").then_some(())
    });
    let again = source(&relay.address(), &["--messages", "50", "--sessions", "2", "--message-size", "64k"]);
    assert_eq!(accepted(&again.record), 50, "{:?}", again.record.errors);
    await_recipients(&sink, taken + 51);
    relay.stop();
    let record = sink.stop();
    assert_eq!(record.ledger.corrupt, Some(0));
}

#[test]
fn a_full_spool_answers_452_and_recovers_by_itself() {
    let next_hop = format!("127.0.0.1:{}", low_port());
    let den = Den::to(&next_hop, &format!("{QUICK}spool.max_size = \"8M\"\nlimits.max_message_size = \"1M\"\n"));
    fills(&den, &next_hop);
}

#[test]
fn a_full_disk_answers_452_and_recovers_by_itself() {
    let next_hop = format!("127.0.0.1:{}", low_port());
    let den = Den::to(&next_hop, &format!("{QUICK}spool.max_size = \"64M\"\nlimits.max_message_size = \"1M\"\n"));
    let Some(_mount) = Mount::new(&den.path("spool"), "size=40m") else { return };
    fills(&den, &next_hop);
}
