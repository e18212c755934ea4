//! Plays each dialog file of `tests/dialogs` against a server session, with the client's bytes cut into blocks of many
//! sizes.
use crate::dialog::{self, Dialog, Step, Whose};
use crate::host::{RecordedEvent, RecordingServer};
use mailrun_smtp::limits::Limits;
use mailrun_smtp::reply::Reply;
use mailrun_smtp::server::{Offer, ServerSettings};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const NOW: Duration = Duration::from_secs(1);

fn dialogs() -> Vec<Dialog> {
    let dialogs = Dialog::all(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/dialogs"));
    assert!(dialogs.len() >= 30, "the dialogs are there");
    dialogs
}

fn host(dialog: &Dialog) -> RecordingServer {
    let mut limits = Limits::default();
    for (name, number) in &dialog.limits {
        match name.as_str() {
            "recipients" => limits.recipients = usize::try_from(*number).unwrap(),
            "message_bytes" => limits.message_bytes = *number,
            "errors" => limits.errors = u32::try_from(*number).unwrap(),
            "unknown_before_hello" => limits.unknown_before_hello = u32::try_from(*number).unwrap(),
            "idle_commands" => limits.idle_commands = u32::try_from(*number).unwrap(),
            "junk_commands" => limits.junk_commands = u32::try_from(*number).unwrap(),
            name => panic!("{}: no limit is called {name}", dialog.name),
        }
    }
    let mut offer = Offer::new(&limits);
    dialog.change(&mut offer);
    let greeting = dialog.refused_greeting().map(|(code, text)| Reply::new(code, text));
    RecordingServer::greeting(greeting.as_ref(), &Arc::new(ServerSettings::with_offer("test", limits, offer)), refuse)
}

/// Returns the dialogs that the client can send without a pause. This excludes dialogs with TLS, because the client
/// must wait before it begins TLS.
fn dialogs_in_one() -> Vec<Dialog> {
    dialogs().into_iter().filter(|dialog| !dialog.steps.contains(&Step::Tls)).collect()
}

fn refuse(event: &RecordedEvent) -> Option<Reply> {
    match event {
        RecordedEvent::Recipient { address, .. } | RecordedEvent::Verify(address) => {
            dialog::refusal(address).map(|code| Reply::new(code, "refused by name"))
        }
        RecordedEvent::Delivery(address) => {
            dialog::late_refusal(address).map(|code| Reply::new(code, "refused by name"))
        }
        _ => None,
    }
}

/// Takes the server's next reply from `out`, and checks it against step `at` of the dialog. Does nothing if this step
/// expects no reply.
fn expect(dialog: &Dialog, at: usize, out: &mut Vec<u8>) {
    let Step::Expect(expected) = &dialog.steps[at] else { return };
    let reply = dialog::take_reply(out).unwrap_or_else(|| panic!("{} step {at}: no reply, {expected:?}", dialog.name));
    expected.check(&reply, Whose::Ours).unwrap_or_else(|what| panic!("{} step {at}: {what}", dialog.name));
}

fn finish(dialog: &Dialog, host: RecordingServer) {
    assert!(host.out.is_empty(), "{}: {:?} was said besides", dialog.name, String::from_utf8_lossy(&host.out));
    assert_eq!(host.server.is_closed(), dialog.steps.last() == Some(&Step::Closed), "{}", dialog.name);
    let message = |event: RecordedEvent| if let RecordedEvent::Message(content) = event { Some(content) } else { None };
    let messages: Vec<_> = host.events.into_iter().filter_map(message).collect();
    if !dialog.messages.is_empty() {
        assert_eq!(messages, dialog.messages, "{}: the messages that were taken", dialog.name);
    }
}

/// Plays a dialog step by step: sends a line or a group of lines, and checks all replies to it before the client
/// continues. The server must not send more replies than the dialog expects.
fn play_in_lock_step(dialog: &Dialog, block_bytes: usize) {
    let mut host = host(dialog);
    for (at, step) in dialog.steps.iter().enumerate() {
        match step {
            Step::Send(bytes) => {
                let name = &dialog.name;
                assert!(host.out.is_empty(), "{name} step {at}: {:?} too many", String::from_utf8_lossy(&host.out));
                bytes.chunks(block_bytes).for_each(|block| host.receive(block, NOW));
            }
            Step::Expect(_) => expect(dialog, at, &mut host.out),
            Step::Tls => {
                assert!(host.server.wants_tls(), "{} step {at}: TLS is wanted", dialog.name);
                host.server.tls_started(NOW);
            }
            Step::Closed => {}
        }
    }
    finish(dialog, host);
}

/// Sends all of the client's input, cut into `blocks`, without waiting for replies. Then checks that the replies came
/// in order.
fn play_pipelined<'a>(dialog: &Dialog, blocks: impl IntoIterator<Item = &'a [u8]>) {
    let mut host = host(dialog);
    blocks.into_iter().for_each(|block| host.receive(block, NOW));
    (0..dialog.steps.len()).for_each(|at| expect(dialog, at, &mut host.out));
    finish(dialog, host);
}

#[test]
fn dialogs_hold_step_by_step() {
    dialogs().iter().for_each(|dialog| play_in_lock_step(dialog, usize::MAX));
}

#[test]
fn dialogs_hold_byte_by_byte() {
    dialogs().iter().for_each(|dialog| play_in_lock_step(dialog, 1));
}

#[test]
fn dialogs_hold_in_blocks_of_every_small_size() {
    for size in [2, 3, 5, 7, 64, 511] {
        dialogs().iter().for_each(|dialog| play_in_lock_step(dialog, size));
    }
}

#[test]
fn dialogs_hold_pipelined_in_one_block() {
    for dialog in dialogs_in_one() {
        play_pipelined(&dialog, [dialog.said().as_slice()]);
        play_pipelined(&dialog, dialog.said().chunks(1));
    }
}

#[test]
fn dialogs_hold_pipelined_and_cut_in_two_anywhere() {
    for dialog in dialogs_in_one() {
        let octets = dialog.said();
        // Long dialogs repeat themselves, so it is enough to cut each of them at a few hundred places.
        for at in (0..octets.len()).step_by(1 + octets.len() / 400) {
            play_pipelined(&dialog, [&octets[..at], &octets[at..]]);
        }
    }
}

#[test]
fn trailing_bytes_change_nothing_that_was_said_before() {
    for dialog in dialogs_in_one() {
        let octets = [dialog.said().as_slice(), b"NOO"].concat();
        play_pipelined(&dialog, [octets.as_slice()]);
    }
}
