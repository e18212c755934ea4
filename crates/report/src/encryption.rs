use super::section::Section;
use mailrun_measurement::record::Record;
use mailrun_text::table::{Align, Cell, Table, right};

/// Returns the number of TLS handshakes by party, version and cipher suite. `None` if there were
/// none.
pub(crate) fn handshakes(record: &Record) -> Option<Section> {
    let mut table = Table::new([
        ("party", Align::Left),
        ("version", Align::Left),
        ("cipher suite", Align::Left),
        right("handshakes"),
        right("resumed"),
    ]);
    for row in &record.tls {
        let names = [&row.party, &row.version, &row.cipher].map(|text| Cell::from(text.as_str()));
        table.row(names.into_iter().chain([row.handshakes, row.resumed].map(Cell::Count)).collect());
    }
    let note = Some("how long they took is the phase tls".to_owned());
    Section::figures("TLS", note, table)
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;
    use mailrun_measurement::record::TlsRow;

    #[test]
    fn handshakes_have_a_row_a_kind_and_no_section_without_tls() {
        let mut record = sample::held();
        assert!(handshakes(&record).is_none());
        let row = TlsRow {
            party: "source".to_owned(),
            version: "TLSv1.3".to_owned(),
            cipher: "TLS13_AES_256_GCM_SHA384".to_owned(),
            handshakes: 1200,
            resumed: 1100,
        };
        record.tls.push(row);
        let text = super::super::markdown(&record);
        assert!(text.contains("## TLS") && text.contains("TLSv1.3") && text.contains("1,100"), "{text}");
    }
}
