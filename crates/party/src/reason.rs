//! Texts of failed system calls, in the system's own words.
use std::io;

/// Returns the text of strerror(3) for an error, without the number that Rust adds.
pub fn reason(error: &io::Error) -> String {
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
        assert_eq!(reason(&io::Error::other("disk on fire")), "disk on fire");
    }
}
