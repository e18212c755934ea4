use crate::error::Error;
use crate::security::{BrokerSecurity, SaslMechanism};
use crate::url::BrokerUrl;
use mailrun_amqp::{ClientLogin, ConnectionOptions, Password, ScramHash};
use std::net::IpAddr;
use std::time::Duration;
use uuid::Uuid;

const STEP_TIMEOUT: Duration = Duration::from_secs(10);
/// Time without a frame after which the peer counts as gone. The client announces half of this time as its idle
/// timeout, so that an idle peer sends empty frames often enough (AMQP 1.0 part 2 §2.4.5).
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// Largest frame in bytes that the client accepts. A message of 1 MB, as go-mades-bench sends, fits
/// into one frame and is then not copied.
const MAX_FRAME_SIZE: u32 = 1024 * 1024 + 64 * 1024;
/// Maximum size in bytes of a message on a link without a limit of its own. All messages of a connection that have not
/// arrived completely may together take twice this size.
const MAX_MESSAGE_BYTES: u64 = 64 * 1024 * 1024;
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Clone, Debug)]
pub struct Broker {
    pub url: BrokerUrl,
    pub security: BrokerSecurity,
    /// Container-id by which the broker knows the client. A broker regards a second connection with the same
    /// container-id as a replacement for the first.
    pub container: String,
    /// Time limit of each step: connecting, TLS, the AMQP handshake, and attaching to a queue.
    pub step_timeout: Duration,
    /// Time without a frame after which the broker counts as gone.
    pub idle_timeout: Duration,
    pub max_frame_size: u32,
    /// Decides whether the client may connect to an address. Each new connection calls this for every address of the
    /// host name, because the name may have another address by then. For example, the drop-in replacement for
    /// go-mades-bench refuses public addresses.
    pub is_address_allowed: fn(IpAddr) -> bool,
}

impl Broker {
    pub fn new(url: BrokerUrl, container: impl Into<String>) -> Self {
        Self {
            url,
            security: BrokerSecurity::default(),
            container: container.into(),
            step_timeout: STEP_TIMEOUT,
            idle_timeout: IDLE_TIMEOUT,
            max_frame_size: MAX_FRAME_SIZE,
            is_address_allowed: |_| true,
        }
    }

    pub(crate) fn close_timeout(&self) -> Duration {
        self.step_timeout.min(CLOSE_TIMEOUT)
    }

    pub(crate) fn mechanism(&self) -> SaslMechanism {
        let usual = if self.url.user().is_some() { SaslMechanism::Plain } else { SaslMechanism::Anonymous };
        self.security.mechanism.unwrap_or(usual)
    }

    /// Returns the client's login for the SASL mechanism of this broker.
    ///
    /// # Errors
    /// Fails if the SASL mechanism needs credentials that are missing.
    pub(crate) fn login(&self) -> Result<ClientLogin, Error> {
        let mechanism = self.mechanism();
        if mechanism.takes_password() && self.url.user().is_none() {
            let complaint =
                format!("SASL {mechanism} requires a user: give one in the URL, with --user or in the environment");
            return Err(Error::Misuse(complaint));
        }
        if mechanism == SaslMechanism::External && !self.url.is_tls() {
            return Err(Error::Misuse("SASL EXTERNAL requires a certificate, and therefore amqps://".to_owned()));
        }
        let user = self.url.user().unwrap_or_default().to_owned();
        let password = self.url.password().cloned().unwrap_or_else(|| Password::new(""));
        // Use a UUID as the nonce, because it is random for each connection and has no character that SCRAM forbids.
        let nonce = Uuid::new_v4().simple().to_string();
        let scram = |hash, user, password| ClientLogin::Scram { hash, user, password, nonce };
        Ok(match mechanism {
            SaslMechanism::Plain => ClientLogin::Plain { user, password },
            SaslMechanism::Anonymous => ClientLogin::Anonymous,
            SaslMechanism::External => ClientLogin::External,
            SaslMechanism::ScramSha1 => scram(ScramHash::Sha1, user, password),
            SaslMechanism::ScramSha256 => scram(ScramHash::Sha256, user, password),
            SaslMechanism::ScramSha512 => scram(ScramHash::Sha512, user, password),
        })
    }

    pub(crate) fn who(&self) -> &str {
        match self.mechanism() {
            SaslMechanism::External => "the owner of the client certificate",
            _ => self.url.user().unwrap_or("an anonymous client"),
        }
    }

    pub(crate) fn connection_options(&self) -> ConnectionOptions {
        ConnectionOptions {
            container: self.container.clone(),
            hostname: Some(self.url.host().to_owned()),
            max_frame_size: self.max_frame_size,
            idle_timeout_ms: u32::try_from(self.idle_timeout.as_millis() / 2).unwrap_or(u32::MAX),
            max_message_bytes: MAX_MESSAGE_BYTES,
        }
    }

    pub(crate) async fn with_step_timeout<T>(
        &self,
        what: &'static str,
        step: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        tokio::time::timeout(self.step_timeout, step).await.unwrap_or_else(|_| Err(self.timed_out(what)))
    }

    pub(crate) fn timed_out(&self, what: &'static str) -> Error {
        Error::TimedOut { address: self.url.address(), what, after: self.step_timeout }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mechanism_that_lacks_what_it_takes_is_refused_before_anything_is_sent() {
        let broker = |url: &str, mechanism| Broker {
            security: BrokerSecurity { mechanism, ..BrokerSecurity::default() },
            ..Broker::new(url.parse().unwrap(), "test")
        };
        assert_eq!(broker("amqp://host", None).mechanism(), SaslMechanism::Anonymous);
        assert_eq!(broker("amqp://user@host", None).mechanism(), SaslMechanism::Plain);
        for (url, mechanism) in [("amqp://host", SaslMechanism::Plain), ("amqp://user:a@host", SaslMechanism::External)]
        {
            let error = broker(url, Some(mechanism)).login().unwrap_err();
            assert!(matches!(error, Error::Misuse(_)), "{error}");
        }
    }
}
