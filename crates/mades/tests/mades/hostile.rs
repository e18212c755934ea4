//! Tests malicious peers of the client and of the embedded listener. Some peers send garbage, partial input or wrong
//! lengths. Others are silent, or disconnect at any byte.
use crate::peer::{TEST_TIMEOUT, broker, connected, limited, listener, our_own};
use crate::script::{
    Then, anonymous, attach, begin, client, detach, detach_of, drain, end, flow, handshake, handshake_with, piece, say,
    say_and, session, transfer,
};
use fe2o3_amqp_types::definitions::{AmqpError, Role};
use mailrun_mades::api::{OutgoingProperties, OutgoingTemplate, payload};
use mailrun_mades::{
    Broker, Connection, DeliveryHandle, Error, IncomingDelivery, ReceiverLink, ReceiverOptions, SenderOptions, Uuid,
};
use mailrun_mades_simulator::embedded::{
    self, EncodedMessage, ListenOptions, ListenerAuth, ListenerCounts, MemoryQueues, QueueIndex, QueueLimits, Writer,
};
use proptest::prelude::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::timeout;

const SHORT_TIMEOUT: Duration = Duration::from_millis(300);

async fn opened(octets: &[u8], then: Then) -> Result<Connection, Error> {
    let port = say(vec![octets.to_vec()], then).await;
    Connection::open(&Broker { step_timeout: SHORT_TIMEOUT, ..broker(port) }).await
}

#[test]
fn a_peer_may_hang_up_or_fall_silent_at_any_octet_of_the_handshake() {
    limited(async {
        let handshake = handshake();
        for cut in 0..handshake.len() {
            let error = opened(&handshake[..cut], Then::HangUp).await.expect_err("half a handshake is none");
            assert!(matches!(error, Error::Lost { .. } | Error::PeerMisbehaved { .. }), "{cut}: {error:?}");
        }
        for cut in [0, 1, 7, 8, 12, 20, handshake.len() - 1] {
            let error = opened(&handshake[..cut], Then::Stay).await.expect_err("half a handshake is none");
            let text = error.to_string();
            assert!(matches!(error, Error::TimedOut { .. }) && text.contains("the AMQP handshake"), "{cut}: {text}");
        }
        // The complete handshake must open a connection, and the end of this connection must be reported.
        let mut connection = opened(&handshake, Then::HangUp).await.unwrap();
        let error = connection.closed().await;
        assert!(matches!(error, Error::Lost { .. }), "{error:?}");
    });
}

#[test]
fn frames_that_lie_about_their_length_are_refused() {
    limited(async {
        let sasl = b"AMQP\x03\x01\x00\x00".to_vec();
        for size in [0_u32, 1, 3, 4, 7, 0x7fff_ffff, 0xffff_ffff] {
            let octets = [&sasl[..], &size.to_be_bytes(), &[2, 1, 0, 0, 0, 0x53]].concat();
            let error = opened(&octets, Then::HangUp).await.expect_err("a lie");
            assert!(matches!(error, Error::Lost { .. } | Error::PeerMisbehaved { .. }), "{size}: {error:?}");
        }
        // The client must also refuse frames with a false length if they arrive after the handshake.
        for lie in [&[0, 0, 0, 4][..], &[0, 0, 0, 9, 2, 0, 0, 0, 0xff], &[0, 0, 0, 8, 9, 0, 0, 0], &[0xff; 16]] {
            let octets = [&handshake()[..], lie].concat();
            match opened(&octets, Then::Stay).await {
                Ok(mut connection) => {
                    let error = tokio::time::timeout(Duration::from_secs(5), connection.closed()).await;
                    let error = error.expect("a lie ends the connection");
                    assert!(matches!(error, Error::PeerMisbehaved { .. } | Error::Lost { .. }), "{error:?}");
                }
                Err(error) => assert!(matches!(error, Error::PeerMisbehaved { .. }), "{error:?}"),
            }
        }
    });
}

#[test]
fn who_speaks_something_else_is_told_from_the_first_octets() {
    limited(async {
        let error = opened(b"HTTP/1.1 400 Bad Request\r\n\r\n", Then::HangUp).await.unwrap_err();
        assert!(error.to_string().contains("does not speak AMQP 1.0: it answers \"HTTP/1.1\""), "{error}");
        let error = opened(b"220 mail.example ESMTP\r\n", Then::Stay).await.unwrap_err();
        assert!(matches!(error, Error::NotAmqp { .. }), "{error:?}");
        // A server of AMQP 0-9-1 answers with the header of its own version, which the client must not accept.
        let error = opened(b"AMQP\x00\x00\x09\x01", Then::HangUp).await.unwrap_err();
        assert!(matches!(error, Error::NotAmqp { .. } | Error::PeerMisbehaved { .. }), "{error:?}");
    });
}

#[test]
fn nothing_listens_and_no_such_host() {
    limited(async {
        let (listener, port) = listener().await;
        drop(listener);
        let error = Connection::open(&broker(port)).await.unwrap_err();
        assert!(matches!(error, Error::Refused { .. }), "{error:?}");
        assert!(error.to_string().contains(&format!("nothing listens at 127.0.0.1:{port}")), "{error}");
        let nowhere = Broker::new("amqp://nowhere.invalid".parse().unwrap(), "test");
        let error = Connection::open(&Broker { step_timeout: Duration::from_secs(5), ..nowhere }).await.unwrap_err();
        assert!(matches!(error, Error::NoAddress { .. } | Error::TimedOut { .. }), "{error:?}");
    });
}

#[test]
fn a_link_that_is_refused_as_brokers_do_it_names_the_queue() {
    limited(async {
        // To refuse a link, the peer attaches it without a node, and then detaches it with the reason (AMQP 1.0 part 2
        // §2.6.3).
        for (condition, wanted) in [
            (AmqpError::NotFound, "the queue q does not exist"),
            (AmqpError::ResourceLocked, "queue q is held exclusively"),
        ] {
            let refusal = [attach("test:q:1", Role::Receiver, None), detach(condition.clone())].concat();
            let port = say(vec![handshake(), begin(), refusal], Then::Stay).await;
            let error = attach_sender_error(port).await;
            assert!(error.to_string().contains(wanted), "{error}");
            let refusal = [attach("test:q:1", Role::Sender, None), detach(condition)].concat();
            let port = say(vec![handshake(), begin(), refusal], Then::Stay).await;
            let error = receiver_on(port).await.unwrap_err();
            assert!(error.to_string().contains(wanted), "{error}");
        }
    });
}

async fn attach_sender_error(port: u16) -> Error {
    let mut connection = Connection::open(&broker(port)).await.unwrap();
    connection.attach_sender(&SenderOptions::new("q", 8)).await.unwrap_err()
}

async fn receiver_on(port: u16) -> Result<(Connection, ReceiverLink), Error> {
    receiver_with_credit(port, 8).await
}

async fn receiver_with_credit(port: u16, credit: u32) -> Result<(Connection, ReceiverLink), Error> {
    let mut connection = Connection::open(&broker(port)).await.unwrap();
    let receiver = connection.attach_receiver(&ReceiverOptions::new("q", credit)).await?;
    Ok((connection, receiver))
}

#[test]
fn a_broker_that_does_not_answer_an_attach_is_given_up() {
    limited(async {
        let port = say(vec![handshake(), begin()], Then::Stay).await;
        let broker = Broker { step_timeout: SHORT_TIMEOUT, ..broker(port) };
        let mut connection = Connection::open(&broker).await.unwrap();
        let error = connection.attach_receiver(&ReceiverOptions::new("q", 8)).await.unwrap_err();
        assert!(matches!(error, Error::TimedOut { what: "attaching to the queue", .. }), "{error:?}");
    });
}

#[test]
fn a_message_that_cannot_be_decoded_is_an_arrival_that_can_be_settled() {
    limited(async {
        let properties_of_wrong_types = [0, 0x53, 0x73, 0xc0, 4, 3, 0x40, 0x40, 0x41, 0, 0x53, 0x77, 0x40];
        let value = [0, 0x53, 0x77, 0xa1, 2, b'h', b'i'];
        let deliveries = [
            attach("test:q:1", Role::Sender, Some("q")),
            transfer(0, &properties_of_wrong_types),
            transfer(1, &[0xff; 5]),
            transfer(2, &[0, 0x53, 0x77, 0xa1, 200, b'x']),
            transfer(3, &value),
        ]
        .concat();
        let port = say(vec![handshake(), begin(), deliveries], Then::Stay).await;
        let (_connection, mut receiver) = receiver_on(port).await.unwrap();
        for _ in 0..3 {
            match receiver.next().await.unwrap() {
                IncomingDelivery::Undecodable { handle: ticket, why } => {
                    assert!(!why.is_empty());
                    receiver.release([ticket]).unwrap();
                }
                IncomingDelivery::Delivery(delivery) => panic!("{:?}", delivery.message),
            }
        }
        let IncomingDelivery::Delivery(delivery) = receiver.next().await.unwrap() else { panic!("this one is right") };
        assert_eq!(mailrun_mades::api::content(&delivery.message), mailrun_mades::api::BodyContent::Text("hi"));
    });
}

#[test]
fn a_server_that_sends_more_than_it_was_let_is_refused() {
    limited(async {
        let value = [0, 0x53, 0x77, 0xa1, 2, b'h', b'i'];
        let mut deliveries = attach("test:q:1", Role::Sender, Some("q"));
        (0..5000).for_each(|number| deliveries.extend(transfer(number, &value)));
        let port = say(vec![handshake(), begin(), deliveries], Then::Stay).await;
        // The client gives credit for eight messages, and settles none of them.
        let (_connection, mut receiver) = receiver_on(port).await.unwrap();
        let mut arrived = 0;
        let error = loop {
            match receiver.next().await {
                Ok(_) => arrived += 1,
                Err(error) => break error,
            }
        };
        // The client tolerates twice as many messages as it gave credit for: RabbitMQ 3 may send too many, because it
        // does not count messages in transit.
        assert_eq!(arrived, 16);
        assert!(matches!(error, Error::PeerMisbehaved { .. }), "{error:?}");
    });
}

/// Sends an endless message in pieces of `piece_bytes` to a receiver that accepts at most `max_bytes`
/// bytes.
async fn endless(piece_bytes: usize, max_bytes: u64) {
    let written = Arc::<AtomicU64>::default();
    let counted = Arc::clone(&written);
    let link = attach("test:q:1", Role::Sender, Some("q"));
    let port = say_and(vec![handshake(), begin(), link], move |mut stream| {
        let counted = Arc::clone(&counted);
        let frame = piece(0, &vec![7; piece_bytes], true);
        async move {
            while stream.write_all(&frame).await.is_ok() {
                counted.fetch_add(piece_bytes as u64, Ordering::Relaxed);
            }
        }
    })
    .await;
    let mut connection = Connection::open(&broker(port)).await.unwrap();
    let plan = ReceiverOptions { max_message_bytes: max_bytes, ..ReceiverOptions::new("q", 8) };
    let mut receiver = connection.attach_receiver(&plan).await.unwrap();
    let next = timeout(Duration::from_secs(8), receiver.next()).await;
    let written = written.load(Ordering::Relaxed);
    let error = next.unwrap_or_else(|_| panic!("{written} octets are taken")).unwrap_err();
    assert_eq!(error, Error::Oversized { queue: "q".to_owned(), limit: max_bytes });
    assert!(written < max_bytes + (32 << 20), "what waits in sockets is all that came");
    // The client has ended the link, but the peer continues to send the message. So the client ends the session. Even
    // then, the peer continues to send, so the client must end the connection.
    let error = connection.closed().await.to_string();
    let expected = "the peer violates AMQP 1.0: amqp:not-allowed: transfers of a session that we have ended go on; this \
        ends the connection";
    assert_eq!(error, expected);
}

#[test]
fn a_message_that_never_ends_is_given_up_at_the_largest_that_is_taken() {
    limited(endless(10_000, 1_000_000));
}

#[test]
fn one_in_pieces_of_an_octet_too() {
    limited(endless(1, 10_000));
}

/// Connects a receiver to a peer that sends these bytes after the attach and then never answers. Returns the error that
/// the receiver gets.
async fn after(octets: Vec<u8>) -> Error {
    let link = attach("test:q:1", Role::Sender, Some("q"));
    let port = say(vec![handshake(), begin(), [link, octets].concat()], Then::Stay).await;
    // The test must fail if `next` waits for an answer from the peer. So make the client's timeout longer than the
    // time limit of the test.
    let broker = Broker { step_timeout: TEST_TIMEOUT * 2, ..broker(port) };
    let mut connection = Connection::open(&broker).await.unwrap();
    let plan = ReceiverOptions { max_message_bytes: 1000, ..ReceiverOptions::new("q", 8) };
    let error = match connection.attach_receiver(&plan).await {
        Err(error) => error,
        Ok(mut receiver) => {
            let error = receiver.next().await.unwrap_err();
            assert_eq!(receiver.close().await, Err(error.clone()));
            error
        }
    };
    let is_of_connection = error.to_string().ends_with("this ends the connection");
    assert_eq!(connection.is_closed(), is_of_connection, "{error}");
    error
}

#[test]
fn who_breaks_a_rule_and_answers_nothing_loses_what_the_error_names_at_once() {
    limited(async {
        let oversized = Error::Oversized { queue: "q".to_owned(), limit: 1000 };
        assert_eq!(after(transfer(0, &[7; 1001])).await, oversized);
        assert_eq!(after([piece(0, &[7; 600], true), piece(0, &[7; 600], false)].concat()).await, oversized);
        let hint = "q contains a message larger than 1000 bytes, the limit of this client; remove it from the queue";
        assert_eq!(oversized.to_string(), hint);
        let link = "the link of q";
        for (broken, condition, ended) in [
            (anonymous(&[7; 10]), "amqp:invalid-field: a transfer without delivery-id", link),
            (
                [piece(0, &[7; 10], true), piece(1, &[7; 10], true)].concat(),
                "amqp:invalid-field: another delivery-id before the delivery is complete",
                link,
            ),
            (
                attach("test:q:1", Role::Sender, Some("q")),
                "amqp:session:handle-in-use: an attach with the handle of another link",
                "the session of q",
            ),
            (
                [detach_of(7), anonymous(&[7; 10])].concat(),
                // The peer detaches link 7, which does not exist. The client ignores this, so the error names only the
                // transfer.
                "amqp:invalid-field: a transfer without delivery-id",
                link,
            ),
            (detach_of(64), "amqp:connection:framing-error: a handle above handle-max", "the connection"),
        ] {
            let expected = format!("the peer violates AMQP 1.0: {condition}; this ends {ended}");
            assert_eq!(after(broken).await.to_string(), expected);
        }
    });
}

#[test]
fn who_sends_to_where_we_send_and_answers_nothing_is_left_at_once() {
    limited(async {
        let link = [attach("test:q:1", Role::Receiver, Some("q")), transfer(0, &[7; 10])].concat();
        let port = say(vec![handshake(), begin(), link], Then::Stay).await;
        let mut connection = Connection::open(&broker(port)).await.unwrap();
        let error = match connection.attach_sender(&SenderOptions::new("q", 8)).await {
            Err(error) => error,
            Ok(mut outlet) => {
                let mut template = template();
                let offered = timeout(Duration::from_secs(2), outlet.send(template.fill(0, 0))).await;
                offered.expect("it waits for an answer").map(drop).unwrap_err()
            }
        };
        let expected = "the peer violates AMQP 1.0: amqp:not-allowed: a transfer from the receiver of the link; this ends \
            the link of q";
        assert_eq!(error.to_string(), expected);
        assert!(!connection.is_closed());
    });
}

#[test]
fn a_session_that_the_broker_ends_takes_no_other_link_with_it() {
    limited(async {
        let first = attach("test:q:1", Role::Sender, Some("q"));
        let value = [0, 0x53, 0x77, 0xa1, 2, b'h', b'i'];
        let second = [attach("test:q:2", Role::Sender, Some("q")), transfer(0, &value)].concat();
        // The broker ends the session of the first link, and then serves a new session with a second link.
        let parts = vec![handshake(), begin(), first, end(AmqpError::InternalError), session(Some(1)), second];
        let mut connection = Connection::open(&broker(say(parts, Then::Stay).await)).await.unwrap();
        let plan = ReceiverOptions::new("q", 8);
        let mut ended = connection.attach_receiver(&plan).await.unwrap();
        let error = ended.next().await.unwrap_err().to_string();
        assert_eq!(error, "q: the broker ended the session: amqp:internal-error: says the script");
        let mut receiver = connection.attach_receiver(&plan).await.unwrap();
        drop(ended);
        let handle = next_handle(&mut receiver).await;
        assert_eq!(receiver.accept(handle), Ok(()));
    });
}

/// Starts a peer that sends each of these parts when the client asks for it, and then reads until the client
/// disconnects. Returns the port of the peer, and a channel for the bytes that the peer reads after the last part.
async fn heard_by(parts: Vec<Vec<u8>>) -> (u16, tokio::sync::oneshot::Receiver<Vec<u8>>) {
    let (tell, answer) = tokio::sync::oneshot::channel();
    let tell = Arc::new(std::sync::Mutex::new(Some(tell)));
    let port = say_and(parts, move |mut stream| {
        let tell = Arc::clone(&tell);
        async move {
            let mut octets = Vec::new();
            let _ = stream.read_to_end(&mut octets).await;
            let _ = tell.lock().unwrap().take().unwrap().send(octets);
        }
    })
    .await;
    (port, answer)
}

#[test]
fn bad_input_gives_one_line_with_the_cause_and_leaves_nothing_running() {
    let sasl = |body: &[u8]| {
        let size = (8 + body.len()) as u32;
        [b"AMQP\x03\x01\x00\x00", &size.to_be_bytes()[..], &[2, 1, 0, 0], body].concat()
    };
    let outcome = |code| sasl(&[0, 0x53, 0x44, 0xc0, 3, 1, 0x50, code]);
    let array = [0, 0x53, 0x40, 0xc0, 13, 1, 0xf0, 0, 0, 0, 7, 0xff, 0xff, 0xff, 0xff, 0xa3, 1, b'X'];
    let early =
        "the peer violates AMQP 1.0: SASL: expected the mechanisms, and not an outcome; this ends the connection";
    let end_of_another = vec![0, 0, 0, 12, 2, 0, 0, 9, 0, 0x53, 0x17, 0x45];
    limited(async {
        for (what, parts, expected) in [
            ("SASL: 2 GiB", vec![[&b"AMQP\x03\x01\x00\x00"[..], &[0x80, 0, 0, 0, 2, 1, 0, 0]].concat()], {
                "the peer violates AMQP 1.0: amqp:connection:framing-error: a frame of 2147483648 bytes, but max-frame-size \
                    is 1114112; this ends the connection"
            }),
            ("an array without end", vec![sasl(&array)], {
                "the peer violates AMQP 1.0: SASL: expected the names of mechanisms; this ends the connection"
            }),
            ("an outcome before the mechanisms", vec![outcome(0)], early),
            ("a refusal before the mechanisms", vec![outcome(1)], early),
            (
                "nothing at all",
                vec![],
                "127.0.0.1:PORT: the AMQP handshake took longer than 0.3 s; check that an AMQP 1.0 \
                broker is running there",
            ),
            ("2 GiB", vec![handshake(), [0x80, 0, 0, 0].to_vec()], {
                "the peer violates AMQP 1.0: amqp:connection:framing-error: a frame of 2147483648 bytes, but max-frame-size \
                    is 1114112; this ends the connection"
            }),
            ("a session that was never begun", vec![handshake(), end_of_another], {
                "the peer violates AMQP 1.0: amqp:not-allowed: a frame of a session that was not begun; this ends the \
                    connection"
            }),
        ] {
            let (port, ended) = heard_by(parts).await;
            let error = match Connection::open(&Broker { step_timeout: SHORT_TIMEOUT, ..broker(port) }).await {
                Err(error) => error,
                Ok(mut connection) => match connection.attach_receiver(&ReceiverOptions::new("q", 8)).await {
                    Err(error) => error,
                    Ok(_) => panic!("{what}: nobody has answered"),
                },
            };
            assert_eq!(error.to_string(), expected.replace("PORT", &port.to_string()), "{what}");
            // Wait until the peer sees that the client has closed its socket. If the client left the socket open, the
            // test would not end.
            ended.await.unwrap();
        }
        // The connection ends in the middle of a message: first between two frames of the message, then within a frame.
        let link = [attach("test:q:1", Role::Sender, Some("q")), piece(0, &[7; 100], true)].concat();
        let cut = [&link[..], &transfer(0, &[7; 100])[..50]].concat();
        for frame in [link, cut] {
            let port = say(vec![handshake(), begin(), frame], Then::HangUp).await;
            let mut connection = Connection::open(&broker(port)).await.unwrap();
            let error = match connection.attach_receiver(&ReceiverOptions::new("q", 8)).await {
                Err(error) => error,
                Ok(mut receiver) => receiver.next().await.unwrap_err(),
            };
            let text = error.to_string();
            assert!(text.starts_with("connection lost: ") && !text.contains('\n'), "{text}");
        }
    });
}

#[test]
fn a_peer_reads_why_we_end_the_connection() {
    limited(async {
        let says = |output: &[u8], text: &str| output.windows(text.len()).any(|octets| octets == text.as_bytes());
        // Two peers never complete the handshake. One stops before its AMQP header, the other before its open frame.
        let unopened = handshake();
        let open = unopened.windows(3).position(|octets| octets == [0, 0x53, 0x10]).unwrap() - 8;
        for cut in [open - 8, open] {
            let (port, output) = heard_by(vec![unopened[..cut].to_vec()]).await;
            let broker = Broker { step_timeout: SHORT_TIMEOUT, ..broker(port) };
            Connection::open(&broker).await.unwrap_err();
            let output = output.await.unwrap();
            assert!(says(&output, "amqp:resource-limit-exceeded") && says(&output, "the handshake took too long"));
        }
        // This peer completes the handshake, but then sends nothing.
        let (port, output) = heard_by(vec![handshake()]).await;
        let broker = Broker { idle_timeout: SHORT_TIMEOUT, ..broker(port) };
        let connection = Connection::open(&broker).await.unwrap();
        let output = output.await.unwrap();
        assert!(says(&output, "amqp:resource-limit-exceeded") && says(&output, "the peer was silent for too long"));
        drop(connection);
    });
}

#[test]
fn one_connection_too_many_is_told_so() {
    limited(async {
        let (listener, port) = listener().await;
        let options = ListenOptions { max_connections: 1, ..ListenOptions::new(ListenerAuth::Any) };
        let counts = Arc::<ListenerCounts>::default();
        let queues = MemoryQueues::new(QueueLimits::default());
        tokio::spawn(embedded::serve(listener, queues, options, Arc::clone(&counts)));
        let first = Connection::open(&broker(port)).await.unwrap();
        let error = match Connection::open(&broker(port)).await {
            Ok(mut connection) => connection.closed().await,
            Err(error) => error,
        };
        let expected = "the broker closed the connection: amqp:resource-limit-exceeded: too many connections";
        assert_eq!(error.to_string(), expected);
        assert_eq!(counts.refused.load(Ordering::Relaxed), 1);
        assert_eq!(first.close().await, Ok(()));
    });
}

#[test]
fn a_limit_of_ours_is_not_said_to_be_the_brokers() {
    limited(async {
        let (port, _queues) = our_own(QueueLimits::default()).await;
        let mut connection = Connection::open(&broker(port)).await.unwrap();
        let mut senders = Vec::new();
        let error = loop {
            match connection.attach_sender(&SenderOptions::new("q", 8)).await {
                Ok(sender) => senders.push(sender),
                Err(error) => break error,
            }
        };
        assert_eq!(error.to_string(), "this client supports no more than 64 queues on one connection");
        assert_eq!(senders.len(), 64);
    });
}

#[test]
fn a_queue_that_the_listener_refuses_is_told_with_the_right_condition() {
    limited(async {
        let (port, queues) = our_own(QueueLimits::default()).await;
        let error = async |queue: &str| {
            let mut connection = Connection::open(&broker(port)).await.unwrap();
            connection.attach_sender(&SenderOptions::new(queue, 8)).await.unwrap_err().to_string()
        };
        let refusal = error(&"q".repeat(256)).await;
        assert!(
            refusal.ends_with(": the broker ended the link: amqp:invalid-field: the name of the queue is too long")
        );
        let made = (0..256).filter_map(|number| queues.get_or_create(&format!("q{number}")));
        assert_eq!(made.count(), 256, "the long name has made none");
        let expected = "q: the broker ended the link: amqp:resource-limit-exceeded: too many queues";
        assert_eq!(error("q").await, expected);
    });
}

fn template() -> OutgoingTemplate {
    OutgoingProperties::new("receiver", "TYPE").template(Uuid::from_u128(1), payload("octets"))
}

#[test]
fn an_offer_that_waits_for_credit_ends_with_its_link_or_its_connection() {
    limited(async {
        for last in [Vec::new(), detach(AmqpError::ResourceLocked)] {
            let now = Arc::<Notify>::default();
            let notify = Arc::clone(&now);
            let last_words = last.clone();
            let link = attach("test:q:1", Role::Receiver, Some("q"));
            let port = say_and(vec![handshake(), begin(), link], move |mut stream| {
                let notify = Arc::clone(&notify);
                let last_words = last_words.clone();
                async move {
                    notify.notified().await;
                    let _ = stream.write_all(&last_words).await;
                    if !last_words.is_empty() {
                        // Wait forever, so that the connection stays open and only the link ends.
                        notify.notified().await;
                    }
                }
            })
            .await;
            let mut connection = Connection::open(&broker(port)).await.unwrap();
            let mut sender = connection.attach_sender(&SenderOptions::new("q", 8)).await.unwrap();
            let mut template = template();
            assert!(timeout(SHORT_TIMEOUT, sender.send(template.fill(0, 0))).await.is_err(), "there is no credit");
            assert_eq!(sender.available_window(), 8, "what was given up takes no room");
            let offer = async {
                tokio::task::yield_now().await;
                now.notify_one();
            };
            let (error, ()) = tokio::join!(sender.send(template.fill(1, 0)), offer);
            let error = error.expect_err("nobody took it");
            match last.is_empty() {
                true => assert!(matches!(error, Error::Lost { .. }), "{error:?}"),
                false => assert!(matches!(error, Error::QueueHeld { .. }), "{error:?}"),
            }
        }
    });
}

#[test]
fn a_peer_that_never_settles_is_left_in_time_and_what_it_has_is_told() {
    limited(async {
        let mut connection = connected().await;
        let mut sender = connection.attach_sender(&SenderOptions::new("never", 8)).await.unwrap();
        let mut template = template();
        let mut settlings = Vec::new();
        for sequence in 0..8 {
            settlings.push(sender.send(template.fill(sequence, 0)).await.unwrap());
        }
        assert!(timeout(SHORT_TIMEOUT, sender.send(template.fill(8, 0))).await.is_err(), "the window is full");
        let _ = sender.close().await;
        let _ = connection.close().await;
        for settling in settlings {
            let error = settling.await.expect_err("nobody settled it");
            assert!(matches!(error, Error::Lost { .. } | Error::Closed { .. } | Error::Detached { .. }), "{error:?}");
        }
    });
}

fn data(length: usize) -> EncodedMessage {
    let mut octets = Vec::new();
    Writer::new(&mut octets).described_binary(0x75, &vec![7; length]);
    octets.into()
}

fn filled(queues: &MemoryQueues, messages: usize, length: usize) -> QueueIndex {
    let id = queues.get_or_create("q").unwrap();
    (0..messages).for_each(|_| queues.put(id, data(length), None).unwrap());
    id
}

/// Waits until the condition holds. Panics if it does not hold within 10 s.
async fn until(what: impl Fn() -> bool) {
    let waiting = async {
        while !what() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(Duration::from_secs(10), waiting).await.expect("it does not come to be");
}

async fn next_handle(receiver: &mut ReceiverLink) -> DeliveryHandle {
    handle_of(receiver.next().await.unwrap())
}

fn handle_of(arrival: IncomingDelivery) -> DeliveryHandle {
    match arrival {
        IncomingDelivery::Delivery(delivery) => delivery.handle,
        IncomingDelivery::Undecodable { why, .. } => panic!("{why}"),
    }
}

#[test]
fn one_that_never_reads_keeps_what_its_socket_holds_and_others_get_the_rest() {
    limited(async {
        let (port, queues) = our_own(QueueLimits::default()).await;
        let id = filled(&queues, 4000, 10_000);
        let mut deaf = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        deaf.write_all(&[client(), attach("deaf", Role::Receiver, Some("q")), flow(u32::MAX)].concat()).await.unwrap();
        until(|| queues.counts(id).held > 0).await;
        let mut held = 0;
        while std::mem::replace(&mut held, queues.counts(id).held) != held || held == 0 {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        assert!(held < 2000, "{held} messages of 10 kB are more than sockets hold");
        let (_connection, mut receiver) = receiver_on(port).await.unwrap();
        for _ in held..4000 {
            let handle = next_handle(&mut receiver).await;
            receiver.accept(handle).unwrap();
        }
        until(|| queues.counts(id).accepted as usize == 4000 - held).await;
        assert_eq!((queues.counts(id).waiting, queues.counts(id).held), (0, held));
        // When the consumer that never reads disconnects, the other consumer must get the messages that were held.
        drop(deaf);
        for _ in 0..held {
            let handle = next_handle(&mut receiver).await;
            receiver.accept(handle).unwrap();
        }
        until(|| queues.counts(id).accepted == 4000).await;
    });
}

#[test]
fn one_that_asks_and_never_reads_the_answers_is_not_heard_for_ever() {
    limited(async {
        let (port, _queues) = our_own(QueueLimits::default()).await;
        let mut deaf = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        deaf.write_all(&[client(), attach("deaf", Role::Receiver, Some("q"))].concat()).await.unwrap();
        let flows: Vec<u8> = flow(0).repeat(1000);
        let mut written = 0;
        while let Ok(wrote) = timeout(Duration::from_secs(1), deaf.write_all(&flows)).await {
            wrote.unwrap();
            written += flows.len();
            assert!(written < 64 << 20, "it hears and hears");
        }
        // The broker must still serve other connections.
        let (_connection, receiver) = receiver_on(port).await.unwrap();
        receiver.close().await.unwrap();
    });
}

#[test]
fn a_consumer_that_settles_nothing_fills_its_queue_and_no_more() {
    limited(async {
        let (port, queues) = our_own(QueueLimits { messages: 10, bytes: 1 << 20 }).await;
        let id = filled(&queues, 10, 100);
        let (keeper, mut receiver) = receiver_on(port).await.unwrap();
        for _ in 0..8 {
            next_handle(&mut receiver).await;
        }
        assert_eq!((queues.counts(id).waiting, queues.counts(id).held), (2, 8));
        let mut connection = Connection::open(&broker(port)).await.unwrap();
        let mut sender = connection.attach_sender(&SenderOptions::new("q", 8)).await.unwrap();
        let mut template = template();
        assert!(
            timeout(SHORT_TIMEOUT, sender.send(template.fill(0, 0))).await.is_err(),
            "what it holds takes its room"
        );
        drop((receiver, keeper));
        until(|| queues.counts(id).waiting == 10).await;
        let (_connection, mut receiver) = receiver_on(port).await.unwrap();
        for _ in 0..10 {
            let handle = next_handle(&mut receiver).await;
            receiver.accept(handle).unwrap();
        }
        let settling = sender.send(template.fill(0, 0)).await.unwrap();
        assert_eq!(settling.await.unwrap(), mailrun_mades::Disposition::Accepted);
    });
}

#[test]
fn who_gives_everything_back_does_not_keep_it_from_others() {
    limited(async {
        let (port, queues) = our_own(QueueLimits::default()).await;
        // Each consumer gives credit for all 400 messages, so the broker could send all of them to the consumer
        // `unwilling`, which returns every message.
        let (_first, mut unwilling) = receiver_with_credit(port, 1000).await.unwrap();
        let (_second, mut willing) = receiver_with_credit(port, 1000).await.unwrap();
        let id = filled(&queues, 400, 100);
        let refusing = async {
            loop {
                let mut tickets = vec![next_handle(&mut unwilling).await];
                while let Some(arrival) = unwilling.try_next() {
                    tickets.push(handle_of(arrival.unwrap()));
                }
                unwilling.release(tickets).unwrap();
            }
        };
        let taking = async {
            for _ in 0..400 {
                let handle = next_handle(&mut willing).await;
                willing.accept(handle).unwrap();
            }
            until(|| queues.counts(id).accepted == 400).await;
        };
        tokio::select! {
            () = refusing => {}
            () = taking => {}
        }
        let returned = queues.counts(id).returned;
        assert!(returned <= 800, "{returned} times for 400 messages");
    });
}

#[test]
fn a_peer_that_is_silent_for_too_long_is_lost_and_one_that_wants_to_hear_us_does() {
    limited(async {
        let port = say(vec![handshake()], Then::Stay).await;
        let broker_ = Broker { idle_timeout: Duration::from_millis(200), ..broker(port) };
        let mut connection = Connection::open(&broker_).await.unwrap();
        let error = timeout(Duration::from_secs(5), connection.closed()).await.expect("it is given up");
        assert_eq!(error, Error::Lost { why: "the peer was silent for too long".to_owned() });

        let heartbeats = Arc::<AtomicU64>::default();
        let counted = Arc::clone(&heartbeats);
        let port = say_and(vec![handshake_with(Some(100))], move |mut stream| {
            let counted = Arc::clone(&counted);
            async move {
                let mut input = Vec::new();
                while matches!(stream.read_buf(&mut input).await, Ok(1..)) {
                    let empty = input.windows(8).filter(|frame| *frame == [0, 0, 0, 8, 2, 0, 0, 0]).count();
                    counted.store(empty as u64, Ordering::Relaxed);
                }
            }
        })
        .await;
        let connection = Connection::open(&broker(port)).await.unwrap();
        until(|| heartbeats.load(Ordering::Relaxed) >= 3).await;
        assert!(!connection.is_closed());
    });
}

/// Returns true if a flow frame in the input says that all credit has been returned: its last fields are link-credit 0,
/// available null and drain true.
fn has_drained(input: &[u8]) -> bool {
    let starts = (0..input.len()).filter(|at| input[*at..].starts_with(&[0, 0x53, 0x13]));
    starts.map(|at| &input[at - 8..]).any(|frame| {
        let size = u32::from_be_bytes(frame[..4].try_into().unwrap()) as usize;
        frame.get(..size).is_some_and(|frame| frame.ends_with(&[0x43, 0x40, 0x41]))
    })
}

#[test]
fn a_peer_that_wants_its_credit_back_gets_it_with_and_without_any() {
    limited(async {
        for credit in [0, 5] {
            let answered = Arc::<Notify>::default();
            let notify = Arc::clone(&answered);
            let link = attach("test:q:1", Role::Receiver, Some("q"));
            let port = say_and(vec![handshake(), begin(), link], move |mut stream| {
                let notify = Arc::clone(&notify);
                async move {
                    stream.write_all(&drain(credit)).await.unwrap();
                    let mut input = Vec::new();
                    while !has_drained(&input) {
                        assert!(stream.read_buf(&mut input).await.unwrap() > 0, "it hangs up");
                    }
                    notify.notify_one();
                    let _ = stream.read_buf(&mut input).await;
                }
            })
            .await;
            let mut connection = Connection::open(&broker(port)).await.unwrap();
            let sender = connection.attach_sender(&SenderOptions::new("q", 8)).await.unwrap();
            timeout(Duration::from_secs(5), answered.notified()).await.expect("the credit is given back");
            drop(sender);
        }
    });
}

#[test]
fn the_listener_takes_credit_back_with_and_without_any() {
    limited(async {
        let (port, _queues) = our_own(QueueLimits::default()).await;
        for credit in [0, 5] {
            let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            let name = format!("drained-{credit}");
            stream
                .write_all(&[client(), attach(&name, Role::Receiver, Some("q")), drain(credit)].concat())
                .await
                .unwrap();
            let mut input = Vec::new();
            let answer = async {
                while !has_drained(&input) {
                    assert!(stream.read_buf(&mut input).await.unwrap() > 0, "it hangs up");
                }
            };
            timeout(Duration::from_secs(5), answer).await.expect("a flow answers");
        }
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn no_octets_are_too_odd_whenever_they_come(
        octets in proptest::collection::vec(any::<u8>(), 0..80),
        from in 0..3_usize,
    ) {
        limited(async {
            let before = [Vec::new(), b"AMQP\x03\x01\x00\x00".to_vec(), handshake()];
            match opened(&[&before[from][..], &octets].concat(), Then::HangUp).await {
                Err(error) => assert!(!error.to_string().is_empty()),
                Ok(mut connection) => {
                    // If `closed` did not return, the test would exceed its time limit and fail.
                    let _ = connection.closed().await;
                }
            }
        });
    }
}
