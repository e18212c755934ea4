//! Parses numbers on a command line in the same way as the C library.

/// Parses a decimal number as strtol(3) does: blanks, a sign, digits. Returns the number and the rest of the text. If
/// there are no digits, the number is 0 and the rest is the whole text.
pub(super) fn strtol(text: &str) -> (i64, &str) {
    let body = text.trim_start_matches([' ', '\t', '\n', '\u{b}', '\u{c}', '\r']);
    let (sign, digits) = match body.as_bytes().first() {
        Some(b'-') => (-1, &body[1..]),
        Some(b'+') => (1, &body[1..]),
        _ => (1, body),
    };
    let end = digits.bytes().take_while(u8::is_ascii_digit).count();
    if end == 0 {
        return (0, text);
    }
    // Add each digit with the sign of the number. Negating the sum at the end would fail for the smallest `i64`, which
    // has no positive counterpart.
    let value = digits[..end]
        .bytes()
        .fold(0i64, |n, digit| n.saturating_mul(10).saturating_add(sign * i64::from(digit - b'0')));
    (value, &digits[end..])
}

/// Parses a number as atoi(3) of a 64-bit glibc does. Text after the digits is ignored, and a text without digits
/// means 0. If the number does not fit into an int, only its lower 32 bits are kept.
pub(super) fn atoi(text: &str) -> i32 {
    strtol(text).0 as i32
}

/// Parses a number like [`atoi`], but returns `None` unless the number is above 0.
pub(super) fn positive(text: &str) -> Option<u32> {
    u32::try_from(atoi(text)).ok().filter(|number| *number > 0)
}

/// Returns true if the text is not empty and consists of digits only.
pub(super) fn is_all_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|octet| octet.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_table_of_numbers() {
        let rows = [
            ("", 0),
            ("5", 5),
            (" \t+5x", 5),
            ("-5", -5),
            ("- 5", 0),
            ("x5", 0),
            ("007", 7),
            ("2147483648", i32::MIN),
            ("4294967297", 1),
            ("99999999999999999999", -1),
            ("-99999999999999999999", 0),
            ("3000000000", -1_294_967_296),
        ];
        for (text, number) in rows {
            assert_eq!(atoi(text), number, "{text:?}");
        }
        assert!(is_all_digits("012") && !is_all_digits("") && !is_all_digits("1 "));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(number: i32, rest in "[a-z ]{0,3}") {
            prop_assert_eq!(atoi(&format!("{number}{rest}")), number);
        }
    }
}
