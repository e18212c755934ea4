//! Passes any bytes to the simulator as a message from an outbox, first in one piece and then in several pieces. The
//! simulator must write the same messages in all cases, and may add at most `HEAD_BYTES` to the payload. The client
//! must not panic when it reads these messages.
use crate::embedded::EncodedMessage;
use crate::endpoint::fuzz_outbox_message;
use crate::model::SimulatorPlan;
use mailrun_mades::Bytes;
use mailrun_mades::api::{DecodedMessage, InboxMessage, Reply, SendEvent};

/// Maximum size in bytes of everything that the simulator adds to the payload: seven texts of at
/// most 1 KiB, an id, and names.
const HEAD_BYTES: usize = 12 << 10;

fn pieces(octets: &[u8], length: usize) -> EncodedMessage {
    let mut message = EncodedMessage::default();
    octets.chunks(length).for_each(|piece| message.push(Bytes::copy_from_slice(piece)));
    message
}

fn written(message: EncodedMessage, plan: &SimulatorPlan, draw: u8) -> Vec<Bytes> {
    fuzz_outbox_message(message, plan, u64::from(draw) << 32 | u64::from(draw))
        .iter()
        .map(EncodedMessage::whole)
        .collect()
}

pub fn check(data: &[u8]) {
    let Some((&draw, octets)) = data.split_last() else { return };
    let plan = SimulatorPlan {
        receivers: if draw & 1 == 0 { Vec::new() } else { vec!["known".to_owned()] },
        ..SimulatorPlan::default()
    };
    let whole = written(pieces(octets, octets.len().max(1)), &plan, draw);
    for length in [1, usize::from(draw) + 2] {
        assert_eq!(written(pieces(octets, length), &plan, draw), whole);
    }
    for message in &whole {
        assert!(message.len() <= octets.len() + HEAD_BYTES);
        if let Ok(message) = DecodedMessage::decode(&message.clone().into()) {
            let _ = (InboxMessage::read(&message), SendEvent::read(&message), Reply::read(&message));
        }
    }
}
