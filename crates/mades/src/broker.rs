//! A broker and how to connect to it: address, security, limits, and the mechanism that authenticates us.
use crate::error::Error;
use crate::security::{BrokerSecurity, SaslMechanism};
use crate::url::BrokerUrl;
use amqp::Password;
use fe2o3_amqp::sasl_profile::{SaslProfile, SaslScramSha1, SaslScramSha256, SaslScramSha512};
use std::net::IpAddr;
use std::time::Duration;

/// Default limit of each step of connecting.
const STEP_TIMEOUT: Duration = Duration::from_secs(10);
/// Limit of the peer's silence: after it the peer counts as gone. We announce the limit, and the peer sends empty
/// frames to stay within it (AMQP 1.0 part 2 §2.4.5).
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// Limit of a frame that we accept. A message of go-mades-bench's 1 MB comes in one: fe2o3-amqp keeps the frames of a
/// message apart and reads them byte by byte (docs/decisions/0007).
const MAX_FRAME_SIZE: u32 = 1024 * 1024 + 64 * 1024;
/// Limit of the time that a close may take.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// A broker and how to connect to it.
#[derive(Clone, Debug)]
pub struct Broker {
    /// Address of the broker, and the user.
    pub url: BrokerUrl,
    /// TLS and SASL.
    pub security: BrokerSecurity,
    /// Our container-id; a broker takes a second connection of the same name for the successor of the first.
    pub container: String,
    /// Limit of each step: connecting, TLS, the AMQP handshake, attaching to a queue.
    pub step_timeout: Duration,
    /// Limit of the broker's silence.
    pub idle_timeout: Duration,
    /// The largest frame that we take.
    pub max_frame_size: u32,
    /// Reports whether an address may be connected to. It is called for each address of the broker's name, at each
    /// connection, so that only addresses that it has checked are connected to.
    pub is_address_allowed: fn(IpAddr) -> bool,
}

impl Broker {
    /// A broker with the default limits; `container` is our container-id.
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

    /// Limit of the time that a close may take.
    pub(crate) fn close_timeout(&self) -> Duration {
        self.step_timeout.min(CLOSE_TIMEOUT)
    }

    /// Mechanism that authenticates us.
    pub(crate) fn mechanism(&self) -> SaslMechanism {
        let usual = if self.url.user().is_some() { SaslMechanism::Plain } else { SaslMechanism::Anonymous };
        self.security.mechanism.unwrap_or(usual)
    }

    /// SASL profile that fe2o3-amqp is to use; `None` if we have authenticated before it gets the stream.
    pub(crate) fn profile(&self, mechanism: SaslMechanism) -> Result<Option<SaslProfile>, Error> {
        if mechanism.takes_password() && self.url.user().is_none() {
            let complaint =
                format!("SASL {mechanism} requires a user: give one in the URL, with --user or in the environment");
            return Err(Error::Misuse(complaint));
        }
        if mechanism == SaslMechanism::External && !self.url.is_tls() {
            return Err(Error::Misuse("SASL EXTERNAL requires a certificate, and therefore amqps://".to_owned()));
        }
        let user = self.url.user().unwrap_or_default();
        let password = self.url.password().map(Password::reveal).unwrap_or_default();
        Ok(match mechanism {
            SaslMechanism::Plain => {
                Some(SaslProfile::Plain { username: user.to_owned(), password: password.to_owned() })
            }
            SaslMechanism::Anonymous => Some(SaslProfile::Anonymous),
            SaslMechanism::External => None,
            SaslMechanism::ScramSha1 => Some(SaslScramSha1::new(user, password).into()),
            SaslMechanism::ScramSha256 => Some(SaslScramSha256::new(user, password).into()),
            SaslMechanism::ScramSha512 => Some(SaslScramSha512::new(user, password).into()),
        })
    }

    /// The error for a step that took too long.
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
            let error = broker(url, Some(mechanism)).profile(mechanism).unwrap_err();
            assert!(matches!(error, Error::Misuse(_)), "{error}");
        }
    }
}
