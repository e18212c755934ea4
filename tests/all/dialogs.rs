//! The dialog files over TCP, played against our server, our sink, and a real Postfix.
use crate::dialog::{Dialog, Step, Whose, late_refusal, password, refusal};
use crate::party::Sink;
use crate::postfix::{Deliver, Postfix};
use crate::wire::Wire;
use mailrun_net::{Answer, Handler, Server};
use mailrun_smtp::command::Mail;
use mailrun_smtp::login::{Auth, Proof};
use mailrun_smtp::sasl::Secret;
use mailrun_smtp::xclient::Xclient;
use mailrun_smtp::{Limits, Path};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Returns the dialogs that can be played over TCP. Dialogs with TLS or with nonces, which change every time, are left
/// out. crates/smtp/tests plays them in memory.
fn all_dialogs() -> Vec<Dialog> {
    let mut dialogs = Dialog::all(&std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/dialogs"));
    let has_nonces = |dialog: &Dialog| dialog.name.contains("cram");
    dialogs.retain(|dialog| !dialog.steps.contains(&Step::Tls) && !has_nonces(dialog));
    assert!(dialogs.len() >= 50, "the dialogs are there");
    dialogs
}

/// Dialogs that need only the default extensions of a server.
pub(crate) fn dialogs() -> Vec<Dialog> {
    let mut dialogs = all_dialogs();
    dialogs.retain(|dialog| dialog.offers.is_empty());
    dialogs
}

/// Plays a dialog. Sends the client's bytes in pieces of `piece_bytes` bytes.
pub(crate) fn play(dialog: &Dialog, address: SocketAddr, whose: Whose, piece_bytes: usize) {
    let name = &dialog.name;
    let mut wire = Wire::connect(address);
    for (at, step) in dialog.steps.iter().enumerate() {
        match step {
            Step::Send(bytes) => bytes.chunks(piece_bytes).for_each(|piece| wire.send(piece)),
            Step::Expect(expected) => {
                let reply = wire.reply().unwrap_or_else(|| panic!("{name} step {at}: closed, not {expected:?}"));
                let outcome = match whose {
                    Whose::Ours => expected.check(reply.as_bytes(), whose),
                    // A foreign server must reply with a code of the same class (2xx, 4xx, 5xx), but may choose the
                    // exact code.
                    Whose::Foreign if reply[..1] == expected.last_line[..1] => Ok(()),
                    Whose::Foreign => Err(format!("wanted {}, got {reply}", expected.last_line)),
                };
                outcome.unwrap_or_else(|what| panic!("{name} step {at}: {what}"));
            }
            Step::Tls => panic!("{name} step {at}: TLS is played in memory"),
            Step::Closed => assert_eq!(wire.reply(), None, "{name} step {at}"),
        }
    }
}

/// A handler that refuses recipients by name, and keeps the messages that it accepts.
struct Inbox {
    refused_greeting: Option<(u16, &'static str)>,
    message: Vec<u8>,
    recipients: Vec<Vec<u8>>,
    taken: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Handler for Inbox {
    fn connect(&mut self, _now: Duration) -> Answer {
        self.refused_greeting.map_or(Answer::Yes, |(code, text)| Answer::reply(code, text))
    }

    fn mail(&mut self, _mail: &Mail<'_>) -> Answer {
        self.recipients.clear();
        Answer::Yes
    }

    fn recipient(&mut self, recipient: &Path<'_>) -> Answer {
        let refusal = refusal(recipient.as_bytes());
        self.recipients.extend(refusal.is_none().then(|| recipient.as_bytes().to_vec()));
        refusal.map_or(Answer::Yes, |code| Answer::reply(code, "refused by name"))
    }

    fn delivery(&mut self, recipient: u32, _now: Duration) -> Answer {
        let refusal = late_refusal(&self.recipients[recipient as usize]);
        refusal.map_or(Answer::Yes, |code| Answer::reply(code, "refused by name"))
    }

    fn login(&mut self, auth: &Auth<'_>) -> Answer {
        let secret = password(auth.name).map(|password| Secret::Password(password.to_owned()));
        match auth.proof {
            Proof::Shown(shown) if secret.is_some_and(|secret| secret.is(shown)) => Answer::Yes,
            _ => Answer::reply(535, "5.7.8 wrong"),
        }
    }

    fn xclient(&mut self, _xclient: &Xclient<'_>) -> Answer {
        Answer::Yes
    }

    fn verify(&mut self, who: &[u8]) -> Answer {
        refusal(who).map_or(Answer::Yes, |code| Answer::reply(code, "refused by name"))
    }

    fn data(&mut self) -> Answer {
        self.message.clear();
        Answer::Yes
    }

    fn block(&mut self, block: &[u8]) {
        self.message.extend_from_slice(block);
    }

    fn message(&mut self, bytes: u64, _now: Duration) -> Answer {
        assert_eq!(bytes, self.message.len() as u64);
        self.taken.lock().unwrap().push(std::mem::take(&mut self.message));
        Answer::Yes
    }
}

fn limits(dialog: &Dialog) -> Limits {
    let mut limits = Limits::default();
    for (name, number) in &dialog.limits {
        match name.as_str() {
            "recipients" => limits.recipients = *number as usize,
            "message_bytes" => limits.message_bytes = *number,
            "errors" => limits.errors = *number as u32,
            "unknown_before_hello" => limits.unknown_before_hello = *number as u32,
            "idle_commands" => limits.idle_commands = *number as u32,
            "junk_commands" => limits.junk_commands = *number as u32,
            name => panic!("{}: no limit is called {name}", dialog.name),
        }
    }
    limits
}

#[test]
fn our_server_plays_every_dialog() {
    for dialog in all_dialogs() {
        let sizes: &[usize] = if dialog.said().len() < 5000 { &[usize::MAX, 1] } else { &[usize::MAX] };
        for piece_bytes in sizes {
            let taken = Arc::new(Mutex::new(Vec::new()));
            let kept = Arc::clone(&taken);
            let refused_greeting = dialog.refused_greeting();
            let make = move || {
                let kept = Arc::clone(&kept);
                move |_peer| Inbox {
                    refused_greeting,
                    message: Vec::new(),
                    recipients: Vec::new(),
                    taken: Arc::clone(&kept),
                }
            };
            let offers = dialog.clone();
            let server = Server::new(make)
                .name("test")
                .limits(limits(&dialog))
                .offer(move |offer| offers.change(offer))
                .workers(1)
                .start(([127, 0, 0, 1], 0).into())
                .unwrap();
            play(&dialog, server.address(), Whose::Ours, *piece_bytes);
            server.stop();
            let taken = taken.lock().unwrap();
            assert!(dialog.messages.is_empty() || *taken == dialog.messages, "{}: {taken:?}", dialog.name);
        }
    }
}

/// The sink's options for a dialog's limits, or `None` if the sink has no such option or the dialog refuses recipients
/// by name.
fn sink_options(dialog: &Dialog) -> Option<Vec<String>> {
    let option = |(name, number): &(String, u64)| match name.as_str() {
        "recipients" => Some(["--max-recipients".to_owned(), number.to_string()]),
        "message_bytes" => Some(["--max-message-size".to_owned(), number.to_string()]),
        _ => None,
    };
    let options: Option<Vec<_>> = dialog.limits.iter().map(option).collect();
    let refuses = dialog.said().windows(7).any(|part| part == b"refuse-");
    options.filter(|_| !refuses).map(|options| options.concat())
}

#[test]
fn our_sink_plays_them_and_counts_their_messages() {
    let shared = Sink::start(&[]);
    let mut messages = 0;
    let mut played = 0;
    for dialog in dialogs() {
        let Some(options) = sink_options(&dialog) else { continue };
        played += 1;
        if options.is_empty() {
            play(&dialog, shared.smtp, Whose::Ours, usize::MAX);
            messages += dialog.messages.len() as u64;
        } else {
            let options: Vec<&str> = options.iter().map(String::as_str).collect();
            let sink = Sink::start(&options);
            play(&dialog, sink.smtp, Whose::Ours, usize::MAX);
            let count = sink.took().messages;
            assert!(dialog.messages.is_empty() || count == dialog.messages.len() as u64, "{}: {count}", dialog.name);
        }
    }
    assert!(played >= 20, "only {played}");
    assert_eq!(shared.took().messages, messages, "every message these dialogs have taken is in their files");
}

fn postfix_options(dialog: &Dialog) -> Vec<String> {
    let option = |(name, number): &(String, u64)| match name.as_str() {
        "recipients" => Some(format!("smtpd_recipient_limit={number}")),
        "message_bytes" => Some(format!("message_size_limit={number}")),
        _ => None,
    };
    dialog.limits.iter().filter_map(option).collect()
}

#[test]
fn postfix_answers_in_kind() {
    let dialogs: Vec<Dialog> = dialogs().into_iter().filter(|dialog| !dialog.ours_only).collect();
    assert!(dialogs.len() >= 15, "only {}", dialogs.len());
    let mut services: Vec<Vec<String>> = dialogs.iter().map(postfix_options).collect();
    services.sort();
    services.dedup();
    let Some(postfix) = Postfix::start(Deliver::Discard, &services) else { return };
    for dialog in &dialogs {
        let place = services.binary_search(&postfix_options(dialog)).unwrap();
        play(dialog, postfix.listening[place], Whose::Foreign, usize::MAX);
    }
}
