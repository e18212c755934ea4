//! Any octets as a status document of EDX: refused, or one that is written and read again as the same.
use crate::api::StatusDocument;

pub fn check(data: &[u8]) {
    if let Ok(document) = StatusDocument::read(data) {
        assert_eq!(StatusDocument::read(&document.write()), Ok(document));
    }
}
