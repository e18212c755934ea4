//! Envelopes, rendered once for each set of parameters that a server's EHLO calls for.
use super::SourceOptions;
use super::message::Template;
use anyhow::{Context, Result, bail};
use journey::trace::{MAX_RECIPIENTS, recipient_number};
use smtp::{Envelope, Extensions, Path};
use std::sync::Arc;

/// The envelopes of a run.
#[derive(Debug)]
pub(super) struct Envelopes {
    /// By which parameters they have: bit 0 SIZE, bit 1 BODY=8BITMIME, bit 2 SMTPUTF8.
    variants: [Arc<Envelope>; 8],
    needs_eight_bit: bool,
    needs_utf8: bool,
    /// The ledger's number of each recipient, by its place in the envelope.
    numbers: Vec<u32>,
}

impl Envelopes {
    pub(super) fn new(options: &SourceOptions, template: &Template) -> Result<Self> {
        let recipients = recipients(&options.recipient, options.recipients)?;
        Path::mailbox(options.from.as_bytes()).with_context(|| format!("--from {}", options.from))?;
        let render = |bits: usize| {
            let size = format!("SIZE={}", template.bytes);
            let words = [(1, size.as_str()), (2, "BODY=8BITMIME"), (4, "SMTPUTF8")];
            let chosen: Vec<&str> = words.iter().filter(|(bit, _)| bits & bit != 0).map(|(_, word)| *word).collect();
            Envelope::new(&options.from, &chosen.join(" "), recipients.iter().map(String::as_str)).map(Arc::new)
        };
        let variants: Vec<_> = (0..8).map(render).collect::<Result<_, _>>()?;
        Ok(Self {
            variants: variants.try_into().expect("eight were made"),
            needs_eight_bit: template.is_eight_bit,
            needs_utf8: !options.from.is_ascii() || !options.recipient.is_ascii(),
            numbers: recipients.iter().map(|recipient| recipient_number(recipient.as_bytes())).collect(),
        })
    }

    /// The one for a server that offers `extensions`.
    pub(super) fn choose(&self, extensions: &Extensions) -> &Arc<Envelope> {
        let eight_bit = extensions.eight_bit_mime && self.needs_eight_bit;
        let utf8 = extensions.smtp_utf8 && self.needs_utf8;
        &self.variants[usize::from(extensions.size.is_some()) | usize::from(eight_bit) << 1 | usize::from(utf8) << 2]
    }

    /// The ledger's number of the recipient at that place of the envelope.
    pub(super) fn number(&self, place: usize) -> u32 {
        self.numbers[place]
    }

    /// How many recipients a message has.
    pub(super) fn recipients(&self) -> usize {
        self.numbers.len()
    }
}

/// The addresses of a message: the one given, or that many numbered ones. The number ends the local part, behind a
/// `+` where the local part ends in a digit already.
fn recipients(pattern: &str, count: u32) -> Result<Vec<String>> {
    Path::mailbox(pattern.as_bytes()).with_context(|| format!("--rcpt {pattern}"))?;
    match count {
        0 => bail!("--recipients 0: a message has at least one recipient"),
        1 => Ok(vec![pattern.to_owned()]),
        2..=MAX_RECIPIENTS => {
            let (local, domain) = pattern.rsplit_once('@').unwrap_or((pattern, ""));
            let at = if domain.is_empty() { "" } else { "@" };
            let plus = if local.ends_with(|c: char| c.is_ascii_digit()) { "+" } else { "" };
            Ok((0..count).map(|number| format!("{local}{plus}{number}{at}{domain}")).collect())
        }
        _ => bail!("--recipients {count}: the ledger tells {MAX_RECIPIENTS} apart"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_recipient_has_a_number_that_the_sink_reads_back() {
        for pattern in ["to@example.com", "bob7@example.com", "to+@example.com"] {
            let all = recipients(pattern, 120).unwrap();
            let numbers: Vec<u32> = all.iter().map(|address| recipient_number(address.as_bytes())).collect();
            assert_eq!(numbers, (0..120).collect::<Vec<_>>(), "{pattern}");
        }
        assert_eq!(recipients("bob7@example.com", 1).unwrap(), ["bob7@example.com"]);
        assert_eq!(recipients("a@b", 2).unwrap(), ["a0@b", "a1@b"]);
    }

    #[test]
    fn what_is_no_address_is_refused() {
        assert!(recipients("nobody", 1).is_err());
        assert!(recipients("a@b", 0).is_err());
        assert!(recipients("a@b", 2000).is_err());
        assert!(recipients("a@b>\r\nDATA", 1).is_err());
    }
}
