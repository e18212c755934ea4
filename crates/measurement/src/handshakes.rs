//! Counts TLS handshakes by TLS version, cipher suite, and whether they resumed an earlier session.
use crate::record::TlsRow;
use std::collections::BTreeMap;

/// Maximum number of pairs of TLS version and cipher suite that are counted separately. TLS 1.2 and 1.3 together have
/// about a dozen pairs. Further pairs share a row without a name.
const MAX_KINDS: usize = 64;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Handshakes {
    kinds: BTreeMap<(String, String), HandshakeCount>,
    pub failed: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct HandshakeCount {
    full: u64,
    resumed: u64,
}

impl Handshakes {
    pub fn add(&mut self, version: &str, cipher: &str, is_resumed: bool) {
        let kind = self.kind((version.to_owned(), cipher.to_owned()));
        *(if is_resumed { &mut kind.resumed } else { &mut kind.full }) += 1;
    }

    fn kind(&mut self, name: (String, String)) -> &mut HandshakeCount {
        let has_row = self.kinds.len() < MAX_KINDS || self.kinds.contains_key(&name);
        self.kinds.entry(if has_row { name } else { Default::default() }).or_default()
    }

    pub fn merge(&mut self, other: &Self) {
        self.failed += other.failed;
        for (name, kind) in &other.kinds {
            let ours = self.kind(name.clone());
            ours.full += kind.full;
            ours.resumed += kind.resumed;
        }
    }

    pub fn rows(&self, party: &str) -> Vec<TlsRow> {
        let row = |((version, cipher), kind): (&(String, String), &HandshakeCount)| TlsRow {
            party: party.to_owned(),
            version: version.clone(),
            cipher: cipher.clone(),
            handshakes: kind.full + kind.resumed,
            resumed: kind.resumed,
        };
        self.kinds.iter().map(row).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_add_up_over_workers_and_do_not_grow_without_end() {
        let mut one = Handshakes::default();
        let mut all = Handshakes::default();
        one.add("TLSv1.3", "A", false);
        one.add("TLSv1.3", "A", true);
        one.add("TLSv1.2", "B", false);
        all.merge(&one);
        all.merge(&one);
        let counts: Vec<_> = all.rows("source").iter().map(|row| (row.handshakes, row.resumed)).collect();
        assert_eq!(counts, [(2, 0), (4, 2)]);
        for number in 0..1000 {
            one.add("TLSv9", &number.to_string(), false);
        }
        assert!(one.rows("x").len() <= MAX_KINDS + 1);
        assert_eq!(one.rows("x").iter().map(|row| row.handshakes).sum::<u64>(), 1003);
        all.merge(&one);
        assert!(all.rows("x").len() <= MAX_KINDS + 1);
        assert_eq!(all.rows("x").iter().map(|row| row.handshakes).sum::<u64>(), 1009);
    }
}
