//! Users that may log in to a sink or relay. They are read from a file with one `name:password` per
//! line.
use crate::reason::reason;
use crate::text_file;
use anyhow::{Result, anyhow, bail};
use mailrun_lock::lock;
use mailrun_net::recent::RecentMap;
use mailrun_smtp::login::{Auth, Proof};
use mailrun_smtp::sasl::scram::{Keys, MIN_ITERATIONS};
use mailrun_smtp::sasl::{DecoySecrets, Mechanism, Nonce, Secret};
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Mutex, MutexGuard};
use std::{fmt, io};

/// Environment variable that contains the password with which mailrun logs in to a server.
pub const PASSWORD_VARIABLE: &str = "MAILRUN_PASSWORD";

const MAX_USERS: usize = 1_000_000;
/// Maximum number of users whose SCRAM-SHA-256 keys are kept in memory. The keys of a user take about 200 bytes. For
/// other users, each login computes the keys in 4096 rounds of hashing, which takes about a millisecond.
const MAX_KEPT_KEYS: usize = 20_000;

#[derive(Debug)]
pub enum Users {
    /// Any user may log in with any password.
    Anybody,
    Known(UserTable),
}

/// Users and their passwords. An unknown name gets a made-up password and salt. Thus, neither the
/// answers nor their timing reveal whether a user exists.
pub struct UserTable {
    secrets: HashMap<String, Secret>,
    made_up: DecoySecrets,
    /// SCRAM-SHA-256 keys of users that logged in recently. The map finds them by the user's salt and not by the user's
    /// name, because names may be long.
    keys: Mutex<RecentMap<Nonce, Keys>>,
}

impl fmt::Debug for UserTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UserTable({} users)", self.secrets.len())
    }
}

impl UserTable {
    fn new(secrets: HashMap<String, Secret>) -> Self {
        Self {
            secrets,
            made_up: DecoySecrets::new(mailrun_net::nonce()),
            keys: Mutex::new(RecentMap::new(MAX_KEPT_KEYS)),
        }
    }

    /// Returns a user's secret, or a made-up one for an unknown name, so that the answer does not reveal that the user
    /// is unknown.
    fn secret_of(&self, name: &str) -> Secret {
        let made_up = Secret::Password(self.made_up.password(name));
        self.secrets.get(name).cloned().unwrap_or(made_up)
    }

    /// Returns the SCRAM keys that are derived from a user's password. Computes the keys at the first login and keeps
    /// them while there is room. A name gets made-up keys if it is unknown or if SCRAM-SHA-256 does not allow its
    /// password.
    fn scram_keys(&self, name: &str) -> Keys {
        let salt = self.made_up.salt(name);
        if let Some(keys) = self.cached_keys().get_mut(&salt) {
            return keys.clone();
        }
        // Compute the keys without the lock, so that other logins need not wait. If a user logs in twice at the same
        // time, the same keys may be computed twice, which does no harm.
        let real = match self.secret_of(name) {
            Secret::Password(password) => Keys::derive(&password, &salt, MIN_ITERATIONS),
            _ => None,
        };
        let keys = real.unwrap_or_else(|| self.made_up.keys(name));
        self.cached_keys().insert(salt, keys.clone());
        keys
    }

    fn cached_keys(&self) -> MutexGuard<'_, RecentMap<Nonce, Keys>> {
        lock(&self.keys)
    }
}

impl Users {
    /// Reads a file with the users that may log in and their passwords. Returns an error if the file cannot be read,
    /// has a malformed line, or contains no users or more than a million.
    pub fn read(path: &Path) -> Result<Self> {
        let text = text_file::read(path, text_file::MAX_BYTES);
        let text = text.map_err(|error| anyhow!("cannot read {}: {}", path.display(), reason(&error)))?;
        Self::parse(&text, path)
    }

    /// Parses lines of the form `name:password`. Skips empty lines and lines that begin with `#`.
    /// `path` is the file's name for error messages.
    ///
    /// # Errors
    /// Returns an error if a line is malformed, or if there are no users or more than a million.
    pub fn parse(text: &str, path: &Path) -> Result<Self> {
        let file = path.display();
        let mut users = HashMap::new();
        for (number, line) in text.lines().enumerate() {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let Some((name, password)) = line.split_once(':').filter(|(name, _)| !name.is_empty()) else {
                bail!("{file}:{}: must have the form name:password", number + 1);
            };
            users.insert(name.to_owned(), Secret::Password(password.to_owned()));
            if users.len() > MAX_USERS {
                bail!("{file}: more than {MAX_USERS} users");
            }
        }
        if users.is_empty() {
            bail!("{file} contains no users; each line must be name:password");
        }
        Ok(Self::Known(UserTable::new(users)))
    }

    /// Returns true if the client has sent the right password. [`Users::Anybody`] accepts any
    /// password.
    pub fn verify(&self, auth: &Auth<'_>) -> bool {
        match (self, auth.proof) {
            (Self::Anybody, _) => true,
            (Self::Known(book), Proof::Shown(shown)) => book.secret_of(auth.name).is(shown),
            (Self::Known(_), Proof::Digest) => false,
        }
    }

    /// Returns the secret against which the digest that a client has sent must be checked. For an unknown name, returns
    /// a secret that no digest matches.
    pub fn secret(&self, auth: &Auth<'_>) -> Option<Secret> {
        match self {
            Self::Anybody => Some(Secret::Any),
            Self::Known(book) if auth.mechanism == Mechanism::ScramSha256 => {
                Some(Secret::Keys(book.scram_keys(auth.name)))
            }
            Self::Known(book) => Some(book.secret_of(auth.name)),
        }
    }
}

/// Reads a password from the first line of a file.
///
/// # Errors
/// Returns an error if the file cannot be read or is not UTF-8.
pub fn read_password(path: &Path) -> io::Result<String> {
    text_file::read(path, text_file::MAX_BYTES).map(|text| first_line(&text).to_owned())
}

pub fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Users> {
        Users::parse(text, Path::new("dir/users"))
    }

    #[test]
    fn a_file_of_users_is_read_or_its_line_named() {
        let known = parse("# ours\n\nann:se:cret\nbob:\n").unwrap();
        let shown = |name, secret: &'static str| Auth {
            mechanism: Mechanism::Plain,
            name,
            proof: Proof::Shown(secret.as_bytes()),
        };
        assert!(known.verify(&shown("ann", "se:cret")) && known.verify(&shown("bob", "")));
        assert!(!known.verify(&shown("ann", "se")) && !known.verify(&shown("eve", "")));
        let digest = |name| Auth { mechanism: Mechanism::CramMd5, name, proof: Proof::Digest };
        let nobody = known.secret(&digest("eve"));
        assert!(nobody.is_some() && nobody == known.secret(&digest("eve")) && nobody != known.secret(&digest("ann")));
        assert_eq!(known.secret(&digest("ann")), Some(Secret::Password("se:cret".to_owned())));
        assert_eq!(parse("").unwrap_err().to_string(), "dir/users contains no users; each line must be name:password");
        let error = parse("ann:x\n:x\n").unwrap_err().to_string();
        assert_eq!(error, "dir/users:2: must have the form name:password");
    }

    #[test]
    fn keys_are_made_once_for_each_name_and_kept_for_no_more_than_there_is_room() {
        let Users::Known(book) = parse("ann:one\nbob:two\neve:three\nill:\u{7}\n").unwrap() else { panic!("a book") };
        let known = Users::Known(UserTable { keys: Mutex::new(RecentMap::new(4)), ..book });
        let keys = |name| {
            let secret = known.secret(&Auth { mechanism: Mechanism::ScramSha256, name, proof: Proof::Digest });
            match secret {
                Some(Secret::Keys(keys)) => keys,
                other => panic!("{name}: {other:?}"),
            }
        };
        let ann = keys("ann");
        let bob = keys("bob");
        let eve = keys("eve");
        assert!(ann.belong_to("one") && bob.belong_to("two") && eve.belong_to("three") && !ann.belong_to("two"));
        assert!(ann == keys("ann") && bob == keys("bob"), "kept, or made again as they were");
        assert!(ann.salt != bob.salt, "each has a salt of its own");
        // A client must not be able to tell an unknown user from a user whose password SCRAM-SHA-256 does not allow.
        for name in ["nobody", "ill", "nobody else", "another one", "and another"] {
            let made_up = keys(name);
            assert_eq!(made_up, keys(name), "the same salt each time");
            assert_eq!((made_up.salt.len(), made_up.iterations), (ann.salt.len(), ann.iterations));
        }
        let Users::Known(book) = &known else { panic!("a book") };
        assert!(book.cached_keys().len() <= 4);
    }

    #[test]
    fn the_file_and_its_line_are_named() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("users");
        std::fs::write(&path, "ann:x\nnonsense\n").unwrap();
        let error = format!("{:#}", Users::read(&path).unwrap_err());
        assert!(error.ends_with("users:2: must have the form name:password"), "{error}");
        assert!(Users::read(&place.path().join("none")).is_err());
        std::fs::write(&path, "\u{feff}ann:x\r\nbob:y\r\n").unwrap();
        let known = Users::read(&path).unwrap();
        for (name, secret) in [("ann", "x"), ("bob", "y")] {
            assert!(known.verify(&Auth { mechanism: Mechanism::Plain, name, proof: Proof::Shown(secret.as_bytes()) }));
        }
    }

    #[test]
    fn the_first_line_is_the_password() {
        for (text, expected) in
            [("secret", "secret"), ("secret\n", "secret"), (" a b \r\nc\n", " a b "), ("", ""), ("\nx", "")]
        {
            assert_eq!(first_line(text), expected, "{text:?}");
        }
    }
}
