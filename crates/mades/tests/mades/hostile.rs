//! Peers that mean it badly: garbage, half of things and silence, lies about lengths, hanging up at any octet.
use crate::peer::{broker, limited, listener};
use crate::script::{Then, attach, begin, detach, handshake, say, transfer};
use fe2o3_amqp_types::definitions::{AmqpError, Role};
use mades::api::Oddity;
use mades::{Arrival, Broker, Connection, Error, Inlet, InletPlan, OutletPlan, Retry};
use proptest::prelude::*;
use std::time::{Duration, Instant};

const SHORT: Duration = Duration::from_millis(300);

/// What comes of opening a connection to a peer that says that.
async fn opened(said: &[u8], then: Then) -> Result<Connection, Error> {
    let port = say(vec![said.to_vec()], then).await;
    let began = Instant::now();
    let opened = Connection::open(&Broker { time_limit: SHORT, ..broker(port) }).await;
    assert!(began.elapsed() < SHORT * 10, "it hung past the time limit");
    opened
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
        // The script is right: all of it opens a connection, and its end is told.
        let mut connection = opened(&handshake, Then::HangUp).await.unwrap();
        let error = connection.lost().await;
        assert_eq!(error.retry(), Retry::OtherConnection, "{error:?}");
    });
}

#[test]
fn frames_that_lie_about_their_length_are_refused() {
    limited(async {
        let sasl = b"AMQP\x03\x01\x00\x00".to_vec();
        for size in [0_u32, 1, 3, 4, 7, 0x7fff_ffff, 0xffff_ffff] {
            let said = [&sasl[..], &size.to_be_bytes(), &[2, 1, 0, 0, 0, 0x53]].concat();
            let error = opened(&said, Then::HangUp).await.expect_err("a lie");
            assert!(matches!(error, Error::Lost { .. } | Error::PeerMisbehaved { .. }), "{size}: {error:?}");
        }
        // The same once the connection is open.
        for lie in [&[0, 0, 0, 4][..], &[0, 0, 0, 9, 2, 0, 0, 0, 0xff], &[0, 0, 0, 8, 9, 0, 0, 0], &[0xff; 16]] {
            let said = [&handshake()[..], lie].concat();
            match opened(&said, Then::Stay).await {
                Ok(mut connection) => {
                    let error = tokio::time::timeout(Duration::from_secs(5), connection.lost()).await;
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
        assert!(error.to_string().contains("does not speak AMQP 1.0: it says \"HTTP/1.1\""), "{error}");
        let error = opened(b"220 mail.example ESMTP\r\n", Then::Stay).await.unwrap_err();
        assert!(matches!(error, Error::NotAmqp { .. }), "{error:?}");
        // AMQP 0-9-1 says which version it would have.
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
        let error = Connection::open(&Broker { time_limit: Duration::from_secs(5), ..nowhere }).await.unwrap_err();
        assert!(matches!(error, Error::NoAddress { .. } | Error::TimedOut { .. }), "{error:?}");
    });
}

#[test]
fn a_link_that_is_refused_as_brokers_do_it_names_the_queue() {
    limited(async {
        // Attached without a node, and detached with the reason (AMQP 1.0 part 2 §2.6.3).
        for (condition, wanted) in
            [(AmqpError::NotFound, "there is no queue q"), (AmqpError::ResourceLocked, "queue q is held exclusively")]
        {
            let refusal = [attach("test:q:1", Role::Receiver, None), detach(condition.clone())].concat();
            let port = say(vec![handshake(), begin(), refusal], Then::Stay).await;
            let error = outlet_of(port).await;
            assert!(error.to_string().contains(wanted), "{error}");
            let refusal = [attach("test:q:1", Role::Sender, None), detach(condition)].concat();
            let port = say(vec![handshake(), begin(), refusal], Then::Stay).await;
            let error = inlet_of(port).await.unwrap_err();
            assert!(error.to_string().contains(wanted), "{error}");
        }
    });
}

async fn outlet_of(port: u16) -> Error {
    let mut connection = Connection::open(&broker(port)).await.unwrap();
    connection.outlet(&OutletPlan::new("q", 8)).await.unwrap_err()
}

async fn inlet_of(port: u16) -> Result<(Connection, Inlet), Error> {
    let mut connection = Connection::open(&broker(port)).await.unwrap();
    let inlet = connection.inlet(&InletPlan::new("q", 8)).await?;
    Ok((connection, inlet))
}

#[test]
fn a_broker_that_does_not_answer_an_attach_is_given_up() {
    limited(async {
        let port = say(vec![handshake(), begin()], Then::Stay).await;
        let broker = Broker { time_limit: SHORT, ..broker(port) };
        let mut connection = Connection::open(&broker).await.unwrap();
        let error = connection.inlet(&InletPlan::new("q", 8)).await.unwrap_err();
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
        let (_connection, mut inlet) = inlet_of(port).await.unwrap();
        for _ in 0..3 {
            match inlet.next().await.unwrap() {
                Arrival::Undecodable { ticket, oddity, why } => {
                    assert_eq!(oddity, Oddity::Undecodable);
                    assert!(!why.is_empty());
                    inlet.release([ticket]).await.unwrap();
                }
                Arrival::Delivery(delivery) => panic!("{:?}", delivery.message),
            }
        }
        let Arrival::Delivery(delivery) = inlet.next().await.unwrap() else { panic!("this one is right") };
        assert_eq!(mades::api::content(&delivery.message), mades::api::Content::Text("hi"));
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
                    // All of a handshake came before: the end is told within the limit of the test.
                    let _ = connection.lost().await;
                }
            }
        });
    }
}
