//! Rules that imitate well-known mail services and servers, based on limits that their makers document. Each file in
//! `crates/load/receivers` names the document that states its limits.
use super::rulebook::Rulebook;
use mailrun_text::words::is_misspelling;

/// A mail service or server, such as Gmail or Postgrey, whose documented limits a sink can apply.
#[derive(Clone, Copy, Debug)]
pub struct Receiver {
    pub name: &'static str,
    text: &'static str,
}

macro_rules! receiver {
    ($name:literal) => {
        Receiver { name: $name, text: include_str!(concat!("../../receivers/", $name, ".toml")) }
    };
}

impl Receiver {
    pub const ALL: [Self; 5] =
        [receiver!("exchange"), receiver!("exim"), receiver!("gmail"), receiver!("postgrey"), receiver!("yahoo")];

    /// Returns the receiver that the user has named.
    ///
    /// # Errors
    /// Fails if no receiver has this name. The error suggests a receiver with a similar name, or
    /// lists all names.
    pub fn named(name: &str) -> Result<Self, String> {
        if let Some(known) = Self::ALL.iter().find(|known| known.name == name) {
            return Ok(*known);
        }
        match Self::ALL.iter().find(|known| is_misspelling(name, known.name)) {
            Some(nearest) => Err(format!("unknown receiver {name:?}; did you mean {:?}?", nearest.name)),
            None => {
                let names = Self::ALL.map(|known| known.name).join(", ");
                Err(format!("unknown receiver {name:?}; known are {names}"))
            }
        }
    }

    /// Returns a sentence that describes the limits of this service or server, from the first line of its rules file.
    pub fn limit(&self) -> &'static str {
        self.text.lines().next().unwrap_or_default().trim_start_matches("# ")
    }

    /// Returns the receiver's file, whose comments describe the limits and name their source.
    pub fn text(&self) -> &'static str {
        self.text
    }

    /// Parses the built-in rules file of this service or server.
    ///
    /// # Errors
    /// Fails if the file has a mistake. A test parses all built-in files, so users never see this error.
    pub fn rulebook(&self) -> Result<Rulebook, String> {
        Rulebook::read_file(self.name, self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_file_has_its_limit_its_source_and_the_day_on_which_it_was_read() {
        let files = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/receivers")).unwrap();
        assert_eq!(files.count(), Receiver::ALL.len(), "each file is built in");
        for receiver in Receiver::ALL {
            let book = receiver.rulebook().unwrap();
            assert!(!book.rules.is_empty() && book.seed.is_none(), "{}", receiver.name);
            assert!(receiver.limit().ends_with('.') && !receiver.limit().starts_with('#'), "{}", receiver.limit());
            assert!(
                receiver.text().contains("\n# Source") && receiver.text().contains("Read on 20"),
                "{}",
                receiver.name
            );
        }
    }

    #[test]
    fn an_unknown_receiver_is_answered_with_the_nearest_or_with_all() {
        assert_eq!(Receiver::named("yaho").unwrap_err(), "unknown receiver \"yaho\"; did you mean \"yahoo\"?");
        assert!(Receiver::named("x").unwrap_err().ends_with("known are exchange, exim, gmail, postgrey, yahoo"));
        assert_eq!(Receiver::named("gmail").unwrap().name, "gmail");
    }
}
