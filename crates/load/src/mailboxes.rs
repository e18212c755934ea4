//! Expands patterns of mailbox URLs, looks up the servers, and finds the password of each user.
use crate::sink::WatchedMailbox;
use crate::source::{AddressPattern, AllowedTargets, look_up};
use anyhow::{Context, Result, anyhow, bail};
use mailrun_mailbox::MailboxUrl;
use mailrun_net::Endpoint;
use mailrun_smtp::Path;
use mailrun_smtp::sasl::{Credentials, Mechanisms};
use std::collections::HashMap;

/// Maximum number of mailboxes to which all patterns together may expand.
const MAX_MAILBOXES: u64 = 100_000;

#[derive(Clone)]
pub enum Passwords {
    One(String),
    /// A separate password for each user. The key is the user's name.
    Each(HashMap<String, String>),
}

impl Passwords {
    /// Parses a password file, which has either one password for all users in its first line, or `name:password` in
    /// each line. The file has names if its first line begins with one of `users` and a colon. A colon alone does not
    /// prove this, because a password may contain a colon.
    pub fn parse(text: &str, users: &[&str]) -> Self {
        let first = text.lines().next().unwrap_or_default();
        let has_names = first.split_once(':').is_some_and(|(name, _)| users.contains(&name));
        match has_names {
            true => Self::Each(
                text.lines()
                    .filter_map(|line| line.split_once(':'))
                    .map(|(name, password)| (name.to_owned(), password.to_owned()))
                    .collect(),
            ),
            false => Self::One(first.to_owned()),
        }
    }

    fn of(&self, user: &str) -> Option<&str> {
        match self {
            Self::One(password) => Some(password),
            Self::Each(passwords) => passwords.get(user).map(String::as_str),
        }
    }
}

/// Returns the mailboxes of URLs with patterns such as `imaps://user{0..99}@mail.example`.
///
/// # Errors
///
/// Fails if a URL is malformed, if a user has no password, or if a server has no address to which connections may be
/// made.
pub fn mailboxes_of(
    patterns: &[String],
    domain: Option<&str>,
    passwords: impl Fn(&[&str]) -> Result<Passwords>,
    mechanisms: Mechanisms,
    allowed: AllowedTargets,
) -> Result<Vec<WatchedMailbox>> {
    let mut urls = Vec::new();
    for pattern in patterns {
        let check = |text: &[u8]| {
            let text = std::str::from_utf8(text).map_err(|_| "it is no UTF-8".to_owned())?;
            text.parse::<MailboxUrl>().map(drop).map_err(|error| error.to_string())
        };
        // Braces in a URL always belong to a pattern, because a literal brace is written as %7B or %7D.
        let texts = AddressPattern::text(pattern, check).map_err(|error| anyhow!("--mailbox {error}"))?;
        if texts.count().saturating_add(urls.len() as u64) > MAX_MAILBOXES {
            bail!("--mailbox {pattern}: more than {MAX_MAILBOXES} mailboxes");
        }
        for place in 0..texts.count() {
            let mut text = Vec::new();
            texts.write_at(place, &mut text);
            let text = String::from_utf8_lossy(&text).into_owned();
            urls.push(text.parse::<MailboxUrl>().with_context(|| format!("--mailbox {text}"))?);
        }
    }
    let users: Vec<&str> = urls
        .iter()
        .filter_map(|url| match url {
            MailboxUrl::Server { user, .. } => Some(user.as_str()),
            MailboxUrl::Maildir(_) => None,
        })
        .collect();
    let passwords = if users.is_empty() { None } else { Some(passwords(&users)?) };
    let mut servers = Servers { allowed, known: HashMap::new() };
    let mailbox = |url: &MailboxUrl| -> Result<WatchedMailbox> {
        let address = url.address(domain);
        Path::mailbox(address.as_bytes()).map_err(|_| anyhow!("{url}: {address} is no address"))?;
        let credentials = match (url, &passwords) {
            (MailboxUrl::Server { user, .. }, Some(passwords)) => {
                let password =
                    passwords.of(user).with_context(|| format!("the password file has no line for {user}"))?;
                Some(Credentials::new(user, password).by(mechanisms))
            }
            _ => None,
        };
        Ok(WatchedMailbox { url: url.clone(), address, credentials, server: servers.find(url)? })
    };
    urls.iter().map(mailbox).collect()
}

struct Servers {
    allowed: AllowedTargets,
    known: HashMap<(String, u16), Endpoint>,
}

impl Servers {
    fn find(&mut self, url: &MailboxUrl) -> Result<Option<Endpoint>> {
        let MailboxUrl::Server { host, port, .. } = url else { return Ok(None) };
        let key = (host.clone(), *port);
        if let Some(known) = self.known.get(&key) {
            return Ok(Some(known.clone()));
        }
        let address = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        let found = look_up(&address, self.allowed).with_context(|| format!("--mailbox {url}"))?.swap_remove(0);
        self.known.insert(key, found.clone());
        Ok(Some(found))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_that_of_all_users_or_each_has_one() {
        let of = |text: &str, user: &str| Passwords::parse(text, &["user0", "user1"]).of(user).map(str::to_owned);
        for (text, user, expected) in [
            ("secret\n", "user1", Some("secret")),
            ("se:cret", "user1", Some("se:cret")),
            ("user0:a\nuser1:b:c\n", "user1", Some("b:c")),
            ("user0:a\n", "user1", None),
        ] {
            assert_eq!(of(text, user).as_deref(), expected, "{text:?}");
        }
    }

    #[test]
    fn a_pattern_makes_mailboxes_of_its_users() {
        let passwords = |_: &[&str]| Ok(Passwords::One("secret".to_owned()));
        let made = |patterns: &[&str]| {
            let patterns: Vec<String> = patterns.iter().map(|text| (*text).to_owned()).collect();
            mailboxes_of(&patterns, Some("a.example"), passwords, Mechanisms::PASSWORD, AllowedTargets::Local)
        };
        let mailboxes = made(&["imap://user{0..99}@127.0.0.1:1143", "maildir:/var/mail/ann"]).unwrap();
        assert_eq!(mailboxes.len(), 101);
        assert_eq!(
            (mailboxes[99].address.as_str(), mailboxes[100].address.as_str()),
            ("user99@a.example", "ann@a.example")
        );
        assert!(mailboxes[100].credentials.is_none(), "a directory needs no password");
        for (pattern, expected) in [
            ("imap://ann:secret@127.0.0.1", "a password does not belong into a URL"),
            ("imap://user{0..200000}@127.0.0.1", "more than 100000 mailboxes"),
            ("smtp://ann@127.0.0.1", "a mailbox begins with imap://"),
            ("imap://ann@8.8.8.8", "8.8.8.8 is a public address"),
        ] {
            let error = format!("{:#}", made(&[pattern]).unwrap_err());
            assert!(error.contains(expected), "{error}");
        }
    }
}
