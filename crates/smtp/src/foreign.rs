//! Detects other protocols by their first lines. The server closes such connections, because
//! nothing in them is meant as mail.
//!
//! A web page can make a browser send a POST request to any port of its host, including loopback
//! ports, and the body of a POST may contain a whole SMTP transaction. A server that only answers
//! 500 to the lines of HTTP would go on to accept that mail (cross-protocol request forgery). TLS is no protection,
//! because an attacker can choose the names, tickets and session ids in a ClientHello. These may contain line ends, so
//! the server would find whole command lines in them. Postfix closes such connections as well, for the commands of
//! `smtpd_forbidden_commands` and for any line that looks like a header field.

/// Methods of HTTP (RFC 9110 §9, RFC 5789). None of them is an SMTP verb.
const METHODS: [&[u8]; 9] = [b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"CONNECT", b"OPTIONS", b"TRACE", b"PATCH"];
/// Beginnings of the word that names the protocol version in HTTP, RTSP (RFC 7826) and SIP (RFC 3261). The first line
/// of a request ends with this word, and the first line of a response begins with it.
const VERSIONS: [&[u8]; 3] = [b"HTTP/", b"RTSP/", b"SIP/"];
/// First bytes that SSH clients and servers send (RFC 4253 §4.2).
const SSH: &[u8] = b"SSH-";

/// Returns true if no command line can begin with this byte. SMTP verbs consist of letters (RFC 5321 §4.1.1). TLS
/// begins with 0x16, SSLv2 with 0x80, SOCKS with 0x04 or 0x05. Returns false for white space, because people who type
/// commands may begin a line with it. Also returns false for a dot, because a client may send a message, which ends
/// with a dot, although its DATA was refused.
pub(crate) fn begins_otherwise(first: u8) -> bool {
    !(first.is_ascii_alphabetic() || matches!(first, b' ' | b'\t' | b'\r' | b'\n' | b'.'))
}

/// Returns true if an invalid command line looks like a line of another protocol, or like a header field.
pub(crate) fn is_foreign(line: &[u8]) -> bool {
    let line = line.trim_ascii_end();
    let word = line.split(|byte| *byte == b' ').next().unwrap_or_default();
    let last = line.rsplit(|byte| *byte == b' ').next().unwrap_or_default();
    let begins_with =
        |text: &[u8], start: &[u8]| text.get(..start.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(start));
    let has_version = |text: &[u8]| VERSIONS.iter().any(|version| begins_with(text, version));
    METHODS.iter().any(|method| word.eq_ignore_ascii_case(method))
        || has_version(word)
        || has_version(last)
        || begins_with(word, SSH)
        || is_field_name(word)
}

/// Returns true if a word begins with the name of a header field and a colon, such as `Host:`.
fn is_field_name(word: &[u8]) -> bool {
    let name = word.split(|byte| *byte == b':').next().unwrap_or_default();
    (1..word.len()).contains(&name.len())
        && name.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_of_lines() {
        let foreign: [&[u8]; 24] = [
            b"GET / HTTP/1.1",
            b"get /",
            b"HEAD",
            b"POST /submit HTTP/1.0",
            b"PUT / HTTP/1.1",
            b"DELETE /x",
            b"CONNECT mail.example:25 HTTP/1.1",
            b"OPTIONS * HTTP/1.1\r",
            b"TRACE / HTTP/1.1",
            b"PATCH / HTTP/1.1",
            b"PROPFIND / http/1.1",
            b"PRI * HTTP/2.0",
            b"HTTP/1.1 200 OK",
            b"DESCRIBE rtsp://a.example/ RTSP/1.0",
            b"OPTIONS sip:a.example SIP/2.0",
            b"INVITE sip:a@b.example SIP/2.0",
            b"SIP/2.0 200 OK",
            b"SSH-2.0-OpenSSH_9.9",
            b"Host: 127.0.0.1:25",
            b"Content-Type: text/plain",
            b"content-length:5",
            b"Subject:",
            b"X_Y: z",
            b"A1:b",
        ];
        for line in foreign {
            assert!(is_foreign(line), "{}", String::from_utf8_lossy(line));
        }
        let ours: [&[u8]; 14] = [
            b"",
            b" ",
            b"EHLO a",
            b"WHAT",
            b"GETS /",
            b"POSTMASTER",
            b"MAIL FROM:<a@b>",
            b"RCPT TO: <a@b>",
            b"SEND FROM:<a@b>",
            b": x",
            b"a\xff: x",
            b"a(b): x",
            b"SSH",
            b"HELP HTTP",
        ];
        for line in ours {
            assert!(!is_foreign(line), "{}", String::from_utf8_lossy(line));
        }
    }

    #[test]
    fn a_verb_begins_with_a_letter() {
        for first in [0x00, 0x03, 0x04, 0x05, 0x16, 0x1b, b'*', b'0', b'{', b'<', 0x7f, 0x80, 0xff] {
            assert!(begins_otherwise(first), "{first:#x}");
        }
        for first in *b"eE \t\r\n.zZ" {
            assert!(!begins_otherwise(first), "{first:#x}");
        }
    }
}
