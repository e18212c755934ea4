//! Events from the queue `send.event`: the state of a message in words (reference §2.6).
use super::reading::{BodyContent, PropertyReader, content, first_identity};
use super::writing::AmqpMessageBuilder;
use super::{DecodedMessage, Message, MessageId, Oddity, RunMessageId, names};
use fe2o3_amqp_types::messaging::AmqpValue;
use std::borrow::Cow;
use std::fmt;

/// Limit of the characters of an unknown state that are shown.
const SHOWN_CHARACTERS: usize = 64;

/// State of a message, as an event reports it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum EventState {
    /// The sender's endpoint has it.
    Accepted,
    /// It is on the way between endpoints.
    Transported,
    /// The receiver's endpoint has it.
    Delivered,
    /// The receiver's business application, or its inbox, has it.
    Received,
    /// It will not arrive.
    Failed,
    /// A tracing message came back.
    Tracing,
    /// Something else; its first 64 characters.
    Unknown(String),
}

impl EventState {
    fn read(text: &str) -> Self {
        match text {
            "ACCEPTED" => Self::Accepted,
            "TRANSPORTED" => Self::Transported,
            "DELIVERED" => Self::Delivered,
            "RECEIVED" => Self::Received,
            "FAILED" => Self::Failed,
            "TRACING" => Self::Tracing,
            other => Self::Unknown(other.chars().take(SHOWN_CHARACTERS).collect()),
        }
    }

    /// The state as it stands in the message.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Accepted => "ACCEPTED",
            Self::Transported => "TRANSPORTED",
            Self::Delivered => "DELIVERED",
            Self::Received => "RECEIVED",
            Self::Failed => "FAILED",
            Self::Tracing => "TRACING",
            Self::Unknown(text) => text,
        }
    }
}

impl fmt::Display for EventState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A send event.
#[derive(Clone, Debug, PartialEq)]
pub struct SendEvent<'m> {
    /// State of the message; `None` if there is no text in the body.
    pub state: Option<EventState>,
    /// The correlation-id.
    pub correlation: Option<Cow<'m, str>>,
    /// The id that the endpoint gave.
    pub message_id: Option<Cow<'m, str>>,
    /// The id that the business application gave.
    pub ba_message_id: Option<Cow<'m, str>>,
    /// Code of the failure.
    pub error_code: Option<Cow<'m, str>>,
    /// Text of the failure.
    pub error_message: Option<Cow<'m, str>>,
    /// Deviations from the reference.
    pub oddities: Vec<Oddity>,
}

impl<'m> SendEvent<'m> {
    /// Reads a message as a send event.
    pub fn read(message: &'m DecodedMessage) -> Self {
        let mut reader = PropertyReader::new(message);
        let message_id = reader.text(names::MESSAGE_ID);
        let ba_message_id = reader.text(names::BA_MESSAGE_ID);
        let correlation = reader.correlation();
        if message_id.is_none() && ba_message_id.is_none() && correlation.is_none() {
            reader.oddities.push(Oddity::Missing(names::MESSAGE_ID));
        }
        let error_code = reader.text(names::ERROR_CODE);
        let error_message = reader.text(names::ERROR_MESSAGE);
        let state = state(message, &mut reader.oddities);
        Self { state, correlation, message_id, ba_message_id, error_code, error_message, oddities: reader.oddities }
    }

    /// Identity of the message that the event is about: by the business application's id, or by its correlation-id.
    pub fn identity(&self) -> Option<RunMessageId> {
        first_identity(&[&self.ba_message_id, &self.correlation])
    }
}

/// Reads the state in the body. It belongs in an amqp-value string; go-mades-bench accepts a `data` section without a
/// word, and we report it.
fn state(message: &DecodedMessage, oddities: &mut Vec<Oddity>) -> Option<EventState> {
    let content = content(message);
    let text = match &content {
        BodyContent::Text(text) => Cow::Borrowed(*text),
        BodyContent::Data([section]) => {
            oddities.push(Oddity::WrongSection { expected: "amqp-value string", found: "data" });
            match std::str::from_utf8(&section.0) {
                Ok(text) => Cow::Borrowed(text),
                Err(_) => {
                    oddities.push(Oddity::NotText("the body"));
                    return None;
                }
            }
        }
        other => {
            oddities.push(Oddity::WrongSection { expected: "amqp-value string", found: other.section() });
            return None;
        }
    };
    let state = EventState::read(&text);
    if matches!(state, EventState::Unknown(_)) {
        oddities.push(Oddity::UnknownState);
    }
    Some(state)
}

/// Contents of a send event.
#[derive(Clone, Debug)]
pub struct EventDraft<'a> {
    /// State of the message.
    pub state: EventState,
    /// Correlation-id of the submission.
    pub correlation: Option<MessageId>,
    /// The id that the endpoint gave.
    pub message_id: &'a str,
    /// The id that the business application gave.
    pub ba_message_id: Option<&'a str>,
    /// The component code of the receiver.
    pub receiver_code: Option<&'a str>,
    /// The type.
    pub message_type: Option<&'a str>,
    /// The failure: a code and a text.
    pub failure: Option<(&'a str, &'a str)>,
}

impl EventDraft<'_> {
    /// The message, made then (milliseconds since 1970).
    pub fn message(self, created_at_ms: i64) -> Message<AmqpValue<String>> {
        AmqpMessageBuilder::new(self.correlation, created_at_ms)
            .with(names::MESSAGE_ID, self.message_id)
            .with_some(names::BA_MESSAGE_ID, self.ba_message_id)
            .with_some(names::RECEIVER_CODE, self.receiver_code)
            .with_some(names::MESSAGE_TYPE, self.message_type)
            .with_some(names::ERROR_CODE, self.failure.map(|(code, _)| code))
            .with_some(names::ERROR_MESSAGE, self.failure.map(|(_, words)| words))
            .body(AmqpValue(self.state.as_str().to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::testing::{any_message, over_the_wire};
    use fe2o3_amqp_types::messaging::{Body, Data};
    use proptest::prelude::*;
    use serde_amqp::Value;

    fn draft(state: EventState) -> EventDraft<'static> {
        EventDraft {
            state,
            correlation: Some(MessageId::String("correlation".to_owned())),
            message_id: "id",
            ba_message_id: Some("ba"),
            receiver_code: Some("receiver"),
            message_type: Some("type"),
            failure: None,
        }
    }

    #[test]
    fn what_is_written_is_read() {
        for text in ["ACCEPTED", "TRANSPORTED", "DELIVERED", "RECEIVED", "FAILED", "TRACING"] {
            let message = over_the_wire(&draft(EventState::read(text)).message(5));
            let read = SendEvent::read(&message);
            assert_eq!(read.state.as_ref().map(EventState::as_str), Some(text));
            assert_eq!((read.message_id.as_deref(), read.ba_message_id.as_deref()), (Some("id"), Some("ba")));
            assert_eq!(read.oddities, []);
        }
    }

    #[test]
    fn the_wrong_section_is_named_and_read_if_it_is_text() {
        let sections: [(Body<Value>, Option<EventState>, usize); 5] = [
            (Body::Data(vec![Data::from(b"FAILED".to_vec())].into()), Some(EventState::Failed), 1),
            (Body::Data(vec![Data::from(vec![0xff])].into()), None, 2),
            (Body::Value(AmqpValue(Value::Uint(7))), None, 1),
            (Body::Empty, None, 1),
            (
                Body::Value(AmqpValue(Value::String("ä".repeat(99)))),
                Some(EventState::Unknown("ä".repeat(SHOWN_CHARACTERS))),
                1,
            ),
        ];
        for (body, state, oddities) in sections {
            let message = draft(EventState::Failed).message(5).map_body(|_| body.clone());
            let read = SendEvent::read(&message);
            assert_eq!((read.state, read.oddities.len()), (state, oddities), "{body:?}");
        }
    }

    proptest! {
        #[test]
        fn no_message_is_too_odd(message in any_message()) {
            let read = SendEvent::read(&message);
            prop_assert!(read.state.is_some() || !read.oddities.is_empty());
            prop_assert!(read.identity().is_none() || read.ba_message_id.is_some() || read.correlation.is_some());
        }
    }
}
