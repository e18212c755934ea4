//! Reads TOML files. Every mistake is reported with its line, column and key and, if possible, with
//! a hint.
//!
//! [`read`] lets serde read a whole file and stops at the first mistake. To report all mistakes of
//! a file at once, read the file as [`Section`]s. The caller reads the keys of a section one by
//! one, and keys that were not read are reported as unknown.
use mailrun_text::words::{is_misspelling, nearest};
use serde::de::DeserializeOwned;
use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use toml::Spanned;
use toml::de::{DeTable, DeValue, ValueDeserializer};

const MAX_ERRORS: usize = 50;
/// Beginnings of serde's messages about a value of the wrong type. Such a message is replaced by one that shows an
/// example of a valid value.
const TYPE_ERRORS: [&str; 4] = ["invalid type", "invalid value", "data did not match", "wanted string or table"];

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// Number of the line, counted from 1.
    pub line: usize,
    /// Column in characters, counted from 1.
    pub column: usize,
    /// A sentence that says what is wrong and what to write instead.
    pub message: String,
}

impl ConfigError {
    pub fn at(text: &str, offset: usize, message: String) -> Self {
        let before = text.char_indices().take_while(|(at, _)| *at < offset).map(|(_, letter)| letter);
        let (line, column) = before
            .fold((1, 1), |(line, column), letter| if letter == '\n' { (line + 1, 1) } else { (line, column + 1) });
        Self { line, column, message }
    }

    /// Adds the name of the file, for example `relay.toml:3:7: …`.
    pub fn in_file(&self, file: &Path) -> String {
        format!("{}:{}:{}: {}", file.display(), self.line, self.column, self.message)
    }
}

/// All errors of a file, of which there is at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigErrors {
    pub file: PathBuf,
    /// The errors, sorted by their positions in the file.
    pub errors: Vec<ConfigError>,
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<String> = self.errors.iter().map(|error| error.in_file(&self.file)).collect();
        f.write_str(&lines.join("\n"))
    }
}

impl std::error::Error for ConfigErrors {}

/// Lets serde read a whole file.
///
/// # Errors
/// Fails if the text is not valid for `T`, and returns only the first mistake, with its position.
pub fn read<T: DeserializeOwned>(text: &str) -> Result<T, ConfigError> {
    toml::from_str(text).map_err(|error| {
        let offset = error.span().map_or(0, |span| span.start);
        ConfigError::at(text, offset, plain_message(error.message()))
    })
}

/// Rewrites an error message of serde so that it fits on one line. The message for an unknown key is replaced by the
/// message of [`unknown_key`].
fn plain_message(message: &str) -> String {
    let mut words = message.split('`').skip(1).step_by(2);
    let name = words.next().unwrap_or_default();
    if message.starts_with("missing field ") {
        return format!("the key {name:?} is missing");
    }
    if message.starts_with("unknown field ") {
        return unknown_key(name, "", words);
    }
    message.replace('\n', ", ")
}

/// Makes the error message for an unknown key. If a known key has a similar name, the message suggests it. Otherwise it
/// lists the known keys.
pub fn unknown_key<'k>(key: &str, place: &str, known: impl Iterator<Item = &'k str> + Clone) -> String {
    match nearest(key, known.clone()) {
        Some(known) => format!("unknown key {key:?}{place}; did you mean {known:?}?"),
        None => format!("unknown key {key:?}{place}; known keys: {}", known.collect::<Vec<_>>().join(", ")),
    }
}

fn wrong_type(key: &str, example: &str) -> String {
    format!("{key} has the wrong type; use something like {key} = {example}")
}

/// Rewrites a message of serde about the value of a key, so that it names the key and shows valid
/// values.
fn value_message(key: &str, example: &str, message: &str) -> String {
    if TYPE_ERRORS.iter().any(|beginning| message.starts_with(beginning)) {
        return wrong_type(key, example);
    }
    if !message.starts_with("unknown variant ") {
        return format!("{key}: {}", message.replace('\n', ", "));
    }
    let mut words = message.split('`').skip(1).step_by(2);
    let text = words.next().unwrap_or_default();
    let known: Vec<&str> = words.collect();
    match known.iter().find(|known| is_misspelling(text, known) || text.eq_ignore_ascii_case(known)) {
        Some(known) => format!("{key} {text:?} is unknown; did you mean {known:?}?"),
        None => format!("{key} {text:?} is unknown; known are {}", known.join(", ")),
    }
}

/// Collects errors and warnings while a file is read, so that all of them can be reported at once.
#[derive(Debug, Default)]
pub struct ErrorCollector {
    errors: RefCell<Vec<(usize, String)>>,
    warnings: RefCell<Vec<String>>,
}

impl ErrorCollector {
    pub fn add(&self, span: &Range<usize>, what: impl Into<String>) {
        self.errors.borrow_mut().push((span.start, what.into()));
    }

    /// Records a warning about the configuration, for example that other users may read a file of secrets. The
    /// configuration is still valid.
    pub fn warn(&self, what: String) {
        self.warnings.borrow_mut().push(what);
    }

    /// Returns the warnings so far and removes them, so that each is shown once.
    pub fn take_warnings(&self) -> Vec<String> {
        self.warnings.take()
    }

    /// Returns true if there are no errors. Warnings do not count.
    pub fn is_empty(&self) -> bool {
        self.count() == 0
    }

    fn count(&self) -> usize {
        self.errors.borrow().len()
    }

    /// Returns the value of `result`, or records its error at `span` and returns `None`.
    pub fn ok_or_add<T>(&self, span: &Range<usize>, result: Result<T, String>) -> Option<T> {
        result.map_err(|what| self.add(span, what)).ok()
    }

    /// Returns `Ok` if there are no errors. Otherwise returns the errors in the order of their positions in the file,
    /// but at most `MAX_ERRORS`.
    pub fn finish(&self, file: &Path, text: &str) -> Result<(), ConfigErrors> {
        let mut notes = self.errors.take();
        notes.sort();
        notes.dedup();
        notes.truncate(MAX_ERRORS);
        let list: Vec<ConfigError> =
            notes.into_iter().map(|(offset, what)| ConfigError::at(text, offset, what)).collect();
        if list.is_empty() { Ok(()) } else { Err(ConfigErrors { file: file.to_owned(), errors: list }) }
    }
}

/// A table of a TOML file. It remembers which keys were read, so that `finish` can report the
/// others as unknown.
pub struct Section<'a> {
    /// Names of this table and of the tables around it, the outermost first. Empty for the file itself.
    path: Vec<&'static str>,
    /// Name of the table in error messages, for example ` in [limits]` or ` in route 1`.
    place: String,
    /// Position of the table in the file, in bytes.
    pub span: Range<usize>,
    entries: BTreeMap<String, (Range<usize>, Spanned<DeValue<'a>>)>,
    known_keys: Vec<&'static str>,
    errors: &'a ErrorCollector,
}

impl<'a> Section<'a> {
    /// Returns the table of a whole file, or `None` if the file is too long or is not valid TOML. After a syntax error
    /// the parser may have misread the keys that follow, so no errors in them are reported.
    pub fn root(text: &'a str, max_bytes: usize, errors: &'a ErrorCollector) -> Option<Self> {
        if text.len() > max_bytes {
            errors.add(&(0..0), format!("it is longer than {max_bytes} bytes"));
            return None;
        }
        let (table, mistakes) = DeTable::parse_recoverable(text);
        for mistake in mistakes {
            let span = mistake.span().unwrap_or(0..0);
            errors.add(&span, format!("not valid TOML: {}", mistake.message().replace('\n', ", ")));
        }
        errors.is_empty().then(|| Self::new(Vec::new(), String::new(), 0..0, table.into_inner(), errors))
    }

    fn new(
        path: Vec<&'static str>,
        place: String,
        span: Range<usize>,
        table: DeTable<'a>,
        errors: &'a ErrorCollector,
    ) -> Self {
        let entry = |(key, value): (Spanned<Cow<'a, str>>, _)| {
            let span = key.span();
            (key.into_inner().into_owned(), (span, value))
        };
        let entries = table.into_iter().map(entry).collect();
        Self { path, place, span, entries, known_keys: Vec::new(), errors }
    }

    /// Returns the position of `key` in the file. Returns `None` if the key is missing or its value was read already.
    pub fn key(&self, key: &str) -> Option<Range<usize>> {
        self.entries.get(key).map(|(span, _)| span.clone())
    }

    fn take(&mut self, key: &'static str) -> Option<Spanned<DeValue<'a>>> {
        self.known_keys.push(key);
        self.entries.remove(key).map(|(_, value)| value)
    }

    /// Reads a text, and returns it with its position in the file. A number without quotes is an error.
    pub fn text(&mut self, key: &'static str, example: &str) -> Option<(Range<usize>, String)> {
        let is_number = matches!(
            self.entries.get(key).map(|(_, value)| value.get_ref()),
            Some(DeValue::Integer(_) | DeValue::Float(_))
        );
        if is_number {
            let span = self.take(key)?.span();
            self.errors.add(&span, wrong_type(key, example));
            return None;
        }
        self.scalar(key, example)
    }

    /// Reads a text or a number, and returns it as text with its position in the file. An integer
    /// that is not decimal, such as `0x10`, is an error.
    fn scalar(&mut self, key: &'static str, example: &str) -> Option<(Range<usize>, String)> {
        let value = self.take(key)?;
        let span = value.span();
        let text = match value.into_inner() {
            DeValue::String(text) => text.into_owned(),
            DeValue::Integer(number) if number.radix() == 10 => number.as_str().to_owned(),
            DeValue::Float(number) => number.as_str().to_owned(),
            _ => {
                self.errors.add(&span, wrong_type(key, example));
                return None;
            }
        };
        Some((span, text))
    }

    /// Reads a text or a number, and converts it with `parse`. If `parse` fails, records the error and returns `None`.
    pub fn value<T>(
        &mut self,
        key: &'static str,
        example: &str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Option<T> {
        let (span, text) = self.scalar(key, example)?;
        self.errors.ok_or_add(&span, parse(&text))
    }

    /// Reads a list of texts, each with its position in the file. A single text counts as a list of one.
    pub fn list(&mut self, key: &'static str, example: &str) -> Option<Vec<(Range<usize>, String)>> {
        let value = self.take(key)?;
        let span = value.span();
        let items = match value.into_inner() {
            DeValue::Array(items) => items.into_iter().collect(),
            other => vec![Spanned::new(span, other)],
        };
        let mut texts = Vec::new();
        for item in items {
            let span = item.span();
            match item.into_inner() {
                DeValue::String(text) => texts.push((span, text.into_owned())),
                _ => self.errors.add(
                    &span,
                    format!("{key} must be text, or a list of texts; use something like {key} = {example}"),
                ),
            }
        }
        Some(texts)
    }

    /// Reads a list of texts, and converts each text with `parse`. Returns `None` if the key is
    /// missing or if any value is invalid.
    pub fn values<T>(
        &mut self,
        key: &'static str,
        example: &str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Option<Vec<T>> {
        let texts = self.list(key, example)?;
        // Parse all values even after an error, so that every invalid value is reported.
        let values: Vec<Option<T>> =
            texts.into_iter().map(|(span, text)| self.errors.ok_or_add(&span, parse(&text))).collect();
        values.into_iter().collect()
    }

    /// Reads `true` or `false`, and reports any other value as an error, such as `"true"` in quotes.
    pub fn flag(&mut self, key: &'static str) -> Option<bool> {
        let value = self.take(key)?;
        let span = value.span();
        let DeValue::Boolean(flag) = value.into_inner() else {
            self.errors.add(&span, format!("{key} must be true or false, without quotes"));
            return None;
        };
        Some(flag)
    }

    /// Reads the table `[key]` as a section with its own keys. Returns `None` if the key is missing. If its value is
    /// not a table, records an error and returns `None`.
    pub fn table(&mut self, key: &'static str) -> Option<Section<'a>> {
        let value = self.take(key)?;
        let span = value.span();
        let DeValue::Table(table) = value.into_inner() else {
            self.errors.add(&span, format!("{key} is a table; write [{key}], and its keys in the lines below it"));
            return None;
        };
        let path = [self.path.as_slice(), &[key]].concat();
        let place = format!(" in [{}]", path.join("."));
        Some(Self::new(path, place, span, table, self.errors))
    }

    /// Reads all tables `[[key]]`, and reports an error for each item that is not a table.
    pub fn tables(&mut self, key: &'static str) -> Vec<Section<'a>> {
        let Some(value) = self.take(key) else { return Vec::new() };
        let span = value.span();
        let DeValue::Array(items) = value.into_inner() else {
            self.errors.add(&span, format!("{key} is a list of tables; write [[{key}]]"));
            return Vec::new();
        };
        let mut sections = Vec::new();
        for item in items {
            let span = item.span();
            match item.into_inner() {
                DeValue::Table(table) => {
                    let place = format!(" in {key} {}", sections.len() + 1);
                    sections.push(Self::new(vec![key], place, span, table, self.errors));
                }
                _ => self.errors.add(&span, format!("{key} is a list of tables; write [[{key}]]")),
            }
        }
        sections
    }

    /// Checks the value of `key` by letting serde read a file that contains only this key with its value. `T` is the
    /// type of the whole file. Each item of a list is first checked alone, so that an error gets the position of the
    /// item.
    ///
    /// `check` can refuse a value that serde accepts.
    pub fn check<T: DeserializeOwned>(
        &mut self,
        key: &'static str,
        example: &str,
        check: impl Fn(T) -> Result<(), String>,
    ) {
        let Some(value) = self.take(key) else { return };
        let errors_before = self.errors.count();
        let check_one = |value: Spanned<DeValue<'a>>| {
            let span = value.span();
            let mut document = value;
            // `T` describes a whole file, so serde cannot read it from the value alone. Build a document that contains
            // only this value, in the same tables as in the file.
            for name in std::iter::once(&key).chain(self.path.iter().rev()) {
                let table = DeTable::from_iter([(Spanned::new(span.clone(), Cow::Borrowed(*name)), document)]);
                document = Spanned::new(span.clone(), DeValue::Table(table));
            }
            match T::deserialize(ValueDeserializer::from(document)) {
                Ok(read) => drop(self.errors.ok_or_add(&span, check(read))),
                Err(error) => self.errors.add(&span, value_message(key, example, error.message())),
            }
        };
        if let DeValue::Array(items) = value.get_ref() {
            for item in items.iter() {
                check_one(Spanned::new(item.span(), DeValue::Array(std::iter::once(item.clone()).collect())));
            }
        }
        // Check the whole list only if all its items are valid, because an error in an item would otherwise be reported
        // twice.
        if self.errors.count() == errors_before {
            check_one(value);
        }
    }

    /// Records an error about an unknown key for each key that the caller has not read.
    pub fn finish(self) {
        for (key, (span, _)) in &self.entries {
            self.errors.add(span, unknown_key(key, &self.place, self.known_keys.iter().copied()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Default, PartialEq, serde::Deserialize)]
    #[serde(default, deny_unknown_fields)]
    struct File {
        number: u8,
        words: Vec<Word>,
        inner: Inner,
    }

    #[derive(Debug, Default, PartialEq, serde::Deserialize)]
    #[serde(default, deny_unknown_fields)]
    struct Inner {
        word: Option<Word>,
    }

    #[derive(Debug, PartialEq, serde::Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum Word {
        Sync,
        Write,
    }

    fn errors_of(text: &str) -> String {
        let errors = ErrorCollector::default();
        if let Some(mut root) = Section::root(text, 100, &errors) {
            root.check("number", "1", |file: File| if file.number == 13 { Err("unlucky".to_owned()) } else { Ok(()) });
            root.check("words", "['sync']", |_: File| Ok(()));
            if let Some(mut inner) = root.table("inner") {
                inner.check("word", "'sync'", |_: File| Ok(()));
                inner.finish();
            }
            root.finish();
        }
        errors.finish(Path::new("f"), text).map_or_else(|errors| errors.to_string(), |()| String::new())
    }

    #[test]
    fn columns_are_characters() {
        let position = |text, offset| {
            let ConfigError { line, column, .. } = ConfigError::at(text, offset, String::new());
            (line, column)
        };
        assert_eq!(position("a\nä = 1", 5), (2, 3));
        assert_eq!(position("", 0), (1, 1));
    }

    #[test]
    fn every_mistake_of_checked_sections_is_reported_at_its_place() {
        for (text, expected) in [
            ("number = 1\nwords = ['sync', 'write']\n[inner]\nword = 'sync'", ""),
            ("number = '1'", "f:1:10: number has the wrong type; use something like number = 1"),
            ("number = 300", "f:1:10: number has the wrong type; use something like number = 1"),
            ("number = 13", "f:1:10: unlucky"),
            ("words = ['sync',\n'snyc']", "f:2:1: words \"snyc\" is unknown; did you mean \"sync\"?"),
            ("words = ['sync', 5]", "f:1:18: words has the wrong type; use something like words = ['sync']"),
            ("words = 5", "f:1:9: words has the wrong type; use something like words = ['sync']"),
            ("inner.word = 'all'", "f:1:14: word \"all\" is unknown; known are sync, write"),
            ("inner = 5", "f:1:9: inner is a table; write [inner], and its keys in the lines below it"),
            ("[inner]\nwrod = 1", "f:2:1: unknown key \"wrod\" in [inner]; did you mean \"word\"?"),
            (
                "x = 1\nnumber = 'a'",
                "f:1:1: unknown key \"x\"; known keys: number, words, inner\nf:2:10: number has the wrong type; use something like number = 1",
            ),
            ("number = 13\nwords = [", "f:2:10: not valid TOML: unclosed array, expected `]`"),
        ] {
            assert_eq!(errors_of(text), expected, "{text}");
        }
        assert_eq!(errors_of(&"#".repeat(101)), "f:1:1: it is longer than 100 bytes");
    }

    #[test]
    fn a_file_read_by_serde_stops_at_its_first_mistake() {
        assert_eq!(read::<File>("number = 1").map(|file| file.number), Ok(1));
        for (text, expected) in [
            ("nmuber = 1\nx = 1", "f:1:1: unknown key \"nmuber\"; did you mean \"number\"?"),
            ("[inner]\nx = 1", "f:2:1: unknown key \"x\"; known keys: word"),
            ("number = ''", "f:1:10: invalid type: string \"\", expected u8"),
            ("words = ['sync', 5]", "f:1:18: wanted string or table"),
        ] {
            assert_eq!(read::<File>(text).unwrap_err().in_file(Path::new("f")), expected, "{text}");
        }
        let missing = read::<BTreeMap<String, Required>>("[a]").unwrap_err();
        assert_eq!(missing.message, "the key \"name\" is missing");
    }

    #[derive(Debug, PartialEq, serde::Deserialize)]
    struct Required {
        #[allow(dead_code)]
        name: String,
    }

    #[test]
    fn keys_that_were_not_taken_are_unknown() {
        let text = "lisen = 1\nother = 2\nlisten = 'a'\n";
        let errors = ErrorCollector::default();
        let mut section = Section::root(text, 100, &errors).unwrap();
        assert_eq!(section.text("listen", "1").map(|(_, text)| text).as_deref(), Some("a"));
        section.finish();
        let errors = errors.finish(Path::new("f"), text).unwrap_err();
        assert_eq!(
            errors.to_string(),
            "f:1:1: unknown key \"lisen\"; did you mean \"listen\"?\nf:2:1: unknown key \"other\"; known keys: listen"
        );
    }
}
