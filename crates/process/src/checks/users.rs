//! Checks the parser of a file of users with arbitrary text. Either the parser reports a mistake, or each user in the
//! file can log in with the right password, and not with a wrong one.
use crate::users::Users;
use mailrun_smtp::login::{Auth, Proof};
use mailrun_smtp::sasl::Mechanism;
use std::collections::HashMap;
use std::path::Path;

pub fn check(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let users = match Users::parse(text, Path::new("users")) {
        Ok(users) => users,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    // If a name occurs several times, `Users` takes its last password, and so does this map.
    let passwords: HashMap<&str, &str> = lines.filter_map(|line| line.split_once(':')).collect();
    assert!(!passwords.is_empty());
    for (name, password) in passwords {
        let knows = |secret: &str| {
            let auth = Auth { mechanism: Mechanism::Plain, name, proof: Proof::Shown(secret.as_bytes()) };
            users.verify(&auth)
        };
        assert!(knows(password) && !knows(&format!("{password}x")));
        assert!(users.secret(&Auth { mechanism: Mechanism::CramMd5, name, proof: Proof::Digest }).is_some());
    }
    let nobody = Auth { mechanism: Mechanism::Plain, name: "", proof: Proof::Shown(b"") };
    assert!(!users.verify(&nobody));
}
