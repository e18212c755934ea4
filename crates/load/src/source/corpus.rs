//! Real messages to send: an mbox, a Maildir, a directory of .eml files or one of them, converted to wire format once.
//!
//! | PATH is | it is read as |
//! |---|---|
//! | a directory with `cur` or `new` in it | a Maildir: every file of these two |
//! | another directory | its files `*.eml`, not those of directories below |
//! | a file that begins with `From ` | an mbox |
//! | a file named `*.eml` | one message |
//!
//! Line ends of any kind become `<CRLF>`. A message with NUL, with a line above 998 octets (RFC 5322 §2.1.1, §4), or
//! with no bytes at all, is unfit: the corpus is refused, or, if the user asked for that, the message is left out and
//! counted. In an mbox a message begins at a line `From …` with a time of day in it, at the start or after an empty
//! line; from `>From ` at the start of a line one `>` is removed (mboxrd).
//!
//! Memory: each message as it will be sent, once, and 256 bytes more for each; while a message is being read, it is
//! there a second time. A corpus above its limit is refused as soon as that is known; nothing is left out silently.
use super::file_lines::{FileLine, FileLines, MAX_LINE_BYTES};
use anyhow::{Context, Result, bail};
use journey::trace::Checksum;
use smtp::data;
use std::fs::{self, File};
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Memory of a message besides its bytes.
const MESSAGE_OVERHEAD_BYTES: u64 = 256;
/// Bytes per read.
const BLOCK_BYTES: usize = 64 * 1024;
/// The beginning of an mbox, and of each message in it.
const FROM_LINE_PREFIX: &[u8] = b"From ";

/// Path of the corpus, and limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CorpusOptions {
    /// A file or a directory.
    pub path: PathBuf,
    /// Limit of the memory for messages.
    pub limit_bytes: u64,
    /// Treatment of messages that cannot be sent as they are.
    pub invalid_messages: InvalidMessagePolicy,
}

/// Treatment of messages that cannot be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidMessagePolicy {
    /// One such message is enough to refuse the corpus.
    Reject,
    /// They are left out and counted.
    Skip,
}

/// Messages ready to be sent.
#[derive(Debug)]
pub(super) struct Corpus {
    pub(super) kind: &'static str,
    pub(super) messages: Vec<CorpusMessage>,
    pub(super) skipped: u64,
}

/// A message, dot-stuffed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CorpusMessage {
    /// The header block with its empty line, if it has one.
    pub(super) headers: Vec<u8>,
    /// The body and the end of data.
    pub(super) body: Arc<[u8]>,
    /// Checksum of the body, unstuffed.
    pub(super) checksum: u32,
    /// Bytes of the message, unstuffed, without the end of data.
    pub(super) bytes: u64,
    pub(super) is_eight_bit: bool,
}

/// Reads a corpus.
///
/// # Errors
/// If there is none, it cannot be read, is above its limit, or contains unfit messages.
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
            "--corpus {} is not an mbox, which begins with a line \"From …\"; the name of a file with one message \
             must end in .eml",
            path.display()
        );
    };
    if target.messages.is_empty() {
        bail!("--corpus {} contains no message that can be sent ({} are invalid)", path.display(), target.skipped);
    }
    Ok(Corpus { kind, messages: target.messages, skipped: target.skipped })
}

/// The files of a Maildir or of a directory of messages, sorted by name: so a seed picks the same ones on every host.
fn message_files(path: &Path, limit_bytes: u64) -> Result<(&'static str, Vec<PathBuf>)> {
    let maildir: Vec<PathBuf> = ["cur", "new"].map(|name| path.join(name)).into_iter().filter(|p| p.is_dir()).collect();
    let (kind, directories, wanted): (_, _, fn(&Path) -> bool) = match maildir.is_empty() {
        true => ("directory", vec![path.to_owned()], is_eml),
        false => {
            ("maildir", maildir, |file| !file.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b".")))
        }
    };
    let mut files = Vec::new();
    for directory in directories {
        let unreadable = || format!("--corpus: cannot read {}", directory.display());
        for entry in fs::read_dir(&directory).with_context(unreadable)? {
            let file = entry.with_context(unreadable)?.path();
            if wanted(&file) && file.is_file() {
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
    let mut start = Vec::new();
    let file = File::open(path).with_context(|| format!("--corpus: cannot read {}", path.display()))?;
    std::io::Read::read_to_end(&mut std::io::Read::take(file, FROM_LINE_PREFIX.len() as u64), &mut start)
        .with_context(|| format!("--corpus: cannot read {}", path.display()))?;
    Ok(start == FROM_LINE_PREFIX)
}

fn too_large(path: &Path, limit_bytes: u64) -> String {
    format!(
        "--corpus {} exceeds --max-corpus-size, {limit_bytes} bytes; use a part of it, or a higher limit",
        path.display()
    )
}

/// Messages read so far.
struct CorpusReader<'a> {
    options: &'a CorpusOptions,
    messages: Vec<CorpusMessage>,
    used_bytes: u64,
    skipped: u64,
}

impl CorpusReader<'_> {
    /// Reads a file that is one message.
    fn read_message(&mut self, path: &Path) -> Result<()> {
        let length = fs::metadata(path).map_or(0, |about| about.len());
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
        let mut draft: Option<CorpusMessageBuilder> = None;
        // An empty line before a `From ` line belongs to the separator, any other to the message.
        let mut is_after_empty = true;
        while let Some(line) = lines.next().with_context(|| read_error(path))? {
            if is_after_empty && is_from_line(line.text) {
                if let Some(whole) = draft.replace(CorpusMessageBuilder::default()) {
                    self.finish(whole, path)?;
                }
                is_after_empty = false;
                continue;
            }
            let Some(draft) = draft.as_mut() else {
                bail!(
                    "--corpus {} is not an mbox: its first line is not a separator (From SENDER WEEKDAY MONTH DAY \
                     TIME YEAR)",
                    path.display()
                );
            };
            if is_after_empty {
                self.add_line(draft, &FileLine { text: b"", bytes: 0, ..line })?;
            }
            is_after_empty = line.bytes == 0;
            if !is_after_empty {
                self.add_line(draft, &unquote_from_line(line))?;
            }
        }
        draft.map_or(Ok(()), |whole| self.finish(whole, path))
    }

    /// Adds a line, if there is room.
    fn add_line(&mut self, draft: &mut CorpusMessageBuilder, line: &FileLine<'_>) -> Result<()> {
        draft.add_line(line);
        if self.used_bytes + draft.buffered_bytes() > self.options.limit_bytes {
            bail!(too_large(&self.options.path, self.options.limit_bytes));
        }
        Ok(())
    }

    /// Stores a complete message, or refuses or skips an unfit one.
    fn finish(&mut self, draft: CorpusMessageBuilder, path: &Path) -> Result<()> {
        match (draft.finish(), self.options.invalid_messages) {
            (Ok(message), _) => {
                self.used_bytes += (message.headers.len() + message.body.len()) as u64 + MESSAGE_OVERHEAD_BYTES;
                self.messages.push(message);
            }
            (Err(_), InvalidMessagePolicy::Skip) => self.skipped += 1,
            (Err(flaw), InvalidMessagePolicy::Reject) => bail!(
                "--corpus: {}: message {}: {flaw}; use --corpus-skip-bad to skip such messages",
                path.display(),
                self.messages.len() + 1
            ),
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

/// `From SENDER …` with a time of day in it: `09:30`.
fn is_from_line(line: &[u8]) -> bool {
    let is_time = |five: &[u8]| {
        five.iter().enumerate().all(|(at, octet)| match at {
            2 => *octet == b':',
            _ => octet.is_ascii_digit(),
        })
    };
    line.starts_with(FROM_LINE_PREFIX) && line.windows(5).any(is_time)
}

/// Removes a `>`: `>From ` becomes `From `, `>>From ` becomes `>From `.
fn unquote_from_line(line: FileLine<'_>) -> FileLine<'_> {
    let quotes = line.text.iter().take_while(|octet| **octet == b'>').count();
    if quotes > 0 && line.text[quotes..].starts_with(FROM_LINE_PREFIX) {
        return FileLine { text: &line.text[1..], bytes: line.bytes - 1, ..line };
    }
    line
}

/// A message that is being read, dot-stuffed line by line.
#[derive(Debug, Default)]
struct CorpusMessageBuilder {
    headers: Vec<u8>,
    body: Vec<u8>,
    is_in_body: bool,
    checksum: Checksum,
    bytes: u64,
    is_eight_bit: bool,
    /// The first fault found; nothing is stored from then on.
    error: Option<String>,
}

impl CorpusMessageBuilder {
    fn add_line(&mut self, line: &FileLine<'_>) {
        if self.error.is_some() {
            return;
        }
        if line.bytes > MAX_LINE_BYTES as u64 {
            let flaw = format!("line {} has {} bytes; at most {MAX_LINE_BYTES} are allowed", line.number, line.bytes);
            *self = Self { error: Some(flaw), ..Self::default() };
        } else if memchr::memchr(0, line.text).is_some() {
            let flaw = format!("line {} contains NUL, which is not allowed", line.number);
            *self = Self { error: Some(flaw), ..Self::default() };
        } else {
            self.push_line(line.text);
        }
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
            return Err("it is empty".to_owned());
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
    use journey::trace;
    use proptest::prelude::*;
    use smtp::data::{DataPiece, DataReader};

    fn options(path: &Path) -> CorpusOptions {
        CorpusOptions { path: path.to_owned(), limit_bytes: 1 << 20, invalid_messages: InvalidMessagePolicy::Reject }
    }

    /// Headers and body as a receiver sees them, unstuffed.
    fn received(message: &CorpusMessage) -> Vec<u8> {
        let wire = [message.headers.as_slice(), &message.body].concat();
        let mut reader = DataReader::new(1_000);
        let mut input = wire.as_slice();
        let mut content = Vec::new();
        loop {
            match reader.next(&mut input) {
                Some(DataPiece::Content(bytes)) => content.extend_from_slice(bytes),
                Some(DataPiece::End) => break,
                None => panic!("no end of data: {}", wire.escape_ascii()),
            }
        }
        assert!(input.is_empty() && reader.fault().is_none(), "{}", wire.escape_ascii());
        assert_eq!(content.len() as u64, message.bytes);
        content
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
        for (name, text) in [("b.eml", "b"), ("a.EML", "a"), ("c.txt", "c"), ("d.eml.bak", "d")] {
            fs::write(place.path().join(name), text).unwrap();
        }
        fs::create_dir(place.path().join("below.eml")).unwrap();
        let corpus = read(&options(place.path())).unwrap();
        assert_eq!((corpus.kind, texts(&corpus)), ("directory", vec!["a\r\n".to_owned(), "b\r\n".to_owned()]));
        for (directory, name) in [("cur", "2.host:2,S"), ("new", "1.host"), ("tmp", "0.host"), ("cur", ".hidden")] {
            fs::create_dir_all(place.path().join(directory)).unwrap();
            fs::write(place.path().join(directory).join(name), format!("Subject: {name}\n\nx\n")).unwrap();
        }
        let corpus = read(&options(place.path())).unwrap();
        let expected = ["Subject: 1.host\r\n\r\nx\r\n", "Subject: 2.host:2,S\r\n\r\nx\r\n"];
        assert_eq!((corpus.kind, texts(&corpus)), ("maildir", expected.map(str::to_owned).to_vec()));
    }

    #[test]
    fn a_header_line_with_a_dot_does_not_end_the_message() {
        let corpus = from_file("a.eml", b".\r\n.hidden: x\n\n.\n", |_| {}).unwrap();
        assert_eq!(texts(&corpus), [".\r\n.hidden: x\r\n\r\n.\r\n"]);
    }

    #[test]
    fn what_cannot_be_sent_is_refused_by_name_or_skipped() {
        let long = format!("Subject: x\n\n{}\n", "x".repeat(999));
        for (text, named) in [
            (long.as_bytes(), "line 3 has 999 bytes"),
            (b"Subject: x\0\n\ny\n", "line 1 contains NUL"),
            (b"", "it is empty"),
        ] {
            let why = format!("{:#}", from_file("a.eml", text, |_| {}).unwrap_err());
            assert!(why.contains(named) && why.contains("a.eml") && why.contains("--corpus-skip-bad"), "{why}");
            let none =
                from_file("a.eml", text, |options| options.invalid_messages = InvalidMessagePolicy::Skip).unwrap_err();
            assert!(none.to_string().contains("no message that can be sent (1 are invalid)"), "{none}");
        }
        let mixed =
            format!("From a 09:30\n{long}\nFrom b 09:30\nSubject: good\n\nFrom c 09:30\n\nFrom d 09:30\na\0b\n");
        let why = from_file("box", mixed.as_bytes(), |_| {}).unwrap_err().to_string();
        assert!(why.contains("box: message 1: line 4 has 999 bytes"), "{why}");
        let corpus =
            from_file("box", mixed.as_bytes(), |options| options.invalid_messages = InvalidMessagePolicy::Skip)
                .unwrap();
        assert_eq!((texts(&corpus), corpus.skipped), (vec!["Subject: good\r\n".to_owned()], 3));
        let most = format!("{}\n", "x".repeat(998));
        assert!(from_file("a.eml", most.as_bytes(), |_| {}).is_ok());
    }

    #[test]
    fn what_is_no_corpus_says_so() {
        for (name, text, named) in [
            ("box", "Subject: x\n\nno postmark\n", "is not an mbox"),
            ("box", "From the start it is wrong\n\nx\n", "its first line is not a separator"),
            ("box", "", "is not an mbox"),
        ] {
            let why = from_file(name, text.as_bytes(), |_| {}).unwrap_err().to_string();
            assert!(why.contains(named), "{why}");
        }
        let empty = tempfile::tempdir().unwrap();
        assert!(read(&options(empty.path())).unwrap_err().to_string().contains("neither *.eml files nor"));
        assert!(read(&options(Path::new("/nowhere"))).unwrap_err().to_string().contains("/nowhere"));
        assert!(read(&options(Path::new("/dev/null"))).unwrap_err().to_string().contains("neither a file nor"));
    }

    #[test]
    fn memory_has_a_limit() {
        let big = "x\n".repeat(1_000);
        let is_refused = |name: &str, text: &str| {
            let refused =
                from_file(name, text.as_bytes(), |options| options.limit_bytes = 2_048).unwrap_err().to_string();
            assert!(refused.contains("--max-corpus-size, 2048 bytes"), "{refused}");
        };
        is_refused("a.eml", &big.repeat(2));
        is_refused("box", &format!("From a 09:30\n{big}"));
        is_refused("box", &"From a 09:30\nx\n\n".repeat(10));
        let place = tempfile::tempdir().unwrap();
        (0..20).for_each(|number| fs::write(place.path().join(format!("{number}.eml")), "").unwrap());
        let limited = CorpusOptions { limit_bytes: 2_048, ..options(place.path()) };
        assert!(read(&limited).unwrap_err().to_string().contains("--max-corpus-size"));
    }

    proptest! {
        #[test]
        fn any_bytes_are_sent_safely_or_refused(
            parts in proptest::collection::vec(proptest::sample::select(vec![
                b"From a 09:30\n".as_slice(), b"From b\n", b"\n", b"\r\n", b"\r", b".", b"..\r\n", b"x", b"\0", b"\xff",
                b">From ", b"Subject: x\n", &[b'y'; 600],
            ]), 0..30),
            is_mbox: bool,
            skips: bool,
        ) {
            let text = parts.concat();
            let text = if is_mbox { [b"From a 09:30\n".as_slice(), &text].concat() } else { text };
            let unfit = if skips { InvalidMessagePolicy::Skip } else { InvalidMessagePolicy::Reject };
            let name = if is_mbox { "box" } else { "a.eml" };
            match from_file(name, &text, |options| options.invalid_messages = unfit) {
                Err(why) => prop_assert!(why.to_string().starts_with("--corpus")),
                Ok(corpus) => {
                    for message in &corpus.messages {
                        let content = received(message);
                        let body_at = letter_body(&content);
                        prop_assert_eq!(trace::checksum(&content[body_at..]), message.checksum);
                        prop_assert_eq!(message.is_eight_bit, !content.is_ascii());
                    }
                }
            }
        }
    }

    /// Offset of a message's body.
    fn letter_body(content: &[u8]) -> usize {
        if content.starts_with(b"\r\n") {
            return 2;
        }
        memchr::memmem::find(content, b"\r\n\r\n").map_or(content.len(), |at| at + 4)
    }
}
