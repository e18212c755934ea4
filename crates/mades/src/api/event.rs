//! Events in the queue `send.event`. Each event reports the state of a sent message as text.
use super::reading::{BodyContent, PropertyReader, content, first_identity};
use super::{DecodedMessage, Oddity, RunMessageId, names};
use std::borrow::Cow;
use std::fmt;

/// Maximum length of an unknown state in characters. A longer state is cut, because a peer may send any text.
const SHOWN_CHARACTERS: usize = 64;

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum EventState {
    /// The sender's endpoint has accepted the message.
    Accepted,
    /// The message is on the way between the endpoints.
    Transported,
    /// The receiver's endpoint has the message.
    Delivered,
    /// The receiver's business application has taken the message, or the message is in the application's inbox.
    Received,
    /// The endpoint has given the message up, so it will not arrive.
    Failed,
    /// The tracing message, which only tests the route, has reached the receiver's endpoint.
    Tracing,
    /// The endpoint reported a state that the API does not define. Only its first 64 characters are kept.
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

#[derive(Clone, Debug, PartialEq)]
pub struct SendEvent<'m> {
    /// State of the message, for example DELIVERED. `None` if the body of the event has no text.
    pub state: Option<EventState>,
    pub correlation: Option<Cow<'m, str>>,
    pub message_id: Option<Cow<'m, str>>,
    pub ba_message_id: Option<Cow<'m, str>>,
    pub error_code: Option<Cow<'m, str>>,
    pub error_message: Option<Cow<'m, str>>,
    pub oddities: Vec<Oddity>,
}

impl<'m> SendEvent<'m> {
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

    /// Returns the identity of the message that the event is about. The id of the business
    /// application is tried first, and then the correlation-id.
    pub fn identity(&self) -> Option<RunMessageId> {
        first_identity(&[&self.ba_message_id, &self.correlation])
    }
}

/// Reads the state in the body, which should be an `amqp-value` string. Also accepts a single `data` section, as
/// go-mades-bench does, but reports it as a deviation from the reference.
fn state(message: &DecodedMessage, oddities: &mut Vec<Oddity>) -> Option<EventState> {
    let content = content(message);
    let text = match &content {
        BodyContent::Text(text) => Cow::Borrowed(*text),
        BodyContent::Data(sections) if sections.len() == 1 => {
            oddities.push(Oddity::WrongSection { expected: "amqp-value string", found: "data" });
            match std::str::from_utf8(sections[0]) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::testing::message_of;
    use mailrun_amqp::Writer;

    const DATA: u8 = 0x75;
    const VALUE: u8 = 0x77;

    fn body(write: impl FnOnce(&mut Writer<'_>)) -> Vec<u8> {
        let mut octets = Vec::new();
        write(&mut Writer::new(&mut octets));
        octets
    }

    #[test]
    fn every_state_is_read_by_its_name() {
        for text in ["ACCEPTED", "TRANSPORTED", "DELIVERED", "RECEIVED", "FAILED", "TRACING"] {
            let message = message_of(&[(names::MESSAGE_ID, "id")], &body(|out| out.described_string(VALUE, text)));
            let read = SendEvent::read(&message);
            let is_known = !matches!(read.state, None | Some(EventState::Unknown(_)));
            assert_eq!((read.state.as_ref().map(EventState::as_str), is_known), (Some(text), true));
            assert_eq!((read.message_id.as_deref(), read.oddities), (Some("id"), vec![]));
        }
    }

    #[test]
    fn the_wrong_section_is_named_and_read_if_it_is_text() {
        let long = "ä".repeat(99);
        let sections: [(Vec<u8>, Option<EventState>, usize); 5] = [
            (body(|out| out.described_binary(DATA, b"FAILED")), Some(EventState::Failed), 1),
            (body(|out| out.described_binary(DATA, &[0xff])), None, 2),
            (vec![0, 0x53, VALUE, 0x52, 7], None, 1),
            (Vec::new(), None, 1),
            (
                body(|out| out.described_string(VALUE, &long)),
                Some(EventState::Unknown("ä".repeat(SHOWN_CHARACTERS))),
                1,
            ),
        ];
        for (body, state, oddities) in sections {
            let message = message_of(&[(names::MESSAGE_ID, "id")], &body);
            let read = SendEvent::read(&message);
            assert_eq!((read.state, read.oddities.len()), (state, oddities), "{body:?}");
        }
    }
}
