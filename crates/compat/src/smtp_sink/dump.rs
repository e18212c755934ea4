//! Stores messages in files (`-d`, `-D` and `-S`), in the format of Postfix's smtp-sink.
//!
//! ```text
//! MAIL ──▶ file opened, client, envelope ── DATA ──▶ Received: ── message without CR ── CRLF.CRLF ──▶ closed
//!                                             └─ anything else ends the transaction: the file is deleted
//! ```
use super::commands::Command;
use super::local_text::LocalText;
use super::options::{DumpTemplate, Settings};
use super::template::expand;
use crate::stderr::printable;
use jiff::Zoned;
use jiff::tz::TimeZone;
use mailrun_process::reason::reason;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, BufWriter, ErrorKind, Seek, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::rc::Rc;

const FILE_MODE: u32 = 0o644;
const DIRECTORY_MODE: u32 = 0o755;
const MAX_NAME_ATTEMPTS: u32 = 100;
/// With `-D`, an incomplete message of at most this many bytes is kept in memory. A longer message is moved to an
/// unnamed file until it is complete.
const MEMORY_LIMIT: usize = 64 * 1024;

/// Failure of a file operation. It ends the program, because the manual of smtp-sink does not say which reply the
/// client should get.
#[derive(Debug, thiserror::Error)]
#[error("{act} {path}: {}", reason(.source))]
pub(super) struct DiskError {
    act: &'static str,
    path: String,
    source: io::Error,
}

fn disk_error(act: &'static str, path: &str) -> impl FnOnce(io::Error) -> DiskError {
    move |source| DiskError { act, path: path.to_owned(), source }
}

#[derive(Debug)]
pub(super) struct DumpContext {
    settings: Rc<Settings>,
    zone: TimeZone,
}

impl DumpContext {
    pub(super) fn new(settings: Rc<Settings>, zone: TimeZone) -> Self {
        Self { settings, zone }
    }
}

#[derive(Debug)]
pub(super) struct SessionDump {
    context: Option<Rc<DumpContext>>,
    client: Option<SocketAddr>,
    protocol: &'static str,
    greeting: Option<String>,
    open: Option<Box<OpenDump>>,
}

#[derive(Debug)]
struct OpenDump {
    path: String,
    id: u32,
    began: Zoned,
    storage: DumpStorage,
    text: LocalText,
}

/// Storage for a message that is not complete yet.
#[derive(Debug)]
enum DumpStorage {
    OwnFile(BufWriter<File>),
    /// For `-D`: once the message is complete, it is appended to a file that all messages share.
    SharedFile {
        memory: Vec<u8>,
        overflow: Option<File>,
    },
}

impl SessionDump {
    pub(super) fn new(context: Option<Rc<DumpContext>>, client: Option<SocketAddr>) -> Self {
        let is_lmtp = context.as_ref().is_some_and(|context| context.settings.is_lmtp);
        Self { context, client, protocol: if is_lmtp { "LMTP" } else { "SMTP" }, greeting: None, open: None }
    }

    pub(super) fn greeted(&mut self, command: Command, rest: &[u8]) -> Result<(), DiskError> {
        if self.context.is_none() {
            return Ok(());
        }
        self.protocol = match command {
            Command::Helo => "SMTP",
            Command::Ehlo => "ESMTP",
            _ => self.protocol,
        };
        self.greeting = Some(printable(rest).trim_start_matches(' ').to_owned());
        self.abandon()
    }

    pub(super) fn begin(&mut self, rest: &[u8]) -> Result<(), DiskError> {
        let Some(context) = &self.context else { return Ok(()) };
        let dump = OpenDump::open(context)?;
        let start = context.settings.dump_prefix.clone();
        self.open = Some(Box::new(dump));
        self.write(&start)?;
        let client = address_of(self.client);
        let mut head = format!("X-Client-Addr: {client}\nX-Client-Proto: {}\n", self.protocol);
        if let Some(greeting) = &self.greeting {
            head.push_str(&format!("X-Helo-Args: {greeting}\n"));
        }
        head.push_str(&format!("X-Mail-Args: {}\n", argument(rest)));
        self.write(head.as_bytes())
    }

    pub(super) fn recipient(&mut self, rest: &[u8]) -> Result<(), DiskError> {
        if self.open.is_none() {
            return Ok(());
        }
        self.write(format!("X-Rcpt-Args: {}\n", argument(rest)).as_bytes())
    }

    pub(super) fn write_received_header(&mut self) -> Result<(), DiskError> {
        let (Some(context), Some(dump)) = (&self.context, &self.open) else { return Ok(()) };
        let client = address_of(self.client);
        let protocol = self.protocol;
        let from = self.greeting.clone().unwrap_or_else(|| format!("[{client}]"));
        let host = &context.settings.hostname;
        let date = dump.began.strftime("%a, %e %b %Y %H:%M:%S %z (%Z)");
        let id = dump.id;
        let received = format!(
            "Received: from {from} ([{client}])\n\tby {host} (smtp-sink) with {protocol} id {id:08x};\n\t{date}\n"
        );
        self.write(received.as_bytes())
    }

    pub(super) fn content(&mut self, octets: &[u8]) -> Result<(), DiskError> {
        let Some(dump) = &mut self.open else { return Ok(()) };
        let OpenDump { path, storage, text, .. } = &mut **dump;
        text.pass(octets, |piece| storage.write(piece, path))
    }

    pub(super) fn finish(&mut self) -> Result<(), DiskError> {
        self.open.take().map_or(Ok(()), |dump| dump.finish())
    }

    pub(super) fn abandon(&mut self) -> Result<(), DiskError> {
        self.open.take().map_or(Ok(()), |dump| dump.delete())
    }

    fn write(&mut self, octets: &[u8]) -> Result<(), DiskError> {
        let Some(dump) = &mut self.open else { return Ok(()) };
        dump.storage.write(octets, &dump.path)
    }
}

impl Drop for SessionDump {
    fn drop(&mut self) {
        // Ignore the error. If a dump is still open here, the program is ending, and nobody can handle the error.
        let _ = self.abandon();
    }
}

impl OpenDump {
    fn open(context: &DumpContext) -> Result<Self, DiskError> {
        let began = jiff::Timestamp::now().to_zoned(context.zone.clone());
        let (storage, path, id) = match &context.settings.dump_template {
            Some(DumpTemplate::OwnFile(template)) => {
                let (file, path, id) = create(&expand(template, &began))?;
                (DumpStorage::OwnFile(BufWriter::new(file)), path, id)
            }
            Some(DumpTemplate::SharedFile(template)) => {
                (DumpStorage::SharedFile { memory: Vec::new(), overflow: None }, expand(template, &began), random_id())
            }
            None => (DumpStorage::SharedFile { memory: Vec::new(), overflow: None }, String::new(), 0),
        };
        Ok(Self { path, id, began, storage, text: LocalText::default() })
    }

    fn finish(self) -> Result<(), DiskError> {
        match self.storage {
            DumpStorage::OwnFile(mut file) => file.flush().map_err(disk_error("append file", &self.path)),
            DumpStorage::SharedFile { memory, overflow } => append(&self.path, &memory, overflow),
        }
    }

    fn delete(self) -> Result<(), DiskError> {
        let DumpStorage::OwnFile(file) = self.storage else { return Ok(()) };
        // Discard the buffered bytes, because the file is about to be deleted.
        let (file, _) = file.into_parts();
        drop(file);
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(disk_error("unlink", &self.path)(error)),
            _ => Ok(()),
        }
    }
}

impl DumpStorage {
    fn write(&mut self, octets: &[u8], path: &str) -> Result<(), DiskError> {
        match self {
            Self::OwnFile(file) => file.write_all(octets).map_err(disk_error("append file", path)),
            Self::SharedFile { memory, overflow } => {
                if memory.len() + octets.len() > MEMORY_LIMIT {
                    let file = match overflow {
                        Some(file) => file,
                        None => overflow.insert(unnamed_file(path)?),
                    };
                    file.write_all(memory)
                        .and_then(|()| file.write_all(octets))
                        .map_err(disk_error("append file", path))?;
                    memory.clear();
                } else {
                    memory.extend_from_slice(octets);
                }
                Ok(())
            }
        }
    }
}

fn random_id() -> u32 {
    getrandom::u32().expect("Linux has random numbers once it runs programs")
}

/// Creates a file whose name is `start` followed by a random number. Creates missing directories as well. Returns the
/// file, its path and the number.
fn create(start: &str) -> Result<(File, String, u32), DiskError> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true).mode(FILE_MODE);
    for _ in 0..MAX_NAME_ATTEMPTS {
        let id = random_id();
        let path = format!("{start}{id:08x}");
        match options.open(&path) {
            Ok(file) => return Ok((file, path, id)),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) if error.kind() == ErrorKind::NotFound => make_parent(&path)?,
            Err(error) => return Err(disk_error("open", &path)(error)),
        }
    }
    Err(disk_error("open", start)(io::Error::other("no name is free")))
}

fn unnamed_file(beside: &str) -> Result<File, DiskError> {
    let (file, path, _) = create(beside)?;
    fs::remove_file(&path).map_err(disk_error("unlink", &path))?;
    Ok(file)
}

fn append(path: &str, memory: &[u8], overflow: Option<File>) -> Result<(), DiskError> {
    let mut options = OpenOptions::new();
    options.append(true).create(true).mode(FILE_MODE);
    let mut file = match options.open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            make_parent(path)?;
            options.open(path)
        }
        outcome => outcome,
    }
    .map_err(disk_error("open", path))?;
    if let Some(mut begun) = overflow {
        begun.rewind().and_then(|()| io::copy(&mut begun, &mut file)).map_err(disk_error("append file", path))?;
    }
    // Use a single write, so that short messages do not get mixed up if several sinks append to the same file.
    file.write_all(memory).map_err(disk_error("append file", path))
}

fn make_parent(path: &str) -> Result<(), DiskError> {
    let parent = Path::new(path).parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let made = DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(parent);
    made.map_err(disk_error("mkdir", &parent.to_string_lossy()))
}

fn address_of(client: Option<SocketAddr>) -> String {
    match client {
        None => "local".to_owned(),
        Some(SocketAddr::V4(address)) => address.ip().to_string(),
        Some(SocketAddr::V6(address)) => format!("ipv6:{}", address.ip()),
    }
}

/// Returns the text after the first colon, without leading colons and blanks. For MAIL and RCPT, this is the address
/// with its parameters.
fn argument(rest: &[u8]) -> String {
    let text = printable(rest);
    let after = text.find(':').map_or("", |at| &text[at..]);
    after.trim_start_matches(':').trim_start_matches(' ').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_follow_the_first_colon() {
        let rows = [("FROM:<a@b> X", "<a@b> X"), ("FROM::  <a>", "<a>"), ("FROM", ""), ("", ""), (":a:b", "a:b")];
        for (rest, expected) in rows {
            assert_eq!(argument(rest.as_bytes()), expected);
        }
    }

    #[test]
    fn a_long_message_leaves_memory_and_keeps_its_order() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("deep/er/all").to_str().unwrap().to_owned();
        let mut storage = DumpStorage::SharedFile { memory: Vec::new(), overflow: None };
        let mut expected = Vec::new();
        make_parent(&path).unwrap();
        for number in 0..5000u32 {
            let piece = format!("{number:032}\n");
            storage.write(piece.as_bytes(), &path).unwrap();
            expected.extend_from_slice(piece.as_bytes());
        }
        let DumpStorage::SharedFile { memory, overflow } = storage else { unreachable!() };
        assert!(memory.len() <= MEMORY_LIMIT && overflow.is_some());
        append(&path, &memory, overflow).unwrap();
        assert_eq!(fs::read(&path).unwrap(), expected);
        assert_eq!(fs::read_dir(Path::new(&path).parent().unwrap()).unwrap().count(), 1, "nothing else is left");
    }

    #[test]
    fn what_fails_is_named() {
        let error = append("/proc/none/x", b"", None).unwrap_err().to_string();
        assert_eq!(error, "mkdir /proc/none: No such file or directory");
    }
}
