//! Messages for the tests of readers: any message at all, and one as it comes off the wire.
use super::{DecodedMessage, Message, MessageId, names};
use fe2o3_amqp_types::messaging::message::__private::{Deserializable, Serializable};
use fe2o3_amqp_types::messaging::{AmqpValue, ApplicationProperties, Body, Data, Properties, SerializableBody};
use fe2o3_amqp_types::primitives::{Binary, SimpleValue, Symbol, Timestamp};
use proptest::prelude::*;
use serde_amqp::Value;

/// A message as the other side has it: encoded and decoded.
pub(super) fn over_the_wire<B: SerializableBody>(message: &Message<B>) -> DecodedMessage {
    let octets = serde_amqp::to_vec(&Serializable(message)).unwrap();
    serde_amqp::from_slice::<Deserializable<DecodedMessage>>(&octets).unwrap().0
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
        proptest::collection::vec(data, 0..3).prop_map(|sections| Body::Data(sections.into())),
        prop_oneof![Just("DELIVERED".to_owned()), ".{0,20}"]
            .prop_map(|text| Body::Value(AmqpValue(Value::String(text)))),
        any::<u32>().prop_map(|number| Body::Value(AmqpValue(Value::Uint(number)))),
        Just(Body::Value(AmqpValue(Value::Null))),
        Just(Body::Empty),
    ]
}

/// Any message that can be decoded.
pub(super) fn any_message() -> impl Strategy<Value = DecodedMessage> {
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
