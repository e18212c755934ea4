//! Writes this relay's `Received:` field, and counts the existing fields, which show how many
//! servers a message has passed.
//!
//! ```text
//! Received: from client.example ([192.0.2.1]) by relay.example with ESMTPSA
//! <TAB>(TLSv1.3) id 00000000000003e8 for <bob@example.org>
//! <TAB>tls TLS_AES_256_GCM_SHA384; Sat, 21 Nov 2026 09:30:00 +0000
//! ```
//! RFC 5321 §4.4 defines the grammar, RFC 3848 and RFC 6531 §4.3 define the words after `with`, and
//! RFC 8314 §4.3 defines the clause `tls`. Text from the client cannot inject a line, a clause or a
//! comment.
use crate::message::envelope::WithProtocol;
use jiff::Timestamp;
use mailrun_smtp::Path;
use mailrun_smtp::address::address_literal;

/// Recommended maximum length of a header line, without its line end (RFC 5322 §2.1.1).
const MAX_LINE_BYTES: usize = 78;
/// Maximum length of a domain in bytes (RFC 5321 §4.5.3.1.2).
const MAX_NAME_BYTES: usize = 255;

/// Content of a `Received:` field without its date. The date comes from a [`DateCache`], because it is the same for all
/// messages of one second.
pub(crate) struct ReceivedField<'a> {
    /// Name from HELO, EHLO or LHLO, which may contain any bytes.
    pub(crate) name: &'a [u8],
    /// Address of the client as an address literal.
    pub(crate) client: &'a str,
    pub(crate) host: &'a str,
    /// Protocol, which also tells whether the client logged in. The field does not contain the user
    /// name, because that is half of the credentials.
    pub(crate) with: WithProtocol,
    pub(crate) smtp_utf8: bool,
    pub(crate) tls: Option<TlsParameters<'a>>,
    pub(crate) id: &'a [u8],
    /// The recipient, if there is only one. With several recipients, each would learn about the
    /// others (RFC 5321 §7.6).
    pub(crate) recipient: Option<&'a [u8]>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct TlsParameters<'a> {
    pub(crate) version: &'a str,
    /// Cipher suite, such as `TLS_AES_256_GCM_SHA384`, or `TLS13_AES_256_GCM_SHA384` as rustls calls it.
    pub(crate) cipher: &'a str,
}

impl ReceivedField<'_> {
    /// Appends the `Received:` field with its line end to `out`, and returns the offset of the queue id. `date` comes
    /// from a [`DateCache`].
    pub(crate) fn write(&self, date: &str, out: &mut Vec<u8>) -> usize {
        let mut field = HeaderFieldWriter::open(out);
        // Only a domain or an address literal may follow `from` (RFC 5321 §4.4), so write any other
        // name as a comment.
        if is_dot_atom(self.name) || address_literal(self.name).is_some() {
            field.clause(|out| write_all(&[b"from ", self.name], out));
            field.clause(|out| write_all(&[b"(", self.client.as_bytes(), b")"], out));
        } else {
            field.clause(|out| write_all(&[b"from ", self.client.as_bytes()], out));
            field.clause(|out| write_comment(self.name, out));
        }
        field.clause(|out| {
            out.extend_from_slice(b"by ");
            write_name(self.host.as_bytes(), out);
        });
        let [prefix, word] = self.protocol().map(str::as_bytes);
        field.clause(|out| write_all(&[b"with ", prefix, word], out));
        if let Some(tls) = self.tls {
            field.clause(|out| {
                out.push(b'(');
                write_name(tls.version.as_bytes(), out);
                out.push(b')');
            });
        }
        field.clause(|out| write_all(&[b"id ", self.id], out));
        let id_at = field.out.len() - self.id.len();
        if let Some(recipient) = self.recipient.filter(|recipient| self.may_name_recipient(recipient)) {
            field.clause(|out| write_all(&[b"for <", recipient, b">"], out));
        }
        if let Some(tls) = self.tls {
            field.clause(|out| write_cipher(tls.cipher, out));
        }
        field.out.push(b';');
        field.clause(|out| out.extend_from_slice(date.as_bytes()));
        field.out.extend_from_slice(b"\r\n");
        id_at
    }

    /// Returns the protocol's name in two parts, for example `UTF8` and `SMTPS` (RFC 3848, RFC 6531
    /// §4.3). There is no name for TLS after HELO, but the clause `tls` covers that case.
    fn protocol(&self) -> [&'static str; 2] {
        match self.with.word() {
            word if self.with == WithProtocol::Smtp || !self.smtp_utf8 => ["", word],
            word => ["UTF8", word.trim_start_matches('E')],
        }
    }

    /// Returns true if the recipient may be written into a header. The address must be valid, and
    /// it must be ASCII unless the whole header may be UTF-8.
    fn may_name_recipient(&self, recipient: &[u8]) -> bool {
        Path::mailbox(recipient).is_ok_and(|path| !path.is_null() && (self.smtp_utf8 || !path.is_internationalized()))
    }
}

/// Writes a header field clause by clause, and begins a new line only between clauses.
struct HeaderFieldWriter<'a> {
    out: &'a mut Vec<u8>,
    /// Offset at which the current line begins.
    line: usize,
}

impl<'a> HeaderFieldWriter<'a> {
    fn open(out: &'a mut Vec<u8>) -> Self {
        let line = out.len();
        out.extend_from_slice(b"Received:");
        Self { out, line }
    }

    /// Writes a clause after a space, or on a new line if the line would become too long.
    fn clause(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let at = self.out.len();
        self.out.push(b' ');
        write(self.out);
        // Keep one byte free for a `;`, which may follow the clause on the same line.
        if self.out.len() - self.line > MAX_LINE_BYTES - 1 {
            self.out.splice(at..=at, *b"\r\n\t");
            self.line = at + 2;
        }
    }
}

fn write_all(parts: &[&[u8]], out: &mut Vec<u8>) {
    parts.iter().for_each(|part| out.extend_from_slice(part));
}

/// Returns true if the name can be written as a domain (RFC 5322 §3.2.3).
fn is_dot_atom(name: &[u8]) -> bool {
    let mut before = b'.';
    let may_follow = |octet: &u8| match (*octet, std::mem::replace(&mut before, *octet)) {
        (b'.', before) => before != b'.',
        (b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'!' | b'#'..=b'\'' | b'*' | b'+' | b'-' | b'/', _) => true,
        (octet, _) => matches!(octet, b'=' | b'?' | b'^' | b'_' | b'`' | b'{'..=b'~'),
    };
    name.len() <= MAX_NAME_BYTES && name.iter().all(may_follow) && before != b'.'
}

/// Writes text as a comment (RFC 5322 §3.2.2). Characters that a comment cannot contain become `?`,
/// and long text is cut.
fn write_comment(text: &[u8], out: &mut Vec<u8>) {
    let fit = |octet: &u8| if (b' '..=b'~').contains(octet) && !b"()\\".contains(octet) { *octet } else { b'?' };
    out.push(b'(');
    out.extend(text.iter().take(MAX_NAME_BYTES).map(fit));
    out.push(b')');
}

/// Appends a host name, or another word of a `Received:` field, to `out`. Characters that a name cannot contain become
/// `?`, and a long name is cut.
fn write_name(name: &[u8], out: &mut Vec<u8>) {
    let fit = |octet: &u8| if octet.is_ascii_alphanumeric() || b"-._:".contains(octet) { *octet } else { b'?' };
    out.extend(name.iter().take(MAX_NAME_BYTES).map(fit));
}

/// Writes the IANA name of the cipher suite (RFC 8314 §4.3), such as `TLS_AES_256_GCM_SHA384` for
/// rustls' `TLS13_AES_256_GCM_SHA384`.
fn write_cipher(cipher: &str, out: &mut Vec<u8>) {
    let (prefix, name) = cipher.strip_prefix("TLS13_").map_or(("", cipher), |name| ("TLS_", name));
    write_all(&[b"tls ", prefix.as_bytes()], out);
    write_name(name.as_bytes(), out);
}

/// Unix time of the last second whose year has four digits in every time zone.
const LAST_SECOND: i64 = 253_402_207_200;

/// Formats a date for a header (RFC 5322 §3.3), in UTC. A date outside of 1970 to 9999 is replaced
/// by the nearest date inside.
pub(crate) fn date(at: Timestamp) -> String {
    let second = at.as_second().clamp(0, LAST_SECOND);
    let at = Timestamp::from_second(second).expect("it has just been brought within the range");
    jiff::fmt::rfc2822::to_string(&at.to_zoned(jiff::tz::TimeZone::UTC)).expect("years from 1970 to 9999 are written")
}

/// Date of the current second, rendered only once for all messages of that second. Each worker has
/// a cache of its own.
#[derive(Debug)]
pub(crate) struct DateCache {
    unix_s: i64,
    date: String,
}

impl DateCache {
    pub(crate) fn new() -> Self {
        Self { unix_s: 0, date: date(Timestamp::UNIX_EPOCH) }
    }

    pub(crate) fn date(&mut self, unix_s: i64) -> &str {
        if unix_s != self.unix_s {
            let at = Timestamp::from_second(unix_s.clamp(0, LAST_SECOND)).unwrap_or(Timestamp::MAX);
            *self = Self { unix_s, date: date(at) };
        }
        &self.date
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeaderProgress {
    Open,
    /// The empty line after the header has been read.
    Ended,
    /// The header exceeds the limit, and the rest of it was not read.
    TooLarge,
}

/// Counts the `Received:` fields of a header that arrives in blocks. A block may end anywhere, even within a field's
/// name.
///
/// ```text
/// Start ──r──▶ Name(1) ─ … ─▶ Name(8) ──blanks──▶ Blanks ──:──▶ counted ─▶ Rest
///  │ ▲ └──else──▶ Rest (also from Name, Blanks) ──LF──┐
///  │ └────────────────────────────────────────────────┘
///  └──[CR] LF──▶ Ended
/// ```
/// LF ends a line, with or without CR before it, because the most lenient next hop may read the header that way. The
/// counter reads each byte once, and stops at the end of the header or at the limit.
#[derive(Clone, Debug)]
pub(crate) struct ReceivedCount {
    count: u32,
    /// Number of bytes that may still be read before the header counts as too large.
    remaining: usize,
    header: HeaderProgress,
    position: LinePosition,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LinePosition {
    Start,
    /// The line begins with a CR, and the position is after this CR.
    Cr,
    /// The line begins like a `Received:` field. The number says how many bytes of the field's name have matched.
    Name(u8),
    /// The position is after the field's name and spaces, which the obsolete syntax permits before the colon (RFC 5322
    /// §4.5).
    Blanks,
    Rest,
}

const FIELD_NAME: &[u8] = b"received";

impl ReceivedCount {
    /// Creates a counter for a header of at most `most_bytes` bytes, including its empty line.
    pub(crate) fn new(most_bytes: usize) -> Self {
        Self { count: 0, remaining: most_bytes, header: HeaderProgress::Open, position: LinePosition::Start }
    }

    /// Processes the next block of the message. Does nothing once the header is [`HeaderProgress::Ended`] or
    /// [`HeaderProgress::TooLarge`].
    pub(crate) fn feed(&mut self, block: &[u8]) {
        if self.header != HeaderProgress::Open {
            return;
        }
        let within = &block[..block.len().min(self.remaining)];
        let mut rest = within;
        while !rest.is_empty() && self.header == HeaderProgress::Open {
            rest = self.step(rest);
        }
        self.remaining -= within.len();
        if self.header == HeaderProgress::Open && within.len() < block.len() {
            self.header = HeaderProgress::TooLarge;
        }
    }

    /// Processes one byte. If the rest of the line no longer matters, skips all of it at once. Returns the bytes that
    /// are still to be processed.
    fn step<'a>(&mut self, octets: &'a [u8]) -> &'a [u8] {
        if self.position == LinePosition::Rest {
            let Some(end) = memchr::memchr(b'\n', octets) else { return &[] };
            self.position = LinePosition::Start;
            return &octets[end + 1..];
        }
        self.position = match (self.position, octets[0]) {
            (LinePosition::Start | LinePosition::Cr, b'\n') => {
                self.header = HeaderProgress::Ended;
                LinePosition::Start
            }
            (_, b'\n') => LinePosition::Start,
            (LinePosition::Start, b'\r') => LinePosition::Cr,
            (LinePosition::Start, octet) if octet.eq_ignore_ascii_case(&FIELD_NAME[0]) => LinePosition::Name(1),
            (LinePosition::Name(seen), octet)
                if FIELD_NAME.get(usize::from(seen)).is_some_and(|n| octet.eq_ignore_ascii_case(n)) =>
            {
                LinePosition::Name(seen + 1)
            }
            (LinePosition::Name(8) | LinePosition::Blanks, b':') => {
                self.count += 1;
                LinePosition::Rest
            }
            (LinePosition::Name(8) | LinePosition::Blanks, b' ' | b'\t') => LinePosition::Blanks,
            _ => LinePosition::Rest,
        };
        &octets[1..]
    }

    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    pub(crate) fn header(&self) -> HeaderProgress {
        self.header
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::hops::{self, counted};
    use mailrun_smtp::command::Hello;
    use proptest::prelude::*;

    const DATE: &str = "Sat, 21 Nov 2026 09:30:00 +0000";

    fn test_field() -> ReceivedField<'static> {
        ReceivedField {
            name: b"client.example",
            client: "[192.0.2.1]",
            host: "relay.example",
            with: WithProtocol::Esmtp,
            smtp_utf8: false,
            tls: None,
            id: b"00000000000003e8",
            recipient: None,
        }
    }

    fn written(stamp: &ReceivedField<'_>) -> Vec<u8> {
        let mut out = b"before\r\n".to_vec();
        stamp.write(DATE, &mut out);
        out.split_off(8)
    }

    fn text(stamp: &ReceivedField<'_>) -> String {
        String::from_utf8(written(stamp)).unwrap()
    }

    #[test]
    fn a_field_says_from_whom_by_whom_how_and_when() {
        assert_eq!(
            text(&test_field()),
            "Received: from client.example ([192.0.2.1]) by relay.example with ESMTP\r\n\
             \tid 00000000000003e8; Sat, 21 Nov 2026 09:30:00 +0000\r\n"
        );
        let tls = Some(TlsParameters { version: "TLSv1.3", cipher: "TLS13_AES_256_GCM_SHA384" });
        let all =
            ReceivedField { tls, with: WithProtocol::Esmtpsa, recipient: Some(b"bob@example.org"), ..test_field() };
        assert_eq!(
            text(&all),
            "Received: from client.example ([192.0.2.1]) by relay.example with ESMTPSA\r\n\
             \t(TLSv1.3) id 00000000000003e8 for <bob@example.org>\r\n\
             \ttls TLS_AES_256_GCM_SHA384; Sat, 21 Nov 2026 09:30:00 +0000\r\n"
        );
    }

    #[test]
    fn the_protocol_is_named_as_registered() {
        let rows = [
            (Hello::Plain, false, false, false, "SMTP"),
            (Hello::Plain, false, true, false, "SMTP"),
            (Hello::Extended, false, false, false, "ESMTP"),
            (Hello::Extended, false, false, true, "ESMTPA"),
            (Hello::Extended, false, true, false, "ESMTPS"),
            (Hello::Extended, true, true, true, "UTF8SMTPSA"),
            (Hello::Lmtp, false, false, false, "LMTP"),
            (Hello::Lmtp, true, false, true, "UTF8LMTPA"),
        ];
        for (hello, smtp_utf8, is_encrypted, is_logged_in, expected) in rows {
            let with = WithProtocol::of_client(hello, is_encrypted, is_logged_in);
            assert_eq!(ReceivedField { with, smtp_utf8, ..test_field() }.protocol().concat(), expected);
        }
    }

    #[test]
    fn names_that_are_none_are_made_harmless() {
        let long = [b'x'; 400];
        let rows: [(&[u8], &str); 12] = [
            (b"[10.0.0.1]", "from [10.0.0.1] ([192.0.2.1]) by"),
            (b"[IPv6:::1]", "from [IPv6:::1] ([192.0.2.1]) by"),
            (b"my_host", "from my_host ([192.0.2.1]) by"),
            (b"", "from [192.0.2.1] () by"),
            (b"a\r\nBcc: x@y", "from [192.0.2.1] (a??Bcc: x@y) by"),
            (b"a (by b) ; c\\", "from [192.0.2.1] (a ?by b? ; c?) by"),
            ("ä".as_bytes(), "from [192.0.2.1] (??) by"),
            (b"[a]b]", "from [192.0.2.1] ([a]b]) by"),
            (b"[::1]", "from [192.0.2.1] ([::1]) by"),
            (b"a..b", "from [192.0.2.1] (a..b) by"),
            (b"Editor 9.0.3", "from [192.0.2.1] (Editor 9.0.3) by"),
            (b"https://x.example", "from [192.0.2.1] (https://x.example) by"),
        ];
        for (name, expected) in rows {
            let field = text(&ReceivedField { name, ..test_field() });
            assert!(field.contains(expected), "{field}");
        }
        let field = text(&ReceivedField { name: &long, ..test_field() });
        assert!(
            field.starts_with(&format!("Received: from [192.0.2.1]\r\n\t({})\r\n\tby", "x".repeat(255))),
            "{field}"
        );
    }

    #[test]
    fn a_recipient_is_named_where_the_header_can_hold_it() {
        let rows: [(&[u8], bool, bool); 7] = [
            (b"a@b", false, true),
            (b"\"a >\"@b", false, true),
            ("ä@b".as_bytes(), false, false),
            ("ä@b".as_bytes(), true, true),
            (b"", true, false),
            (b"a@b> (x", false, false),
            (b"a@b\r\nX: y", true, false),
        ];
        for (recipient, smtp_utf8, expected) in rows {
            let field = text(&ReceivedField { recipient: Some(recipient), smtp_utf8, ..test_field() });
            let clause = format!("for <{}>", String::from_utf8_lossy(recipient));
            assert_eq!(field.contains(&clause), expected, "{field}");
            assert_eq!(field.contains("for"), expected, "{field}");
        }
    }

    #[test]
    fn a_date_is_rendered_once_a_second_and_never_fails() {
        let mut clock = DateCache::new();
        let rows = [
            (0, "Thu, 1 Jan 1970 00:00:00 +0000"),
            (1_795_253_400, DATE),
            (1_795_253_400, DATE),
            (1_795_253_401, "Sat, 21 Nov 2026 09:30:01 +0000"),
            (-5, "Thu, 1 Jan 1970 00:00:00 +0000"),
            (i64::MAX, "Thu, 30 Dec 9999 22:00:00 +0000"),
            (0, "Thu, 1 Jan 1970 00:00:00 +0000"),
        ];
        for (unix_s, expected) in rows {
            assert_eq!(clock.date(unix_s), expected);
        }
    }

    const LIMIT: usize = 10_000;

    #[test]
    fn a_table_of_headers() {
        let rows: [(&[u8], u32, HeaderProgress); 18] = [
            (b"", 0, HeaderProgress::Open),
            (b"Received: a\r\n\r\n", 1, HeaderProgress::Ended),
            (b"Received: a\r\n", 1, HeaderProgress::Open),
            (b"RECEIVED:a\r\nreceived:b\r\n\r\nReceived: body\r\n", 2, HeaderProgress::Ended),
            (b"Received: a\r\n\tReceived: folded\r\n\r\n", 1, HeaderProgress::Ended),
            (b"Received \t : a\r\n\r\n", 1, HeaderProgress::Ended),
            (b"X-Received: a\r\nReceived-SPF: b\r\nReceive: c\r\nReceivedd: d\r\n\r\n", 0, HeaderProgress::Ended),
            (b"Received\r\n: a\r\n\r\n", 0, HeaderProgress::Ended),
            (b"Received", 0, HeaderProgress::Open),
            (b"Subject: Received: x\r\n\r\n", 0, HeaderProgress::Ended),
            (b"\r\nReceived: a\r\n", 0, HeaderProgress::Ended),
            (b"\nReceived: a\r\n", 0, HeaderProgress::Ended),
            (b"Received: a\nReceived: b\n\nReceived: c\n", 2, HeaderProgress::Ended),
            (b"\rReceived: a\r\nReceived: b\r\n\r\n", 1, HeaderProgress::Ended),
            (b"\r\rx\r\nReceived: b\r\n\r\n", 1, HeaderProgress::Ended),
            (b"ReReceived: a\r\n\r\n", 0, HeaderProgress::Ended),
            (b"Received:", 1, HeaderProgress::Open),
            (b"Received:\r\n\r\n", 1, HeaderProgress::Ended),
        ];
        for (message, count, header) in rows {
            let shown = String::from_utf8_lossy(message);
            for block in 1..=message.len().max(1) {
                assert_eq!(counted(message, block, LIMIT), (count, header), "{shown} in blocks of {block}");
            }
            let trailing = [message, b"\r\n\r\nReceived: body\r\n"].concat();
            assert_eq!(counted(&trailing, LIMIT, LIMIT), (count, HeaderProgress::Ended), "{shown} with a body");
        }
    }

    #[test]
    fn a_header_is_read_up_to_its_limit() {
        let header = b"Received: a\r\n\r\n";
        assert_eq!(counted(header, 99, header.len()), (1, HeaderProgress::Ended));
        assert_eq!(counted(&[header.as_slice(), b"body"].concat(), 99, header.len()), (1, HeaderProgress::Ended));
        assert_eq!(counted(header, 99, header.len() - 1), (1, HeaderProgress::TooLarge));
        assert_eq!(counted(header, 1, 3), (0, HeaderProgress::TooLarge));
        assert_eq!(counted(b"abc", 1, 3), (0, HeaderProgress::Open));
        let bomb = b"Received: x\r\n".repeat(1_000_000);
        assert_eq!(counted(&bomb, 4096, 13 * 200), (200, HeaderProgress::TooLarge));
    }

    #[test]
    fn what_is_written_is_counted_once() {
        let tls = Some(TlsParameters { version: "TLSv1.3", cipher: "TLS13_AES_256_GCM_SHA384" });
        let field = written(&ReceivedField { tls, recipient: Some(b"bob@example.org"), ..test_field() });
        assert_eq!(counted(&[field.as_slice(), b"\r\n"].concat(), 7, LIMIT), (1, HeaderProgress::Ended));
    }

    proptest! {
        #[test]
        fn nothing_can_be_injected(octets in proptest::collection::vec(any::<u8>(), 0..900)) {
            hops::check(&octets);
        }

        #[test]
        fn any_split_counts_the_same(
            parts in proptest::collection::vec(
                prop_oneof![
                    Just(b"Received: x\r\n".to_vec()), Just(b"rEcEiVeD".to_vec()), Just(b":".to_vec()),
                    Just(b"\r\n".to_vec()), Just(b"\n".to_vec()), Just(b"\r".to_vec()), Just(b" ".to_vec()),
                    proptest::collection::vec(any::<u8>(), 0..5),
                ],
                0..60,
            ),
            cut: u8,
            limit in 0..20_u8,
        ) {
            hops::check(&[&[cut, limit], &parts.concat()[..]].concat());
        }

        /// The count must be the same as that of a simple implementation that splits the whole message into lines.
        #[test]
        fn the_count_is_that_of_whole_lines(
            lines in proptest::collection::vec("(?i)(received|x)[ \t]{0,2}:? ?[a-z]{0,3}|\t?received:|", 0..30),
        ) {
            let message: String = lines.iter().map(|line| format!("{line}\r\n")).collect();
            let header = lines.iter().take_while(|line| !line.is_empty());
            let is_one = |line: &&String| {
                line.split_once(':').is_some_and(|(name, _)| name.trim_end_matches([' ', '\t']).eq_ignore_ascii_case("received"))
            };
            prop_assert_eq!(counted(message.as_bytes(), 3, LIMIT).0 as usize, header.filter(is_one).count());
        }
    }
}
