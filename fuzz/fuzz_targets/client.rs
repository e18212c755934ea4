//! Any replies to a client session, whole and cut: it says the same, and always knows what it waits for. The last
//! octet of the input chooses options and cuts. The same bytes are the choices of a server whose replies are dropped or
//! changed on the way.
#![no_main]
#[path = "../../crates/smtp/tests/all/adversary.rs"]
mod adversary;
#[path = "../../crates/smtp/tests/all/host.rs"]
mod host;

use host::SplitMix64;
use libfuzzer_sys::fuzz_target;
use mailrun_smtp::client::{
    BurstSize, ChunkPosition, Chunking, Client, Notifications, Options, PipelineMode, Protocol, StartTls, Violation,
    Want,
};
use mailrun_smtp::envelope::Envelope;
use mailrun_smtp::sasl::{Credentials, Mechanism, Mechanisms};
use mailrun_smtp::xclient::{Attribute, XclientRequest};
use std::sync::Arc;
use std::time::Duration;

const NOW: Duration = Duration::from_secs(1);

/// Plays a caller that does what the session wants after each reply.
fn told(blocks: &[&[u8]], options: &Arc<Options>) -> (Vec<String>, Vec<u8>, Option<Violation>) {
    let mut client = Client::with_options("me".into(), options.clone(), Some([7; 18]), NOW);
    let envelope = Arc::new(Envelope::new("a@b", "", ["c@d", "e@f"]).expect("good addresses"));
    let mut told = Vec::new();
    let mut out = Vec::new();
    for block in blocks {
        let mut input = *block;
        loop {
            match client.next_event(&mut input, NOW, &mut out) {
                Ok(Some(event)) => {
                    told.push(format!("{:?} {} {} {:?}", event.to, event.reply.code(), event.reply.text(), event.ends));
                }
                Ok(None) => break,
                // How many octets came at once depends on the cut.
                Err(Violation::Injected(_)) => return (told, out, Some(Violation::Injected(0))),
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
        // Likewise the next reply comes before TLS is on.
        Want::Tls if replies % 5 == 4 => {}
        Want::Tls => client.tls_started(NOW, out),
        Want::Chunk => {
            let part = if replies.is_multiple_of(3) { ChunkPosition::Middle } else { ChunkPosition::Last };
            assert!(client.chunk(1, part, NOW, out));
            out.push(b'x');
        }
        Want::Replies | Want::Close => {}
    }
}

fn options(choice: u8) -> Options {
    let is = |bit: u8| choice & (1 << bit) != 0;
    let introduction = XclientRequest::default().with_attribute(Attribute::Name, "a").expect("a good name");
    let mechanism = Mechanism::ALL[usize::from(choice >> 5) % 5];
    let credentials = Credentials::new("user", "pencil").by(Mechanisms::NONE.with(mechanism));
    Options {
        protocol: if is(1) { Protocol::Lmtp } else { Protocol::Smtp },
        pipelining: if is(0) { PipelineMode::Group } else { PipelineMode::Off },
        tls: if is(3) { StartTls::IfOffered } else { StartTls::Never },
        credentials: is(4).then_some(credentials),
        chunking: if is(2) { Chunking::IfOffered } else { Chunking::Never },
        xclient: (choice > 0xf0).then_some(introduction),
        notifications: if choice.is_multiple_of(7) { Notifications::Asked } else { Notifications::Unasked },
        burst: BurstSize::of(u32::from(choice % 5)),
        quit_timeout: None,
        refuses_own_name: false,
        greeting_timeout: None,
    }
}

fuzz_target!(|data: &[u8]| {
    adversary::check(data);
    let Some((&choice, bytes)) = data.split_last() else { return };
    let options = Arc::new(options(choice));
    let whole = told(&[bytes], &options);
    assert_eq!(told(&bytes.chunks(1).collect::<Vec<_>>(), &options), whole);
    assert_eq!(told(&SplitMix64(u64::from(choice)).cut(bytes), &options), whole);
});
