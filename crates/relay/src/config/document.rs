//! A TOML file as sections whose keys are taken one by one: errors are collected with their positions, and a key that
//! nothing took is unknown.
use mailrun_party::misspelling::is_misspelling;
use mailrun_party::position::line_and_column;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use strsim::damerau_levenshtein;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// The longest file, in bytes.
pub(super) const MAX_CONFIG_BYTES: usize = 1 << 20;
/// Most complaints reported at once.
const MAX_ERRORS: usize = 50;

/// An error, its position, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// Line, from 1.
    pub line: usize,
    /// Column, from 1, in characters.
    pub(crate) column: usize,
    pub(crate) message: String,
}

/// All that is wrong with a file; at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigErrors {
    pub(crate) file: PathBuf,
    /// All errors, in the order of the file.
    pub errors: Vec<ConfigError>,
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, ConfigError { line, column, message: what }) in self.errors.iter().enumerate() {
            let end = if number == 0 { "" } else { "\n" };
            write!(f, "{end}{}:{line}:{column}: {what}", self.file.display())?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}

/// Errors found so far: offset and text.
#[derive(Debug, Default)]
pub(super) struct ErrorCollector {
    errors: RefCell<Vec<(usize, String)>>,
    warnings: RefCell<Vec<String>>,
}

impl ErrorCollector {
    pub(super) fn add(&self, span: &Range<usize>, what: impl Into<String>) {
        self.errors.borrow_mut().push((span.start, what.into()));
    }

    pub(super) fn warn(&self, what: String) {
        self.warnings.borrow_mut().push(what);
    }

    pub(super) fn take_warnings(&self) -> Vec<String> {
        self.warnings.take()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.errors.borrow().is_empty()
    }

    /// Returns a good value; notes a bad one's error.
    pub(super) fn ok_or_add<T>(&self, span: &Range<usize>, result: Result<T, String>) -> Option<T> {
        result.map_err(|what| self.add(span, what)).ok()
    }

    /// All of it in the order of the file, if there is any.
    pub(super) fn finish(&self, file: &Path, text: &str) -> Result<(), ConfigErrors> {
        let mut notes = self.errors.take();
        notes.sort();
        notes.dedup();
        notes.truncate(MAX_ERRORS);
        let complaint = |(offset, what)| {
            let (line, column) = line_and_column(text, offset);
            ConfigError { line, column, message: what }
        };
        let list: Vec<ConfigError> = notes.into_iter().map(complaint).collect();
        if list.is_empty() { Ok(()) } else { Err(ConfigErrors { file: file.to_owned(), errors: list }) }
    }
}

/// A table, and which of its keys are known.
pub(super) struct ConfigSection<'a> {
    /// Empty for the file itself.
    name: String,
    pub(super) span: Range<usize>,
    entries: BTreeMap<String, (Range<usize>, Spanned<DeValue<'a>>)>,
    known_keys: Vec<&'static str>,
    errors: &'a ErrorCollector,
}

impl<'a> ConfigSection<'a> {
    /// The whole file. Errors in the grammar of TOML are noted.
    pub(super) fn root(text: &'a str, notes: &'a ErrorCollector) -> Self {
        let (table, errors) = DeTable::parse_recoverable(text);
        for error in errors {
            let at = error.span().unwrap_or(0..0);
            notes.add(&at, format!("not valid TOML: {}", error.message().replace('\n', ", ")));
        }
        Self::from_table(String::new(), 0..0, table.into_inner(), notes)
    }

    fn from_table(name: String, span: Range<usize>, table: DeTable<'a>, notes: &'a ErrorCollector) -> Self {
        let entry = |(key, value): (Spanned<_>, _)| {
            let span = key.span();
            let key: std::borrow::Cow<'_, str> = key.into_inner();
            (key.into_owned(), (span, value))
        };
        Self { name, span, entries: table.into_iter().map(entry).collect(), known_keys: Vec::new(), errors: notes }
    }

    /// Position of a key, if it is there.
    pub(super) fn key(&self, key: &str) -> Option<Range<usize>> {
        self.entries.get(key).map(|(span, _)| span.clone())
    }

    fn take(&mut self, key: &'static str) -> Option<Spanned<DeValue<'a>>> {
        self.known_keys.push(key);
        self.entries.remove(key).map(|(_, value)| value)
    }

    /// A text, and its position.
    pub(super) fn text(&mut self, key: &'static str, example: &str) -> Option<(Range<usize>, String)> {
        let is_number = matches!(
            self.entries.get(key).map(|(_, value)| value.get_ref()),
            Some(DeValue::Integer(_) | DeValue::Float(_))
        );
        if is_number {
            let span = self.take(key)?.span();
            self.errors.add(&span, format!("{key} has the wrong type; use something like {key} = {example}"));
            return None;
        }
        self.scalar(key, example)
    }

    /// A text, a number or a time, and its position.
    fn scalar(&mut self, key: &'static str, example: &str) -> Option<(Range<usize>, String)> {
        let value = self.take(key)?;
        let span = value.span();
        let text = match value.into_inner() {
            DeValue::String(text) => text.into_owned(),
            DeValue::Integer(number) if number.radix() == 10 => number.as_str().to_owned(),
            DeValue::Float(number) => number.as_str().to_owned(),
            _ => {
                self.errors.add(&span, format!("{key} has the wrong type; use something like {key} = {example}"));
                return None;
            }
        };
        Some((span, text))
    }

    /// A text that means something.
    pub(super) fn value<T>(
        &mut self,
        key: &'static str,
        example: &str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Option<T> {
        let (span, text) = self.scalar(key, example)?;
        self.errors.ok_or_add(&span, parse(&text))
    }

    /// One text, or a list of them.
    pub(super) fn list(&mut self, key: &'static str, example: &str) -> Option<Vec<(Range<usize>, String)>> {
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

    /// A list of valid values; `None` too if one is not valid.
    pub(super) fn values<T>(
        &mut self,
        key: &'static str,
        example: &str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Option<Vec<T>> {
        let texts = self.list(key, example)?;
        // All values are read before the first wrong one voids the list.
        let values: Vec<Option<T>> =
            texts.into_iter().map(|(span, text)| self.errors.ok_or_add(&span, parse(&text))).collect();
        values.into_iter().collect()
    }

    /// `true` or `false`.
    pub(super) fn flag(&mut self, key: &'static str) -> Option<bool> {
        let value = self.take(key)?;
        let span = value.span();
        let DeValue::Boolean(flag) = value.into_inner() else {
            self.errors.add(&span, format!("{key} must be true or false, without quotes"));
            return None;
        };
        Some(flag)
    }

    /// `[key]`
    pub(super) fn table(&mut self, key: &'static str) -> Option<ConfigSection<'a>> {
        let value = self.take(key)?;
        let span = value.span();
        let DeValue::Table(table) = value.into_inner() else {
            self.errors.add(&span, format!("{key} is a table; write [{key}], and its keys in the lines below it"));
            return None;
        };
        Some(Self::from_table(key.to_owned(), span, table, self.errors))
    }

    /// `[[key]]`, as often as it is there.
    pub(super) fn tables(&mut self, key: &'static str) -> Vec<ConfigSection<'a>> {
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
                    let name = format!("{key} {}", sections.len() + 1);
                    sections.push(Self::from_table(name, span, table, self.errors));
                }
                _ => self.errors.add(&span, format!("{key} is a list of tables; write [[{key}]]")),
            }
        }
        sections
    }

    /// Notes every key that was not taken as unknown.
    pub(super) fn finish(self) {
        for (key, (span, _)) in &self.entries {
            let known = self.known_keys.iter().min_by_key(|known| damerau_levenshtein(known, key));
            let place = if self.name.is_empty() { String::new() } else { format!(" in {}", self.name) };
            let all = self.known_keys.join(", ");
            let what = match known.filter(|known| is_misspelling(key, known)) {
                Some(known) => format!("unknown key {key:?}{place}; did you mean {known:?}?"),
                None => format!("unknown key {key:?}{place}; known keys: {all}"),
            };
            self.errors.add(span, what);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_took_is_unknown() {
        let text = "lisen = 1\nother = 2\nlisten = 'a'\n";
        let notes = ErrorCollector::default();
        let mut section = ConfigSection::root(text, &notes);
        assert_eq!(section.text("listen", "1").map(|(_, text)| text).as_deref(), Some("a"));
        section.finish();
        let complaints = notes.finish(Path::new("f"), text).unwrap_err();
        assert_eq!(
            complaints.to_string(),
            "f:1:1: unknown key \"lisen\"; did you mean \"listen\"?\nf:2:1: unknown key \"other\"; known keys: listen"
        );
    }
}
