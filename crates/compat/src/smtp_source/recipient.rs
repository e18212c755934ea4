//! The recipients of a message all have the same address, except that a number can be added before the address or at
//! the end of its local part.
use super::options::{Dialect, Options};
use mailrun_measurement::trace::MAX_RECIPIENTS;
use std::cell::Cell;
use std::io::Write;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NumberStyle {
    Plain,
    /// Postfix up to 3.8, without `-N`: each address begins with the number of the message's recipients that are still
    /// to be sent. The last recipient has no number.
    LeftBefore,
    /// Postfix up to 3.8, with `-N`: each address begins with a number, counted from 1 through the whole run.
    CountedBefore,
    /// Postfix since 3.9: each local part ends with a number, counted from 0 through the whole run.
    CountedBehind,
}

/// Generates the addresses that are sent between `RCPT TO:<` and `>`.
#[derive(Debug)]
pub(super) struct RecipientGenerator {
    local: String,
    /// The domain including its `@`, or empty if the address has no domain.
    domain: String,
    style: NumberStyle,
    /// Number of the next recipient, counted from 0. In the style `CountedBefore`, the address contains this number
    /// plus one.
    next: Cell<u32>,
    /// Largest value of `next`, after which the numbers start again from 0. With `--trace`, the limit is lower, because
    /// a trace can distinguish only a limited number of recipients of a message.
    max_number: u32,
}

impl RecipientGenerator {
    pub(super) fn new(options: &Options, address: &str) -> Self {
        let (local, domain) = address.split_at(address.rfind('@').unwrap_or(address.len()));
        let numbering = match (options.dialect, options.numbers_recipients) {
            (Dialect::Before39, true) => NumberStyle::CountedBefore,
            (Dialect::Before39, false) => NumberStyle::LeftBefore,
            (Dialect::Since39, true) => NumberStyle::CountedBehind,
            (Dialect::Since39, false) => NumberStyle::Plain,
        };
        let limit = if options.own_options.traces && options.recipients > 1 { MAX_RECIPIENTS - 1 } else { u32::MAX };
        Self {
            local: local.to_owned(),
            domain: domain.to_owned(),
            style: numbering,
            next: Cell::new(0),
            max_number: limit,
        }
    }

    /// Returns the number in the address of the next recipient, or `None` if the address gets no number. The style
    /// `LeftBefore` uses `left`, the number of the message's recipients still to be sent, including the next one.
    pub(super) fn next_number(&self, left: u32) -> Option<u32> {
        let number = self.next.get();
        match self.style {
            NumberStyle::Plain => None,
            NumberStyle::LeftBefore => (left > 1).then_some(left),
            NumberStyle::CountedBefore | NumberStyle::CountedBehind => {
                self.next.set(if number == self.max_number { 0 } else { number + 1 });
                Some(if self.style == NumberStyle::CountedBefore { number.wrapping_add(1) } else { number })
            }
        }
    }

    pub(super) fn write(&self, number: Option<u32>, out: &mut Vec<u8>) {
        let number = number.map(i64::from);
        let is_behind = self.style == NumberStyle::CountedBehind;
        if !is_behind {
            write_number(number, out);
        }
        out.extend_from_slice(self.local.as_bytes());
        if is_behind {
            write_number(number, out);
        }
        out.extend_from_slice(self.domain.as_bytes());
    }

    /// Writes the address for the `To:` header. In the style `CountedBehind`, this address contains `last`, the number
    /// of the transaction's last recipient. In the other styles, it contains no number.
    pub(super) fn write_header(&self, last: Option<u32>, out: &mut Vec<u8>) {
        self.write(last.filter(|_| self.style == NumberStyle::CountedBehind), out);
    }
}

fn write_number(number: Option<i64>, out: &mut Vec<u8>) {
    if let Some(number) = number {
        write!(out, "{number}").expect("a vector takes all");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two(line: &str, address: &str) -> Vec<String> {
        let words: Vec<String> = line.split_whitespace().chain(["host"]).map(str::to_owned).collect();
        let options = Options::parse(&words).unwrap();
        let recipient = RecipientGenerator::new(&options, address);
        let mut seen = Vec::new();
        let text = |write: &dyn Fn(&mut Vec<u8>)| {
            let mut out = Vec::new();
            write(&mut out);
            String::from_utf8(out).unwrap()
        };
        for _ in 0..2 {
            let mut last = None;
            for left in (1..=options.recipients).rev() {
                last = recipient.next_number(left);
                seen.push(text(&|out| recipient.write(last, out)));
            }
            seen.push(format!("To: {}", text(&|out| recipient.write_header(last, out))));
        }
        seen
    }

    /// With an address such as `c+@d`, the numbers become address extensions (manual page of Postfix 3.9).
    #[test]
    fn dialects_differ_in_numbering() {
        let rows: [(&str, &str, &[&str]); 13] = [
            ("", "c@d", &["c@d", "To: c@d", "c@d", "To: c@d"]),
            ("-N", "c@d", &["c0@d", "To: c0@d", "c1@d", "To: c1@d"]),
            ("-r 1", "c@d", &["c0@d", "To: c0@d", "c1@d", "To: c1@d"]),
            ("-r 2", "c+@d", &["c+0@d", "c+1@d", "To: c+1@d", "c+2@d", "c+3@d", "To: c+3@d"]),
            ("-N -r 2", "a@b@d", &["a@b0@d", "a@b1@d", "To: a@b1@d", "a@b2@d", "a@b3@d", "To: a@b3@d"]),
            ("-N", "c+", &["c+0", "To: c+0", "c+1", "To: c+1"]),
            ("-N", "@d", &["0@d", "To: 0@d", "1@d", "To: 1@d"]),
            ("-N", "", &["0", "To: 0", "1", "To: 1"]),
            ("--dialect 3.8", "c@d", &["c@d", "To: c@d", "c@d", "To: c@d"]),
            ("--dialect 3.8 -r 1", "c@d", &["c@d", "To: c@d", "c@d", "To: c@d"]),
            (
                "--dialect 3.8 -r 3",
                "c+@d",
                &["3c+@d", "2c+@d", "c+@d", "To: c+@d", "3c+@d", "2c+@d", "c+@d", "To: c+@d"],
            ),
            ("--dialect 3.8 -N", "c@d", &["1c@d", "To: c@d", "2c@d", "To: c@d"]),
            ("--dialect 3.8 -N -r 2", "c", &["1c", "2c", "To: c", "3c", "4c", "To: c"]),
        ];
        for (line, address, expected) in rows {
            assert_eq!(two(line, address), expected, "{line} {address}");
        }
    }
}
