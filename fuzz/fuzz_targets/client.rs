//! Any replies to a client session, whole and cut: it says the same, and always knows what it waits for. The last
//! octet of the input chooses pipelining and cuts.
#![no_main]
#[path = "../../crates/smtp/tests/all/host.rs"]
mod host;

use host::Dice;
use libfuzzer_sys::fuzz_target;
use smtp::client::{Client, Pipelining, Violation, Want};
use smtp::envelope::Envelope;
use std::sync::Arc;
use std::time::Duration;

const NOW: Duration = Duration::from_secs(1);

/// Plays a caller that does what the session wants after each reply.
fn told(blocks: &[&[u8]], pipelining: Pipelining) -> (Vec<String>, Vec<u8>, Option<Violation>) {
    let mut client = Client::new("me".into(), pipelining, NOW);
    let envelope = Arc::new(Envelope::new("a@b", "", ["c@d", "e@f"]).expect("good addresses"));
    let (mut told, mut out) = (Vec::new(), Vec::new());
    for block in blocks {
        let mut input = *block;
        loop {
            match client.next_event(&mut input, NOW, &mut out) {
                Ok(Some(event)) => {
                    told.push(format!("{:?} {} {} {:?}", event.to, event.reply.code(), event.reply.text(), event.ends));
                }
                Ok(None) => break,
                Err(violation) => return (told, out, Some(violation)),
            }
            act(&mut client, &envelope, told.len(), &mut out);
            assert!(client.wants() != Want::Replies || client.waits_for().is_some(), "it waits for something");
        }
        assert!(input.is_empty(), "a block is read to its end");
    }
    (told, out, None)
}

fn act(client: &mut Client, envelope: &Arc<Envelope>, replies: usize, out: &mut Vec<u8>) {
    match client.wants() {
        Want::Transaction if replies % 16 == 15 => client.quit(NOW, out),
        Want::Transaction => client.begin(envelope.clone(), NOW, out),
        // Now and then the peer's next reply comes before the message is out.
        Want::Message if replies % 5 == 4 => {}
        Want::Message => {
            client.message_sent(NOW);
            if client.may_begin_early() {
                client.begin(envelope.clone(), NOW, out);
            }
        }
        Want::Replies | Want::Close => {}
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((&choice, bytes)) = data.split_last() else { return };
    let pipelining = if choice % 2 == 0 { Pipelining::Off } else { Pipelining::Group };
    let whole = told(&[bytes], pipelining);
    assert_eq!(told(&bytes.chunks(1).collect::<Vec<_>>(), pipelining), whole);
    assert_eq!(told(&Dice(u64::from(choice)).cut(bytes), pipelining), whole);
});
