//! Tests with the seeds of the fuzz targets. The seeds are valid conversations, so each must be read to its end.
#![allow(clippy::unwrap_used, reason = "a test may")]
use mailrun_amqp::checks::amqp_client::login;
use mailrun_amqp::{ConnectionEvent, EndError, FuzzConnection, FuzzOutcome, ListenerAuth, Violation};
use std::path::Path;

/// Returns the name and the bytes of each seed of a fuzz target. The last byte is not part of the conversation, because
/// it selects options of the fuzz target, such as the login.
fn seeds(target: &str) -> Vec<(String, Vec<u8>)> {
    let place = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds").join(target);
    let files = std::fs::read_dir(place).unwrap().map(|file| file.unwrap().path());
    let name = |path: &Path| path.file_name().unwrap().to_string_lossy().into_owned();
    files.map(|path| (name(&path), std::fs::read(&path).unwrap())).collect()
}

fn has(outcome: &FuzzOutcome, wanted: fn(&ConnectionEvent<u64>) -> bool) -> bool {
    outcome.events.iter().any(wanted)
}

fn assert_closed(name: &str, outcome: &FuzzOutcome) {
    assert_eq!((&outcome.error, outcome.lost), (&None, 0), "{name}");
    let last = outcome.events.last();
    assert!(matches!(last, Some(ConnectionEvent::Closed { .. })), "{name}: {last:?}");
}

#[test]
fn a_servers_conversation_is_heard_to_its_end() {
    let seeds = seeds("mades_listener");
    assert!(seeds.len() >= 4, "{}", seeds.len());
    for (name, octets) in seeds {
        let mut connection = FuzzConnection::server(ListenerAuth::Any, 1000);
        connection.feed(&octets[..octets.len() - 1]);
        let outcome = connection.finish();
        assert_closed(&name, &outcome);
        assert!(has(&outcome, |event| matches!(event, ConnectionEvent::Attached { .. })), "{name}");
        let has_passed =
            |event: &_| matches!(event, ConnectionEvent::MessageReceived { .. } | ConnectionEvent::Settled { .. });
        assert!(has(&outcome, has_passed), "{name}");
    }
}

#[test]
fn a_clients_conversation_is_heard_to_its_end() {
    let mut names = Vec::new();
    for (name, octets) in seeds("amqp_client") {
        let mut client = FuzzConnection::client(login(octets[octets.len() - 1]), 1000);
        client.feed(&octets[..octets.len() - 1]);
        let outcome = client.finish();
        assert_closed(&name, &outcome);
        let expected: fn(&ConnectionEvent<u64>) -> bool = match name.as_str() {
            "sent" => |event| matches!(event, ConnectionEvent::Settled { error: Some(_), .. }),
            "received" | "numbers" | "plain" | "scram" => {
                |event| matches!(event, ConnectionEvent::MessageReceived { .. })
            }
            "refused" => |event| matches!(event, ConnectionEvent::Detached { error: Some(_), .. }),
            "redirected" => {
                |event| matches!(event, ConnectionEvent::Closed { error: Some(error) } if error.redirect.is_some())
            }
            "too_long" => |event| {
                matches!(event, ConnectionEvent::Detached { error: Some(EndError::Violation(error)), .. }
                    if error.condition == Violation::MESSAGE_SIZE)
            },
            "closed_unopened" => |event| matches!(event, ConnectionEvent::Closed { error: Some(_) }),
            other => panic!("a seed that nobody expects: {other}"),
        };
        assert!(has(&outcome, expected), "{name}: {:?}", outcome.events);
        names.push(name);
    }
    assert_eq!(names.len(), 9, "{names:?}");
}
