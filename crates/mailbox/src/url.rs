//! URLs of mailboxes (RFC 5092, RFC 2384): `imaps://user@host:993/folder`, `pop://user@host`, `maildir:DIR`.
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use std::fmt;
use std::path::PathBuf;

/// Characters that are percent-encoded in the parts of a URL, so that they are not taken for delimiters.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b'+');
const MAX_BYTES: usize = 1024;

/// Protocol of a mailbox's server. The scheme also says whether the connection uses TLS, and when TLS begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// `imap:` is IMAP on a connection without TLS.
    Imap,
    /// `imap+starttls:` is IMAP that changes to TLS before the login.
    ImapStartTls,
    /// `imaps:` is IMAP that begins with TLS.
    Imaps,
    /// `pop:` is POP3 on a connection without TLS.
    Pop,
    /// `pop+starttls:` is POP3 that changes to TLS before the login.
    PopStartTls,
    /// `pops:` is POP3 that begins with TLS.
    Pops,
}

impl Scheme {
    const ALL: [Self; 6] = [Self::Imap, Self::ImapStartTls, Self::Imaps, Self::Pop, Self::PopStartTls, Self::Pops];

    /// Returns the name of the scheme in a URL, without the colon.
    pub fn name(self) -> &'static str {
        match self {
            Self::Imap => "imap",
            Self::ImapStartTls => "imap+starttls",
            Self::Imaps => "imaps",
            Self::Pop => "pop",
            Self::PopStartTls => "pop+starttls",
            Self::Pops => "pops",
        }
    }

    /// Returns the port that is used if the URL names no port.
    pub fn port(self) -> u16 {
        match self {
            Self::Imap | Self::ImapStartTls => 143,
            Self::Imaps => 993,
            Self::Pop | Self::PopStartTls => 110,
            Self::Pops => 995,
        }
    }

    /// Returns true for IMAP, and false for POP3.
    pub fn is_imap(self) -> bool {
        matches!(self, Self::Imap | Self::ImapStartTls | Self::Imaps)
    }

    /// Returns true for `imaps` and `pops`, which begin with TLS.
    pub fn is_implicit_tls(self) -> bool {
        matches!(self, Self::Imaps | Self::Pops)
    }

    /// Returns true for the schemes with `+starttls`, which change to TLS before the login.
    pub fn starts_tls(self) -> bool {
        matches!(self, Self::ImapStartTls | Self::PopStartTls)
    }
}

/// A mailbox that a sink or a probe can watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MailboxUrl {
    /// A mailbox on a server, which is read by IMAP or POP3.
    Server {
        /// Protocol of the server, and how TLS is started.
        scheme: Scheme,
        /// The user who logs in, without percent-encoding.
        user: String,
        /// Name or address of the server. An IPv6 address has no brackets here.
        host: String,
        /// Port of the server. If the URL names no port, this is the usual port of the scheme.
        port: u16,
        /// Name of the mailbox, INBOX by default. A POP3 server has only this one mailbox.
        folder: String,
    },
    /// A Maildir on this host, which needs no server.
    Maildir(PathBuf),
}

/// Reason why a text is not the URL of a mailbox.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseMailboxError {
    /// The text does not begin with the scheme of a mailbox, such as `imaps:`.
    #[error("a mailbox begins with imap://, imaps://, imap+starttls://, pop://, pops://, pop+starttls:// or maildir:")]
    Scheme,
    /// The URL has a password, which other users of the host could read on the command line.
    #[error(
        "a password does not belong into a URL, because all users of the host can read command lines: use --password-file FILE, or set MAILRUN_PASSWORD"
    )]
    Password,
    /// The URL has no user, or the user is followed by a parameter other than `;AUTH=*`.
    #[error("the URL needs a user: imaps://USER@HOST")]
    User,
    /// The host or the port cannot be read, for example because the port is not a number.
    #[error("the URL needs a server: imaps://USER@HOST or imaps://USER@HOST:PORT")]
    Host,
    /// The path of the URL is not the name of one mailbox in ASCII, or a POP3 URL has a path although mailboxes have no
    /// names in POP3. For `maildir:`, the directory is missing.
    #[error("only the name of one mailbox may follow the server, as in imaps://USER@HOST/INBOX; POP3 has no names")]
    Folder,
    /// The URL is too long, or contains blanks or control characters.
    #[error("the URL is longer than {MAX_BYTES} bytes, or has characters that must be written as %XX")]
    Text,
}

impl std::str::FromStr for MailboxUrl {
    type Err = ParseMailboxError;

    fn from_str(text: &str) -> Result<Self, ParseMailboxError> {
        if let Some(directory) = text.strip_prefix("maildir:") {
            let directory = directory.strip_prefix("//").unwrap_or(directory);
            return match directory.is_empty() || directory.contains('\0') {
                true => Err(ParseMailboxError::Folder),
                false => Ok(Self::Maildir(directory.into())),
            };
        }
        let (scheme, rest) = text.split_once("://").ok_or(ParseMailboxError::Scheme)?;
        let find = |known: &Scheme| known.name().eq_ignore_ascii_case(scheme);
        let scheme = Scheme::ALL.into_iter().find(find).ok_or(ParseMailboxError::Scheme)?;
        if text.len() > MAX_BYTES || text.contains(|letter: char| letter.is_control() || letter.is_whitespace()) {
            return Err(ParseMailboxError::Text);
        }
        let (authority, folder) = rest.split_once('/').unwrap_or((rest, ""));
        let (user, server) = authority.rsplit_once('@').ok_or(ParseMailboxError::User)?;
        let (user, parameters) = user.split_once(';').unwrap_or((user, ""));
        if user.contains(':') {
            return Err(ParseMailboxError::Password);
        }
        // Accept only the parameter AUTH=*. It lets the client choose the mechanism (RFC 5092, RFC 2384).
        if !parameters.is_empty() && !parameters.eq_ignore_ascii_case("AUTH=*") {
            return Err(ParseMailboxError::User);
        }
        let user = decode(user).filter(|user| !user.is_empty()).ok_or(ParseMailboxError::User)?;
        let (host, port) = host_and_port(server).ok_or(ParseMailboxError::Host)?;
        let folder = decode(folder.strip_suffix('/').unwrap_or(folder)).ok_or(ParseMailboxError::Folder)?;
        // Refuse non-ASCII characters, because they would have to be sent in modified UTF-7 (RFC 3501 §5.1.3).
        let folder = Some(folder).filter(|folder| folder.is_ascii()).ok_or(ParseMailboxError::Folder)?;
        // Refuse parameters such as ;UIDVALIDITY= and ;UID=, because the URL must name a mailbox and not a message.
        if folder.contains([';', '?']) || !scheme.is_imap() && !folder.is_empty() {
            return Err(ParseMailboxError::Folder);
        }
        let folder = if folder.is_empty() { "INBOX".to_owned() } else { folder };
        Ok(Self::Server { scheme, user, host, port: port.unwrap_or(scheme.port()), folder })
    }
}

fn decode(text: &str) -> Option<String> {
    let decoded = percent_decode_str(text).decode_utf8().ok()?;
    (!decoded.contains(char::is_control)).then(|| decoded.into_owned())
}

fn host_and_port(server: &str) -> Option<(String, Option<u16>)> {
    let (host, port) = match server.strip_prefix('[') {
        Some(rest) => {
            let (host, after) = rest.split_once(']')?;
            host.parse::<std::net::Ipv6Addr>().ok()?;
            match after.strip_prefix(':') {
                Some(port) => (host, Some(port)),
                None if after.is_empty() => (host, None),
                None => return None,
            }
        }
        None => server.split_once(':').map_or((server, None), |(host, port)| (host, Some(port))),
    };
    let is_host = |letter: char| letter.is_alphanumeric() || matches!(letter, '.' | '-' | '_' | ':');
    if host.is_empty() || !host.chars().all(is_host) {
        return None;
    }
    let port = port.map(|port| port.parse::<u16>().ok().filter(|port| *port > 0).ok_or(())).transpose().ok()?;
    Some((host.to_owned(), port))
}

impl MailboxUrl {
    /// Returns the address whose mail is probably in this mailbox. A user name without a domain gets `domain`, or else
    /// the name of the host. For a Maildir, the user is the name of the directory. If this is a usual name such as
    /// `Maildir`, the user is the name of the directory above.
    pub fn address(&self, domain: Option<&str>) -> String {
        let (user, host) = match self {
            Self::Server { user, host, .. } => (user.clone(), host.as_str()),
            Self::Maildir(directory) => {
                let name = |path: &std::path::Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
                let own = name(directory).unwrap_or_default();
                let is_generic = matches!(own.as_str(), "Maildir" | "maildir" | "mail" | ".maildir");
                let parent = directory.parent().and_then(name).filter(|_| is_generic);
                (parent.unwrap_or(own), "localhost")
            }
        };
        if user.contains('@') { user } else { format!("{user}@{}", domain.unwrap_or(host)) }
    }
}

impl fmt::Display for MailboxUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Server { scheme, user, host, port, folder } => {
                write!(f, "{}://{}@", scheme.name(), utf8_percent_encode(user, ENCODED))?;
                if host.contains(':') {
                    write!(f, "[{host}]")?
                } else {
                    f.write_str(host)?
                }
                if *port != scheme.port() {
                    write!(f, ":{port}")?;
                }
                if folder == "INBOX" { Ok(()) } else { write!(f, "/{}", utf8_percent_encode(folder, ENCODED)) }
            }
            Self::Maildir(directory) => write!(f, "maildir:{}", directory.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_of_mailboxes_name_user_server_and_folder() {
        let server = |scheme, user: &str, host: &str, port, folder: &str| {
            let (user, host, folder) = (user.to_owned(), host.to_owned(), folder.to_owned());
            Ok(MailboxUrl::Server { scheme, user, host, port, folder })
        };
        for (text, expected) in [
            ("imaps://user5@mail.example", server(Scheme::Imaps, "user5", "mail.example", 993, "INBOX")),
            (
                "IMAP://ann%40a.example@127.0.0.1:1143/",
                server(Scheme::Imap, "ann@a.example", "127.0.0.1", 1143, "INBOX"),
            ),
            ("imap+starttls://a@h/Sub%20folder", server(Scheme::ImapStartTls, "a", "h", 143, "Sub folder")),
            ("imap://a;AUTH=*@[::1]:143", server(Scheme::Imap, "a", "::1", 143, "INBOX")),
            ("pops://a@h", server(Scheme::Pops, "a", "h", 995, "INBOX")),
            ("pop://a@h:1", server(Scheme::Pop, "a", "h", 1, "INBOX")),
            ("maildir:/home/a/Maildir", Ok(MailboxUrl::Maildir("/home/a/Maildir".into()))),
            ("imaps://ann:secret@mail.example", Err(ParseMailboxError::Password)),
            ("imaps://ann:@mail.example", Err(ParseMailboxError::Password)),
            ("imaps://mail.example", Err(ParseMailboxError::User)),
            ("imaps://@mail.example", Err(ParseMailboxError::User)),
            ("imaps://a;AUTH=GSSAPI@h", Err(ParseMailboxError::User)),
            ("imaps://a@", Err(ParseMailboxError::Host)),
            ("imaps://a@h:0", Err(ParseMailboxError::Host)),
            ("imaps://a@h:70000", Err(ParseMailboxError::Host)),
            ("imaps://a@[::1", Err(ParseMailboxError::Host)),
            ("imaps://a@h/INBOX;UIDVALIDITY=1/;UID=2", Err(ParseMailboxError::Folder)),
            ("pop://a@h/INBOX", Err(ParseMailboxError::Folder)),
            ("maildir:", Err(ParseMailboxError::Folder)),
            ("http://a@h", Err(ParseMailboxError::Scheme)),
            ("a@h", Err(ParseMailboxError::Scheme)),
            ("imap://a b@h", Err(ParseMailboxError::Text)),
            ("imap://a%0d%0aNOOP@h", Err(ParseMailboxError::User)),
            ("imap://a@h/%0d%0aNOOP", Err(ParseMailboxError::Folder)),
        ] {
            assert_eq!(text.parse(), expected, "{text}");
        }
    }

    #[test]
    fn a_mailbox_has_the_mail_of_its_user() {
        for (url, domain, expected) in [
            ("imap://user5@mail.example", None, "user5@mail.example"),
            ("imap://user5@127.0.0.1", Some("a.example"), "user5@a.example"),
            ("imap://ann%40b.example@127.0.0.1", Some("a.example"), "ann@b.example"),
            ("maildir:/home/ann/Maildir", Some("a.example"), "ann@a.example"),
            ("maildir:/var/mail/ann", Some("a.example"), "ann@a.example"),
        ] {
            assert_eq!(url.parse::<MailboxUrl>().unwrap().address(domain), expected, "{url}");
        }
    }
}
