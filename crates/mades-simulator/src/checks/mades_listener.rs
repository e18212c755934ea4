//! Passes any bytes to the embedded listener of MADES, in one piece and in several pieces. The replies must be the
//! same, a short input must not cause a long output, and the queues must lose no message. The last byte of the input is
//! not sent to the listener. Instead, it decides which credentials the listener demands and how long the pieces are.
use crate::embedded::{FuzzSession, ListenerAuth, MemoryQueues, PlainCredentials, QueueLimits};
use mailrun_mades::Password;

/// Maximum number of bytes that the listener may send before it has received any bytes. For each received byte, it may
/// send `SAID_FOR_EACH` more bytes. Two inputs cause the most output: a flow frame of 20 bytes, which the listener
/// answers with a flow and a message of 600 bytes, and a disposition that returns all messages to the queue.
const SAID_BYTES: usize = 1024;
const SAID_FOR_EACH: usize = 64;
/// Size limit of a message in bytes. Two messages of this size fill a queue.
const MOST_BYTES: u64 = 1000;
const LIMITS: QueueLimits = QueueLimits { messages: 8, bytes: 2000 };

fn mechanisms(choice: u8) -> ListenerAuth {
    match choice & 1 {
        0 => ListenerAuth::Any,
        _ => ListenerAuth::Plain(PlainCredentials { user: "endpoint".to_owned(), password: Password::new("password") }),
    }
}

fn stored(queues: &MemoryQueues) -> (usize, usize) {
    let counts = queues.names().into_iter().filter_map(|name| queues.get_or_create(&name)).map(|id| queues.counts(id));
    counts.fold((0, 0), |(bytes, messages), counts| {
        assert!(counts.waiting + counts.held <= LIMITS.messages);
        assert_eq!(counts.put, (counts.waiting + counts.held) as u64 + counts.accepted + counts.rejected);
        (bytes + counts.bytes, messages + counts.waiting + counts.held)
    })
}

/// Connects two peers to the same queues, and lets them send the same input piece by piece in turn.
fn visited(octets: &[u8], choice: u8) {
    let queues = MemoryQueues::new(LIMITS);
    let mut visits = [(); 2].map(|()| FuzzSession::new(queues.clone(), mechanisms(choice), MOST_BYTES));
    for piece in octets.chunks(usize::from(choice >> 1) + 1) {
        for visit in &mut visits {
            let (bytes, messages) = stored(&queues);
            let output_bytes = visit.feed(piece).len();
            // For one piece of input, the listener sends each queued message at most once. The peer may limit frames to
            // 512 bytes, so a message may need many frame headers. Allow twice the message's size plus 128 bytes.
            let limit = SAID_BYTES + SAID_FOR_EACH * octets.len() + 2 * bytes + 128 * messages;
            assert!(output_bytes <= limit, "{output_bytes} octets of {limit}");
        }
    }
    visits.into_iter().for_each(FuzzSession::hang_up);
    for id in queues.names().into_iter().filter_map(|name| queues.get_or_create(&name)) {
        assert_eq!(queues.counts(id).held, 0);
    }
    stored(&queues);
}

pub fn check(data: &[u8]) {
    let Some((&choice, octets)) = data.split_last() else { return };
    mailrun_amqp::checks::amqp_listener::check(data);
    visited(octets, choice);
}
