//! The alias file, which maps names in local domains to targets, such as mailboxes and remote addresses. A file in
//! which aliases form a loop is rejected.
//!
//! ```text
//! # a comment
//! sales:               ann, bob@elsewhere.example, "of any kind"@elsewhere.example
//! sales@b.example:     carol            in this local domain only; looked up before the plain name
//! nobody:              .                accepted, and discarded
//! ann:                 ann, keeper      herself, and a copy to another
//! list:                one,
//!    two, three        a line that begins with a space continues the line before it
//! ```
//! Names are compared without regard to letter case (RFC 5321 §2.4 leaves that to the host). If an alias lists its own
//! name as a target, as in `ann: ann, keeper`, this target is the mailbox of that name and not a loop. A file in which
//! an alias has more than 1,000 targets is rejected.
use mailrun_smtp::{Domain, Path};
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::fmt;

pub(crate) const MAX_FILE_BYTES: usize = 64 << 20;
const MAX_ALIASES: usize = 1_000_000;
/// Maximum number of recipients of an alias. Most servers accept this many recipients per transaction, although RFC
/// 5321 §4.5.3.1.8 requires only 100.
const MAX_EXPANSION: usize = 1000;
/// Maximum length of a chain of aliases, in which each alias is a target of the alias before.
const MAX_DEPTH: usize = 50;
const MAX_ERRORS: usize = 20;
/// Separates name and domain in a key of the table. No address contains this character, so a key with a domain is never
/// equal to a key without one.
const KEY_SEPARATOR: char = '\0';

/// A mistake in the alias file. Lines and columns count from 1, and a column is one character wide.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AliasError {
    pub(crate) line: usize,
    pub(crate) column: usize,
    pub(crate) message: String,
}

impl fmt::Display for AliasError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.line, self.column, self.message)
    }
}

pub(crate) struct AliasContext<'a> {
    pub(crate) is_local: &'a dyn Fn(&Domain<'_>) -> bool,
    /// Returns true if there is a local mailbox with this name. The name must be in lower case.
    pub(crate) is_user: &'a dyn Fn(&str) -> bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum AliasTarget {
    /// Mail to the alias is discarded, because its target in the alias file is a dot.
    Discard,
    Mailbox {
        local_part: Box<str>,
        domain: Domain<'static>,
    },
    Remote(Box<str>),
}

#[derive(Debug, Default)]
pub(crate) struct Aliases {
    keys: HashMap<Box<str>, usize>,
    targets: Vec<Box<[UnresolvedTarget]>>,
}

#[derive(Clone, Debug)]
enum UnresolvedTarget {
    Discard,
    /// Another alias, as an index in `Aliases::targets`. The domain applies to targets of that alias that are written
    /// without a domain. If it is `None`, these targets are in the recipient's domain.
    Alias(usize, Option<Domain<'static>>),
    /// A mailbox in this domain or, for `None`, in the recipient's domain.
    Mailbox(Box<str>, Option<Domain<'static>>),
    Remote(Box<str>),
}

impl Aliases {
    /// Parses an alias file, and checks that every local target exists.
    ///
    /// # Errors
    /// Returns the mistakes in the file, at most twenty of them.
    pub(crate) fn parse(text: &str, surroundings: &AliasContext<'_>) -> Result<Self, Vec<AliasError>> {
        if text.len() > MAX_FILE_BYTES {
            return Err(vec![AliasError {
                line: 1,
                column: 1,
                message: format!("it is longer than {MAX_FILE_BYTES} bytes"),
            }]);
        }
        let mut parser = AliasParser::default();
        text.lines().enumerate().for_each(|(number, line)| parser.parse_line(number + 1, line));
        parser.finish(surroundings)
    }

    pub(crate) fn len(&self) -> usize {
        self.targets.len()
    }

    /// Returns the final targets of an alias in a local domain, or `None` if there is no such alias. A final target is
    /// not itself an alias. The result has at most 1,000 targets, without duplicates. The caller must not remove the
    /// quotes of the local part, because this function removes them.
    pub(crate) fn expand(&self, local_part: &str, domain: &Domain<'_>) -> Option<Vec<AliasTarget>> {
        let name = normalize_local_part(local_part);
        if self.keys.is_empty() || name.contains(KEY_SEPARATOR) {
            return None;
        }
        let first = find(&self.keys, &name, domain)?;
        let mut seen = HashSet::new();
        let mut targets = Vec::new();
        let mut open = vec![(first, domain)];
        while let Some((number, domain)) = open.pop() {
            for target in self.targets[number].iter() {
                match target {
                    UnresolvedTarget::Alias(next, other) => open.push((*next, other.as_ref().unwrap_or(domain))),
                    target => {
                        let address = target.resolve(domain);
                        if seen.insert(address.clone()) {
                            targets.push(address);
                        }
                    }
                }
            }
        }
        Some(targets)
    }
}

impl UnresolvedTarget {
    /// Returns the mailbox or remote address that the target stands for. A mailbox without a domain is in `domain`. If
    /// the target is itself an alias, the caller must resolve the targets of that alias instead of calling this.
    fn resolve(&self, domain: &Domain<'_>) -> AliasTarget {
        match self {
            Self::Discard | Self::Alias(..) => AliasTarget::Discard,
            Self::Mailbox(local_part, other) => AliasTarget::Mailbox {
                local_part: local_part.clone(),
                domain: other.clone().unwrap_or_else(|| domain.clone().into_owned()),
            },
            Self::Remote(address) => AliasTarget::Remote(address.clone()),
        }
    }
}

/// Normalises a local part for comparison: removes quotes, and converts it to lower case.
pub(crate) fn normalize_local_part(local_part: &str) -> Cow<'_, str> {
    let Some(quoted) = local_part.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) else {
        let is_plain = local_part.bytes().all(|byte| byte.is_ascii() && !byte.is_ascii_uppercase());
        return if is_plain { Cow::Borrowed(local_part) } else { Cow::Owned(local_part.to_lowercase()) };
    };
    let mut text = String::with_capacity(quoted.len());
    let mut characters = quoted.chars();
    while let Some(character) = characters.next() {
        text.extend(if character == '\\' { characters.next() } else { Some(character) });
    }
    Cow::Owned(text.to_lowercase())
}

/// Finds the alias for a name. An alias that applies only to this domain takes precedence over an
/// alias for all local domains.
fn find(keys: &HashMap<Box<str>, usize>, name: &str, domain: &str) -> Option<usize> {
    let of_domain = keys.get(qualified_key(name, domain).as_str());
    of_domain.or_else(|| keys.get(name)).copied()
}

fn qualified_key(name: &str, domain: &str) -> String {
    format!("{name}{KEY_SEPARATOR}{domain}")
}

fn parse_address(text: &str) -> Option<(&str, Option<&str>)> {
    if let Ok(path) = Path::mailbox(text.as_bytes())
        && let Some(domain) = path.domain()
    {
        return Some((str::from_utf8(path.local_part()).ok()?, Some(str::from_utf8(domain).ok()?)));
    }
    let is_name = Path::mailbox(format!("{text}@x").as_bytes()).is_ok_and(|path| path.local_part() == text.as_bytes());
    is_name.then_some((text, None))
}

#[derive(Clone, Copy, Debug)]
struct AliasToken<'a> {
    text: &'a str,
    line: usize,
    column: usize,
}

impl AliasToken<'_> {
    fn error(&self, what: String) -> AliasError {
        AliasError { line: self.line, column: self.column, message: what }
    }
}

#[derive(Debug, Default)]
struct AliasParser<'a> {
    keys: HashMap<Box<str>, usize>,
    entries: Vec<AliasEntry<'a>>,
    errors: Vec<AliasError>,
}

#[derive(Debug)]
struct AliasEntry<'a> {
    name: AliasToken<'a>,
    targets: Vec<AliasToken<'a>>,
}

impl<'a> AliasParser<'a> {
    fn parse_line(&mut self, number: usize, line: &'a str) {
        if self.errors.len() >= MAX_ERRORS || line.trim().is_empty() || line.trim_start().starts_with('#') {
            return;
        }
        if line.starts_with([' ', '\t']) {
            let words = split_targets(line, 0, number);
            match self.entries.last_mut() {
                Some(entry) => entry.targets.extend(words),
                None => self.errors.push(AliasError {
                    line: number,
                    column: 1,
                    message: "a continuation line without a line before it; start with NAME: TARGET".to_owned(),
                }),
            }
            return;
        }
        let Some(colon) = find_unquoted(line, ':').next() else {
            let what = "no colon; write NAME: TARGET, TARGET".to_owned();
            self.errors.push(AliasError { line: number, column: 1, message: what });
            return;
        };
        let name = AliasToken { text: line[..colon].trim(), line: number, column: 1 };
        self.add_entry(name, split_targets(line, colon + 1, number));
    }

    fn add_entry(&mut self, name: AliasToken<'a>, targets: Vec<AliasToken<'a>>) {
        let key = match parse_address(name.text) {
            Some((local_part, Some(domain))) => qualified_key(&normalize_local_part(local_part), &Domain::new(domain)),
            Some((local_part, None)) => normalize_local_part(local_part).into_owned(),
            None => {
                let message =
                    format!("{:?} is not a valid name; use something like sales, or sales@example.com", name.text);
                return self.errors.push(name.error(message));
            }
        };
        if let Some(earlier) = self.keys.get(key.as_str()) {
            let line = self.entries[*earlier].name.line;
            let message = format!("the alias {} is already defined in line {line}; put all targets there", name.text);
            return self.errors.push(name.error(message));
        }
        if self.entries.len() >= MAX_ALIASES {
            return self.errors.push(name.error(format!("at most {MAX_ALIASES} aliases are possible")));
        }
        self.keys.insert(key.into(), self.entries.len());
        self.entries.push(AliasEntry { name, targets });
    }

    fn finish(mut self, surroundings: &AliasContext<'_>) -> Result<Aliases, Vec<AliasError>> {
        let mut targets = Vec::with_capacity(self.entries.len());
        let mut mistakes = std::mem::take(&mut self.errors);
        for (number, entry) in self.entries.iter().enumerate() {
            if mistakes.len() >= MAX_ERRORS {
                break;
            }
            match self.resolve_targets(number, entry, surroundings) {
                Ok(target) => targets.push(target),
                Err(mistake) => mistakes.push(mistake),
            }
        }
        // Look for loops and long expansions only if there was no mistake. `ExpansionCheck` finds aliases by their
        // index in `targets`. An alias with a mistake is missing there, so all later indexes would be wrong.
        if mistakes.is_empty() {
            mistakes.extend(ExpansionCheck::of(&targets).into_error(&self.entries));
        }
        if mistakes.is_empty() { Ok(Aliases { keys: self.keys, targets }) } else { Err(mistakes) }
    }

    fn resolve_targets(
        &self,
        own: usize,
        entry: &AliasEntry<'a>,
        around: &AliasContext<'_>,
    ) -> Result<Box<[UnresolvedTarget]>, AliasError> {
        if entry.targets.is_empty() {
            let message = format!("{} has no target; add one, or a dot to discard its mail", entry.name.text);
            return Err(entry.name.error(message));
        }
        if entry.targets.len() > MAX_EXPANSION {
            return Err(entry.name.error(format!("{} has more than {MAX_EXPANSION} targets", entry.name.text)));
        }
        entry.targets.iter().map(|word| self.resolve_target(own, word, around)).collect()
    }

    fn resolve_target(
        &self,
        own: usize,
        word: &AliasToken<'a>,
        around: &AliasContext<'_>,
    ) -> Result<UnresolvedTarget, AliasError> {
        if word.text == "." {
            return Ok(UnresolvedTarget::Discard);
        }
        let Some((local_part, domain)) = parse_address(word.text).filter(|_| !word.text.starts_with(['|', '/'])) else {
            return Err(word.error(invalid_target(word.text)));
        };
        let domain = domain.map(|domain| Domain::new(domain).into_owned());
        if domain.as_ref().is_some_and(|domain| !(around.is_local)(domain)) {
            return Ok(UnresolvedTarget::Remote(word.text.into()));
        }
        let name = normalize_local_part(local_part);
        let alias = match &domain {
            Some(domain) => find(&self.keys, &name, domain),
            None => self.keys.get(name.as_ref()).copied(),
        };
        match alias.filter(|number| *number != own) {
            Some(number) => Ok(UnresolvedTarget::Alias(number, domain)),
            None if (around.is_user)(&name) => Ok(UnresolvedTarget::Mailbox(local_part.into(), domain)),
            None => Err(word.error(format!("{} is neither an alias nor a mailbox of this relay", word.text))),
        }
    }
}

fn invalid_target(text: &str) -> String {
    if text.starts_with(['|', '/']) || text.starts_with(":include:") {
        return format!(
            "{text:?}: programs, files and lists are not supported as targets; use a mailbox, an address or a dot"
        );
    }
    format!("{text:?} is not a valid target; use something like ann, ann@example.com or a dot")
}

/// Finds the positions at which a character occurs outside of quotes and brackets. For example, a comma in a quoted
/// local part and a colon in `[IPv6:::1]` do not count.
fn find_unquoted(line: &str, wanted: char) -> impl Iterator<Item = usize> {
    let mut quoted = false;
    let mut escaped = false;
    let mut bracketed = false;
    line.char_indices().filter_map(move |(at, character)| {
        let matches = character == wanted && !quoted && !bracketed;
        if !quoted {
            bracketed = (bracketed || character == '[') && character != ']';
        }
        quoted ^= character == '"' && !escaped;
        escaped = quoted && character == '\\' && !escaped;
        matches.then_some(at)
    })
}

/// Splits a line at its commas, beginning at the byte `from`. Commas in quotes or brackets do not count, and empty
/// parts are left out.
fn split_targets(line: &str, from: usize, number: usize) -> Vec<AliasToken<'_>> {
    let commas: Vec<usize> = find_unquoted(&line[from..], ',').map(|at| from + at).collect();
    let begins = std::iter::once(from).chain(commas.iter().map(|comma| comma + 1));
    let ends = commas.iter().copied().chain([line.len()]);
    let mut words = Vec::new();
    let mut counted = 0;
    let mut column = 1;
    for (begin, end) in begins.zip(ends) {
        let text = line[begin..end].trim();
        if text.is_empty() {
            continue;
        }
        let at = begin + (line[begin..end].len() - line[begin..end].trim_start().len());
        column += line[counted..at].chars().count();
        counted = at;
        words.push(AliasToken { text, line: number, column });
    }
    words
}

/// Counts the recipients of each alias, and finds loops. The search is not recursive, because a chain of a million
/// aliases would overflow the stack.
struct ExpansionCheck {
    /// For each alias, the number of its recipients and the length of its longest chain of aliases, or `None` until
    /// both are known.
    done: Vec<Option<(usize, usize)>>,
    error: Option<ExpansionError>,
}

enum ExpansionError {
    Loop(Vec<usize>),
    TooMany(usize),
    TooDeep(usize),
}

impl ExpansionCheck {
    fn of(targets: &[Box<[UnresolvedTarget]>]) -> Self {
        let mut search = Self { done: vec![None; targets.len()], error: None };
        for first in 0..targets.len() {
            search.visit(first, targets);
            if search.error.is_some() {
                break;
            }
        }
        search
    }

    /// Counts the recipients of an alias. If some of its targets are aliases, counts the recipients of these first,
    /// because the result includes them.
    fn visit(&mut self, first: usize, targets: &[Box<[UnresolvedTarget]>]) {
        let mut path = vec![(first, 0)];
        let mut is_open = HashSet::from([first]);
        while let Some((number, next)) = path.last_mut() {
            let number = *number;
            if self.done[number].is_some() || *next == targets[number].len() {
                self.measure(number, &targets[number]);
                is_open.remove(&number);
                path.pop();
                continue;
            }
            let target = &targets[number][*next];
            *next += 1;
            if let UnresolvedTarget::Alias(other, _) = target
                && self.done[*other].is_none()
            {
                if !is_open.insert(*other) {
                    let circle = path.iter().map(|(number, _)| *number).skip_while(|number| number != other);
                    self.error = Some(ExpansionError::Loop(circle.collect()));
                    return;
                }
                path.push((*other, 0));
            }
        }
    }

    fn measure(&mut self, number: usize, targets: &[UnresolvedTarget]) {
        let mut recipients = 0_usize;
        let mut depth = 1;
        for target in targets {
            let (more, below) = match target {
                UnresolvedTarget::Alias(other, _) => self.done[*other].unwrap_or_default(),
                _ => (1, 0),
            };
            recipients = recipients.saturating_add(more);
            depth = depth.max(below + 1);
        }
        self.done[number] = Some((recipients, depth));
        if self.error.is_none() && recipients > MAX_EXPANSION {
            self.error = Some(ExpansionError::TooMany(number));
        } else if self.error.is_none() && depth > MAX_DEPTH {
            self.error = Some(ExpansionError::TooDeep(number));
        }
    }

    fn into_error(self, entries: &[AliasEntry<'_>]) -> Option<AliasError> {
        let name = |number: &usize| entries[*number].name.text;
        Some(match self.error? {
            ExpansionError::Loop(circle) => {
                let first = circle.first()?;
                let names: Vec<&str> = circle.iter().take(10).chain([first]).map(name).collect();
                entries[*first].name.error(format!("aliases form a loop: {}", names.join(" → ")))
            }
            ExpansionError::TooMany(number) => {
                let message = format!("{} expands to more than {MAX_EXPANSION} recipients", name(&number));
                entries[number].name.error(message)
            }
            ExpansionError::TooDeep(number) => {
                let message = format!("{} goes through a chain of more than {MAX_DEPTH} aliases", name(&number));
                entries[number].name.error(message)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(text: &str) -> Result<Aliases, Vec<AliasError>> {
        let is_local = |domain: &Domain<'_>| ["a.example", "b.example", "xn--bcher-kva.example"].contains(&&**domain);
        let is_user = |name: &str| ["ann", "bob"].contains(&name);
        Aliases::parse(text, &AliasContext { is_local: &is_local, is_user: &is_user })
    }

    /// Returns the address of each target. `-` stands for a target that discards mail.
    fn rendered(meant: Vec<AliasTarget>) -> Vec<String> {
        let word = |one| match one {
            AliasTarget::Discard => "-".to_owned(),
            AliasTarget::Mailbox { local_part, domain } => format!("{local_part}@{domain}"),
            AliasTarget::Remote(address) => address.into(),
        };
        meant.into_iter().map(word).collect()
    }

    fn expand(aliases: &Aliases, name: &str, domain: &str) -> Option<Vec<String>> {
        let mut meant = rendered(aliases.expand(name, &Domain::new(domain))?);
        meant.sort();
        Some(meant)
    }

    #[test]
    fn a_table_of_aliases() {
        let aliases = parse(
            "# ours\nsales: ann, Bob@else.example, \"of, any\"@else.example\nsales@B.example: bob\n\nnobody: .\nann: ann, sink\n\
             sink: .\nall:\n  sales,\n\tbob , ann@b.example\n  # between\n  x@else.example\n\"Odd, Name\": \
             ann\nPostmaster: bob\nbob@[IPv6:::1]: ann\n",
        )
        .unwrap();
        let rows: &[(&str, &str, Option<&[&str]>)] = &[
            ("sales", "a.example", Some(&["\"of, any\"@else.example", "-", "Bob@else.example", "ann@a.example"])),
            ("SALES", "a.example", Some(&["\"of, any\"@else.example", "-", "Bob@else.example", "ann@a.example"])),
            ("\"sa\\les\"", "b.example", Some(&["bob@b.example"])),
            ("nobody", "a.example", Some(&["-"])),
            ("ann", "b.example", Some(&["-", "ann@b.example"])),
            ("\"odd, name\"", "a.example", Some(&["-", "ann@a.example"])),
            ("postmaster", "a.example", Some(&["bob@a.example"])),
            ("bob", "a.example", None),
            ("sales@b.example", "a.example", None),
            ("\"sales@b.example\"", "a.example", None),
            ("sales\0b.example", "a.example", None),
            ("", "a.example", None),
            ("\"", "a.example", None),
        ];
        for (name, domain, expected) in rows {
            let expected = expected.map(|words| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>());
            assert_eq!(expand(&aliases, name, domain), expected, "{name} at {domain}");
        }
        let all = expand(&aliases, "all", "a.example").unwrap();
        assert!(
            ["ann@a.example", "ann@b.example", "bob@a.example", "x@else.example"]
                .iter()
                .all(|one| all.contains(&(*one).to_owned())),
            "{all:?}"
        );
        assert_eq!(all.len(), 7, "{all:?}");
        assert_eq!(aliases.len(), 9);
    }

    #[test]
    fn a_table_of_mistakes_with_their_lines_and_columns() {
        let rows = [
            ("sales ann", "1:1: no colon; write NAME: TARGET"),
            ("\n a: ann", "2:1: a continuation line without"),
            (": ann", "1:1: \"\" is not a valid name"),
            ("a b: ann", "1:1: \"a b\" is not a valid name"),
            ("a@@b: ann", "1:1: \"a@@b\" is not a valid name"),
            ("a:", "1:1: a has no target"),
            ("a: ,,", "1:1: a has no target"),
            ("a: ann, eve", "1:9: eve is neither an alias nor a mailbox"),
            ("a: ann,\n  eve@A.example", "2:3: eve@A.example is neither an alias nor a mailbox"),
            ("ä: ann, é é", "1:9: \"é é\" is not a valid target"),
            ("a: |/bin/sh", "1:4: \"|/bin/sh\": programs, files and lists"),
            ("a: /etc/passwd", "1:4: \"/etc/passwd\": programs, files and lists"),
            ("a: :include:/etc/passwd", "1:4: \":include:/etc/passwd\": programs, files and lists"),
            ("a: \"|sh\"@else.example, x@y@z", "1:24: \"x@y@z\" is not a valid target"),
            ("a: <ann@else.example>", "1:4: \"<ann@else.example>\" is not a valid target"),
            ("a: ann\nA: bob", "2:1: the alias A is already defined in line 1"),
            ("a: b\nb: c, ann\nc: a", "1:1: aliases form a loop: a → b → c → a"),
            ("x: a\na: b@b.example\nb: a@a.example", "2:1: aliases form a loop: a → b → a"),
        ];
        for (text, expected) in rows {
            let mistake = parse(text).expect_err(text)[0].to_string();
            assert!(mistake.starts_with(expected), "{text:?}: {mistake}");
        }
    }

    #[test]
    fn several_mistakes_are_told_at_once_but_not_a_thousand() {
        let mistakes = parse("a: eve\nb\nc: |x\n").unwrap_err();
        let lines: Vec<_> = mistakes.iter().map(|mistake| mistake.line).collect();
        assert_eq!(lines, [2, 1, 3]);
        let many: String = (0..1000).map(|number| format!("a{number}: nonsense\n")).collect();
        assert_eq!(parse(&many).unwrap_err().len(), MAX_ERRORS);
    }

    #[test]
    fn a_name_that_stands_for_itself_is_its_mailbox() {
        let aliases = parse("ann: ann@a.example, ann\nbob@b.example: bob\n").unwrap();
        assert_eq!(expand(&aliases, "ann", "b.example").unwrap(), ["ann@a.example", "ann@b.example"]);
        assert_eq!(expand(&aliases, "bob", "b.example").unwrap(), ["bob@b.example"]);
        assert!(parse("eve: eve\n").is_err(), "no such mailbox");
    }

    #[test]
    fn what_grows_or_goes_too_deep_is_refused_without_going_there() {
        let doubling: String = (0..60).map(|n| format!("a{n}: a{}@a.example, a{0}@b.example\n", n + 1)).collect();
        let mistakes = parse(&(doubling + "a60: ann\n")).unwrap_err();
        assert!(mistakes[0].message.contains("more than 1000 recipients"), "{mistakes:?}");
        let chain: String = (0..20_000).map(|n| format!("a{n}: a{}\n", n + 1)).collect();
        let mistakes = parse(&(chain.clone() + "a20000: ann\n")).unwrap_err();
        assert!(mistakes[0].message.contains("a chain of more than 50 aliases"), "{mistakes:?}");
        let mistakes = parse(&(chain + "a20000: a0\n")).unwrap_err();
        assert!(mistakes[0].message.contains("form a loop"), "{mistakes:?}");
        let wide = (0..1001).map(|n| format!("u{n}@else.example")).collect::<Vec<_>>().join(", ");
        assert!(parse(&format!("a: {wide}\n")).unwrap_err()[0].message.contains("more than 1000 targets"));
    }

    #[test]
    fn the_same_seen_twice_is_meant_once() {
        let aliases = parse("a: b, c\nb: ann, x@else.example\nc: ann, x@else.example\n").unwrap();
        assert_eq!(expand(&aliases, "a", "a.example").unwrap(), ["ann@a.example", "x@else.example"]);
    }

    proptest! {
        /// Aliases may lead to other aliases. The parser must refuse a file in which they form a loop. In any other
        /// file, an alias must expand to the targets of all aliases that it reaches.
        #[test]
        fn any_graph_ends_or_is_refused(edges in prop::collection::vec(prop::collection::vec(0..12_usize, 1..4), 12)) {
            let line = |(number, to): (usize, &Vec<usize>)| {
                let to: Vec<String> = to.iter().map(|other| format!("n{other}")).collect();
                format!("n{number}: {}, u{number}@else.example\n", to.join(", "))
            };
            let text: String = edges.iter().enumerate().map(line).collect();
            // The parser must refuse exactly the graphs with a loop of two or more aliases. Leave
            // out edges from an alias to itself, because such an alias stands for its mailbox and
            // is no loop.
            let mut reach = [[false; 12]; 12];
            for (number, to) in edges.iter().enumerate() {
                to.iter().filter(|other| **other != number).for_each(|other| reach[number][*other] = true);
            }
            for middle in 0..12 { for from in 0..12 { for to in 0..12 {
                let joined = reach[from][middle] && reach[middle][to];
                reach[from][to] |= joined;
            } } }
            let has_circle = (0..12).any(|number| reach[number][number]);
            let is_local = |_: &Domain<'_>| false;
            let parsed = Aliases::parse(&text, &AliasContext { is_local: &is_local, is_user: &|_| true });
            prop_assert_eq!(parsed.is_err(), has_circle, "{}", text);
            if let Ok(aliases) = parsed {
                for (number, reached) in reach.iter().enumerate() {
                    let meant = aliases.expand(&format!("n{number}"), &Domain::new("a.example")).unwrap();
                    let wanted = (0..12).filter(|to| *to == number || reached[*to]).count();
                    let elsewhere = meant.iter().filter(|one| matches!(one, AliasTarget::Remote(_))).count();
                    prop_assert_eq!(elsewhere, wanted);
                }
            }
        }
    }
}
