//! Tests links: messages to and from queues, each kind of settlement, and the ends of links.
use crate::peer::{broker, connected, limited, start};
use mailrun_mades::api::{BodyContent, OutgoingProperties, OutgoingTemplate, content, payload};
use mailrun_mades::{
    Connection, Delivery, Disposition, Error, IncomingDelivery, ReceiverLink, ReceiverOptions, SenderLink,
    SenderOptions, Uuid,
};
use std::time::Duration;

fn template() -> OutgoingTemplate {
    OutgoingProperties::new("receiver", "TYPE").template(Uuid::from_u128(1), payload("octets"))
}

async fn sender(queue: &str, window: u32) -> (Connection, SenderLink) {
    let mut connection = connected().await;
    let sender = connection.attach_sender(&SenderOptions::new(queue, window)).await.unwrap();
    (connection, sender)
}

async fn receiver(credit: u32) -> (Connection, ReceiverLink) {
    let mut connection = connected().await;
    let receiver = connection.attach_receiver(&ReceiverOptions::new("queue", credit)).await.unwrap();
    (connection, receiver)
}

async fn delivery(receiver: &mut ReceiverLink) -> Delivery {
    match receiver.next().await.unwrap() {
        IncomingDelivery::Delivery(delivery) => delivery,
        IncomingDelivery::Undecodable { why, .. } => panic!("{why}"),
    }
}

#[test]
fn each_disposition_is_told_as_it_is() {
    limited(async {
        let rejected =
            Disposition::Rejected { condition: "mades:refused".to_owned(), description: "says the peer".to_owned() };
        let modified = Disposition::Modified { has_failed: true };
        let cases = [
            ("accept", Disposition::Accepted),
            ("reject", rejected),
            ("release", Disposition::Released),
            ("modify", modified),
        ];
        for (queue, expected) in cases {
            let (connection, mut sender) = sender(queue, 8).await;
            let mut template = template();
            let mut settling = Vec::new();
            for sequence in 0..20 {
                // Only eight messages may be unsettled at once. If there are eight, wait until the oldest is settled.
                if sender.available_window() == 0 {
                    let first: mailrun_mades::DispositionFuture = settling.remove(0);
                    assert_eq!(first.await.unwrap(), expected);
                }
                settling.push(sender.send(template.fill(sequence, 0)).await.unwrap());
            }
            for one in settling {
                assert_eq!(one.await.unwrap(), expected, "{queue}");
            }
            sender.close().await.unwrap();
            connection.close().await.unwrap();
        }
    });
}

#[test]
fn a_time_out_frees_the_window_of_a_peer_that_never_settles() {
    limited(async {
        let (_connection, mut sender) = sender("never", 1).await;
        let mut template = template();
        for sequence in 0..3 {
            let settling = sender.send(template.fill(sequence, 0)).await.unwrap();
            assert_eq!(sender.available_window(), 0);
            let another = tokio::time::timeout(Duration::from_millis(50), sender.send(template.fill(99, 0))).await;
            assert!(another.is_err(), "the window holds one");
            assert!(tokio::time::timeout(Duration::from_millis(50), settling).await.is_err());
            assert_eq!(sender.available_window(), 1);
        }
    });
}

#[test]
fn a_link_that_is_refused_says_what_to_do() {
    limited(async {
        for (condition, hint) in [
            ("amqp:not-found", "the queue detach:amqp:not-found does not exist; create it"),
            ("amqp:resource-locked", "is held exclusively by another consumer"),
            ("amqp:unauthorized-access", "permission denied"),
            ("amqp:link:stolen", "another client has taken over the link"),
            ("mades:whatever", "the broker ended the link: mades:whatever: says the peer"),
        ] {
            let mut connection = connected().await;
            let plan = SenderOptions::new(format!("detach:{condition}"), 8);
            // The peer first attaches the link and then detaches it. If the detach arrives early, the client gets the
            // error from `attach_sender`, and otherwise from `closed`.
            let error = match connection.attach_sender(&plan).await {
                Err(error) => error,
                Ok(mut outlet) => outlet.closed().await,
            };
            assert!(error.to_string().contains(hint), "{error}");
        }
    });
}

#[test]
fn what_is_under_way_when_the_link_or_the_connection_ends_is_told_why() {
    limited(async {
        let (_connection, mut outlet_) = sender("detach-at-message", 8).await;
        let settling = outlet_.send(template().fill(0, 0)).await.unwrap();
        let error = settling.await.unwrap_err();
        assert!(matches!(error, Error::LinkStolen { .. }), "{error:?}");
        let error = outlet_.send(template().fill(1, 0)).await.unwrap_err();
        assert!(matches!(error, Error::LinkStolen { .. } | Error::PeerMisbehaved { .. }), "{error:?}");

        let (mut connection, mut outlet_) = sender("hang-up", 8).await;
        let settling = outlet_.send(template().fill(0, 0)).await.unwrap();
        let error = settling.await.unwrap_err();
        let expected = Error::Closed { why: "amqp:connection:forced: going down".to_owned() };
        assert_eq!(error, expected);
        assert_eq!(connection.closed().await, expected);
        assert!(connection.is_closed());
        let error = outlet_.send(template().fill(1, 0)).await.unwrap_err();
        assert_eq!(error, expected);
    });
}

#[test]
fn deliveries_come_in_order_and_are_settled_as_we_say() {
    limited(async {
        let (connection, mut receiver) = receiver(64).await;
        for number in 0..10_u32 {
            let Delivery { handle: ticket, message } = delivery(&mut receiver).await;
            // AMQP encodes the uint 0 in one byte, and the uints 1 to 255 in two bytes (AMQP 1.0 part 1 §1.6.5).
            let value = if number == 0 { vec![0x43] } else { vec![0x52, number as u8] };
            assert_eq!(message.octets()[..], [&[0, 0x53, 0x77], &value[..]].concat());
            match number {
                0..5 => receiver.accept(ticket).unwrap(),
                5..8 => receiver.release([ticket]).unwrap(),
                8 => receiver.reject(ticket, "mades:odd", "odd").unwrap(),
                _ => receiver.modify(ticket).unwrap(),
            }
        }
        // In its last message, the peer lists how many messages the client accepted, rejected, released and modified.
        let counts = delivery(&mut receiver).await;
        assert_eq!(content(&counts.message), BodyContent::Text("[5, 1, 3, 1]"));
        receiver.accept(counts.handle).unwrap();
        receiver.close().await.unwrap();
        connection.close().await.unwrap();
    });
}

#[test]
fn a_credit_of_one_still_brings_everything() {
    limited(async {
        let (_connection, mut receiver) = receiver(1).await;
        for _ in 0..10 {
            let Delivery { handle: ticket, .. } = delivery(&mut receiver).await;
            receiver.accept(ticket).unwrap();
        }
        assert_eq!(content(&delivery(&mut receiver).await.message), BodyContent::Text("[10, 0, 0, 0]"));
    });
}

#[test]
fn what_waits_can_be_given_up_without_losing_a_message() {
    limited(async {
        let (_connection, mut receiver) = receiver(64).await;
        let mut numbers = 0;
        while numbers < 10 {
            // The timeout of 20 µs cancels `next` many times. A cancelled `next` must not lose a message.
            if let Ok(arrival) = tokio::time::timeout(Duration::from_micros(20), receiver.next()).await {
                let IncomingDelivery::Delivery(delivery) = arrival.unwrap() else { panic!("decodable") };
                receiver.accept(delivery.handle).unwrap();
                numbers += 1;
            }
        }
        assert_eq!(content(&delivery(&mut receiver).await.message), BodyContent::Text("[10, 0, 0, 0]"));
    });
}

#[test]
fn large_messages_pass_in_frames_as_the_peer_takes_them() {
    limited(async {
        for frame_bytes in [512, 4096, 1_114_112] {
            let broker = mailrun_mades::Broker { max_frame_size: frame_bytes, ..broker(start().await) };
            let mut connection = Connection::open(&broker).await.unwrap();
            let mut sender = connection.attach_sender(&SenderOptions::new("accept", 4)).await.unwrap();
            let mut template = template();
            template.set_payload(payload(vec![7; 300_000]));
            for sequence in 0..4 {
                let settling = sender.send(template.fill(sequence, 0)).await.unwrap();
                assert_eq!(settling.await.unwrap(), Disposition::Accepted);
            }
        }
    });
}

#[test]
fn plans_that_cannot_be_are_refused() {
    limited(async {
        let mut connection = connected().await;
        assert!(matches!(connection.attach_sender(&SenderOptions::new("accept", 0)).await, Err(Error::Misuse(_))));
        assert!(matches!(connection.attach_receiver(&ReceiverOptions::new("queue", 0)).await, Err(Error::Misuse(_))));
    });
}
