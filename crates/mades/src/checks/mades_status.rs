//! Reads any bytes as an EDX status document. A document that the reader accepts must stay the same
//! when it is written and read again.
use crate::api::StatusDocument;

pub fn check(data: &[u8]) {
    if let Ok(document) = StatusDocument::read(data) {
        assert_eq!(StatusDocument::read(&document.write()), Ok(document));
    }
}
