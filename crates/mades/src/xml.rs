//! Helps to read XML documents: handles encodings, document types and references, which quick-xml leaves to its users.
use quick_xml::events::{BytesRef, BytesText, Event};
use quick_xml::reader::Reader;
use std::borrow::Cow;

/// Number of bytes at the start of a document in which the XML declaration must end. A longer declaration is ignored.
const DECLARATION_BYTES: usize = 200;

/// Returns true if the document is UTF-16, with a byte order mark or without one.
pub fn is_utf16(octets: &[u8]) -> bool {
    byte_order(octets).is_some()
}

/// Recognises UTF-16 by the first bytes of a document (XML 1.0, appendix F). Returns the function that converts two
/// bytes to a code unit, or `None` for any other encoding.
fn byte_order(octets: &[u8]) -> Option<fn([u8; 2]) -> u16> {
    match octets {
        [0xfe, 0xff, ..] | [0, b'<', ..] => Some(u16::from_be_bytes),
        [0xff, 0xfe, ..] | [b'<', 0, ..] => Some(u16::from_le_bytes),
        _ => None,
    }
}

/// Decodes a document in UTF-8 or UTF-16, or in ISO-8859-1 if the XML declaration says so. Removes a byte order mark.
///
/// # Errors
/// Fails if the bytes are not valid in the document's encoding, or if the encoding is not supported.
pub fn decode(octets: &[u8]) -> Result<Cow<'_, str>, String> {
    if let Some(unit) = byte_order(octets) {
        let (pairs, rest) = octets.as_chunks::<2>();
        let text = char::decode_utf16(pairs.iter().map(|pair| unit(*pair))).collect::<Result<String, _>>();
        let text = text.ok().filter(|_| rest.is_empty()).ok_or("it is not valid UTF-16")?;
        return Ok(Cow::Owned(text.trim_start_matches('\u{feff}').to_owned()));
    }
    match std::str::from_utf8(octets) {
        Ok(text) => Ok(Cow::Borrowed(text.trim_start_matches('\u{feff}'))),
        Err(error) => match declared_encoding(octets) {
            Some(name) if name.eq_ignore_ascii_case("iso-8859-1") => Ok(Cow::Owned(latin1(octets))),
            Some(name) if !name.eq_ignore_ascii_case("utf-8") => Err(format!("the encoding {name} is not supported")),
            _ => Err(error.to_string()),
        },
    }
}

/// Decodes ISO-8859-1, in which each byte is the Unicode number of a character.
fn latin1(octets: &[u8]) -> String {
    octets.iter().map(|octet| char::from(*octet)).collect()
}

fn declared_encoding(octets: &[u8]) -> Option<String> {
    let front = latin1(&octets[..octets.len().min(DECLARATION_BYTES)]);
    match Reader::from_str(&front).read_event() {
        Ok(Event::Decl(declaration)) => declaration.encoding()?.ok().map(Cow::into_owned),
        _ => None,
    }
}

/// Returns true if a document type declares something, such as default attributes or entities. The caller should refuse
/// such a document, because entities can expand to any size. A document type that only names a schema does not affect
/// the content and can be ignored.
pub fn defines_something(document_type: &BytesText<'_>) -> bool {
    document_type.xml10_content().contains('[')
}

/// Returns the character of a reference such as `&#65;` or `&amp;`.
///
/// # Errors
/// Fails if the number is no character, or if the entity is not one of XML's five. The error names the entity.
pub fn referenced(reference: &BytesRef<'_>) -> Result<char, String> {
    if let Some(character) = reference.resolve_char_ref().map_err(|error| error.to_string())? {
        return Ok(character);
    }
    match &**reference {
        "lt" => Ok('<'),
        "gt" => Ok('>'),
        "amp" => Ok('&'),
        "apos" => Ok('\''),
        "quot" => Ok('"'),
        other => Err(format!("the entity {other:?} is not defined")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_is_decoded_as_it_says() {
        const TEXT: &str = "<a>\u{e4}\u{1f600}</a>";
        let units = |mark: &str| format!("{mark}{TEXT}").encode_utf16().collect::<Vec<_>>();
        for mark in ["", "\u{feff}"] {
            let big: Vec<u8> = units(mark).into_iter().flat_map(u16::to_be_bytes).collect();
            let little: Vec<u8> = units(mark).into_iter().flat_map(u16::to_le_bytes).collect();
            for octets in [big, little, [mark, TEXT].concat().into_bytes()] {
                assert_eq!(decode(&octets).as_deref(), Ok(TEXT));
            }
        }
        let latin = b"<?xml version=\"1.0\" encoding=\"ISO-8859-1\"?><a>\xe4</a>";
        assert!(decode(latin).unwrap().ends_with("<a>\u{e4}</a>"));
        for (octets, reason) in [
            (&b"<a>\xe4</a>"[..], "invalid utf-8"),
            (b"<?xml version='1.0' encoding='koi8-r'?>\xe4", "the encoding koi8-r is not supported"),
            (b"\xff\xfe<", "not valid UTF-16"),
            (b"\xff\xfe\0\xdc", "not valid UTF-16"),
        ] {
            let error = decode(octets).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
    }
}
