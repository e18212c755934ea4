//! Texts of failed system calls, in the system's own words.
use std::io;

/// Returns the text of strerror(3) for an error, without the number that Rust adds. If a file is
/// too large, also says which limits may be the cause.
pub fn reason(error: &io::Error) -> String {
    if error.kind() == io::ErrorKind::FileTooLarge && error.raw_os_error().is_some() {
        return "File too large for the limit of file sizes (ulimit -f) or the file system".to_owned();
    }
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_those_of_strerror() {
        assert_eq!(reason(&io::Error::from_raw_os_error(2)), "No such file or directory");
        assert_eq!(reason(&io::Error::other("no")), "no");
        assert!(reason(&io::Error::from_raw_os_error(27)).contains("(ulimit -f)"));
        assert_eq!(reason(&io::Error::other("disk on fire")), "disk on fire");
    }
}
