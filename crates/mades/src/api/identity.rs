//! The identity of a message, in the form `<sequence>-<run uuid>`. A run recognises its own messages by their identity.
use std::fmt;
use uuid::Uuid;

const UUID_CHARACTERS: usize = 36;

/// Identifies a message by the run that sent it and by its number within that run. The bench uses the sequence number
/// to find the message in its table of messages in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RunMessageId {
    pub sequence: u64,
    pub run: Uuid,
}

impl RunMessageId {
    /// Reads an id that has exactly the form that [`RunMessageId`] writes. An id with a leading
    /// zero, a sign or capitals comes from another sender, so the function returns `None`.
    pub fn read(text: &str) -> Option<Self> {
        let at = text.len().checked_sub(UUID_CHARACTERS)?;
        let head = text.get(..at)?;
        let uuid = text.get(at..)?;
        let digits = head.strip_suffix('-')?;
        let is_canonical = !digits.is_empty()
            && digits.bytes().all(|digit| digit.is_ascii_digit())
            && (digits == "0" || !digits.starts_with('0'))
            && !uuid.bytes().any(|octet| octet.is_ascii_uppercase());
        if !is_canonical {
            return None;
        }
        Some(Self { sequence: digits.parse().ok()?, run: Uuid::try_parse(uuid).ok()? })
    }

    /// Replaces the content of `text` with the id, and reuses the memory of `text`.
    pub fn write_into(&self, text: &mut String) {
        text.clear();
        let mut digits = [0; 20];
        text.push_str(decimal(self.sequence, &mut digits));
        text.push('-');
        text.push_str(self.run.hyphenated().encode_lower(&mut [0; UUID_CHARACTERS]));
    }
}

/// Writes a number in decimal digits without `format!`, which would be too slow because an id is
/// written for every message.
fn decimal(mut number: u64, digits: &mut [u8; 20]) -> &str {
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return std::str::from_utf8(&digits[at..]).expect("digits are ASCII");
        }
    }
}

impl fmt::Display for RunMessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.sequence, self.run.hyphenated())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_not_written_by_us_is_foreign() {
        let run = "0123abcd-0000-4000-8000-00000000ffff";
        assert_eq!(
            RunMessageId::read(&format!("17-{run}")),
            Some(RunMessageId { sequence: 17, run: Uuid::parse_str(run).unwrap() })
        );
        for foreign in [
            "",
            "17",
            run,
            &format!("-{run}"),
            &format!("017-{run}"),
            &format!("+17-{run}"),
            &format!("17_{run}"),
            &format!("17-{}", run.to_uppercase()),
            &format!("17-{run} "),
            &format!("18446744073709551616-{run}"),
            &format!("17-{}", "0".repeat(36)),
            "17-{123abcd-0000-4000-8000-00000000fff}",
            &format!("17ü-{run}"),
        ] {
            assert_eq!(RunMessageId::read(foreign), None, "{foreign}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(sequence: u64, run: u128) {
            let identity = RunMessageId { sequence, run: Uuid::from_u128(run) };
            let mut text = "before".to_owned();
            identity.write_into(&mut text);
            prop_assert_eq!(&text, &identity.to_string());
            prop_assert_eq!(RunMessageId::read(&text), Some(identity));
        }

        #[test]
        fn what_is_read_is_written_back(text in "[0-9a-f-]{0,60}|.{0,60}") {
            crate::checks::mades_url::check(text.as_bytes());
        }
    }
}
