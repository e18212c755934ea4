//! Passes arbitrary bytes from a fuzz target to the reader of EDX status documents. A document that the reader accepts
//! must stay the same when it is written and read again.
use crate::api::StatusDocument;

pub fn check(data: &[u8]) {
    if let Ok(document) = StatusDocument::read(data) {
        assert_eq!(StatusDocument::read(&document.write()), Ok(document));
    }
}
