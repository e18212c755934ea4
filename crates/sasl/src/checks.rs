//! Checks both sides of AUTH with arbitrary input. The first byte of the input selects the mechanism. Each further line
//! is passed both to the server, as a client's response, and to the client, as a server's challenge. Nobody may log in
//! without the secret, and the client must not trust a server that does not know the secret.
use crate::scram::Keys;
use crate::server::{self, ExchangeStep};
use crate::{Credentials, Mechanism, Mechanisms, Secret, client};
use std::sync::LazyLock;

/// SCRAM keys of the password in these checks. They are derived only once, because 4096 iterations for each input would
/// be slow.
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
        // Stop at a challenge with an iteration count, because hashing with realistic counts is too slow here.
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
        // If the client can build a PLAIN message from a name and a secret, the server must read the same name and
        // secret from this message. The server may reject the message only if the name is empty.
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
