//! Reads arbitrary bytes as a ledger file. If they are accepted, writing the ledger and reading it again must give the
//! same content. The ledger may take at most one page (4 KB) more memory than the file has bytes.
use crate::ledger::Ledger;

pub fn check(data: &[u8]) {
    let Ok(ledger) = Ledger::read_from(data) else { return };
    assert!(ledger.bytes() <= Ledger::LIMIT_BYTES && ledger.bytes() <= data.len() + 4096);
    let mut written = Vec::new();
    ledger.write_to(&mut written).expect("a Vec takes everything");
    assert_eq!(written.len(), data.len(), "only the order of the pages can differ");
    let again = Ledger::read_from(written.as_slice()).expect("it has just been written");
    assert_eq!((again.count(), again.count_without(&ledger), ledger.count_without(&again)), (ledger.count(), 0, 0));
}
