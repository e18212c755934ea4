//! Checks any bytes as the record of a part of a load. Either they are refused, or the record can
//! be added to another.
use crate::record::Record;
use crate::union::RecordUnion;

pub fn check(data: &[u8]) {
    let Ok(record) = Record::from_json(data) else { return };
    let mut union = RecordUnion::default();
    let first = union.add(record.clone(), "source 0/2");
    let again = union.add(record.clone(), "source 1/2");
    assert_eq!(first, again, "what was added once can be added again");
    if let Some(sum) = union.finish("source") {
        let parties: usize = sum.parties.len();
        assert_eq!(parties, 2 * record.parties.len());
        assert!(sum.to_json().is_ok());
    }
}
