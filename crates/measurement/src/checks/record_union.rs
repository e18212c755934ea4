//! Reads arbitrary bytes as the record of one part of a load, and adds the record to a union twice. The union must
//! either accept the record both times or refuse it both times. It must be possible to write the sum as JSON.
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
