//! Properties that must hold for any input: a session does not panic, and it ends. Its events and replies do not depend
//! on how the bytes are cut into blocks.
use crate::host::{self, RecordingServer};
use crate::{adversary, caller};
use mailrun_smtp::client::{BurstSize, Chunking, Notifications, Options, PipelineMode, StartTls};
use mailrun_smtp::limits::Limits;
use mailrun_smtp::sasl::{Credentials, Mechanism, Mechanisms};
use mailrun_smtp::server::{Offer, Protocol, Requires, ServerSettings};
use mailrun_smtp::xclient::{Attribute, Attributes, XclientRequest};
use proptest::prelude::*;
use std::sync::Arc;
use std::time::Duration;

const NOW: Duration = Duration::from_secs(1);

const TO_DATA: &[u8] = b"EHLO a\r\nMAIL FROM:<a@b>\r\nRCPT TO:<c@d>\r\nDATA\r\n";

/// Generates input of a client: SMTP commands and fragments of commands, mixed with messages and raw bytes.
fn conversation() -> impl Strategy<Value = Vec<u8>> {
    let words: Vec<&[u8]> = vec![
        b"EHLO a\r\n",
        b"HELO a\r\n",
        b"MAIL FROM:<a@b>\r\n",
        b"MAIL FROM:<> SIZE=99 BODY=8BITMIME\r\n",
        b"MAIL FROM:<\xc3\xa9@b> SMTPUTF8\r\n",
        b"RCPT TO:<c@d>\r\n",
        b"RCPT TO:<no@d>\r\n",
        b"RCPT TO:<\"q>\\\"\"@d>\r\n",
        b"DATA\r\n",
        b"RSET\r\n",
        b"NOOP\r\n",
        b"WHAT\r\n",
        b"VRFY x\r\n",
        b"QUIT\r\n",
        b"LHLO a\r\n",
        b"STARTTLS\r\n",
        b"AUTH PLAIN AHVzZXIAcGVuY2ls\r\n",
        b"AUTH LOGIN dXNlcg==\r\n",
        b"cGVuY2ls\r\n",
        b"AUTH CRAM-MD5\r\n",
        b"AUTH XOAUTH2\r\n",
        b"AUTH SCRAM-SHA-256 biwsbj11c2VyLHI9eA==\r\n",
        b"*\r\n",
        b"=\r\n",
        b"XCLIENT NAME=a ADDR=127.0.0.1 LOGIN=a\r\n",
        b"MAIL FROM:<a@b> BODY=BINARYMIME RET=HDRS ENVID=x\r\n",
        b"RCPT TO:<c@d> NOTIFY=NEVER ORCPT=rfc822;c@d\r\n",
        b"BDAT 4\r\ntext",
        b"BDAT 2 LAST\r\n\r\n",
        b"BDAT 30 LAST\r\n",
        b"BDAT 0\r\n",
        b"BDAT 18446744073709551615\r\n",
        b"BDAT x\r\n",
        b"MAIL ",
        b"RCPT TO:",
        b"<",
        b">",
        b" ",
    ];
    let word = proptest::sample::select(words).prop_map(<[u8]>::to_vec);
    let scrap = proptest::collection::vec(any::<u8>(), 1..8);
    let long = (1usize..700).prop_map(|length| vec![b'x'; length]);
    let foreign = proptest::sample::select(vec!["GET / HTTP/1.1\r\n", "Host: x\n", "Subject: x\r\n", "\x16\x03\x01"]);
    let foreign = foreign.prop_map(|text| text.as_bytes().to_vec());
    let piece = prop_oneof![40 => word, 16 => message(), 8 => text(), 2 => scrap, 2 => long, 1 => foreign];
    proptest::collection::vec(piece, 0..30).prop_map(|pieces| pieces.concat())
}

/// Generates the commands from EHLO to DATA, and a message that lacks its end in half of the cases. The text may also
/// contain an early end of data, so that the server reads the rest as commands.
fn message() -> impl Strategy<Value = Vec<u8>> {
    (proptest::collection::vec(text(), 0..8), any::<bool>()).prop_map(|(text, ends)| {
        let end: &[u8] = if ends { b"\r\n.\r\n" } else { b"" };
        [TO_DATA, &text.concat(), end].concat()
    })
}

fn text() -> impl Strategy<Value = Vec<u8>> {
    let words: Vec<&[u8]> = vec![
        b"text\r\n",
        b"a line beyond some limits\r\n",
        b".\r\n",
        b"..\r\n",
        b"\r\n.\r\n",
        b"\n.\n",
        b"\r.\r",
        b".",
        b"\r\n",
        b"\r",
        b"\n",
        b"\0",
        b"\xff",
    ];
    proptest::sample::select(words).prop_map(<[u8]>::to_vec)
}

fn small_limits() -> impl Strategy<Value = Limits> {
    (1usize..4, 1u64..60, 0u32..12, 1u32..20, 8usize..30).prop_map(|(recipients, message_bytes, errors, idle, line)| {
        let text_line_bytes = line;
        Limits { text_line_bytes, recipients, message_bytes, errors, idle_commands: idle, ..Limits::default() }
    })
}

fn limits() -> impl Strategy<Value = Limits> {
    prop_oneof![Just(Limits::default()), small_limits()]
}

fn offers() -> impl Strategy<Value = Offer> {
    (any::<[bool; 6]>(), 0u8..32).prop_map(|([is_lmtp, starttls, needs_tls, needs_auth, auth_tls, xclient], auth)| {
        let mut offer = Offer::new(&Limits::default());
        offer.protocol = if is_lmtp { Protocol::Lmtp } else { Protocol::Smtp };
        offer.extensions.starttls = starttls;
        let chosen = Mechanism::ALL.into_iter().filter(|mechanism| auth & (1 << *mechanism as u8) != 0);
        offer.extensions.auth = chosen.fold(Mechanisms::NONE, Mechanisms::with);
        offer.extensions.xclient = if xclient { Attributes::ALL } else { Attributes::NONE };
        // Set requirements only rarely. The clients of this test cannot meet them, so the server would refuse most of
        // their commands.
        let rarely = needs_tls && needs_auth;
        offer.requires = Requires {
            tls: rarely && auth_tls,
            auth: rarely,
            tls_for_auth: auth_tls && starttls,
            valid_parameters: rarely,
        };
        offer
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn a_session_hears_and_says_the_same_however_the_bytes_are_cut(
        bytes in conversation(), limits in limits(), seed in any::<u64>(),
    ) {
        host::check(None, &Arc::new(ServerSettings::new("test", limits)), &bytes, seed);
    }

    #[test]
    fn a_session_with_extensions_hears_and_says_the_same_however_the_bytes_are_cut(
        bytes in conversation(), limits in limits(), offer in offers(), seed in any::<u64>(),
    ) {
        let identity = Arc::new(ServerSettings::with_offer("test", limits, offer));
        let hello: &[u8] = if identity.protocol == Protocol::Lmtp { b"LHLO a\r\n" } else { b"EHLO a\r\n" };
        host::check(None, &identity, &[hello, &bytes].concat(), seed);
    }

    #[test]
    fn every_command_line_has_one_reply(lines in proptest::collection::vec("[ -~]{0,40}", 0..30)) {
        let limits = Limits { errors: u32::MAX, unknown_before_hello: u32::MAX, ..Limits::default() };
        let mut host = RecordingServer::with_limits(limits);
        let greeting = host.out.len();
        // Leave out BDAT, because the server would take the next line for content. Leave out QUIT, because it ends the
        // session.
        let is_line = |line: &&String| {
            // Also leave out lines of other protocols, which end the session. `foreign.rs` tests them.
            let word = line.split(' ').next().unwrap_or_default();
            let is_smtp = line.is_empty() || line.starts_with(|first: char| first.is_alphabetic() || " .".contains(first));
            let ends = ["QUIT", "BDAT"].iter().any(|verb| line.to_ascii_uppercase().starts_with(verb));
            is_smtp && !word.contains(':') && !ends
        };
        let lines: Vec<_> = lines.iter().filter(is_line).collect();
        lines.iter().for_each(|line| host.receive(format!("{line}\r\n").as_bytes(), NOW));
        let replies = host.out[greeting..].split_inclusive(|byte| *byte == b'\n').filter(|line| line.get(3) == Some(&b' '));
        prop_assert_eq!(replies.count(), lines.len());
    }

    #[test]
    fn a_client_is_deceived_by_no_reply_that_is_dropped_or_changed(bytes in proptest::collection::vec(any::<u8>(), 0..120)) {
        adversary::check(&bytes);
    }

    #[test]
    fn a_client_bears_any_bytes(bytes in replies(), seed in any::<u64>(), options in options()) {
        caller::check(&bytes, &Arc::new(options), seed);
    }
}

fn pipelining() -> impl Strategy<Value = PipelineMode> {
    prop_oneof![Just(PipelineMode::Off), Just(PipelineMode::Group)]
}

fn options() -> impl Strategy<Value = Options> {
    let extended = (pipelining(), any::<[bool; 4]>(), 0usize..3, proptest::option::of(0usize..5), 0u32..4);
    let extended =
        extended.prop_map(|(pipelining, [is_lmtp, is_chunked, is_introduced, asks], tls, mechanism, burst)| {
            let introduction = XclientRequest::default().with_attribute(Attribute::Name, "client.example").unwrap();
            let credentials =
                |at: usize| Credentials::new("user", "pencil").by(Mechanisms::NONE.with(Mechanism::ALL[at]));
            Options {
                protocol: if is_lmtp { Protocol::Lmtp } else { Protocol::Smtp },
                pipelining,
                tls: [StartTls::Never, StartTls::IfOffered, StartTls::Required][tls],
                credentials: mechanism.map(credentials),
                chunking: if is_chunked { Chunking::IfOffered } else { Chunking::Never },
                xclient: is_introduced.then_some(introduction),
                notifications: if asks { Notifications::Asked } else { Notifications::Unasked },
                burst: BurstSize::of(burst),
                quit_timeout: None,
                refuses_own_name: false,
                greeting_timeout: None,
                message_timeout: None,
                stop_after: None,
            }
        });
    prop_oneof![pipelining().prop_map(|pipelining| Options { pipelining, ..Options::default() }), extended]
}

/// Generates output of a server: replies in any order, some of them incomplete or malformed.
fn replies() -> impl Strategy<Value = Vec<u8>> {
    let words: Vec<&[u8]> = vec![
        b"220 hi\r\n",
        b"250 ok\r\n",
        b"250-x\r\n250 PIPELINING\r\n",
        b"250-x\r\n250-PIPELINING\r\n250-CHUNKING\r\n250-STARTTLS\r\n250-XCLIENT NAME\r\n250 AUTH PLAIN LOGIN CRAM-MD5 XOAUTH2 SCRAM-SHA-256\r\n",
        b"250-x\r\n250-CHUNKING\r\n250-DSN\r\n250 AUTH LOGIN PLAIN\r\n",
        b"220 go\r\n",
        b"235 ok\r\n",
        b"334 \r\n",
        b"334 VXNlcm5hbWU6\r\n",
        b"334 what\r\n",
        b"250-",
        b"354 go\r\n",
        b"354 go\r\n",
        b"450 no\r\n",
        b"550 no\r\n",
        b"503 what\r\n",
        b"421 bye\r\n",
        b"221 bye\r\n",
        b"\r\n",
        b"\n",
        b"250",
        b"999 x\r\n",
        b"\0",
        b"25",
    ];
    let good = b"220 hi\r\n250-x\r\n250 PIPELINING\r\n250 ok\r\n250 ok\r\n354 go\r\n".to_vec();
    let word = proptest::sample::select(words).prop_map(<[u8]>::to_vec);
    let piece = prop_oneof![30 => word, 1 => proptest::collection::vec(any::<u8>(), 1..8)];
    let rest = proptest::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat());
    (prop_oneof![Just(Vec::new()), Just(good)], rest).prop_map(|(good, rest)| [good, rest].concat())
}
