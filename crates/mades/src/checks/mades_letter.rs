//! Any bytes as a message that the stand-in takes out of an outbox, whole and in pieces. The stand-in must write the
//! same about both, within a bound, and the client side must be able to decode it.
use crate::Bytes;
use crate::api::{DecodedMessage, InboxMessage, Reply, SendEvent};
use crate::embedded::EncodedMessage;
use crate::endpoint::fuzz_outbox_message;
use crate::simulator::SimulatorPlan;

/// Bound of what the stand-in adds to the payload: seven texts of up to 1 KiB, an id, and names.
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
