//! Real messages to send: an mbox, a Maildir, a directory of .eml files or a single .eml file. They
//! are converted to their wire format once, before the load.
//!
//! | PATH is | it is read as |
//! |---|---|
//! | a directory with `cur` or `new` in it | a Maildir: every file of these two |
//! | another directory | its files `*.eml`, not those of directories below |
//! | a file whose first line is an mbox separator | an mbox |
//! | a file named `*.eml` | one message |
//!
//! Line ends of any kind become `<CRLF>`. A message is invalid if it is empty, contains NUL, or has a line longer than
//! 998 octets (RFC 5322 §2.1.1, §4). It is also invalid if receivers could disagree about the end of its header.
//! Receivers could disagree if the message begins with a byte order mark or with a line that is not a header field, or
//! if one header line ends in a bare CR and others in LF. If a message is invalid, the source refuses the whole corpus.
//! With `--corpus-skip-bad`, the source skips and counts invalid messages instead.
//!
//! In an mbox, a message begins at a separator that is the first line or follows an empty line. If a line begins with
//! `>From `, `>>From ` and so on, one `>` is removed (mboxrd).
//!
//! Memory: each message is held once, in the form in which it will be sent, with 256 bytes of
//! overhead. While a message is read, memory holds it twice. A corpus that exceeds its limit is
//! refused, because a silently shortened corpus would not represent the user's mail.
use super::file_lines::{FileLine, FileLines, MAX_LINE_BYTES};
use anyhow::{Context, Result, anyhow, bail};
use mailrun_measurement::trace::Checksum;
use mailrun_process::reason::reason;
use mailrun_smtp::data;
use std::fs::{self, File};
use std::io::BufReader;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Memory in bytes that a message takes in addition to its content.
const MESSAGE_OVERHEAD_BYTES: u64 = 256;
const BLOCK_BYTES: usize = 64 * 1024;
const FROM_LINE_PREFIX: &[u8] = b"From ";
/// Byte order marks of UTF-8 and UTF-16, which some editors put before a text.
const BYTE_ORDER_MARKS: [&[u8]; 3] = [b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff"];

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CorpusOptions {
    pub path: PathBuf,
    /// Maximum memory in bytes that all messages together may take.
    pub limit_bytes: u64,
    pub invalid_messages: InvalidMessagePolicy,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidMessagePolicy {
    /// A single invalid message makes the source refuse the corpus.
    Reject,
    /// Invalid messages are left out and counted, for a corpus with a few broken messages.
    Skip,
}

#[derive(Debug)]
pub(super) struct Corpus {
    pub(super) kind: &'static str,
    pub(super) messages: Vec<CorpusMessage>,
    pub(super) skipped: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CorpusMessage {
    /// The header block with its empty line; empty if the message has no header.
    pub(super) headers: Vec<u8>,
    /// The dot-stuffed body, followed by the end of data.
    pub(super) body: Arc<[u8]>,
    /// Checksum of the body before dot-stuffing, for the trace.
    pub(super) checksum: u32,
    pub(super) bytes: u64,
    pub(super) is_eight_bit: bool,
}

/// Reads a corpus into memory, with each message in its wire format.
///
/// # Errors
///
/// Fails if the corpus does not exist, cannot be read, exceeds its limit, or contains an invalid
/// message and the options do not allow skipping it.
pub(super) fn read(options: &CorpusOptions) -> Result<Corpus> {
    let path = options.path.as_path();
    let about = fs::metadata(path).with_context(|| format!("--corpus {}: cannot be read", path.display()))?;
    let mut target = CorpusReader { options, messages: Vec::new(), used_bytes: 0, skipped: 0 };
    let kind = if about.is_dir() {
        let (kind, files) = message_files(path, options.limit_bytes)?;
        files.iter().try_for_each(|file| target.read_message(file))?;
        kind
    } else if !about.is_file() {
        bail!("--corpus {} is neither a file nor a directory", path.display());
    } else if is_mbox(path)? {
        target.read_mbox(path)?;
        "mbox"
    } else if is_eml(path) {
        target.read_message(path)?;
        "message"
    } else {
        bail!(
            "--corpus {} is not an mbox, which begins with a line \"From SENDER WEEKDAY MONTH DAY TIME YEAR\"; the \
             name of a file with one message must end in .eml",
            path.display()
        );
    };
    if target.messages.is_empty() {
        bail!("--corpus {} contains no message that can be sent ({} are invalid)", path.display(), target.skipped);
    }
    Ok(Corpus { kind, messages: target.messages, skipped: target.skipped })
}

pub(super) fn read_file(path: &Path) -> Result<CorpusMessage> {
    if path == Path::new("-") {
        bail!("--file -: a load reads its message from a file; mailrun send --file - reads standard input");
    }
    let unreadable = || format!("--file: cannot read {}", path.display());
    let file = File::open(path).with_context(unreadable)?;
    let mut lines = FileLines::new(BufReader::with_capacity(BLOCK_BYTES, file));
    let mut draft = CorpusMessageBuilder::default();
    while let Some(line) = lines.next().with_context(unreadable)? {
        draft.add_line(&line);
    }
    draft.finish().map_err(|flaw| anyhow!("--file {}: {flaw}", path.display()))
}

/// Returns the files of a Maildir or of a directory of messages. They are sorted by name, so that
/// the same seed chooses the same files on every host.
fn message_files(path: &Path, limit_bytes: u64) -> Result<(&'static str, Vec<PathBuf>)> {
    // Treat a broken link as a directory, so that reading it fails with an error that names it.
    let is_directory = |path: &PathBuf| path.is_dir() || path.is_symlink() && !path.exists();
    let maildir: Vec<PathBuf> = ["cur", "new"].map(|name| path.join(name)).into_iter().filter(is_directory).collect();
    let (kind, directories, wanted): (_, _, fn(&Path) -> bool) = match maildir.is_empty() {
        true => ("directory", vec![path.to_owned()], is_eml),
        false => {
            if fs::read_dir(path).is_ok_and(|mut files| files.any(|file| file.is_ok_and(|file| is_eml(&file.path())))) {
                bail!("--corpus {} contains both *.eml files and a Maildir; move one of them", path.display());
            }
            ("maildir", maildir, |file| !file.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b".")))
        }
    };
    let mut files = Vec::new();
    for directory in directories {
        let unreadable = || format!("--corpus: cannot read {}", directory.display());
        for entry in fs::read_dir(&directory).with_context(unreadable)? {
            let file = entry.with_context(unreadable)?.path();
            // List even files that cannot be read, such as broken links, so that they are reported
            // and not silently left out.
            if wanted(&file) && !file.is_dir() {
                files.push(file);
            }
            if files.len() as u64 * MESSAGE_OVERHEAD_BYTES > limit_bytes {
                bail!(too_large(path, limit_bytes));
            }
        }
    }
    if files.is_empty() {
        bail!("--corpus {} contains neither *.eml files nor a Maildir with messages", path.display());
    }
    files.sort_unstable_by(|one, other| one.file_name().cmp(&other.file_name()));
    Ok((kind, files))
}

fn is_eml(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("eml"))
}

fn is_mbox(path: &Path) -> Result<bool> {
    let first = open(path)?.next().with_context(|| read_error(path))?.map(|line| is_from_line(without_mark(line.text)));
    Ok(first == Some(true))
}

fn too_large(path: &Path, limit_bytes: u64) -> String {
    format!(
        "--corpus {} exceeds --max-corpus-size, {limit_bytes} bytes; use a part of it, or a higher limit",
        path.display()
    )
}

struct CorpusReader<'a> {
    options: &'a CorpusOptions,
    messages: Vec<CorpusMessage>,
    used_bytes: u64,
    skipped: u64,
}

impl CorpusReader<'_> {
    fn read_message(&mut self, path: &Path) -> Result<()> {
        let length = match fs::metadata(path) {
            Ok(about) if about.is_file() => about.len(),
            Ok(_) => return self.add(Err("it is not a regular file".to_owned()), path),
            Err(error) => return self.add(Err(format!("it cannot be read: {}", reason(&error))), path),
        };
        if self.used_bytes.saturating_add(length) > self.options.limit_bytes {
            bail!(too_large(&self.options.path, self.options.limit_bytes));
        }
        let mut lines = open(path)?;
        let mut draft = CorpusMessageBuilder::default();
        while let Some(line) = lines.next().with_context(|| read_error(path))? {
            self.add_line(&mut draft, &line)?;
        }
        self.finish(draft, path)
    }

    fn read_mbox(&mut self, path: &Path) -> Result<()> {
        let mut lines = open(path)?;
        let mut draft = CorpusMessageBuilder::default();
        // Hold back an empty line until the next line is read: it belongs to a separator if one
        // follows, and otherwise to the message.
        let mut empty_line: Option<FileLine<'static>> = None;
        while let Some(line) = lines.next().with_context(|| read_error(path))? {
            if (line.number == 1 || empty_line.is_some()) && is_from_line(without_mark(line.text)) {
                let whole = std::mem::replace(&mut draft, CorpusMessageBuilder::after_separator(&line));
                if line.number > 1 {
                    self.finish(whole, path)?;
                }
                empty_line = None;
                continue;
            }
            if let Some(empty_line) = empty_line.take() {
                self.add_line(&mut draft, &empty_line)?;
            }
            if line.bytes == 0 {
                empty_line = Some(FileLine { text: b"", bytes: 0, number: line.number, end: line.end });
            } else {
                self.add_line(&mut draft, &unquote_from_line(line))?;
            }
        }
        self.finish(draft, path)
    }

    fn add_line(&mut self, draft: &mut CorpusMessageBuilder, line: &FileLine<'_>) -> Result<()> {
        draft.add_line(line);
        if self.used_bytes + draft.buffered_bytes() > self.options.limit_bytes {
            bail!(too_large(&self.options.path, self.options.limit_bytes));
        }
        Ok(())
    }

    /// Stores a message that has been read to its end. If the message is invalid, skips it or refuses the whole corpus,
    /// depending on the options.
    fn finish(&mut self, draft: CorpusMessageBuilder, path: &Path) -> Result<()> {
        self.add(draft.finish(), path)
    }

    fn add(&mut self, message: Result<CorpusMessage, String>, path: &Path) -> Result<()> {
        match (message, self.options.invalid_messages) {
            (Ok(message), _) => {
                self.used_bytes += (message.headers.len() + message.body.len()) as u64 + MESSAGE_OVERHEAD_BYTES;
                self.messages.push(message);
            }
            (Err(_), InvalidMessagePolicy::Skip) => self.skipped += 1,
            (Err(flaw), InvalidMessagePolicy::Reject) => {
                bail!("--corpus: {}: {flaw}; use --corpus-skip-bad to skip such messages", path.display())
            }
        }
        Ok(())
    }
}

fn read_error(path: &Path) -> String {
    format!("--corpus: cannot read {}", path.display())
}

fn open(path: &Path) -> Result<FileLines<BufReader<File>>> {
    let file = File::open(path).with_context(|| read_error(path))?;
    Ok(FileLines::new(BufReader::with_capacity(BLOCK_BYTES, file)))
}

/// True if the line is the separator of an mbox, `From SENDER WEEKDAY MONTH DAY TIME YEAR` (RFC
/// 4155). The sender may be missing, or be `USER at DOMAIN` as in Mailman's archives. The time zone
/// may come before or after the year, and may have two words, for example `MET DST`. Dates in the
/// order of RFC 5322, and times without seconds, are accepted as well.
fn is_from_line(line: &[u8]) -> bool {
    let Some(line) = line.strip_prefix(FROM_LINE_PREFIX) else { return false };
    let line = String::from_utf8_lossy(line);
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    (5..=7.min(words.len())).any(|date_words| {
        let (sender, date) = words.split_at(words.len() - date_words);
        is_from_date(date)
            && match sender {
                [] | [_] | [_, "at", _] => true,
                [first, .., last] => first.starts_with('"') && last.contains("\"@"),
            }
    })
}

/// Returns true for a date such as `Sat Nov 21 09:30:00 2026` or `Sat, 21 Nov 2026 09:30:00`, with
/// up to two words for the time zone.
fn is_from_date(words: &[&str]) -> bool {
    const WEEKDAYS: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let [weekday, first, second, rest @ ..] = words else { return false };
    let is_one_of = |names: &[&str], word: &str| names.iter().any(|name| name.eq_ignore_ascii_case(word));
    let is_day = |word: &str| number_below(word, 1..=2, 32).is_some_and(|day| day > 0);
    let is_month_and_day = |month: &str, day: &str| is_one_of(&MONTHS, month) && is_day(day);
    let times = rest.iter().filter(|word| is_time(word)).count();
    let years = rest.iter().filter(|word| number_below(word, 4..=4, 10_000).is_some()).count();
    let zones = rest.iter().filter(|word| is_zone(word)).count();
    is_one_of(&WEEKDAYS, weekday.trim_end_matches(','))
        && (is_month_and_day(first, second) || is_month_and_day(second, first))
        && (times, years, zones) == (1, 1, rest.len().saturating_sub(2))
}

/// Returns true for a time such as `9:30`, `09:30` or `09:30:00`.
fn is_time(word: &str) -> bool {
    let parts: Vec<&str> = word.split(':').collect();
    let is_part = |part: &str, end: u32| number_below(part, 2..=2, end).is_some();
    match parts.as_slice() {
        [hour, minute, seconds @ ..] => {
            number_below(hour, 1..=2, 24).is_some()
                && is_part(minute, 60)
                && seconds.len() <= 1
                && seconds.iter().all(|second| is_part(second, 61))
        }
        _ => false,
    }
}

/// Returns true for a time zone such as `CET`, `GMT+1`, `+0100` or `-01:00`, also in parentheses.
fn is_zone(word: &str) -> bool {
    let word = word.strip_prefix('(').and_then(|word| word.strip_suffix(')')).unwrap_or(word);
    match word.strip_prefix(['+', '-']) {
        Some(offset) => number_below(&offset.replacen(':', "", 1), 4..=4, 10_000).is_some(),
        None => {
            (1..=8).contains(&word.len())
                && word.starts_with(|letter: char| letter.is_ascii_uppercase())
                && word.bytes().all(|octet| matches!(octet, b'A'..=b'Z' | b'0'..=b'9' | b'+' | b'-'))
        }
    }
}

fn number_below(word: &str, digits: RangeInclusive<usize>, end: u32) -> Option<u32> {
    let is_number = digits.contains(&word.len()) && word.bytes().all(|octet| octet.is_ascii_digit());
    word.parse().ok().filter(|number| is_number && *number < end)
}

fn without_mark(text: &[u8]) -> &[u8] {
    BYTE_ORDER_MARKS.iter().find_map(|mark| text.strip_prefix(*mark)).unwrap_or(text)
}

/// True if the line begins with `NAME:` (RFC 5322 §2.2). White space before the colon is allowed (§4.5).
fn is_header_field(line: &[u8]) -> bool {
    let name_bytes = line.iter().take_while(|octet| octet.is_ascii_graphic() && **octet != b':').count();
    name_bytes > 0 && line[name_bytes..].trim_ascii_start().starts_with(b":")
}

/// Removes one `>` before `From `: `>From ` becomes `From `, and `>>From ` becomes `>From `.
fn unquote_from_line(line: FileLine<'_>) -> FileLine<'_> {
    let quotes = line.text.iter().take_while(|octet| **octet == b'>').count();
    if quotes > 0 && line.text[quotes..].starts_with(FROM_LINE_PREFIX) {
        return FileLine { text: &line.text[1..], bytes: line.bytes - 1, ..line };
    }
    line
}

/// Builds a message from its lines. Adds a dot to each line that begins with a dot, as SMTP requires (RFC 5321 §4.5.2).
#[derive(Debug, Default)]
struct CorpusMessageBuilder {
    headers: Vec<u8>,
    body: Vec<u8>,
    is_in_body: bool,
    checksum: Checksum,
    bytes: u64,
    is_eight_bit: bool,
    separator: Option<u64>,
    has_lf: bool,
    /// Number of the first header line that ends in a bare CR, if there is one.
    bare_cr_line: Option<u64>,
    /// First fault that was found in the message. The content of a message with a fault is not stored.
    error: Option<String>,
}

impl CorpusMessageBuilder {
    fn after_separator(line: &FileLine<'_>) -> Self {
        let has_mark = without_mark(line.text).len() < line.text.len();
        let error = has_mark.then(|| format!("line {} begins with a byte order mark; remove it", line.number));
        Self { separator: Some(line.number), error, ..Self::default() }
    }

    fn add_line(&mut self, line: &FileLine<'_>) {
        if self.error.is_some() {
            return;
        }
        let is_first = self.bytes == 0;
        let flaw = if is_first && without_mark(line.text).len() < line.text.len() {
            "begins with a byte order mark; remove it".to_owned()
        } else if line.bytes > MAX_LINE_BYTES as u64 {
            format!("has {} bytes; at most {MAX_LINE_BYTES} are allowed", line.bytes)
        } else if memchr::memchr(0, line.text).is_some() {
            "contains NUL, which is not allowed".to_owned()
        } else if is_first && is_from_line(line.text) {
            "is the separator of an mbox; a message begins with a header field (NAME: VALUE) or an empty line"
                .to_owned()
        } else if is_first && !line.text.is_empty() && !is_header_field(line.text) {
            "is not a header field (NAME: VALUE); a message without header begins with an empty line".to_owned()
        } else {
            if !self.is_in_body && line.end == Some(b'\r') {
                self.bare_cr_line.get_or_insert(line.number);
            }
            self.has_lf |= line.end == Some(b'\n');
            return self.push_line(line.text);
        };
        *self = Self { error: Some(format!("line {} {flaw}", line.number)), ..Self::default() };
    }

    fn push_line(&mut self, text: &[u8]) {
        let part = if self.is_in_body { &mut self.body } else { &mut self.headers };
        if text.first() == Some(&b'.') {
            part.push(b'.');
        }
        part.extend_from_slice(text);
        part.extend_from_slice(b"\r\n");
        self.bytes += text.len() as u64 + 2;
        self.is_eight_bit |= !text.is_ascii();
        if self.is_in_body {
            self.checksum.update(text);
            self.checksum.update(b"\r\n");
        }
        self.is_in_body |= text.is_empty();
    }

    fn buffered_bytes(&self) -> u64 {
        (self.headers.len() + self.body.len()) as u64
    }

    fn finish(mut self) -> Result<CorpusMessage, String> {
        if let Some(flaw) = self.error {
            return Err(flaw);
        }
        if self.bytes == 0 {
            return Err(match self.separator {
                Some(line) => format!("the message after line {line} is empty"),
                None => "the message is empty".to_owned(),
            });
        }
        if let (true, Some(line)) = (self.has_lf, self.bare_cr_line) {
            return Err(format!("line {line}, in the header, ends in CR, but other lines of the message end in LF"));
        }
        self.body.extend_from_slice(data::END_OF_DATA);
        self.headers.shrink_to_fit();
        Ok(CorpusMessage {
            headers: self.headers,
            body: self.body.into(),
            checksum: self.checksum.value(),
            bytes: self.bytes,
            is_eight_bit: self.is_eight_bit,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::checks::corpus::{check, received};
    use mailrun_measurement::trace;
    use proptest::prelude::*;

    fn options(path: &Path) -> CorpusOptions {
        CorpusOptions { path: path.to_owned(), limit_bytes: 1 << 20, invalid_messages: InvalidMessagePolicy::Reject }
    }

    fn texts(corpus: &Corpus) -> Vec<String> {
        corpus.messages.iter().map(|message| String::from_utf8(received(message)).unwrap()).collect()
    }

    fn from_file(name: &str, text: &[u8], change: impl FnOnce(&mut CorpusOptions)) -> Result<Corpus> {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join(name);
        fs::write(&path, text).unwrap();
        let mut options = options(&path);
        change(&mut options);
        read(&options)
    }

    const MBOX: &str = "From a@b Sat Nov 21 09:30:00 2026\nSubject: one\n\nfirst\n.\n..dots\n\nFrom here on it is text\n\n\
        From c@d Sat Nov 21 09:31:00 2026\r\nSubject: two\r\n\r\n>From the start\r\n>>From\r\n>>From x\r\n\r\n\r\n\
        From e@f Sat Nov 21 09:32 2026\n\nno header\nno line end";

    #[test]
    fn an_mbox_is_cut_at_its_postmarks() {
        let corpus = from_file("box", MBOX.as_bytes(), |_| {}).unwrap();
        assert_eq!((corpus.kind, corpus.skipped), ("mbox", 0));
        let expected = [
            "Subject: one\r\n\r\nfirst\r\n.\r\n..dots\r\n\r\nFrom here on it is text\r\n",
            "Subject: two\r\n\r\nFrom the start\r\n>>From\r\n>From x\r\n\r\n",
            "\r\nno header\r\nno line end\r\n",
        ];
        assert_eq!(texts(&corpus), expected);
        let body = b"first\r\n.\r\n..dots\r\n\r\nFrom here on it is text\r\n";
        assert_eq!(corpus.messages[0].checksum, trace::checksum(body));
        assert!(corpus.messages[0].body.starts_with(b"first\r\n..\r\n...dots\r\n"), "stuffed");
    }

    #[test]
    fn a_directory_and_a_maildir_are_told_apart() {
        let place = tempfile::tempdir().unwrap();
        for name in ["b.eml", "a.EML", "c.txt", "d.eml.bak"] {
            fs::write(place.path().join(name), format!("Subject: {name}\n")).unwrap();
        }
        fs::create_dir(place.path().join("below.eml")).unwrap();
        let corpus = read(&options(place.path())).unwrap();
        let expected = ["Subject: a.EML\r\n", "Subject: b.eml\r\n"];
        assert_eq!((corpus.kind, texts(&corpus)), ("directory", expected.map(str::to_owned).to_vec()));
        fs::create_dir(place.path().join("new")).unwrap();
        let error = read(&options(place.path())).unwrap_err().to_string();
        assert!(error.contains("both *.eml files and a Maildir"), "{error}");
        ["b.eml", "a.EML"].iter().for_each(|name| fs::remove_file(place.path().join(name)).unwrap());
        fs::remove_dir(place.path().join("below.eml")).unwrap();
        for (directory, name) in [("cur", "2.host:2,S"), ("new", "1.host"), ("tmp", "0.host"), ("cur", ".hidden")] {
            fs::create_dir_all(place.path().join(directory)).unwrap();
            fs::write(place.path().join(directory).join(name), format!("Subject: {name}\n\nx\n")).unwrap();
        }
        let corpus = read(&options(place.path())).unwrap();
        let expected = ["Subject: 1.host\r\n\r\nx\r\n", "Subject: 2.host:2,S\r\n\r\nx\r\n"];
        assert_eq!((corpus.kind, texts(&corpus)), ("maildir", expected.map(str::to_owned).to_vec()));
    }

    #[test]
    fn a_link_that_leads_nowhere_is_an_invalid_message() {
        for maildir in [false, true] {
            let place = tempfile::tempdir().unwrap();
            let directory = if maildir { place.path().join("new") } else { place.path().to_owned() };
            fs::create_dir_all(&directory).unwrap();
            fs::write(directory.join("good.eml"), "Subject: x\n\ny\n").unwrap();
            let bad = directory.join("bad.eml");
            for (target, reason) in [
                (Path::new("gone"), "No such file or directory"),
                (&bad, "Too many levels of symbolic links"),
                (Path::new("/dev/null"), "is not a regular file"),
            ] {
                std::os::unix::fs::symlink(target, &bad).unwrap();
                let mut options = options(place.path());
                let error = read(&options).unwrap_err().to_string();
                assert!(error.contains("bad.eml: it ") && error.contains(reason), "{error}");
                assert!(error.contains("--corpus-skip-bad"), "{error}");
                options.invalid_messages = InvalidMessagePolicy::Skip;
                let corpus = read(&options).unwrap();
                assert_eq!((corpus.messages.len(), corpus.skipped), (1, 1));
                fs::remove_file(&bad).unwrap();
            }
            if maildir {
                std::os::unix::fs::symlink("gone", place.path().join("cur")).unwrap();
                let error = read(&options(place.path())).unwrap_err();
                assert!(error.to_string().ends_with("cur"), "{error}");
            }
        }
    }

    #[test]
    fn a_header_line_with_a_dot_does_not_end_the_message() {
        let corpus = from_file("a.eml", b".hidden: x\n.\n.\n\n.\n", |_| {}).unwrap();
        assert_eq!(texts(&corpus), [".hidden: x\r\n.\r\n.\r\n\r\n.\r\n"]);
    }

    #[test]
    fn an_mbox_separator_has_a_whole_date() {
        for line in [
            "From a@b.example Sat Nov 21 09:30:00 2026",
            "From a@b.example Sat Nov  1  9:30:00 2026  ",
            "From - Sat Nov 21 09:30:00 2026",
            "From MAILER-DAEMON Fri Jan 01 00:00:60 1999",
            "From Sat Nov 21 09:30:00 2026",
            "From  Sat Nov 21 09:30 2026",
            "From a@b.example Sat Nov 21 09:30:00 +0100 2026",
            "From a@b.example Sat Nov 21 09:30:00 2026 -01:00",
            "From a@b.example Sat Nov 21 09:30 CET 2026",
            "From a@b.example Sat Nov 21 09:30:00 2026 CEST",
            "From a@b.example Sat Nov 21 09:30:00 MET DST 2026",
            "From a@b.example Sat Nov 21 09:30:00 2026 +0100 (CET)",
            "From a@b.example Sat Nov 21 09:30:00 GMT+1 2026",
            "From a@b.example Sat, 21 Nov 2026 09:30:00 +0100",
            "From a at b.example  Sat Nov 21 09:30:00 2026",
            "From \"a b c\"@b.example Sat Nov 21 09:30:00 2026",
            "From 1584512345678901234@xxx Sat Nov 21 09:30:00 +0000 2026",
            "From b\u{f6}b@b.example sat nov 21 09:30:00 2026",
        ] {
            assert!(is_from_line(line.as_bytes()), "{line}");
        }
        for line in [
            "From 10:30 to 11:45 the desk is closed",
            "From a@b.example",
            "From 09:30",
            "From a@b.example Sat Nov 21 2026",
            "From a@b.example Sat Nov 21 09:30:00",
            "From a@b.example Nov 21 09:30:00 2026",
            "From a@b.example Sat 21 09:30:00 2026",
            "From a@b.example Sat Nov 09:30:00 2026",
            "From a@b.example Sat Nov 32 09:30:00 2026",
            "From a@b.example Sat Nov 0 09:30:00 2026",
            "From a@b.example Sat Nov 21 24:30:00 2026",
            "From a@b.example Sat Nov 21 09:60:00 2026",
            "From a@b.example Sat Nov 21 09:30:0 2026",
            "From a@b.example Sat Nov 21 09:30:00:00 2026",
            "From a@b.example Sat Nov 21 09:30:00 26",
            "From a@b.example Sat Nov 21 09:30:00 2026 and later",
            "From Monday to Sat Nov 21 09:30 2026 the desk is closed",
            "From now to Sat Nov 21 09:30 2026",
            "From the desk of Ann Sat Nov 21 09:30 2026",
            "From a@b.example Samstag Nov 21 09:30:00 2026",
            ">From a@b.example Sat Nov 21 09:30:00 2026",
            "from a@b.example Sat Nov 21 09:30:00 2026",
            "From: a@b.example Sat Nov 21 09:30:00 2026",
            "From",
            "",
        ] {
            assert!(!is_from_line(line.as_bytes()), "{line}");
        }
    }

    #[test]
    fn times_in_the_text_split_no_message() {
        let text =
            "From a@b Sat Nov 21 09:30:00 2026\nSubject: x\n\nHours:\n\nFrom 10:30 to 11:45 the desk is closed\n";
        let corpus = from_file("box", text.as_bytes(), |_| {}).unwrap();
        assert_eq!(texts(&corpus), ["Subject: x\r\n\r\nHours:\r\n\r\nFrom 10:30 to 11:45 the desk is closed\r\n"]);
    }

    #[test]
    fn a_header_begins_with_a_field() {
        for line in ["Subject: x", "Subject:", "Subject : x", "0:", ".x:y"] {
            assert!(is_header_field(line.as_bytes()), "{line}");
        }
        for line in
            ["", " folded: x", "\tfolded: x", ":", ": x", "no colon", "two words: x", "Gr\u{fc}\u{df}e: x", "\u{1}: x"]
        {
            assert!(!is_header_field(line.as_bytes()), "{line}");
        }
    }

    #[test]
    fn line_ends_of_any_kind_are_the_same_message() {
        let text = "Subject: a\nX: b\n\nfirst\n\nlast\n";
        for end in ["\n", "\r\n", "\r\r\n", "\r\r\r\n", "\r"] {
            for (name, before) in [("a.eml", ""), ("box", "From a@b Sat Nov 21 09:30:00 2026\n")] {
                let file = format!("{before}{text}").replace('\n', end);
                let corpus = from_file(name, file.as_bytes(), |_| {}).unwrap();
                assert_eq!(texts(&corpus), [text.replace('\n', "\r\n")], "{end:?} {name}");
            }
        }
    }

    #[test]
    fn what_cannot_be_sent_is_refused_by_name_or_skipped() {
        let long = format!("Subject: x\n\n{}\n", "x".repeat(999));
        for (text, line, flaw) in [
            (long.as_bytes(), 3, "has 999 bytes"),
            (b"Subject: x\0\n\ny\n", 1, "contains NUL"),
            (b"", 0, "is empty"),
            (b"\xef\xbb\xbfSubject: x\n\ny\n", 1, "begins with a byte order mark"),
            (b"\xef\xbb\xbf\n\ny\n", 1, "begins with a byte order mark"),
            (b"\xff\xfeS\0u\0b\0", 1, "begins with a byte order mark"),
            (b"\xfe\xff\0S\0u\0b", 1, "begins with a byte order mark"),
            (b"Dear all,\n\nx\n", 1, "is not a header field"),
            (b" folded: x\nSubject: x\n\nx\n", 1, "is not a header field"),
            (b">>From a@b Sat Nov 21 09:30:00 2026\nSubject: x\n", 1, "is not a header field"),
            (b"From a@b Sat Nov 21 09:30:00 2026\nSubject: x\n", 1, "is the separator of an mbox"),
            (b"From the start\nSubject: x\n", 1, "is not a header field"),
            (b"Subject: x\n\rX: y\n\r\n\rtext", 2, "in the header, ends in CR"),
            (b"Subject: x\r\rX: y\n\ntext\n", 1, "in the header, ends in CR"),
        ] {
            let place = tempfile::tempdir().unwrap();
            let path = place.path().join("a.eml");
            fs::write(&path, text).unwrap();
            let named = |first: usize| if line == 0 { String::new() } else { format!("line {}", first + line) };
            let is_named = |error: &str, first: usize| {
                assert!(error.contains(&named(first)) && error.contains(flaw) && error.contains("a.eml"), "{error}");
            };
            let error = read_file(&path).unwrap_err().to_string();
            assert!(error.starts_with("--file "), "{error}");
            is_named(&error, 0);
            fs::create_dir(place.path().join("new")).unwrap();
            fs::rename(&path, place.path().join("new/a.eml")).unwrap();
            let mut maildir = options(place.path());
            let error = read(&maildir).unwrap_err().to_string();
            is_named(&error, 0);
            assert!(error.contains("--corpus-skip-bad"), "{error}");
            maildir.invalid_messages = InvalidMessagePolicy::Skip;
            let none = read(&maildir).unwrap_err().to_string();
            assert!(none.contains("no message that can be sent (1 are invalid)"), "{none}");
            let separator = "From a@b Sat Nov 21 09:30:00 2026\n";
            let before = [separator, "Subject: good\n\n", separator].concat();
            let mbox = [before.as_bytes(), text].concat();
            is_named(&from_file("a.eml", &mbox, |_| {}).unwrap_err().to_string(), before.lines().count());
            let corpus =
                from_file("box", &mbox, |options| options.invalid_messages = InvalidMessagePolicy::Skip).unwrap();
            assert_eq!((texts(&corpus), corpus.skipped), (vec!["Subject: good\r\n".to_owned()], 1));
        }
        let marked = [b"\xef\xbb\xbf".as_slice(), MBOX.as_bytes()].concat();
        for text in [marked.clone(), [MBOX.as_bytes(), b"\n\n", &marked].concat()] {
            let error = from_file("box", &text, |_| {}).unwrap_err().to_string();
            let line = if text == marked { 1 } else { 1 + MBOX.lines().count() + 1 };
            assert!(error.contains(&format!("line {line} begins with a byte order mark")), "{error}");
            let corpus =
                from_file("box", &text, |options| options.invalid_messages = InvalidMessagePolicy::Skip).unwrap();
            assert_eq!((corpus.messages.len() + 1) % 3, 0, "only the marked message is skipped");
        }
        let most = format!("Subject:{}\n", "x".repeat(990));
        assert!(from_file("a.eml", most.as_bytes(), |_| {}).is_ok());
    }

    #[test]
    fn one_file_is_read_as_a_corpus_of_it() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("a.eml");
        fs::write(&path, "Subject: a\n\n.b\rc").unwrap();
        let message = read_file(&path).unwrap();
        assert_eq!(received(&message), b"Subject: a\r\n\r\n.b\r\nc\r\n");
        assert_eq!(read(&options(&path)).unwrap().messages, [message]);
        let error = format!("{:#}", read_file(Path::new("/nowhere")).unwrap_err());
        assert!(error.contains("--file: cannot read /nowhere"), "{error}");
    }

    #[test]
    fn what_is_no_corpus_says_so() {
        for (name, text, named) in [
            ("box", "Subject: x\n\nno postmark\n", "is not an mbox"),
            ("box", "From the start it is wrong\n\nx\n", "is not an mbox, which begins with a line \"From SENDER"),
            ("box", "From 10:30 to 11:45 the desk is closed\n\nx\n", "is not an mbox"),
            ("box", ">From a@b Sat Nov 21 09:30:00 2026\n\nx\n", "is not an mbox"),
            ("box", "", "is not an mbox"),
        ] {
            let error = from_file(name, text.as_bytes(), |_| {}).unwrap_err().to_string();
            assert!(error.contains(named), "{error}");
        }
        let empty = tempfile::tempdir().unwrap();
        assert!(read(&options(empty.path())).unwrap_err().to_string().contains("neither *.eml files nor"));
        assert!(read(&options(Path::new("/nowhere"))).unwrap_err().to_string().contains("/nowhere"));
        assert!(read(&options(Path::new("/dev/null"))).unwrap_err().to_string().contains("neither a file nor"));
    }

    #[test]
    fn memory_has_a_limit() {
        let big = "x:\n".repeat(700);
        let is_refused = |name: &str, text: &str| {
            let refused =
                from_file(name, text.as_bytes(), |options| options.limit_bytes = 2_048).unwrap_err().to_string();
            assert!(refused.contains("--max-corpus-size, 2048 bytes"), "{refused}");
        };
        is_refused("a.eml", &big.repeat(2));
        is_refused("box", &format!("From a Sat Nov 21 09:30 2026\n{big}"));
        is_refused("box", &"From a Sat Nov 21 09:30 2026\nx:\n\n".repeat(10));
        let place = tempfile::tempdir().unwrap();
        (0..20).for_each(|number| fs::write(place.path().join(format!("{number}.eml")), "").unwrap());
        let limited = CorpusOptions { limit_bytes: 2_048, ..options(place.path()) };
        assert!(read(&limited).unwrap_err().to_string().contains("--max-corpus-size"));
    }

    proptest! {
        #[test]
        fn any_bytes_are_sent_safely_or_refused(
            parts in proptest::collection::vec(proptest::sample::select(vec![
                b"From a Sat Nov 21 09:30 2026\n".as_slice(), b"From b\n", b"\xef\xbb\xbf", b"\n", b"\r\n", b"\r", b".", b"..\r\n", b"x", b"\0", b"\xff",
                b">From ", b"Subject: x\n", &[b'y'; 600],
            ]), 0..30),
            is_mbox: bool,
            choice: u8,
        ) {
            let text = parts.concat();
            let text = if is_mbox { [b"From a Sat Nov 21 09:30 2026\n".as_slice(), &text].concat() } else { text };
            check(&[text, vec![choice]].concat());
        }
    }
}
