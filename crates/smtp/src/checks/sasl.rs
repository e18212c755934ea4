//! Plays any responses to a server's side of AUTH, and any challenges to a client's. Nobody may get in without the
//! secret, and the client must not trust a server that lacks it. The first octet chooses the mechanism; lines are the
//! messages.
use crate::sasl::scram::Keys;
use crate::sasl::server::{self, ExchangeStep};
use crate::sasl::{Credentials, Mechanism, Mechanisms, Secret, client};
use std::sync::LazyLock;

/// Computed once, because this is slow.
static KEYS: LazyLock<Keys> = LazyLock::new(|| Keys::derive("long and secret", b"salt", 4096).expect("good input"));

fn server(mechanism: Mechanism, lines: &[&[u8]]) {
    let secret = match mechanism {
        Mechanism::ScramSha256 => Secret::Keys(KEYS.clone()),
        _ => Secret::Password("long and secret".to_owned()),
    };
    let mut step = server::ServerExchange::new(mechanism, b"eighteen octets ok", "test").begin(None);
    for line in lines {
        step = match step {
            ExchangeStep::Challenge(_, awaited) => awaited.receive(line),
            ExchangeStep::ProofChallenge(_, awaited) => awaited.receive(line),
            ExchangeStep::Lookup(lookup) => lookup.provide(Some(&secret)),
            ExchangeStep::Check(shown) => {
                assert!(!shown.name().is_empty() && !shown.name().contains('\0'));
                return;
            }
            over => over,
        };
        assert!(!matches!(step, ExchangeStep::Accepted), "nobody gets in without the secret");
    }
}

fn client(mechanism: Mechanism, lines: &[&[u8]]) {
    let credentials = Credentials::new("user", "long and secret").by(Mechanisms::ALL);
    let mut exchange = client::ClientExchange::new(mechanism, &credentials, Some(&[7; 18])).expect("good credentials");
    for (number, line) in lines.iter().enumerate() {
        // Realistic iteration counts are too slow here, and a challenge may be repeated.
        if number > 0 && line.windows(2).any(|pair| pair == b"i=") {
            return;
        }
        let Ok((_, next)) = exchange.respond(line) else { break };
        exchange = next;
        assert!(mechanism != Mechanism::ScramSha256 || exchange.accept().is_err(), "no server can have proved it");
    }
}

pub fn check(data: &[u8]) {
    let Some((&choice, rest)) = data.split_first() else { return };
    let mechanism = Mechanism::ALL[usize::from(choice) % 5];
    let lines: Vec<&[u8]> = rest.split(|octet| *octet == b'\n').take(8).collect();
    server(mechanism, &lines);
    client(mechanism, &lines);
    if let Ok(text) = std::str::from_utf8(rest) {
        let mut words = text.splitn(2, '\n');
        let name = words.next().unwrap_or_default();
        let secret = words.next().unwrap_or_default();
        // Either the other side can read what one side writes, or the first side refuses to write it.
        let credentials = Credentials::new(name, secret);
        if mechanism == Mechanism::Plain
            && let Ok(exchange) = client::ClientExchange::new(mechanism, &credentials, None)
        {
            let step = server::ServerExchange::new(mechanism, &[0; 18], "test").begin(exchange.initial());
            match step {
                ExchangeStep::Malformed => assert!(name.is_empty()),
                ExchangeStep::Check(shown) => {
                    assert!(shown.name() == name && shown.secret() == secret.as_bytes() && !name.is_empty());
                }
                other => panic!("{other:?}"),
            }
        }
    }
}
