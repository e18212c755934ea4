//! The peer's software, as the peer names it in its open (AMQP 1.0 §2.7.1). Brokers send its name and version in the
//! properties `product` and `version`.
use crate::codec::{DecodeError, Elements};

/// Maximum number of characters that are stored of a text from the peer. The rest is cut off.
const MAX_TEXT_CHARACTERS: usize = 100;

/// Software of a peer, as the peer names it in its open. A field is empty if the peer did not send it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerProduct {
    /// Container-id that the peer names in its open.
    pub container: String,
    /// Name of the product, for example `RabbitMQ`, or empty if the peer does not name it.
    pub name: String,
    /// Version of the product in any form, because each peer writes versions in its own way.
    pub version: String,
}

pub(crate) fn read(container: String, properties: Option<Elements<'_>>) -> Result<PeerProduct, DecodeError> {
    let mut product = PeerProduct { container, ..PeerProduct::default() };
    let Some(mut entries) = properties else { return Ok(product) };
    while let Some(key) = entries.element()? {
        let value = entries.element()?.ok_or(DecodeError::Expected("a key and its value"))?;
        match key.as_text() {
            Some("product") => product.name = value.as_text().map(cut).unwrap_or_default(),
            Some("version") => product.version = value.as_text().map(cut).unwrap_or_default(),
            _ => {}
        }
    }
    Ok(product)
}

/// Shortens a peer's text, and replaces control characters such as line ends by spaces.
pub(crate) fn cut(text: &str) -> String {
    text.chars().take(MAX_TEXT_CHARACTERS).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{Reader, Writer};

    fn product(write: impl FnOnce(&mut Writer<'_>)) -> Result<PeerProduct, DecodeError> {
        let mut octets = Vec::new();
        Writer::new(&mut octets).map(write);
        read("broker".to_owned(), Reader::new(&octets).value().unwrap().as_map())
    }

    #[test]
    fn a_product_is_read_whatever_stands_beside_it_and_a_long_one_is_cut() {
        let of = |name: &str, version: &str| {
            Ok(PeerProduct { container: "broker".to_owned(), name: name.to_owned(), version: version.to_owned() })
        };
        assert_eq!(product(|_| {}), of("", ""));
        let long = "x".repeat(1000);
        let product_text = product(|entries| {
            entries.symbol("product");
            entries.string("a\nbroker");
            entries.symbol("other");
            entries.ulong(7);
            entries.symbol("version");
            entries.string(&long);
        });
        assert_eq!(product_text, of("a broker", &long[..MAX_TEXT_CHARACTERS]));
        let half = product(|entries| entries.symbol("product"));
        assert_eq!(half, Err(DecodeError::Expected("a key and its value")));
        assert_eq!(read("broker".to_owned(), None), of("", ""));
    }
}
