//! Tests with peers that send valid frames in any order. No message may be counted twice or
//! forgotten, and our side must write nothing for a connection, session or link that it has closed,
//! ended or detached.
use crate::checks::{amqp_client, amqp_listener};
use crate::codec::Writer;
use crate::frame::{self, AMQP_HEADER, DeliveryOutcome, Layer, LinkRole, Performative, SASL_HEADER};
use crate::fuzz_support::FuzzOutcome;
use crate::sasl::ListenerAuth;
use crate::sasl_client::ClientLogin;
use bytes::BytesMut;
use proptest::prelude::*;
use std::collections::HashSet;

#[derive(Clone, Debug)]
enum Step {
    Begin {
        answers: Option<u16>,
    },
    Attach {
        handle: u32,
        name: usize,
        receives: bool,
        node: bool,
    },
    Flow {
        handle: Option<u32>,
        numbers: [u32; 4],
        drain: bool,
        echo: bool,
    },
    Transfer {
        handle: u32,
        id: Option<u32>,
        tag: Option<u8>,
        format: Option<u32>,
        flags: (bool, bool, bool),
        length: usize,
    },
    Disposition {
        receives: bool,
        first: u32,
        count: u32,
        settled: bool,
    },
    Detach {
        handle: u32,
        closed: bool,
    },
    End,
    Close,
}

fn step() -> impl Strategy<Value = Step> {
    let handle = || prop_oneof![8 => 0..3_u32, 1 => Just(64)];
    let number = || prop_oneof![0..8_u32, any::<u32>()];
    prop_oneof![
        2 => proptest::option::of(0..2_u16).prop_map(|answers| Step::Begin { answers }),
        4 => (handle(), 0..3_usize, any::<bool>(), prop::bool::weighted(0.9))
            .prop_map(|(handle, name, receives, node)| Step::Attach { handle, name, receives, node }),
        6 => (proptest::option::of(handle()), [number(), number(), number(), number()], any::<bool>(), any::<bool>())
            .prop_map(|(handle, numbers, drain, echo)| Step::Flow { handle, numbers, drain, echo }),
        8 => (
            handle(),
            proptest::option::of(0..6_u32),
            proptest::option::of(0..2_u8),
            proptest::option::of(0..2_u32),
            (any::<bool>(), any::<bool>(), prop::bool::weighted(0.1)),
            0..600_usize,
        )
            .prop_map(|(handle, id, tag, format, flags, length)| Step::Transfer {
                handle, id, tag, format, flags, length
            }),
        3 => (any::<bool>(), 0..6_u32, 0..3_u32, any::<bool>())
            .prop_map(|(receives, first, count, settled)| Step::Disposition { receives, first, count, settled }),
        2 => (handle(), any::<bool>()).prop_map(|(handle, closed)| Step::Detach { handle, closed }),
        1 => Just(Step::End),
        1 => Just(Step::Close),
    ]
}

fn optional(fields: &mut Writer<'_>, number: Option<u32>) {
    match number {
        Some(number) => fields.uint(number),
        None => fields.null(),
    }
}

impl Step {
    fn write(&self, channel: u16, out: &mut Vec<u8>) {
        let start = frame::begin(out, Layer::Amqp, channel);
        let mut payload = 0;
        let mut writer = Writer::new(out);
        match self {
            Self::Begin { answers } => writer.described_list(0x11, |fields| {
                optional(fields, answers.map(u32::from));
                (0..3).for_each(|_| fields.uint(100));
            }),
            Self::Attach { handle, name, receives, node } => writer.described_list(0x12, |fields| {
                fields.string(["out", "in", "refuse"][*name]);
                fields.uint(*handle);
                fields.boolean(*receives);
                (0..2).for_each(|_| fields.null());
                for terminus in [0x28, 0x29] {
                    match node {
                        true => fields.described_list(terminus, |fields| fields.string(["q", "p", "refuse"][*name])),
                        false => fields.null(),
                    }
                }
            }),
            Self::Flow { handle, numbers: [seen, window, count, credit], drain, echo } => {
                writer.described_list(0x13, |fields| {
                    [*seen, *window, 0, 100].iter().for_each(|number| fields.uint(*number));
                    optional(fields, *handle);
                    [*count, *credit].iter().for_each(|number| fields.uint(*number));
                    fields.null();
                    fields.boolean(*drain);
                    fields.boolean(*echo);
                });
            }
            Self::Transfer { handle, id, tag, format, flags: (settled, more, aborted), length } => {
                writer.described_list(0x14, |fields| {
                    fields.uint(*handle);
                    optional(fields, *id);
                    match tag {
                        Some(tag) => fields.binary(&[*tag]),
                        None => fields.null(),
                    }
                    optional(fields, *format);
                    fields.boolean(*settled);
                    fields.boolean(*more);
                    (0..3).for_each(|_| fields.null());
                    fields.boolean(*aborted);
                });
                payload = *length;
            }
            Self::Disposition { receives, first, count, settled } => writer.described_list(0x15, |fields| {
                fields.boolean(*receives);
                fields.uint(*first);
                fields.uint(first + count);
                fields.boolean(*settled);
                frame::write_outcome(fields, DeliveryOutcome::Accepted);
            }),
            Self::Detach { handle, closed } => writer.described_list(0x16, |fields| {
                fields.uint(*handle);
                fields.boolean(*closed);
            }),
            Self::End => writer.described_list(0x17, |_| {}),
            Self::Close => writer.described_list(0x18, |_| {}),
        }
        out.extend(std::iter::repeat_n(7, payload));
        frame::finish(out, start, 0);
    }
}

fn script(before: &[u8], steps: &[(Step, u16)]) -> Vec<u8> {
    let mut octets = before.to_vec();
    frame::write(&mut octets, Layer::Amqp, 0, |out| {
        out.described_list(0x10, |fields| {
            fields.string("adversary");
            fields.null();
            fields.uint(512);
        });
    });
    steps.iter().for_each(|(step, channel)| step.write(*channel, &mut octets));
    octets
}

/// Checks that all frames written by the connection under test obey AMQP. For example, no frame may name a session that
/// has not begun, and no link may be detached twice.
fn check_output(outcome: &FuzzOutcome) {
    let mut octets = BytesMut::from(&outcome.output[..]);
    let mut sessions = HashSet::new();
    let mut links = HashSet::new();
    let mut is_closed = false;
    while !octets.is_empty() {
        assert!(!is_closed, "bytes after a close");
        if octets.starts_with(b"AMQP") {
            let _ = octets.split_to(8);
            continue;
        }
        let frame = frame::decode(&mut octets, 1 << 20).unwrap().unwrap();
        let channel = frame.channel;
        if frame.layer == Layer::Sasl {
            continue;
        }
        let performative = Performative::read(&frame.body).unwrap();
        let in_session = !matches!(
            performative,
            Performative::Open { .. } | Performative::Begin { .. } | Performative::Close { .. }
        );
        assert!(!in_session || sessions.contains(&channel), "no session: {performative:?}");
        match performative {
            Performative::Open { .. } => {}
            Performative::Begin { .. } => assert!(sessions.insert(channel), "two begins"),
            Performative::Attach(attach) => assert!(links.insert((channel, attach.handle)), "two attaches"),
            Performative::Flow(flow) => {
                assert!(flow.handle.is_none_or(|handle| links.contains(&(channel, handle))), "{flow:?}");
            }
            Performative::Transfer(transfer) => assert!(links.contains(&(channel, transfer.handle)), "{transfer:?}"),
            Performative::Disposition(disposition) => {
                assert!(matches!(disposition.role, LinkRole::Sender | LinkRole::Receiver));
            }
            Performative::Detach { handle, .. } => assert!(links.remove(&(channel, handle)), "two detaches"),
            Performative::End { .. } => {
                sessions.remove(&channel);
                links.retain(|(of, _)| *of != channel);
            }
            Performative::Close { .. } => is_closed = true,
        }
    }
    assert_eq!(outcome.lost, 0);
    assert!(outcome.error.is_none() || is_closed, "an error is told");
}

fn serve<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> FuzzOutcome {
    amqp_listener::heard(pieces, ListenerAuth::Any)
}

fn visit<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> FuzzOutcome {
    amqp_client::heard(pieces, ClientLogin::Anonymous)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn a_server_keeps_count_whatever_its_client_does(
        steps in proptest::collection::vec((step(), prop_oneof![8 => Just(0_u16), 1 => Just(1), 1 => Just(64)]), 0..40),
        cut in 1..100_usize,
    ) {
        let begun = (Step::Begin { answers: None }, 0);
        let octets = script(&AMQP_HEADER, &[&[begun][..], &steps].concat());
        let whole = serve(std::iter::once(&octets[..]));
        check_output(&whole);
        prop_assert_eq!(serve(octets.chunks(cut)), whole);
    }

    #[test]
    fn a_client_keeps_count_whatever_its_server_does(
        steps in proptest::collection::vec((step(), prop_oneof![8 => Just(5_u16), 1 => Just(1), 1 => Just(64)]), 0..40),
        cut in 1..100_usize,
    ) {
        let mut before = SASL_HEADER.to_vec();
        frame::write(&mut before, Layer::Sasl, 0, |out| out.described_list(0x40, |fields| fields.symbol("ANONYMOUS")));
        frame::write(&mut before, Layer::Sasl, 0, |out| out.described_list(0x44, |fields| fields.ubyte(0)));
        before.extend_from_slice(&AMQP_HEADER);
        let attach = |name, receives| Step::Attach { handle: name as u32, name, receives, node: true };
        let credit = Step::Flow { handle: Some(0), numbers: [0, 100, 0, 5], drain: false, echo: false };
        let begun = [Step::Begin { answers: Some(0) }, attach(0, true), attach(1, false), credit].map(|step| (step, 5));
        let octets = script(&before, &[&begun[..], &steps].concat());
        let whole = visit(std::iter::once(&octets[..]));
        check_output(&whole);
        prop_assert_eq!(visit(octets.chunks(cut)), whole);
    }
}
