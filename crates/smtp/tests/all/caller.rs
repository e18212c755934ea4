//! A client session whose caller does whatever the session wants, with a server that may send
//! anything. A fuzz target includes this file by path.
use mailrun_smtp::checks::SplitMix64;
use mailrun_smtp::client::{ChunkPosition, Client, Options, Violation, Want};
use mailrun_smtp::envelope::Envelope;
use std::sync::Arc;
use std::time::Duration;

const NOW: Duration = Duration::from_secs(1);

/// Runs a session whose caller does what the session wants after each reply. Returns the events, the client's output,
/// and the violation of the protocol that ended the session, if there was one.
fn run(blocks: &[&[u8]], options: &Arc<Options>) -> (Vec<String>, Vec<u8>, Option<Violation>) {
    let mut client = Client::with_options("me".into(), options.clone(), Some([7; 18]), NOW);
    let envelope = Arc::new(Envelope::new("a@b", "", ["c@d", "e@f"]).expect("good addresses"));
    let mut events = Vec::new();
    let mut out = Vec::new();
    for block in blocks {
        let mut input = *block;
        loop {
            match client.next_event(&mut input, NOW, &mut out) {
                Ok(Some(event)) => {
                    events.push(format!(
                        "{:?} {} {} {:?}",
                        event.to,
                        event.reply.code(),
                        event.reply.text(),
                        event.ends
                    ));
                }
                Ok(None) => break,
                // Do not compare the number of injected bytes, because it depends on how the replies are cut.
                Err(Violation::Injected(_)) => return (events, out, Some(Violation::Injected(0))),
                Err(violation) => return (events, out, Some(violation)),
            }
            act(&mut client, &envelope, events.len(), &mut out);
            assert!(client.wants() != Want::Replies || client.waits_for().is_some(), "it waits for something");
        }
        assert!(input.is_empty(), "a block is read to its end");
    }
    (events, out, None)
}

fn act(client: &mut Client, envelope: &Arc<Envelope>, replies: usize, out: &mut Vec<u8>) {
    match client.wants() {
        Want::Transaction if replies % 16 == 15 => client.quit(NOW, out),
        Want::Transaction => client.begin(envelope.clone(), NOW, out),
        // Sometimes the caller is slow, and the peer's next reply arrives before the message is sent.
        Want::Message if replies % 5 == 4 => {}
        Want::Message => {
            client.message_sent(NOW);
            if client.may_begin_early() {
                client.begin(envelope.clone(), NOW, out);
            }
        }
        // Sometimes the next reply arrives before TLS begins.
        Want::Tls if replies % 5 == 4 => {}
        Want::Tls => client.tls_started(NOW, out),
        Want::Chunk => {
            let part = if replies.is_multiple_of(3) { ChunkPosition::Middle } else { ChunkPosition::Last };
            assert!(client.chunk(1, part, NOW, out));
            out.push(b'x');
        }
        Want::Replies if client.bursts() && client.may_begin_early() => client.begin(envelope.clone(), NOW, out),
        Want::Replies | Want::Close => {}
    }
}

/// Checks that a session reports the same events and sends the same output however the replies are cut into blocks.
/// Also checks that the session always knows which reply it waits for.
pub(crate) fn check(bytes: &[u8], options: &Arc<Options>, seed: u64) {
    let whole = run(&[bytes], options);
    assert_eq!(run(&bytes.chunks(1).collect::<Vec<_>>(), options), whole);
    assert_eq!(run(&SplitMix64(seed).cut(bytes), options), whole);
}
