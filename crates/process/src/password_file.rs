//! Password files. The password is the first line without its line end.
use crate::text_file;
use std::io;
use std::path::Path;

/// Reads the password from a file.
///
/// # Errors
/// Returns an error if the file cannot be read or is not UTF-8.
pub fn read(path: &Path) -> io::Result<String> {
    text_file::read(path, text_file::MAX_BYTES).map(|text| password(&text).to_owned())
}

/// Returns the first line of the text. Later lines are ignored.
pub fn password(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_is_the_password() {
        for (text, expected) in
            [("secret", "secret"), ("secret\n", "secret"), (" a b \r\nc\n", " a b "), ("", ""), ("\nx", "")]
        {
            assert_eq!(password(text), expected, "{text:?}");
        }
    }
}
