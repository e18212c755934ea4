//! Any bytes as an EDX status document. A document that is accepted must survive writing and reading.
use crate::api::StatusDocument;

pub fn check(data: &[u8]) {
    if let Ok(document) = StatusDocument::read(data) {
        assert_eq!(StatusDocument::read(&document.write()), Ok(document));
    }
}
