//! Builds messages for the tests of the readers, and checks them with fe2o3-amqp, an independent encoder and decoder.
use super::message::SectionFields;
use super::{AmqpMessage, DecodedMessage, names};
use crate::checks::mades_message::check_message;
use fe2o3_amqp_types::messaging::message::__private::{Deserializable, Serializable};
use fe2o3_amqp_types::messaging::{AmqpValue, ApplicationProperties, Body, Data, Message, MessageId, Properties};
use fe2o3_amqp_types::primitives::{Binary, SimpleValue, Symbol, Timestamp};
use mailrun_amqp::EncodedMessage;
use proptest::prelude::*;
use serde_amqp::Value;

pub(super) fn decoded_by_fe2o3(message: &EncodedMessage) -> Message<Body<Value>> {
    serde_amqp::from_slice::<Deserializable<Message<Body<Value>>>>(&message.whole()).unwrap().0
}

pub(super) fn over_the_wire(message: &AmqpMessage) -> DecodedMessage {
    let encoded = message.encoded();
    decoded_by_fe2o3(&encoded);
    DecodedMessage::decode(&encoded).unwrap()
}

/// Returns a message with these application properties. `body` must already be encoded.
pub(super) fn message_of(properties: &[(&str, &str)], body: &[u8]) -> DecodedMessage {
    let mut octets = Vec::new();
    SectionFields::default().write(
        &mut octets,
        |fields| fields.null(),
        |entries| {
            properties.iter().flat_map(|(name, value)| [name, value]).for_each(|text| entries.string(text));
        },
    );
    octets.extend_from_slice(body);
    DecodedMessage::decode(&octets.into()).unwrap()
}

fn id() -> impl Strategy<Value = MessageId> {
    prop_oneof![
        "[0-9]{1,3}-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}".prop_map(MessageId::String),
        ".{0,20}".prop_map(MessageId::String),
        any::<u64>().prop_map(MessageId::Ulong),
        any::<[u8; 16]>().prop_map(|octets| MessageId::Uuid(octets.into())),
        any::<Vec<u8>>().prop_map(|octets| MessageId::Binary(Binary::from(octets))),
    ]
}

fn simple() -> impl Strategy<Value = SimpleValue> {
    prop_oneof![
        "[0-9]{1,3}-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}".prop_map(SimpleValue::String),
        ".{0,20}".prop_map(SimpleValue::String),
        Just(SimpleValue::Null),
        any::<bool>().prop_map(SimpleValue::Bool),
        any::<u64>().prop_map(SimpleValue::Ulong),
        any::<i64>().prop_map(SimpleValue::Long),
        any::<i32>().prop_map(SimpleValue::Int),
        any::<u8>().prop_map(SimpleValue::Ubyte),
        any::<char>().prop_map(SimpleValue::Char),
        any::<i64>().prop_map(|time| SimpleValue::Timestamp(Timestamp::from_milliseconds(time))),
        any::<[u8; 16]>().prop_map(|octets| SimpleValue::Uuid(octets.into())),
        any::<Vec<u8>>().prop_map(|octets| SimpleValue::Binary(Binary::from(octets))),
        "[a-z]{0,9}".prop_map(|text| SimpleValue::Symbol(Symbol::from(text))),
    ]
}

fn body() -> impl Strategy<Value = Body<Value>> {
    let data = any::<Vec<u8>>().prop_map(Data::from);
    prop_oneof![
        proptest::collection::vec(data, 1..3).prop_map(|sections| Body::Data(sections.into())),
        prop_oneof![Just("DELIVERED".to_owned()), ".{0,20}"]
            .prop_map(|text| Body::Value(AmqpValue(Value::String(text)))),
        any::<u32>().prop_map(|number| Body::Value(AmqpValue(Value::Uint(number)))),
        Just(Body::Value(AmqpValue(Value::Null))),
        Just(Body::Empty),
    ]
}

fn any_peer_message() -> impl Strategy<Value = Message<Body<Value>>> {
    let name = prop_oneof![
        Just(names::MESSAGE_ID),
        Just(names::BA_MESSAGE_ID),
        Just(names::ERROR_CODE),
        Just(names::SEND_TIMESTAMP),
        Just(names::RECEIVER_CODE),
        Just("somethingElse"),
    ]
    .prop_map(str::to_owned);
    let application = proptest::collection::vec((name, simple()), 0..5);
    (proptest::option::of(id()), proptest::option::of(application), body()).prop_map(
        |(correlation, application, body)| Message {
            header: None,
            delivery_annotations: None,
            message_annotations: None,
            properties: Some(Properties { correlation_id: correlation, ..Properties::default() }),
            application_properties: application.map(|entries| ApplicationProperties(entries.into_iter().collect())),
            body,
            footer: None,
        },
    )
}

fn any_message() -> impl Strategy<Value = DecodedMessage> {
    any_peer_message().prop_map(|message| {
        let octets = serde_amqp::to_vec(&Serializable(&message)).unwrap();
        DecodedMessage::decode(&octets.into()).unwrap()
    })
}

proptest! {
    #[test]
    fn what_fe2o3_writes_is_read_as_it_was_meant(message in any_peer_message()) {
        let octets = serde_amqp::to_vec(&Serializable(&message)).unwrap();
        let decoded = DecodedMessage::decode(&octets.into()).unwrap();
        let read = decoded.application_properties();
        prop_assert_eq!(read.as_ref().map(Vec::len), message.application_properties.as_ref().map(|all| all.0.len()));
        for (name, value) in read.unwrap_or_default() {
            let meant = message.application_properties.as_ref().unwrap().0.get(name).unwrap();
            let is_text = |text: &str| matches!(value, mailrun_amqp::Scalar::String(read) if read == text);
            match meant {
                SimpleValue::String(text) => prop_assert!(is_text(text)),
                SimpleValue::Long(number) => prop_assert_eq!(value, mailrun_amqp::Scalar::Long(*number)),
                SimpleValue::Int(number) => prop_assert_eq!(value, mailrun_amqp::Scalar::Int(*number)),
                SimpleValue::Ulong(number) => prop_assert_eq!(value, mailrun_amqp::Scalar::Ulong(*number)),
                SimpleValue::Bool(truth) => prop_assert_eq!(value, mailrun_amqp::Scalar::Boolean(*truth)),
                SimpleValue::Timestamp(time) => {
                    prop_assert_eq!(value, mailrun_amqp::Scalar::Timestamp(time.clone().into_inner()));
                }
                _ => {}
            }
        }
        if let Body::Data(sections) = &message.body {
            let meant: Vec<&[u8]> = sections.iter().map(|section| section.0.as_slice()).collect();
            prop_assert_eq!(super::content(&decoded), super::BodyContent::Data(meant));
        }
    }

    #[test]
    fn any_octets_are_a_message_or_none(octets in proptest::collection::vec(any::<u8>(), 0..200), cut in 0usize..200) {
        let _ = DecodedMessage::decode(&octets.clone().into());
        // Decoding a message that is cut off at any place must not panic.
        let _ = DecodedMessage::decode(&octets[..cut.min(octets.len())].to_vec().into());
    }
}

proptest! {
    #[test]
    fn no_message_is_too_odd(message in any_message()) {
        check_message(&message);
    }
}
