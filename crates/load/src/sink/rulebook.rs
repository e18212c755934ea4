//! Parses rules files in TOML or JSON. Each rule is written as on the command line. Errors name the
//! place in the file.
//!
//! ```toml
//! seed = 7                      # of chance; without it, the sink's own
//! rules = [
//!   "rcpt: soft reject 0.01",
//!   'mail: limit 100/s "421 4.7.0 Too fast"',
//! ]
//! ```
use super::rules::{Rule, RuleError};
use mailrun_process::toml_file::{self, ConfigError};
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::path::Path;
use toml::Spanned;

/// Maximum length in bytes of a rules file, and of an HTTP request to the sink, which may contain such a file.
pub(super) const MAX_FILE_BYTES: usize = 1 << 20;
const MAX_RULES: usize = 1000;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rulebook {
    /// Seed of the rules' random choices, or `None` to use the sink's own seed (`--seed`).
    pub seed: Option<u64>,
    pub rules: Vec<Rule>,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct RulebookFile<Text> {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    seed: Option<u64>,
    #[serde(default = "Vec::new")]
    rules: Vec<Text>,
}

impl Rulebook {
    /// Parses a text in TOML or JSON. A text that begins with a brace is JSON, because no TOML file
    /// can begin with one.
    ///
    /// # Errors
    ///
    /// Fails with the place and the cause in one line, for example `rules:3:7: …`.
    pub(crate) fn read(text: &str) -> Result<Self, String> {
        Self::read_file("rules", text)
    }

    /// Parses `text` as the content of a rules file. Each error begins with `name`, the name of the file.
    ///
    /// # Errors
    ///
    /// Fails with the place and the cause in one line, for example `NAME:3:7: …`.
    pub fn read_file(name: &str, text: &str) -> Result<Self, String> {
        if text.len() > MAX_FILE_BYTES {
            return Err(format!("{name}: rules may have at most {MAX_FILE_BYTES} bytes"));
        }
        let book = if text.trim_start().starts_with('{') {
            Self::read_json(name, text)?
        } else {
            Self::read_toml(text).map_err(|error| error.in_file(Path::new(name)))?
        };
        if book.rules.len() > MAX_RULES {
            return Err(format!("{name}: more than {MAX_RULES} rules; at most {MAX_RULES} are possible"));
        }
        Ok(book)
    }

    fn read_toml(text: &str) -> Result<Self, ConfigError> {
        let written: RulebookFile<Spanned<String>> = toml_file::read(text)?;
        let rule = |typed: &Spanned<String>| {
            Rule::parse(typed.as_ref()).map_err(|mistake| {
                let offset = rule_offset(text, typed.span(), &mistake);
                ConfigError::at(text, offset, mistake.what)
            })
        };
        let rules = written.rules.iter().map(rule).collect::<Result<_, _>>()?;
        Ok(Self { seed: written.seed, rules })
    }

    fn read_json(name: &str, text: &str) -> Result<Self, String> {
        let written: RulebookFile<String> = serde_json::from_str(text).map_err(|error| {
            let message = error.to_string();
            let what = message.split(" at line ").next().unwrap_or_default();
            format!("{name}:{}:{}: {what}", error.line(), error.column())
        })?;
        let rule = |(number, typed): (usize, &String)| {
            Rule::parse(typed).map_err(|mistake| format!("{name}: rule {}, {mistake}", number + 1))
        };
        let rules = written.rules.iter().enumerate().map(rule).collect::<Result<_, _>>()?;
        Ok(Self { seed: written.seed, rules })
    }

    /// Returns the rules as JSON, which `Rulebook::read` can parse again.
    pub(super) fn to_json(&self) -> serde_json::Value {
        let rules = self.rules.iter().map(|rule| rule.text().to_owned()).collect();
        serde_json::to_value(RulebookFile { seed: self.seed, rules }).expect("numbers and texts are JSON")
    }
}

/// Returns the place of a rule's mistake as an offset in the file. If the rule's string has escapes or several lines,
/// returns the start of the rule, because offsets in such a string do not match offsets in the file.
fn rule_offset(text: &str, span: Range<usize>, mistake: &RuleError) -> usize {
    let raw = &text[span.clone()];
    let is_plain = !raw.contains('\\') && !raw.starts_with("\"\"\"") && !raw.starts_with("'''");
    if is_plain { span.start + 1 + mistake.offset } else { span.start }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn toml_and_json_say_the_same() {
        let toml =
            "# comment\nseed = 7\nrules = [\n  \"rcpt: soft reject 0.01\",\n  '.: hang up \"421 4.0.0 x\"',\n]\n";
        let json = r#" {"seed": 7, "rules": ["rcpt: soft reject 0.01", ".: hang up \"421 4.0.0 x\""]}"#;
        let book = Rulebook::read(toml).unwrap();
        assert_eq!((book.seed, book.rules.len(), book.rules[1].text()), (Some(7), 2, ".: hang up \"421 4.0.0 x\""));
        assert_eq!(Rulebook::read(json).unwrap(), book);
        assert_eq!(Rulebook::read(&book.to_json().to_string()).unwrap(), book);
        for nothing in ["", "{}", "rules = []", "# nothing\n"] {
            assert_eq!(Rulebook::read(nothing), Ok(Rulebook::default()), "{nothing:?}");
        }
    }

    #[test]
    fn a_table_of_mistakes_with_their_lines_and_columns() {
        let rows = [
            ("rules = [\"rctp: drop\"]", "rules:1:11: \"rctp\" is not a command"),
            ("seed = 1\nrules = [\n  \"rcpt: drop\",\n]", "rules:3:10: this is only for . (the end"),
            ("rules = [\n\"größe\", ]", "rules:2:2: \"größe\" is not an action"),
            ("rules = ['mail: soft reject 7']", "rules:1:29: \"7\" is not a valid probability"),
            ("rules = [\"mail: soft reject \\\"550 x\\\"\"]", "rules:1:10: \"550 x\" is not a reply"),
            ("rules = [\"\"\"\nmail: nothing\"\"\"]", "rules:1:10: \"nothing\" is not an action"),
            ("rules = [\"a\"", "rules:1:13: "),
            ("rules = [1]", "rules:1:10: invalid type: integer"),
            ("rules = \"x\"", "rules:1:9: invalid type: string"),
            ("seed = -1", "rules:1:8: "),
            ("seed = 1\nseed = 2", "rules:2:1: duplicate key"),
            ("rule = []", "rules:1:1: unknown key \"rule\"; did you mean \"rules\"?"),
            ("\0", "rules:1:2: key with no value"),
            ("{\"rules\": [\"rctp: drop\"]}", "rules: rule 1, column 1: \"rctp\" is not a command"),
            ("{\"rules\": [\n1]}", "rules:2:1: invalid type: integer"),
            ("{\"rule\": []}", "rules:1:7: unknown field `rule`"),
            ("{", "rules:1:1: EOF"),
        ];
        for (text, expected) in rows {
            let error = Rulebook::read(text).expect_err(text);
            assert!(error.starts_with(expected) && !error.contains('\n'), "{text:?}: {error}");
        }
        let many = format!("rules = [{}]", "'.: drop',".repeat(MAX_RULES + 1));
        assert_eq!(Rulebook::read(&many), Err("rules: more than 1000 rules; at most 1000 are possible".to_owned()));
        assert!(Rulebook::read(&" ".repeat(MAX_FILE_BYTES + 1)).unwrap_err().contains("at most"));
    }

    proptest! {
        #[test]
        fn a_mistake_is_where_the_word_is(before in 0..5_usize, blanks in 0..5_usize) {
            let text = format!("rules = [\n{}{}'mail: nonsense']", "'.: drop',\n".repeat(before), " ".repeat(blanks));
            let error = Rulebook::read(&text).unwrap_err();
            let place = format!("rules:{}:{}: \"nonsense\"", before + 2, blanks + 8);
            prop_assert!(error.starts_with(&place), "{}", error);
        }
    }
}
