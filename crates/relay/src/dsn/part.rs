use super::text;
use std::borrow::Cow;

#[derive(Debug)]
pub(crate) struct DsnPart<'a> {
    kind: &'static str,
    description: &'static str,
    encoding: &'static str,
    body: Cow<'a, [u8]>,
}

impl<'a> DsnPart<'a> {
    /// Creates a part, and encodes its body if the body is not 7-bit. Only texts and the kinds of parts that
    /// RFC 6533 defines can have such bodies, and the standards allow encoding these. The bodies of all other parts are
    /// always 7-bit.
    pub(crate) fn new(kind: &'static str, description: &'static str, body: Cow<'a, [u8]>) -> Self {
        if mailrun_mime::is_seven_bit(&body) {
            return Self { kind, description, encoding: "7bit", body };
        }
        let encoding = mailrun_mime::Encoding::for_text(&body);
        let mut encoded = Vec::new();
        encoding.encode(&body, &mut encoded);
        Self { kind, description, encoding: encoding.word(), body: Cow::Owned(encoded) }
    }

    pub(crate) fn write(&self, boundary: &str, out: &mut Vec<u8>) {
        let Self { kind, description, encoding, .. } = self;
        let header = format!(
            "--{boundary}\r\nContent-Type: {kind}\r\nContent-Description: {description}\r\nContent-Transfer-Encoding: \
             {encoding}\r\n\r\n"
        );
        out.extend_from_slice(header.as_bytes());
        out.extend_from_slice(&self.body);
        // This line end belongs to the boundary, and not to the body (RFC 2046 §5.1.1).
        out.extend_from_slice(b"\r\n");
    }
}

/// Returns a MIME boundary that no part contains. It consists of the queue id and a number. All such boundaries have
/// the same length, so that no boundary is a prefix of another one.
pub(crate) fn boundary(id: &str, parts: &[DsnPart<'_>]) -> String {
    const DIGITS: usize = 8;
    let prefix = format!("=_{}_", text::sanitize_token(id));
    let finder = memchr::memmem::Finder::new(&prefix);
    let mut used: Vec<u32> = Vec::new();
    for part in parts {
        let numbers = finder.find_iter(&part.body).filter_map(|at| {
            let digits = part.body.get(at + prefix.len()..at + prefix.len() + DIGITS)?;
            u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
        });
        used.extend(numbers);
    }
    used.sort_unstable();
    used.dedup();
    // Choose the lowest number that no part contains. A single pass over the sorted numbers finds it. This is fast even
    // if an attacker has guessed the queue id and written many such boundaries into the returned message.
    let free = used.iter().zip(0_u32..).take_while(|(used, number)| **used == *number).count();
    format!("{prefix}{free:0DIGITS$x}")
}
