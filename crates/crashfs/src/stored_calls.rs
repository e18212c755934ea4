//! Stores the calls to the simulated file system that changed files or names, or made changes durable. Repeating these
//! calls gives the same files, and each repeated power cut leaves the same data.
//!
//! ```text
//! calls.jsonl   {"format":"mailrun-calls/1","capacity":1073741824}
//!               {"at":81234567890,"time":{…},"call":{"write":{"inode":7,"at":0,"bytes":512}}}
//!               …
//!               {"end":1234}         number of the calls; a file without this line was cut off
//! calls.data    the bytes of all writes, one after another, except those of zeros
//! ```
use crate::calls::{Call, LoggedCall};
use crate::file_system::FileSystem;
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::path::Path;

const FORMAT: &str = "mailrun-calls/1";
/// Maximum capacity of the logged disk, in bytes. A log of a larger disk is rejected, because all files are kept in
/// memory when the calls are repeated.
const MAX_CAPACITY: u64 = 1 << 30;
/// Maximum length of a line of a log, in bytes. The longest lines describe power cuts, and list each sector that
/// survived.
const MAX_LINE_BYTES: u64 = 64 << 20;

#[derive(Serialize, Deserialize)]
struct Header {
    format: String,
    capacity: u64,
}

#[derive(Serialize, Deserialize)]
struct End {
    end: usize,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Line {
    Call(LoggedCall),
    End(End),
}

#[derive(Debug, PartialEq)]
pub struct StoredCalls {
    /// Capacity, in bytes, of the disk on which the calls were logged and will be repeated.
    pub capacity: u64,
    pub calls: Vec<LoggedCall>,
}

fn bad(text: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text.into())
}

impl StoredCalls {
    /// Writes the log to two files: one line of JSON for each call to `calls`, and the bytes of all writes to `data`.
    ///
    /// # Errors
    ///
    /// Fails if one of the two files cannot be written.
    pub fn write(&self, calls: &Path, data: &Path) -> io::Result<()> {
        let mut lines = BufWriter::new(File::create(calls)?);
        let mut bytes = BufWriter::new(File::create(data)?);
        let mut line = |text: String| writeln!(lines, "{text}");
        line(serde_json::to_string(&Header { format: FORMAT.to_owned(), capacity: self.capacity })?)?;
        for logged in &self.calls {
            line(serde_json::to_string(logged)?)?;
            if let Call::Write { data, .. } = &logged.call {
                bytes.write_all(data)?;
            }
        }
        line(serde_json::to_string(&End { end: self.calls.len() })?)?;
        lines.flush()?;
        bytes.flush()
    }

    /// Reads a log that [`Self::write`] has written.
    ///
    /// # Errors
    ///
    /// Fails if a file cannot be read, is cut off, or is not a log. If a line is wrong, the error contains its number.
    pub fn read(calls: &Path, data: &Path) -> io::Result<Self> {
        let mut bytes = BufReader::new(File::open(data)?);
        let mut unread = fs::metadata(data)?.len();
        let mut lines = BufReader::new(File::open(calls)?);
        let mut number = 0;
        let mut next = || {
            let mut line = Vec::new();
            number += 1;
            lines.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', &mut line)?;
            match line.pop() {
                Some(b'\n') => Ok((number, line)),
                _ => Err(bad(format!("it is cut off in line {number}"))),
            }
        };
        let (_, header) = next()?;
        let header: Header = serde_json::from_slice(&header).map_err(|_| bad("it is not a log of calls"))?;
        if header.format != FORMAT {
            return Err(bad(format!("its format is {:?}, and not {FORMAT}", header.format)));
        }
        if header.capacity > MAX_CAPACITY {
            return Err(bad(format!("its disk has {} bytes, more than {MAX_CAPACITY}", header.capacity)));
        }
        let mut all = Vec::new();
        loop {
            let (number, line) = next()?;
            let line = serde_json::from_slice(&line).map_err(|error| bad(format!("line {number}: {error}")))?;
            let mut logged: LoggedCall = match line {
                Line::Call(logged) => logged,
                Line::End(End { end }) if end == all.len() => {
                    return Ok(Self { capacity: header.capacity, calls: all });
                }
                Line::End(End { end }) => {
                    return Err(bad(format!("line {number}: it should have {end} calls and has {}", all.len())));
                }
            };
            if let Call::Write { bytes: length, are_zeros: false, data, .. } = &mut logged.call {
                let is_there = u64::try_from(*length).ok().and_then(|length| unread.checked_sub(length));
                unread = is_there.ok_or_else(|| bad(format!("line {number}: the data of this write is missing")))?;
                data.resize(*length, 0);
                bytes.read_exact(data)?;
            }
            all.push(logged);
        }
    }

    /// Repeats the logged calls on a new file system. Before each of these calls and at the end, passes the file system
    /// to `look`, and stops if `look` returns false.
    ///
    /// # Errors
    ///
    /// Fails if the new file system rejects one of the logged calls. The error contains the number of that call.
    pub fn replay(&self, mut look: impl FnMut(usize, &mut FileSystem) -> bool) -> io::Result<FileSystem> {
        let mut files = FileSystem::new(self.capacity);
        for (at, logged) in self.calls.iter().enumerate() {
            if !look(at, &mut files) {
                return Ok(files);
            }
            files.set_time(logged.time());
            let done = files.apply(&logged.call);
            done.map_err(|error| bad(format!("call {} of the log cannot be repeated: {error}", at + 1)))?;
        }
        look(self.calls.len(), &mut files);
        Ok(files)
    }
}
