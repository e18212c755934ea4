//! Options of a sink that watches mailboxes. The commands sink and bench share them.
use crate::options::values;
use anyhow::{Context, Result, bail};
use clap::Args;
use mailrun_load::mailboxes::{Passwords, mailboxes_of};
use mailrun_load::sink::{MailboxOptions, MailboxTls};
use mailrun_load::source::AllowedTargets;
use mailrun_measurement::RunId;
use mailrun_process::text_file;
use mailrun_smtp::sasl::{Mechanism, Mechanisms};
use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

pub(crate) const PASSWORD_VARIABLE: &str = "MAILRUN_MAILBOX_PASSWORD";

/// Mailboxes that a sink watches, instead of listening for connections.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Mailboxes")]
pub(crate) struct MailboxArgs {
    /// Mailbox to watch, or a pattern of mailboxes, repeatable: 'imaps://user{0..99}@mail.example', also imap://,
    /// imap+starttls://, pop://, pops://, pop+starttls:// and maildir:DIR. A message counts when it can be read in the
    /// mailbox. Without --expunge, nothing is changed in a mailbox. Mail that arrived before the run is skipped.
    #[arg(long, value_name = "URL")]
    mailbox: Vec<String>,
    /// Domain of the mail addresses of users whose names have no domain: the mailbox of user5 gets the mail to
    /// user5@NAME [default: the host of the URL].
    #[arg(long, value_name = "NAME", requires = "mailbox", value_parser = values::host_name)]
    mailbox_domain: Option<String>,
    /// File with the mail addresses of users whose address is not USER@NAME of --mailbox-domain. Each line has a user,
    /// a blank and an address.
    #[arg(long, value_name = "FILE", requires = "mailbox")]
    mailbox_map: Option<PathBuf>,
    /// File with the passwords: one for all users in the first line, or name:password per line [default: the
    /// environment variable MAILRUN_MAILBOX_PASSWORD]. Without TLS, passwords are sent to loopback addresses only.
    #[arg(long, value_name = "FILE", requires = "mailbox")]
    mailbox_password_file: Option<PathBuf>,
    /// Authentication mechanism: plain, login, cram-md5, scram-sha-256, xoauth2 [default: the strongest one offered].
    #[arg(long, value_name = "NAME", requires = "mailbox", value_parser = str::parse::<Mechanism>)]
    mailbox_auth: Option<Mechanism>,
    /// Trust the certificates in this PEM file for the servers of mailboxes.
    #[arg(long, value_name = "FILE", requires = "mailbox")]
    mailbox_cacert: Option<PathBuf>,
    /// Accept any certificate of the servers of mailboxes, and send passwords even without TLS.
    #[arg(long, requires = "mailbox")]
    mailbox_insecure: bool,
    /// Ask for new mail at this interval, even if the server can announce new mail (IDLE). Arrival times are then only
    /// as exact as this interval.
    #[arg(long, value_name = "TIME", value_parser = values::some_duration)]
    poll: Option<Duration>,
    /// Fetch whole messages and check their bodies, not only the trace header.
    #[arg(long)]
    whole: bool,
    /// Delete messages of this run after they have been counted, and no others.
    #[arg(long)]
    expunge: bool,
}

impl MailboxArgs {
    pub(crate) fn is_used(&self) -> bool {
        !self.mailbox.is_empty()
    }

    /// Returns the first option that the user gave and that has no effect without `--mailbox`, such as `--poll`.
    pub(crate) fn way_of_watching(&self) -> Option<&'static str> {
        let options = [(self.poll.is_some(), "--poll"), (self.whole, "--whole"), (self.expunge, "--expunge")];
        options.into_iter().find_map(|(is_given, name)| is_given.then_some(name))
    }

    /// Checks the mailboxes' URLs, and reads the passwords. Returns `None` if the user named no mailboxes.
    ///
    /// # Errors
    ///
    /// Returns an error if a URL is malformed, if a file cannot be read or has no line for a user, or if an option
    /// lacks another option that it requires, such as `--poll` without `--mailbox`.
    pub(crate) fn options(&self, run: Option<RunId>, allowed: AllowedTargets) -> Result<Option<MailboxOptions>> {
        if !self.is_used() {
            return match self.way_of_watching() {
                Some(option) => bail!("{option} requires --mailbox"),
                None => Ok(None),
            };
        }
        if self.expunge && run.is_none() {
            bail!("--expunge deletes only mail of one run: use mailrun bench, or name the run with --run-id");
        }
        let mechanisms = self.mailbox_auth.map_or(Mechanisms::PASSWORD, |one| Mechanisms::NONE.with(one));
        let passwords = |users: &[&str]| self.passwords(users);
        let mut mailboxes =
            mailboxes_of(&self.mailbox, self.mailbox_domain.as_deref(), passwords, mechanisms, allowed)?;
        if let Some(map) = self.addresses()? {
            for mailbox in &mut mailboxes {
                let user = mailbox.credentials.as_ref().map(|credentials| credentials.name.clone());
                let user = user.unwrap_or_else(|| mailbox.url.to_string());
                if let Some(address) = map.get(&user) {
                    mailbox.address.clone_from(address);
                }
            }
        }
        Ok(Some(MailboxOptions {
            mailboxes,
            poll: self.poll,
            existing: false,
            whole: self.whole,
            deletes: run.filter(|_| self.expunge),
            probe_mail: None,
            tls: MailboxTls { insecure: self.mailbox_insecure, ca: self.mailbox_cacert.clone() },
        }))
    }

    fn passwords(&self, users: &[&str]) -> Result<Passwords> {
        if let Some(path) = &self.mailbox_password_file {
            let text = text_file::read(path, text_file::MAX_BYTES);
            let text = text.with_context(|| format!("cannot read {}", path.display()))?;
            return Ok(Passwords::parse(&text, users));
        }
        match std::env::var(PASSWORD_VARIABLE) {
            Ok(password) => Ok(Passwords::One(password)),
            Err(_) => {
                bail!("--mailbox requires a password: use --mailbox-password-file FILE, or set {PASSWORD_VARIABLE}")
            }
        }
    }

    /// Reads each user's email address from the file of `--mailbox-map`. Returns `None` without this option.
    fn addresses(&self) -> Result<Option<HashMap<String, String>>> {
        let Some(path) = &self.mailbox_map else { return Ok(None) };
        let file = path.display();
        let text = text_file::read(path, text_file::MAX_BYTES).with_context(|| format!("cannot read {file}"))?;
        let mut addresses = HashMap::new();
        for (number, line) in text.lines().enumerate() {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words.as_slice() {
                [] => {}
                [first, ..] if first.starts_with('#') => {}
                [user, address] if address.contains('@') => {
                    addresses.insert((*user).to_owned(), (*address).to_owned());
                }
                _ => bail!("{file}:{}: write a user, a blank and the user's address", number + 1),
            }
        }
        Ok(Some(addresses))
    }
}
