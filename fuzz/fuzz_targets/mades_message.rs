//! Any octets as a message of the Business Application API: whatever can be decoded is read as everything that it might be, and its ids are the same each way.
#![no_main]
use libfuzzer_sys::fuzz_target;
use mailrun_mades::api::{DecodedMessage, InboxMessage, Reply, SendEvent, Submission, content, inbox};
use mailrun_mades::embedded::EncodedMessage;

fuzz_target!(|data: &[u8]| {
    let pieces = |length| {
        let mut message = EncodedMessage::default();
        data.chunks(length).for_each(|piece| message.push(piece.to_vec().into()));
        DecodedMessage::decode(&message).ok()
    };
    let message = pieces(data.len().max(1));
    assert_eq!(pieces(7), message, "the same however it is cut");
    let Some(message) = message else { return };
    let arrived = InboxMessage::read(&message);
    assert_eq!(arrived.identity(), inbox::identity(&message));
    let event = SendEvent::read(&message);
    let reply = Reply::read(&message);
    let submission = Submission::read(&message);
    assert!(event.state.is_some() || !event.oddities.is_empty());
    for id in [event.identity(), reply.identity(), submission.identity()].into_iter().flatten() {
        assert_eq!(mailrun_mades::api::RunMessageId::read(&id.to_string()), Some(id));
    }
    assert!(content(&message).data_bytes() <= data.len());
});
