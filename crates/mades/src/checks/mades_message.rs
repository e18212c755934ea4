//! Reads any bytes as a message of the Business Application API. If the bytes can be decoded, every reader must be able
//! to read them, and each id that a reader finds must stay the same when it is written and read again.
use crate::api::{
    BodyContent, DecodedMessage, InboxMessage, Reply, ReplyOutcome, RunMessageId, SendEvent, Submission, content, inbox,
};
use mailrun_amqp::EncodedMessage;

pub fn check(data: &[u8]) {
    let pieces = |length| {
        let mut message = EncodedMessage::default();
        data.chunks(length).for_each(|piece| message.push(piece.to_vec().into()));
        DecodedMessage::decode(&message).ok()
    };
    let message = pieces(data.len().max(1));
    assert_eq!(pieces(7), message, "the same however it is cut");
    let Some(message) = message else { return };
    check_message(&message);
    assert!(content(&message).octets().map(<[u8]>::len).sum::<usize>() <= data.len());
}

/// Reads the same message four times: as an inbox message, as a send event, as a reply and as a submission to the
/// outbox. A reader that cannot interpret the message must report a deviation.
pub(crate) fn check_message(message: &DecodedMessage) {
    let arrived = InboxMessage::read(message);
    assert_eq!(arrived.identity(), inbox::identity(message));
    assert!(matches!(arrived.content, BodyContent::Data(_)) || !arrived.oddities.is_empty());
    let event = SendEvent::read(message);
    assert!(event.state.is_some() || !event.oddities.is_empty());
    assert!(event.identity().is_none() || event.ba_message_id.is_some() || event.correlation.is_some());
    let reply = Reply::read(message);
    assert!(reply.outcome != ReplyOutcome::Unclear || !reply.oddities.is_empty());
    let submission = Submission::read(message);
    for id in [event.identity(), reply.identity(), submission.identity()].into_iter().flatten() {
        assert_eq!(RunMessageId::read(&id.to_string()), Some(id));
    }
}
