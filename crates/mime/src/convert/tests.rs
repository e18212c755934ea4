//! Tests of conversion: which messages are converted, and whether another parser and `restore` find
//! the original content.
use super::*;
use crate::checks::seven_bit::{self, check_restored};
use mail_parser::{MessageParser, PartType};
use proptest::prelude::*;

const HOST: &str = "relay.example";

fn convert(message: &[u8]) -> Result<Option<String>, ConversionError> {
    let outcome = to_seven_bit(message, HOST)?;
    Ok(outcome.map(|converted| {
        check_restored(message, &converted, converted.len().max(1));
        String::from_utf8(converted).unwrap()
    }))
}

fn converted(message: &str) -> String {
    convert(message.as_bytes()).unwrap_or_else(|error| panic!("{error}: {message}")).expect("it needs to be")
}

const TOP: &str = "X-MIME-Autoconverted: from 8bit to 7bit by relay.example\r\n";

#[test]
fn text_becomes_quoted_printable_and_keeps_its_header() {
    let head = "From: <a@b.example>\r\nMIME-Version: 1.0\r\nContent-Type: text/plain; charset=utf-8\r\n";
    assert_eq!(
        converted(&format!("{head}Content-Transfer-Encoding: 8bit\r\nX: y\r\n\r\nGrüße aus Köln \r\n.\r\n")),
        format!(
            "{TOP}{head}Content-Transfer-Encoding: quoted-printable\r\nX: y\r\n\r\nGr=C3=BC=C3=9Fe aus K=C3=B6ln=20\r\n.\r\n"
        ),
    );
    assert_eq!(
        converted("Subject: x\r\n\r\nviele Grüße\r\n"),
        format!(
            "{TOP}Subject: x\r\nMIME-Version: 1.0\r\nContent-Type: text/plain; charset=utf-8\r\n\
             Content-Transfer-Encoding: quoted-printable\r\n\r\nviele Gr=C3=BC=C3=9Fe\r\n"
        ),
        "what was not declared is declared"
    );
    assert!(converted("\r\nviele Grüße\r\n").ends_with("quoted-printable\r\n\r\nviele Gr=C3=BC=C3=9Fe\r\n"));
    let latin = convert(b"Subject: x\r\n\r\nviele Gr\xfc\xdfe\r\n").unwrap().unwrap();
    assert!(latin.contains("charset=unknown-8bit"), "{latin}");
}

#[test]
fn base64_is_for_what_nobody_could_read() {
    let russian = converted("Content-Type: text/plain; charset=utf-8\r\n\r\nПривет, как дела?\r\n");
    assert!(russian.contains("Content-Transfer-Encoding: base64\r\n\r\n0J/RgNC40LLQtdGC"), "{russian}");
    let image = converted("Content-Type: image/svg+xml\r\nContent-Transfer-Encoding: binary\r\n\r\n<svg>ä</svg>\r\n");
    assert!(image.contains("Content-Transfer-Encoding: base64\r\n\r\nPHN2Zz7DpDwvc3ZnPg0K\r\n"), "{image}");
    for text in
        [b"Content-Type: text/plain\r\n\r\na\nb\r\n".as_slice(), b"A: b\r\n\r\na\0b\r\n", b"A: b\r\n\r\na\rb\r\n"]
    {
        let outcome = convert(text).unwrap().unwrap();
        assert!(outcome.contains("Content-Transfer-Encoding: base64"), "{outcome}");
    }
    let long = [b"A: b\r\n\r\n".as_slice(), &[b'x'; 2000]].concat();
    let outcome = convert(&long).unwrap().unwrap();
    assert!(outcome.contains("Content-Transfer-Encoding: quoted-printable"), "{outcome}");
    assert!(outcome.ends_with("=\r\n"), "the line end that DATA adds is not the body's: {outcome}");
}

#[test]
fn parts_are_converted_each_for_itself() {
    let text = "A: b\r\nContent-Type: multipart/mixed; boundary=\"x\"\r\nContent-Transfer-Encoding: 8bit\r\n\r\n\
        preamble\r\n\
        --x\r\n\r\nplain\r\n\
        --x\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Transfer-Encoding: 8BIT (so)\r\n\r\nviele Grüße\r\n\
        --x \r\nContent-Type: text/html\r\n\r\n<p>schöne Grüße von hier</p>\r\n\
        --x\r\nContent-Type: message/rfc822\r\nContent-Transfer-Encoding: 8bit\r\n\r\nSubject: inner\r\n\r\nviele Grüße\r\n\
        --x\r\nContent-Type: image/png\r\nContent-Transfer-Encoding: base64\r\n\r\nAAAA\r\n\
        --x--\r\nepilogue\r\n";
    let outcome = converted(text);
    let by = "by relay.example\r\n";
    for expected in [
        format!(
            "{TOP}A: b\r\nContent-Type: multipart/mixed; boundary=\"x\"\r\nContent-Transfer-Encoding: 7bit\r\n\r\npreamble\r\n--x\r\n\r\nplain\r\n--x\r\n"
        ),
        format!(
            "charset=utf-8\r\nX-MIME-Autoconverted: from 8BIT to quoted-printable {by}Content-Transfer-Encoding: quoted-printable\r\nX-Original-Content-Transfer-Encoding: 8BIT (so)\r\n\r\nviele Gr=C3=BC=C3=9Fe\r\n--x \r\n"
        ),
        format!(
            "Content-Type: text/html\r\nX-MIME-Autoconverted: from none to quoted-printable {by}Content-Transfer-Encoding: quoted-printable\r\n\r\n<p>sch=C3=B6ne"
        ),
        format!(
            "Content-Type: message/rfc822\r\nX-MIME-Autoconverted: from 8bit to 7bit {by}Content-Transfer-Encoding: 7bit\r\nX-Original-Content-Transfer-Encoding: 8bit\r\n\r\nSubject: inner\r\nX-MIME-Autoconverted: from none to quoted-printable {by}MIME-Version: 1.0\r\n"
        ),
        "Content-Transfer-Encoding: base64\r\n\r\nAAAA\r\n--x--\r\nepilogue\r\n".to_owned(),
    ] {
        assert!(outcome.contains(&expected), "{expected}\n---\n{outcome}");
    }
}

#[test]
fn what_must_not_be_changed_is_not() {
    let mixed = |part: &str| format!("Content-Type: multipart/mixed; boundary=x\r\n\r\n--x\r\n{part}\r\n--x--\r\n");
    let rows = [
        ("DKIM-Signature: v=1\r\n\r\nä\r\n".to_owned(), ConversionError::Signed),
        ("arc-message-signature: i=1\r\n\r\nä\r\n".to_owned(), ConversionError::Signed),
        (
            "Content-Type: multipart/signed; boundary=x\r\n\r\n--x\r\n\r\nä\r\n--x--\r\n".to_owned(),
            ConversionError::Sealed,
        ),
        (mixed("Content-Type: multipart/encrypted; boundary=y\r\n\r\n--y\r\n\r\nä\r\n--y--"), ConversionError::Sealed),
        (mixed("Content-Type: message/partial; id=1\r\n\r\nä"), ConversionError::FixedMessage),
        (mixed("Content-Transfer-Encoding: base64\r\n\r\nä"), ConversionError::Encoded),
        (mixed("Content-Transfer-Encoding: x-mine\r\n\r\nä"), ConversionError::Encoded),
        ("Subject: ä\r\n\r\nx\r\n".to_owned(), ConversionError::Header),
        (mixed("Content-Type: message/rfc822\r\n\r\nSubject: ä\r\n\r\nx"), ConversionError::Header),
        (mixed("Content-Type: text/plain\r\nContent-Type: text/html\r\n\r\nä"), ConversionError::Header),
        (mixed("no field\r\n\r\nä"), ConversionError::Header),
        (mixed(" continued\r\n\r\nä"), ConversionError::Header),
        (mixed("Content-Transfer-Encoding: 8bit;\r\n\r\nä"), ConversionError::Header),
        ("Content-Type: multipart/mixed\r\n\r\n--x\r\n\r\nä\r\n--x--\r\n".to_owned(), ConversionError::Header),
        ("Content-Type: multipart/mixed; boundary=x\r\n\r\nä\r\n--x--\r\n".to_owned(), ConversionError::Outside),
        (format!("{}nachher: ä\r\n", mixed("\r\na")), ConversionError::Outside),
        (mixed("\r\nä\r\n--xy"), ConversionError::Delimiter),
        (mixed("\r\nä\n--x"), ConversionError::Delimiter),
        (mixed("Content-Type: multipart/mixed; boundary=x\r\n\r\n--x\r\n\r\nä"), ConversionError::Delimiter),
        (format!("A: {}\r\n\r\nä\r\n", "x".repeat(1 << 20)), ConversionError::Header),
        (
            format!("A: b\r\nContent-Type: text/plain; x={}\r\n\r\nä\r\n", "x\r\n ".repeat(9000)),
            ConversionError::Header,
        ),
        (format!("A: b\nC: d\r\n\r\n{}\r\n", "ä"), ConversionError::Header),
    ];
    for (message, expected) in rows {
        assert_eq!(convert(message.as_bytes()), Err(expected), "{}", &message[..message.len().min(300)]);
        assert!(expected.to_string().starts_with("it"));
    }
    let many = format!("Content-Type: multipart/mixed; boundary=x\r\n\r\n{}", "--x\r\n\r\nä\r\n".repeat(10_000));
    assert_eq!(convert(many.as_bytes()), Err(ConversionError::Growth));
    let deep: String =
        (0..60).map(|n| format!("Content-Type: multipart/mixed; boundary=b{n}b\r\n\r\n--b{n}b\r\n")).collect();
    assert_eq!(convert(format!("{deep}\r\nä\r\n").as_bytes()), Err(ConversionError::Depth));
    assert_eq!(convert("Content-Type: message/rfc822\r\n\r\n".repeat(60).as_bytes()), Ok(None));
    let deep = "Content-Type: message/rfc822\r\n\r\n".repeat(60);
    assert_eq!(convert(format!("{deep}\r\nä\r\n").as_bytes()), Err(ConversionError::Depth));
}

#[test]
fn what_need_not_be_changed_is_not_either() {
    for message in [
        "",
        "\r\n",
        "Subject: x\r\n\r\nx\r\n",
        "no header at all",
        "Content-Type: multipart/mixed\r\n\r\n",
        "DKIM-Signature: v=1\r\n\r\nx",
    ] {
        assert_eq!(convert(message.as_bytes()), Ok(None), "{message}");
    }
    // A signed part must not change, even next to a part that is converted.
    let signed = "Content-Type: multipart/signed; boundary=s\r\nContent-Transfer-Encoding: 8bit\r\n\r\n--s\r\n\
        Content-Transfer-Encoding: 8bit\r\n\r\nsigned\r\n--s--\r\n";
    let outcome = converted(&format!(
        "Content-Type: multipart/mixed; boundary=x\r\n\r\n--x\r\n{signed}--x\r\n\r\nviele Grüße\r\n--x--\r\n"
    ));
    assert!(outcome.contains(signed), "{outcome}");
}

#[test]
fn a_message_of_other_ends_is_read_to_its_end() {
    for message in [
        "Content-Type: multipart/mixed; boundary=x\r\n\r\n--x\r\n\r\nviele Grüße",
        "Content-Type: multipart/mixed; boundary=x\r\n\r\n--x\r\n\r\nviele Grüße\r\n--x",
        "Content-Type: multipart/mixed; boundary=x\r\n\r\n--x\r\n\r\nviele Grüße\r\n--x\r\nA: b",
        "Content-Type: multipart/mixed; boundary=x\r\n\r\n--x\r\nA: b\r\n--x\r\n\r\nПривет\r\n--x--",
        "Content-Type: multipart/mixed; boundary=x\r\n\r\n--x\r\n\r\n--x\r\n\r\n\r\n--x\r\n\r\nПривет",
        "Content-Type: multipart/a; boundary=x\r\n\r\n--x\r\nContent-Type: multipart/b; boundary=y\r\n\r\n--y\r\n\r\nПривет\r\n--x\r\n\r\nä\r\n--x--\r\n--y\r\n",
        "Content-Type: multipart/digest; boundary=x\r\n\r\n--x\r\n\r\nSubject: inner\r\n\r\nГрüße und mehr Text\r\n--x--\r\n",
    ] {
        converted(message);
    }
}

/// Returns the decoded bodies of all parts that contain no other parts, as mail-parser finds them.
fn leaves(message: &[u8]) -> Vec<Vec<u8>> {
    let parsed = MessageParser::default().parse(message).expect("it is a message");
    let contents = parsed.parts.iter().filter_map(|part| match &part.body {
        PartType::Binary(bytes) | PartType::InlineBinary(bytes) => Some(bytes.to_vec()),
        PartType::Text(text) | PartType::Html(text) => Some(text.as_bytes().to_vec()),
        PartType::Message(message) => Some(leaves(message.raw_message()).concat()),
        PartType::Multipart(_) => None,
    });
    contents.collect()
}

#[derive(Clone, Debug)]
enum GeneratedPart {
    Leaf { text: bool, label: usize, content: Vec<u8> },
    Message(Box<GeneratedPart>),
    Many(Vec<GeneratedPart>),
}

const LABELS: [&str; 4] = [
    "",
    "Content-Transfer-Encoding: 8bit\r\n",
    "content-transfer-encoding:\r\n\tBinary (x)\r\n",
    "Content-Transfer-Encoding: 7bit\r\n",
];

impl GeneratedPart {
    fn write(&self, number: &mut usize, out: &mut Vec<u8>) {
        *number += 1;
        match self {
            Self::Leaf { text, label, content } => {
                let kind = if *text { "text/plain; charset=utf-8" } else { "application/x-any" };
                out.extend_from_slice(format!("Content-Type: {kind}\r\n{}\r\n", LABELS[*label]).as_bytes());
                out.extend_from_slice(content);
            }
            Self::Message(inner) => {
                out.extend_from_slice(b"Content-Type: message/rfc822\r\n\r\nSubject: inner\r\n");
                inner.write(number, out);
            }
            Self::Many(parts) => {
                let boundary = format!("=_{number}_=");
                out.extend_from_slice(
                    format!("Content-Type: multipart/mixed; boundary=\"{boundary}\"\r\n\r\n").as_bytes(),
                );
                for part in parts {
                    out.extend_from_slice(format!("\r\n--{boundary}\r\n").as_bytes());
                    part.write(number, out);
                }
                out.extend_from_slice(format!("\r\n--{boundary}--\r\n").as_bytes());
            }
        }
    }
}

fn any_part() -> impl Strategy<Value = GeneratedPart> {
    let content = prop_oneof![
        "[a-zäöü =-]{0,200}(\r\n)?".prop_map(String::into_bytes),
        "([a-z ]{0,20}\r\n){0,4}[а-я ]{0,50}".prop_map(String::into_bytes),
        proptest::collection::vec(any::<u8>(), 0..100),
    ];
    let leaf = (any::<bool>(), 0..LABELS.len(), content).prop_map(|(text, label, content)| GeneratedPart::Leaf {
        text,
        label,
        content,
    });
    leaf.prop_recursive(4, 20, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 1..4).prop_map(GeneratedPart::Many),
            inner.prop_map(|part| match part {
                // Put a message into a multipart and not directly into another message, because mail-parser 0.11.9
                // panics if a message consists of nothing but another message.
                GeneratedPart::Message(_) => GeneratedPart::Many(vec![part]),
                part => GeneratedPart::Message(Box::new(part)),
            }),
        ]
    })
}

/// Returns a message of random pieces that can confuse a parser, such as headers and delimiters in the wrong place.
fn any_message() -> impl Strategy<Value = Vec<u8>> {
    let pieces: Vec<&str> = vec![
        "\r\n",
        "\n",
        "\r",
        "\0",
        "ä",
        "--",
        "--x",
        "--x--",
        "\r\n--x\r\n",
        "\r\n--x--\r\n",
        "--y\r\n",
        "\r\n\r\n",
        " ",
        "=",
        ":",
        "Content-Type: ",
        "multipart/mixed; boundary=x\r\n",
        "multipart/signed; boundary=y\r\n",
        "message/rfc822\r\n",
        "text/plain\r\n",
        "Content-Transfer-Encoding: ",
        "8bit\r\n",
        "base64\r\n",
        "binary\r\n",
        "A: b\r\n",
        "viel Text ",
        "Content-Type: multipart/mixed; boundary=x\r\n\r\n--x\r\n",
        "Content-Type: multipart/digest; boundary=y\r\n\r\n--y\r\n",
        "Content-Type: message/rfc822\r\n\r\n",
        "\r\nä\r\n",
    ];
    let piece = prop_oneof![
        10 => proptest::sample::select(pieces).prop_map(|text| text.as_bytes().to_vec()),
        1 => proptest::collection::vec(any::<u8>(), 0..30),
        1 => proptest::collection::vec(b'a'..=b'z', 0..1200),
    ];
    proptest::collection::vec(piece, 0..25).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// A converted message must be 7-bit, and restoring it in blocks of any size must return the original body.
    #[test]
    fn any_message_is_converted_or_left(message in any_message(), block: u8) {
        seven_bit::check(&[vec![block], message].concat());
    }

    /// Well-formed mail must be converted, and other parsers must find the same content in it.
    #[test]
    fn parts_keep_their_contents(part in any_part(), block in 1..200_usize) {
        let mut message = b"From: <a@b.example>\r\nMIME-Version: 1.0\r\n".to_vec();
        part.write(&mut 0, &mut message);
        match to_seven_bit(&message, HOST) {
            Ok(None) => prop_assert!(is_seven_bit(&message)),
            Ok(Some(converted)) => {
                check_restored(&message, &converted, block);
                prop_assert_eq!(leaves(&message), leaves(&converted), "{}", message.escape_ascii());
            }
            Err(error) => prop_assert!(false, "{}: {}", error, message.escape_ascii()),
        }
    }
}
