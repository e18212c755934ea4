//! A broker's address and login in one URL: `amqp://user:password@host:port`. Neither errors nor debug output contain
//! the password.
use mailrun_amqp::Password;
use mailrun_process::users;
use percent_encoding::percent_decode_str;
use std::fmt;
use std::path::Path;
use std::str::FromStr;
use url::{Host, Url};

const PLAIN_PORT: u16 = 5672;
const TLS_PORT: u16 = 5671;

/// Reads the password in the first line of a file.
///
/// # Errors
/// Fails with [`UrlError::PasswordFile`] if the file cannot be read or is not UTF-8.
pub fn password_from_file(path: &Path) -> Result<Password, UrlError> {
    let unreadable =
        |error: std::io::Error| UrlError::PasswordFile { path: path.display().to_string(), why: error.to_string() };
    users::read_password(path).map(Password::new).map_err(unreadable)
}

/// A broker's address, and the login if the URL has one. Neither `Display` nor `Debug` shows the password.
#[derive(Clone, PartialEq, Eq)]
pub struct BrokerUrl {
    is_tls: bool,
    host: String,
    port: u16,
    user: Option<String>,
    password: Option<Password>,
}

/// Reason why a broker's URL cannot be used. The text shows nothing before the `@`, which may hold a password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    #[error("not a broker URL ({0}): use something like amqp://user:password@host:5672")]
    Malformed(String),
    #[error("{0}:// is not supported: use amqp:// or amqps://")]
    Scheme(String),
    /// The URL has another part after host and port, for example a path.
    #[error("a broker URL must end after the port")]
    Excess,
    /// The user or the password is not UTF-8 after percent-decoding.
    #[error("decoded user or password is not UTF-8")]
    NotText,
    #[error("the URL has a password but no user")]
    NoUser,
    #[error("cannot read the password from {path}: {why}")]
    PasswordFile { path: String, why: String },
}

impl BrokerUrl {
    pub fn is_tls(&self) -> bool {
        self.is_tls
    }

    /// Returns the host, without brackets if it is an IPv6 address.
    pub fn host(&self) -> &str {
        &self.host
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns HOST:PORT, with brackets around an IPv6 address.
    pub fn address(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    pub fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }

    pub fn password(&self) -> Option<&Password> {
        self.password.as_ref()
    }

    #[must_use]
    pub fn or_user(mut self, user: &str) -> Self {
        self.user.get_or_insert_with(|| user.to_owned());
        self
    }

    #[must_use]
    pub fn or_password(mut self, password: Password) -> Self {
        self.password.get_or_insert(password);
        self
    }

    #[must_use]
    pub fn with_login(mut self, user: &str, password: Password) -> Self {
        self.user = Some(user.to_owned());
        self.password = Some(password);
        self
    }
}

impl FromStr for BrokerUrl {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        let url = Url::parse(text).map_err(|error| UrlError::Malformed(error.to_string()))?;
        let (is_tls, usual_port) = match url.scheme() {
            "amqp" => (false, PLAIN_PORT),
            "amqps" => (true, TLS_PORT),
            other => return Err(UrlError::Scheme(other.to_owned())),
        };
        let is_excessive = !matches!(url.path(), "" | "/") || url.query().is_some() || url.fragment().is_some();
        if is_excessive {
            return Err(UrlError::Excess);
        }
        let host = match url.host() {
            Some(Host::Ipv6(address)) => address.to_string(),
            Some(host) => host_name(&host.to_string())?,
            None => return Err(UrlError::Malformed("not a valid host".to_owned())),
        };
        let user = (!url.username().is_empty()).then(|| percent_decoded(url.username())).transpose()?;
        let password = url.password().map(percent_decoded).transpose()?.map(Password::new);
        if user.is_none() && password.is_some() {
            return Err(UrlError::NoUser);
        }
        Ok(Self { is_tls, host, port: url.port().unwrap_or(usual_port), user, password })
    }
}

/// Decodes a percent-encoded host name. Fails if the decoded name contains a delimiter, for example `@` from `%40`.
fn host_name(text: &str) -> Result<String, UrlError> {
    let name = percent_decoded(text)?;
    let is_foreign = |c: char| c.is_control() || c.is_whitespace() || ":@/\\?#[]<>^|%".contains(c);
    if name.is_empty() || name.chars().any(is_foreign) {
        return Err(UrlError::Malformed("not a valid host".to_owned()));
    }
    Ok(name)
}

fn percent_decoded(text: &str) -> Result<String, UrlError> {
    percent_decode_str(text).decode_utf8().map(|text| text.into_owned()).map_err(|_| UrlError::NotText)
}

impl fmt::Display for BrokerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", if self.is_tls { "amqps" } else { "amqp" }, self.address())
    }
}

impl fmt::Debug for BrokerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn urls_are_read_as_they_are_meant() {
        let cases = [
            ("amqp://localhost", false, "localhost:5672", None, None),
            ("amqps://broker.example", true, "broker.example:5671", None, None),
            ("amqps://broker:5672/", true, "broker:5672", None, None),
            ("amqp://endpoint:password@localhost:5672", false, "localhost:5672", Some("endpoint"), Some("password")),
            ("amqp://a%40b:p%3Aw%2F%C3%A4@[::1]:1", false, "[::1]:1", Some("a@b"), Some("p:w/ä")),
            ("AMQP://user@127.0.0.1", false, "127.0.0.1:5672", Some("user"), None),
        ];
        for (text, is_tls, address, user, password) in cases {
            let url: BrokerUrl = text.parse().unwrap();
            let read = (url.is_tls(), url.address(), url.user(), url.password().map(Password::reveal));
            assert_eq!(read, (is_tls, address.to_owned(), user, password), "{text}");
        }
    }

    #[test]
    fn what_is_no_url_of_a_broker_is_refused() {
        for text in [
            "",
            "localhost",
            "localhost:5672",
            "http://localhost",
            "amqp://",
            "amqp:///path",
            "amqp://host/vhost",
            "amqp://host?a=b",
            "amqp://host#a",
            "amqp://host:99999",
            "amqp://:password@host",
            "amqp://%FF@host",
            "amqp://user:%FF@host",
            "amqp://ho%0Ast",
            "amqp://%40host",
            "amqp://user@ho%2Fst",
            "amqp://5r%3Aal0m",
            "amqp://ho%2540st",
            "amqp://[::1",
            "amqp:host",
        ] {
            assert!(text.parse::<BrokerUrl>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_flag_fills_in_what_the_url_leaves_out() {
        let url: BrokerUrl = "amqp://host".parse().unwrap();
        let filled = url.clone().or_user("endpoint").or_password(Password::new("a"));
        assert_eq!((filled.user(), filled.password().map(Password::reveal)), (Some("endpoint"), Some("a")));
        let kept = filled.or_user("other").or_password(Password::new("b"));
        assert_eq!((kept.user(), kept.password().map(Password::reveal)), (Some("endpoint"), Some("a")));
        let replaced = kept.with_login("other", Password::new("b"));
        assert_eq!((replaced.user(), replaced.password().map(Password::reveal)), (Some("other"), Some("b")));
    }

    #[test]
    fn a_password_file_is_read_up_to_the_end_of_its_first_line() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("password");
        std::fs::write(&path, "with spaces \nand more").unwrap();
        assert_eq!(password_from_file(&path).unwrap().reveal(), "with spaces ");
        let error = password_from_file(&directory.path().join("nowhere")).unwrap_err();
        assert!(error.to_string().contains("nowhere"), "{error}");
    }

    proptest! {
        #[test]
        fn the_password_is_never_shown(password in "[a-z]{12}", rest in "[:/@%#?a-z]{0,6}") {
            for text in [
                format!("amqp://user:{password}@host:1{rest}"),
                format!("http://user:{password}@host{rest}"),
                format!("amqp://:{password}@host{rest}"),
            ] {
                let shown = match text.parse::<BrokerUrl>() {
                    Ok(url) => format!("{url} {url:?} {:?}", url.password()),
                    Err(error) => format!("{error} {error:?}"),
                };
                prop_assert!(!shown.contains(&password), "{}", shown);
            }
        }
    }
}
