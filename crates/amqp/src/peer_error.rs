//! Errors that a peer reports, each with a condition and a description. A redirect also names the host or node that we
//! should use instead (AMQP 1.0 §2.8.14).
use crate::codec::{DecodeError, Elements, Value};
use std::fmt;

/// Maximum number of characters that are stored of a text from the peer. The rest is cut off.
const MAX_TEXT_CHARACTERS: usize = 1000;

/// An error that a peer reports (AMQP 1.0 §2.8.14).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerError {
    /// Symbol that classifies the error, such as `amqp:not-found`.
    pub condition: String,
    /// Human-readable description of the error, or an empty text if the peer sent no description.
    pub description: String,
    /// Host or node to which the peer redirects us. Only the conditions `amqp:connection:redirect` and
    /// `amqp:link:redirect` come with such a target.
    pub redirect: Option<RedirectTarget>,
}

/// Host or node to which a peer redirects us. The caller must decide whether it may connect to that host, because the
/// peer is not trusted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RedirectTarget {
    /// Host name that the client must name in its open.
    pub hostname: Option<String>,
    /// Name or address of the host that the client should connect to.
    pub network_host: Option<String>,
    /// Port that the client should connect to.
    pub port: Option<u16>,
    /// Address of the node to which a link is redirected, or `None` if the peer did not name a node.
    pub address: Option<String>,
}

impl fmt::Display for PeerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.description.as_str() {
            "" => f.write_str(&self.condition),
            description => write!(f, "{}: {description}", self.condition),
        }
    }
}

pub(crate) fn read_error(fields: &mut Elements<'_>) -> Result<Option<PeerError>, DecodeError> {
    let Some(value) = fields.field()? else { return Ok(None) };
    let expected = DecodeError::Expected("an error");
    let mut fields = value.as_list().filter(|_| value.descriptor() == Some(0x1d)).ok_or(expected)?;
    let condition = fields.field()?.and_then(text).ok_or(DecodeError::Expected("the condition of an error"))?;
    let description = fields.field()?.and_then(text).unwrap_or_default();
    let info = fields.field()?.filter(|_| condition.ends_with(":redirect"));
    let redirect = info.map(read_redirect).transpose()?;
    Ok(Some(PeerError { condition, description, redirect }))
}

fn text(value: Value<'_>) -> Option<String> {
    value.as_text().map(|text| text.chars().take(MAX_TEXT_CHARACTERS).collect())
}

fn read_redirect(info: Value<'_>) -> Result<RedirectTarget, DecodeError> {
    let mut target = RedirectTarget::default();
    let mut entries = info.as_map().ok_or(DecodeError::Expected("the map of a redirect"))?;
    while let Some(key) = entries.element()? {
        let value = entries.element()?.ok_or(DecodeError::Expected("a key and its value"))?;
        match key.as_text() {
            Some("hostname") => target.hostname = text(value),
            Some("network-host") => target.network_host = text(value),
            Some("port") => target.port = value.as_number().and_then(|port| u16::try_from(port).ok()),
            Some("address") => target.address = text(value),
            _ => {}
        }
    }
    Ok(target)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{Reader, Writer};

    fn read(write: impl FnOnce(&mut Writer<'_>)) -> Result<Option<PeerError>, DecodeError> {
        let mut octets = Vec::new();
        Writer::new(&mut octets).described_list(0x18, write);
        read_error(&mut Reader::new(&octets).value().unwrap().as_list().unwrap())
    }

    #[test]
    fn an_error_is_read_and_a_redirect_with_it() {
        assert_eq!(read(|_| {}), Ok(None));
        assert_eq!(read(|fields| fields.null()), Ok(None));
        let error = read(|fields| {
            fields.described_list(0x1d, |fields| {
                fields.symbol("amqp:link:redirect");
                fields.string("over there");
                fields.described_map(0x40, |_| {});
            });
        });
        let error = error.unwrap().unwrap();
        assert_eq!(error.to_string(), "amqp:link:redirect: over there");
        assert_eq!(error.redirect, Some(RedirectTarget::default()));
        let mut map = Vec::new();
        Writer::new(&mut map).described_map(0x40, |entries| {
            entries.symbol("network-host");
            entries.string("10.0.0.1");
            entries.symbol("port");
            entries.ushort(5671);
            entries.symbol("hostname");
            entries.string("broker");
            entries.symbol("address");
            entries.string("queue");
        });
        let target = read_redirect(Reader::new(&map).value().unwrap()).unwrap();
        let some = |text: &str| Some(text.to_owned());
        let expected = RedirectTarget {
            hostname: some("broker"),
            network_host: some("10.0.0.1"),
            port: Some(5671),
            address: some("queue"),
        };
        assert_eq!(target, expected);
    }

    #[test]
    fn what_is_no_error_is_refused_and_a_long_one_is_cut() {
        assert!(read(|fields| fields.string("amqp:not-found")).is_err());
        assert!(read(|fields| fields.described_list(0x1d, |_| {})).is_err());
        let long = "x".repeat(100_000);
        let error = read(|fields| fields.described_list(0x1d, |fields| fields.symbol(&long))).unwrap().unwrap();
        assert_eq!(error.condition.len(), MAX_TEXT_CHARACTERS);
    }
}
