//! Password files: the password is the first line, without its end.
use std::io;
use std::path::Path;

/// The password in a file.
///
/// # Errors
/// If the file cannot be read, or is not text in UTF-8.
pub fn read(path: &Path) -> io::Result<String> {
    std::fs::read_to_string(path).map(|text| password(&text).to_owned())
}

/// The password in the text of such a file.
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
