//! Numbers as the C library reads them from a command line.

/// atoi(3): blanks, a sign, digits, and anything after them; 0 without digits. Beyond what fits, as glibc does: the
/// largest `long`, cut to an `int`.
pub(super) fn atoi(text: &str) -> i32 {
    let text = text.trim_start_matches([' ', '\t', '\n', '\x0b', '\x0c', '\r']);
    let (is_negative, digits) = match text.as_bytes() {
        [b'-', ..] => (true, &text[1..]),
        [b'+', ..] => (false, &text[1..]),
        _ => (false, text),
    };
    let digits = digits.bytes().take_while(u8::is_ascii_digit).map(|digit| i64::from(digit - b'0'));
    // Towards the sign, so that the smallest number is reached without overflow.
    let digits = digits.map(|digit| if is_negative { -digit } else { digit });
    digits.fold(0i64, |number, digit| number.saturating_mul(10).saturating_add(digit)) as i32
}

/// Whether there is at least one character and all are digits.
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
