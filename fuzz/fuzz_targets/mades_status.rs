//! Any octets as a status document of EDX: refused, or one that is written and read again as the same.
#![no_main]
use libfuzzer_sys::fuzz_target;
use mailrun_mades::api::StatusDocument;

fuzz_target!(|data: &[u8]| {
    if let Ok(document) = StatusDocument::read(data) {
        assert_eq!(StatusDocument::read(&document.write()), Ok(document));
    }
});
