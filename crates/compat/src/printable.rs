//! Makes text of a peer or a command line safe for a terminal, as Postfix does.

/// Keeps printable ASCII and replaces every other byte by `?`, so that no text can forge a line.
pub(super) fn printable(octets: &[u8]) -> String {
    octets.iter().map(|octet| if (b' '..=b'~').contains(octet) { char::from(*octet) } else { '?' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_is_ascii() {
        assert_eq!(printable(b"a \t\x7f\xc3\xa9~\0"), "a ????~?");
    }

    #[test]
    fn no_text_forges_a_line() {
        assert_eq!(printable("a\r\nb\tä~".as_bytes()), "a??b???~");
    }
}
