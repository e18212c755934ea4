//! The mRID (identifier) of a market document. An acknowledgement document contains the mRID of the document that it
//! acknowledges.
//!
//! ```text
//! 0123456789abcdef8000000000000007   UUID without hyphens (RFC 9562, version 8), because
//! └─ of the run ─┘└─ message 7 ──┘   the schemas permit an mRID at most 35 characters
//! ```
use mailrun_mades::Uuid;

pub(super) const DOCUMENT_ID_BYTES: usize = 32;
const VERSION: u64 = 0x8000;
const VERSION_MASK: u64 = 0xf000;
const VARIANT: u64 = 1 << 63;
const SEQUENCE_MASK: u64 = (1 << 62) - 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DocumentId {
    pub(super) sequence: u64,
    pub(super) run: u64,
}

impl DocumentId {
    pub(super) fn new(run: Uuid, sequence: u64) -> Self {
        Self { sequence, run: run_part(run) }
    }

    /// Reads an mRID, with or without hyphens. Returns `None` if the bench cannot have made this mRID.
    pub(super) fn read(text: &str) -> Option<Self> {
        let (run, number) = Uuid::try_parse(text).ok()?.as_u64_pair();
        let is_own_form = run & VERSION_MASK == VERSION && number & !SEQUENCE_MASK == VARIANT;
        is_own_form.then_some(Self { sequence: number & SEQUENCE_MASK, run })
    }

    pub(super) fn is_of(self, run: Uuid) -> bool {
        self.run == run_part(run)
    }

    pub(super) fn text(self) -> [u8; DOCUMENT_ID_BYTES] {
        let mut text = [0; DOCUMENT_ID_BYTES];
        Uuid::from_u64_pair(self.run, VARIANT | self.sequence & SEQUENCE_MASK).simple().encode_lower(&mut text);
        text
    }
}

fn run_part(run: Uuid) -> u64 {
    run.as_u64_pair().0 & !VERSION_MASK | VERSION
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_mrid_is_short_enough_for_the_schemas_and_of_one_run() {
        let run = Uuid::from_u128(0x0123_4567_89ab_4def_8000_0000_0000_0001);
        let text = String::from_utf8(DocumentId::new(run, 7).text().to_vec()).unwrap();
        assert_eq!(text, "0123456789ab8def8000000000000007");
        let id = DocumentId::read("01234567-89AB-8DEF-8000-000000000007").unwrap();
        assert!(id.is_of(run) && !id.is_of(Uuid::from_u128(1)) && id.sequence == 7);
        for other in ["", "7", "0123456789ab4def8000000000000007", "0123456789ab8def0000000000000007"] {
            assert_eq!(DocumentId::read(other), None, "{other}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(run: u128, sequence in 0..=SEQUENCE_MASK) {
            let id = DocumentId::new(Uuid::from_u128(run), sequence);
            prop_assert_eq!(DocumentId::read(std::str::from_utf8(&id.text()).unwrap()), Some(id));
        }
    }
}
