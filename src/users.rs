//! Who may log in: a file of `name:password`, one a line, that sinks and relays share.
use anyhow::{Context, Result, bail};
use smtp::login::{Auth, Proof};
use smtp::sasl::scram::{FEWEST_ITERATIONS, Keys};
use smtp::sasl::{Mechanism, Secret};
use std::collections::HashMap;
use std::fmt;
use std::fs;
use std::path::Path;
use std::sync::{Mutex, MutexGuard};

/// Users that a file may name.
const MOST_USERS: usize = 1_000_000;
/// Users whose keys of SCRAM-SHA-256 are kept, some 200 octets each. Others have theirs made at each login: 4096 rounds
/// of hashing, about a millisecond.
const MOST_KEPT: usize = 10_000;

/// Who may log in, ready for use.
#[derive(Debug)]
pub(crate) enum Users {
    Anybody,
    Known(Book),
}

/// Users and their passwords.
pub(crate) struct Book {
    secrets: HashMap<String, Secret>,
    /// What SCRAM-SHA-256 needs of those who have logged in by it, each salted once.
    keys: Mutex<HashMap<String, Keys>>,
    most_kept: usize,
}

impl fmt::Debug for Book {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Book({} users)", self.secrets.len())
    }
}

impl Book {
    fn new(secrets: HashMap<String, Secret>) -> Self {
        Self { secrets, keys: Mutex::default(), most_kept: MOST_KEPT }
    }

    /// The keys of a user's password, made at the first login and kept as long as there is room. Where two first logins
    /// come at once both make them, and the same are kept for both.
    fn scram_keys(&self, name: &str) -> Option<Secret> {
        let Secret::Password(password) = self.secrets.get(name)? else { return None };
        if let Some(keys) = self.kept().get(name) {
            return Some(Secret::Keys(keys.clone()));
        }
        // Not under the lock: others need not wait for it.
        let keys = Keys::derive(password, &net::nonce(), FEWEST_ITERATIONS)?;
        let mut kept = self.kept();
        let has_room = kept.len() < self.most_kept || kept.contains_key(name);
        let keys = if has_room { kept.entry(name.to_owned()).or_insert(keys).clone() } else { keys };
        Some(Secret::Keys(keys))
    }

    fn kept(&self) -> MutexGuard<'_, HashMap<String, Keys>> {
        self.keys.lock().expect("nobody panics holding it")
    }
}

impl Users {
    /// Those of a file.
    ///
    /// # Errors
    /// If it cannot be read, has a line of another form or names nobody.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        Self::parse(&text).with_context(|| path.display().to_string())
    }

    /// `name:password`, one a line; empty lines and those that begin with `#` are passed over.
    ///
    /// # Errors
    /// If a line has another form, or there is nobody.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let mut users = HashMap::new();
        for (number, line) in text.lines().enumerate() {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let Some((name, password)) = line.split_once(':').filter(|(name, _)| !name.is_empty()) else {
                bail!("line {}: not of the form name:password", number + 1);
            };
            users.insert(name.to_owned(), Secret::Password(password.to_owned()));
            if users.len() > MOST_USERS {
                bail!("more than {MOST_USERS} users");
            }
        }
        if users.is_empty() {
            bail!("it names nobody: each line is name:password");
        }
        Ok(Self::Known(Book::new(users)))
    }

    /// Whether name and secret go together.
    pub(crate) fn knows(&self, auth: &Auth<'_>) -> bool {
        match (self, auth.proof) {
            (Self::Anybody, _) => true,
            (Self::Known(book), Proof::Shown(shown)) => {
                book.secrets.get(auth.name).is_some_and(|secret| secret.is(shown))
            }
            (Self::Known(_), Proof::Digest) => false,
        }
    }

    /// What to compare a digest with.
    pub(crate) fn secret(&self, auth: &Auth<'_>) -> Option<Secret> {
        match self {
            Self::Anybody => Some(Secret::Any),
            Self::Known(book) if auth.mechanism == Mechanism::ScramSha256 => book.scram_keys(auth.name),
            Self::Known(book) => book.secrets.get(auth.name).cloned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_users_is_read_or_its_line_named() {
        let known = Users::parse("# ours\n\nann:se:cret\nbob:\n").unwrap();
        let shown = |name, secret: &'static str| Auth {
            mechanism: Mechanism::Plain,
            name,
            proof: Proof::Shown(secret.as_bytes()),
        };
        assert!(known.knows(&shown("ann", "se:cret")) && known.knows(&shown("bob", "")));
        assert!(!known.knows(&shown("ann", "se")) && !known.knows(&shown("eve", "")));
        let digest = |name| Auth { mechanism: Mechanism::CramMd5, name, proof: Proof::Digest };
        assert!(known.secret(&digest("eve")).is_none());
        assert_eq!(known.secret(&digest("ann")), Some(Secret::Password("se:cret".to_owned())));
        assert!(Users::parse("").is_err() && Users::parse(":x\n").is_err());
    }

    #[test]
    fn keys_are_made_once_for_each_user_and_for_no_more_than_there_is_room() {
        let Users::Known(book) = Users::parse("ann:one\nbob:two\neve:three\n").unwrap() else { panic!("a book") };
        let known = Users::Known(Book { most_kept: 2, ..book });
        let keys = |name| {
            let secret = known.secret(&Auth { mechanism: Mechanism::ScramSha256, name, proof: Proof::Digest });
            match secret {
                Some(Secret::Keys(keys)) => keys,
                other => panic!("{name}: {other:?}"),
            }
        };
        let (ann, bob, eve) = (keys("ann"), keys("bob"), keys("eve"));
        assert!(ann.belong_to("one") && bob.belong_to("two") && eve.belong_to("three") && !ann.belong_to("two"));
        assert!(ann == keys("ann") && bob == keys("bob"), "kept");
        assert!(eve != keys("eve"), "there is no room, and yet she may log in");
        assert!(ann.salt != bob.salt, "each has a salt of its own");
        let nobody = Auth { mechanism: Mechanism::ScramSha256, name: "none", proof: Proof::Digest };
        assert!(known.secret(&nobody).is_none());
    }

    #[test]
    fn the_file_and_its_line_are_named() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("users");
        fs::write(&path, "ann:x\nnonsense\n").unwrap();
        let error = format!("{:#}", Users::read(&path).unwrap_err());
        assert!(error.contains("users") && error.contains("line 2"), "{error}");
        assert!(Users::read(&place.path().join("none")).is_err());
    }
}
