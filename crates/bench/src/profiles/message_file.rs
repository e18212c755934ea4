//! Writes the message files for the runs of a profile. In each run, the source sends one such file again and again. A
//! message has three header fields and a body of a given size, in lines of equal length.
use anyhow::{Context, Result};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

/// Header of all messages, with as many fields as the messages of the Kotlin SMTP guide have.
const HEADER: &[u8] = b"From: <from@example.com>\r\nTo: <to@example.com>\r\nSubject: mailrun profile\r\n\r\n";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BodyLines {
    first: u8,
    /// Bytes of a line, including its CRLF.
    bytes: u64,
    /// Part of the file name that distinguishes messages of the same size but with different lines.
    name: &'static str,
}

impl BodyLines {
    /// Lines of the length that the Kotlin SMTP guide uses for its published profiles.
    pub(super) const GUIDE: Self = Self { first: b'a', bytes: 514, name: "guide" };
    pub(super) const TEXT: Self = Self { first: b'a', bytes: 80, name: "text" };
    /// Lines that start with a dot, which the sender must double (RFC 5321, section 4.5.2).
    pub(super) const DOTTED: Self = Self { first: b'.', bytes: 80, name: "dotted" };
    pub(super) const SHORT: Self = Self { first: b'a', bytes: 4, name: "short" };

    pub(super) fn file_name(self, body_bytes: u64) -> String {
        format!("message-{body_bytes}-{}.eml", self.name)
    }

    /// Writes a message with a body of `body_bytes`, which must be at least 2, the size of an empty line. Waits until
    /// the file is on disk, so that the kernel does not write it during a run.
    pub(super) fn write_message(self, path: &Path, body_bytes: u64) -> Result<()> {
        let write = || -> io::Result<()> {
            let mut file = BufWriter::new(File::create(path)?);
            file.write_all(HEADER)?;
            self.write_body(&mut file, body_bytes)?;
            file.into_inner()?.sync_all()
        };
        write().with_context(|| format!("cannot write {}", path.display()))
    }

    fn write_body(self, out: &mut impl Write, body_bytes: u64) -> io::Result<()> {
        let mut left = body_bytes;
        while left > 0 {
            // Even an empty line has two bytes, CRLF. If only one byte would be left for the last line, add it to the
            // line before.
            let length = match left {
                left if left <= self.bytes => left,
                left if left == self.bytes + 1 => left,
                _ => self.bytes,
            };
            self.write_line(out, length)?;
            left -= length;
        }
        Ok(())
    }

    fn write_line(self, out: &mut impl Write, length: u64) -> io::Result<()> {
        let mut line = vec![b'a'; length.saturating_sub(2) as usize];
        if let Some(first) = line.first_mut() {
            *first = self.first;
        }
        line.extend_from_slice(b"\r\n");
        out.write_all(&line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_has_the_bytes_that_are_asked_for_in_whole_lines() {
        for lines in [BodyLines::GUIDE, BodyLines::TEXT, BodyLines::DOTTED, BodyLines::SHORT] {
            for bytes in (2..200).chain([512, 513, 514, 515, 516, 4_096, 65_536]) {
                let mut body = Vec::new();
                lines.write_body(&mut body, bytes).unwrap();
                assert_eq!(body.len() as u64, bytes, "{lines:?}");
                assert!(body.ends_with(b"\r\n"), "{lines:?} {bytes}");
                let texts = body.strip_suffix(b"\r\n").unwrap().split(|byte| *byte == b'\n');
                assert!(texts.clone().all(|text| text.len() as u64 <= lines.bytes), "{lines:?} {bytes}");
                let firsts = texts.filter_map(|text| text.first()).filter(|first| **first != b'\r');
                assert!(firsts.into_iter().all(|first| *first == lines.first), "{lines:?} {bytes}");
            }
        }
    }

    #[test]
    fn a_message_is_a_file_with_a_header() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(BodyLines::DOTTED.file_name(100));
        BodyLines::DOTTED.write_message(&path, 100).unwrap();
        let text = std::fs::read(&path).unwrap();
        let body = text.strip_prefix(HEADER).unwrap();
        assert_eq!((body.len(), body[0]), (100, b'.'));
        let nowhere = directory.path().join("no/such.eml");
        assert!(BodyLines::TEXT.write_message(&nowhere, 100).unwrap_err().to_string().contains("no/such.eml"));
    }
}
