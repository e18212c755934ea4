//! Parses arbitrary words as a command line of Go's flag package, and as numbers in Go's syntax. Each word must become
//! a flag, a value or a remaining word.
use crate::go::flags::{self, FlagKind};
use crate::go::numbers;

fn kind(name: &str) -> Option<FlagKind> {
    match name {
        "d" | "v" | "tls" => Some(FlagKind::Boolean),
        "m" | "R" | "f" => Some(FlagKind::Valued),
        _ => None,
    }
}

fn check_numbers(word: &str) {
    // Go and Rust read decimal numbers alike, so our parser of Go's integers must return the same number as Rust's
    // parser. A number with a leading zero is an exception, because it is octal in Go.
    let digits = word.strip_prefix(['-', '+']).unwrap_or(word);
    if let Ok(by_hand) = word.parse::<i64>() {
        let is_octal = digits.len() > 1 && digits.starts_with('0');
        assert!(is_octal || numbers::integer(word) == Ok(by_hand), "{word}");
    }
    if let Ok(number) = numbers::integer(word) {
        assert_eq!(numbers::integer(&number.to_string()), Ok(number));
    }
    if let Ok(number) = numbers::unsigned(word) {
        assert_eq!(numbers::unsigned(&number.to_string()), Ok(number));
    }
    if let Ok(number) = numbers::float(word) {
        assert!(number.is_nan() || numbers::float(&number.to_string()) == Ok(number), "{word}");
    }
    let _ = numbers::boolean(word);
}

pub fn check(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let words: Vec<String> = text.split('\n').map(str::to_owned).collect();
    words.iter().for_each(|word| check_numbers(word));
    let mut set = 0;
    let outcome = flags::parse(&words, kind, |name, value| {
        set += 1;
        match name {
            "m" => numbers::integer(value).map(drop),
            "R" => numbers::float(value).map(drop),
            "f" => Ok(()),
            _ => numbers::boolean(value).map(drop),
        }
    });
    assert!(set <= words.len());
    match outcome {
        Ok(rest) => {
            assert!(words.ends_with(rest));
            let is_ended = rest.len() < words.len() && words[words.len() - rest.len() - 1] == "--";
            assert!(is_ended || rest.first().is_none_or(|word| word.len() < 2 || !word.starts_with('-')));
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    let quoted = flags::quoted(data);
    assert!(quoted.len() >= 2 && quoted.starts_with('"') && quoted.ends_with('"') && !quoted.contains('\n'));
}
