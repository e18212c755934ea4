//! Checks the parser of single rules and the parser of rules files with arbitrary text. Each parser must either report
//! a mistake, or return rules that stay the same when they are written and read again.
use super::super::rulebook::Rulebook;
use super::super::rules::Rule;

pub fn check(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match Rule::parse(text) {
        Ok(rule) => {
            assert!((0.0..=1.0).contains(&rule.chance));
            assert_eq!(Rule::parse(rule.text()), Ok(rule));
        }
        Err(mistake) => assert!(mistake.offset <= text.len() && !mistake.to_string().contains('\n')),
    }
    match Rulebook::read(text) {
        Ok(book) => assert_eq!(Rulebook::read(&book.to_json().to_string()), Ok(book)),
        Err(error) => assert!(!error.is_empty()),
    }
}
