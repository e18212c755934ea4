//! Tests the client against ActiveMQ Artemis, which is the internal broker of an ECP endpoint. To
//! run the tests: `scripts/start-artemis.sh /tmp/artemis/broker 5673`, then `ARTEMIS=127.0.0.1:5673
//! cargo test -p mailrun-mades --test mades artemis -- --ignored`.
use crate::peer::limited;
use mailrun_mades::api::{EndpointQueueNames, InboxMessage, OutgoingProperties, Submission, payload};
use mailrun_mades::{Broker, Connection, Disposition, Error, IncomingDelivery, ReceiverOptions, SenderOptions, Uuid};
use std::time::Duration;

fn broker(login: &str, container: &str) -> Broker {
    let address = std::env::var("ARTEMIS").expect("ARTEMIS names host and port of a broker");
    Broker::new(format!("amqp://{login}@{address}").parse().unwrap(), container)
}

#[test]
#[ignore = "needs Artemis"]
fn messages_go_through_and_foreign_ones_are_given_back() {
    limited(async {
        let mut connection = Connection::open(&broker("endpoint:password", "there and back")).await.unwrap();
        let queue = EndpointQueueNames::default().outbox;
        let mut outlet = connection.attach_sender(&SenderOptions::new(&*queue, 64)).await.unwrap();
        let first = Uuid::from_u128(1);
        let second = Uuid::from_u128(2);
        for (run, bytes) in [(first, 100), (second, 1_000_000)] {
            let mut template = OutgoingProperties::new("receiver", "TYPE").template(run, payload(vec![7; bytes]));
            let mut settling = Vec::new();
            for sequence in 0..50 {
                settling.push(outlet.send(template.fill(sequence, 5)).await.unwrap());
            }
            for one in settling {
                assert_eq!(one.await.unwrap(), Disposition::Accepted);
            }
        }
        // Accept the messages of the second run, and hold the messages of the first run.
        let mut inlet = connection.attach_receiver(&ReceiverOptions::new(&*queue, 200)).await.unwrap();
        let mut held = Vec::new();
        let mut count = 0;
        while count < 50 {
            let IncomingDelivery::Delivery(delivery) = inlet.next().await.unwrap() else { panic!("decodable") };
            let read = Submission::read(&delivery.message);
            assert!(read.is_durable && read.oddities.is_empty());
            assert_eq!(InboxMessage::read(&delivery.message).identity(), read.identity());
            match read.identity() {
                Some(identity) if identity.run == second => {
                    assert_eq!(identity.sequence, count);
                    count += 1;
                    inlet.accept(delivery.handle).unwrap();
                }
                _ => held.push(delivery.handle),
            }
        }
        assert!(held.len() >= 50);
        inlet.close().await.unwrap();
        drop(held);
        // The receiver has closed without settling the held messages, so they must be in the queue again.
        let mut inlet = connection.attach_receiver(&ReceiverOptions::new(&*queue, 200)).await.unwrap();
        let mut again = 0;
        while let Ok(arrival) = tokio::time::timeout(Duration::from_secs(1), inlet.next()).await {
            let IncomingDelivery::Delivery(delivery) = arrival.unwrap() else { panic!("decodable") };
            again += u32::from(Submission::read(&delivery.message).identity().is_some_and(|id| id.run == first));
            inlet.accept(delivery.handle).unwrap();
        }
        assert!(again >= 50, "{again}");
        inlet.close().await.unwrap();
        connection.close().await.unwrap();
    });
}

#[test]
#[ignore = "needs Artemis"]
fn what_artemis_refuses_is_told_in_our_words() {
    limited(async {
        let error = Connection::open(&broker("endpoint:wrong", "wrong")).await.unwrap_err();
        assert!(matches!(error, Error::WrongCredentials { .. }), "{error:?}");
        let mut connection = Connection::open(&broker("toolbox:password", "missing")).await.unwrap();
        let error = connection.attach_receiver(&ReceiverOptions::new("missing.inbox", 10)).await.unwrap_err();
        assert!(matches!(error, Error::MissingQueue { .. }), "{error:?}");
        let error = match connection.attach_sender(&SenderOptions::new("missing.outbox", 10)).await {
            Err(error) => error,
            Ok(mut outlet) => outlet.closed().await,
        };
        assert!(matches!(error, Error::MissingQueue { .. }), "{error:?}");
    });
}
