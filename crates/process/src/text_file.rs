//! Reads text files that people write on any system, such as configurations, scenarios, rules, users, mailboxes,
//! aliases and passwords. A byte order mark at the start is skipped, because it would otherwise become part of the
//! first name. Lines may end in CRLF. Encodings other than UTF-8 are refused.
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Maximum length in bytes of files that have no limit of their own.
pub const MAX_BYTES: u64 = 64 << 20;

const UTF8_MARK: &[u8] = b"\xef\xbb\xbf";
const UTF16_MARKS: [&[u8]; 2] = [b"\xff\xfe", b"\xfe\xff"];

/// Reads a whole text file, and decodes its content with [`decode`].
///
/// # Errors
/// Returns an error if the file cannot be read, is longer than `max_bytes`, or has content that [`decode`] refuses.
pub fn read(path: &Path, max_bytes: u64) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?.take(max_bytes + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max_bytes {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("it is longer than {max_bytes} bytes")));
    }
    decode(bytes).map_err(|reason| io::Error::new(io::ErrorKind::InvalidData, format!("it {reason}")))
}

/// Decodes the content of a text file: removes a byte order mark, and turns each CRLF into LF.
///
/// # Errors
/// Returns an error if the content is not UTF-8, or if it has a carriage return that is not part of
/// a line end. The error completes a sentence whose subject is the file, such as `is not UTF-8`.
pub fn decode(bytes: Vec<u8>) -> Result<String, &'static str> {
    if UTF16_MARKS.iter().any(|mark| bytes.starts_with(mark)) {
        return Err("is not UTF-8 but UTF-16; save it as UTF-8");
    }
    let text = String::from_utf8(bytes).map_err(|_| "is not UTF-8")?;
    let text = match text.as_bytes().strip_prefix(UTF8_MARK) {
        Some(rest) => text[text.len() - rest.len()..].to_owned(),
        None => text,
    };
    if !text.contains('\r') {
        return Ok(text);
    }
    let text = text.replace("\r\n", "\n");
    match text.contains('\r') {
        true => Err("has a carriage return within a line; end lines in LF or CRLF"),
        false => Ok(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_and_crlf_are_no_part_of_a_text() {
        for (bytes, text) in [
            (&b""[..], Ok("")),
            (b"a\nb", Ok("a\nb")),
            (b"\xef\xbb\xbfa\r\n\r\nb\r\n", Ok("a\n\nb\n")),
            (b"\xef\xbb\xbf", Ok("")),
            (b"a\xef\xbb\xbf\n", Ok("a\u{feff}\n")),
            (b"\xff\xfea\0", Err("is not UTF-8 but UTF-16; save it as UTF-8")),
            (b"\xfe\xff\0a", Err("is not UTF-8 but UTF-16; save it as UTF-8")),
            (b"\xe4", Err("is not UTF-8")),
            (b"a\rb\r", Err("has a carriage return within a line; end lines in LF or CRLF")),
        ] {
            assert_eq!(decode(bytes.to_vec()).as_deref(), text.as_deref(), "{bytes:?}");
        }
    }

    #[test]
    fn a_file_that_is_too_long_or_no_text_is_refused() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("list");
        std::fs::write(&path, "12345").unwrap();
        assert_eq!(read(&path, 5).unwrap(), "12345");
        assert_eq!(read(&path, 4).unwrap_err().to_string(), "it is longer than 4 bytes");
        std::fs::write(&path, [0xff]).unwrap();
        assert_eq!(read(&path, 5).unwrap_err().to_string(), "it is not UTF-8");
    }
}
