//! Shortens the texts of peers and users in a record, so that a reply of 10 MB is not copied into a report.
use mailrun_measurement::record::{Mades, Record};

const MAX_CHARACTERS: usize = 1_000;

/// Returns a copy of the record in which each text of peers and users has at most 1,000 characters.
pub(super) fn bounded(record: &Record) -> Record {
    let mut record = record.clone();
    let host = &mut record.host;
    for text in [&mut record.name, &mut host.os, &mut host.kernel, &mut host.cpu_model] {
        cut(text);
    }
    cut(&mut record.workload.target);
    cut(&mut record.verdict.why);
    record.command.iter_mut().for_each(cut);
    record.verdict.reasons.iter_mut().for_each(cut);
    if let Some(server) = &mut record.server {
        cut(&mut server.banner);
        server.extensions.iter_mut().for_each(cut);
    }
    for party in &mut record.parties {
        cut(&mut party.name);
        party.command.iter_mut().for_each(cut);
        if let Some(death) = &mut party.died {
            cut(&mut death.said);
            cut(&mut death.how);
        }
    }
    for row in &mut record.errors {
        cut(&mut row.text);
        row.sample.iter_mut().for_each(cut);
    }
    record.stages.iter_mut().for_each(|row| cut(&mut row.party));
    record.load_stages.iter_mut().for_each(|row| cut(&mut row.name));
    record.usage.iter_mut().for_each(|row| cut(&mut row.party));
    record.events.iter_mut().for_each(|row| cut(&mut row.text));
    record.domains.iter_mut().for_each(|row| cut(&mut row.domain));
    record.thresholds.iter_mut().for_each(|row| cut(&mut row.expression));
    record.slowest.iter_mut().flat_map(|message| message.recipients.iter_mut().chain(&mut message.reply)).for_each(cut);
    record.missing.iter_mut().flat_map(|message| message.recipients.iter_mut().chain(&mut message.reply)).for_each(cut);
    record.mades.iter_mut().for_each(bound_mades);
    record
}

fn bound_mades(own: &mut Mades) {
    for row in &mut own.troubles {
        [&mut row.kind, &mut row.code, &mut row.text].into_iter().for_each(cut);
    }
    own.outages.iter_mut().for_each(|row| cut(&mut row.why));
    own.queues.iter_mut().for_each(|row| cut(&mut row.name));
}

fn cut(text: &mut String) {
    if let Some((end, _)) = text.char_indices().nth(MAX_CHARACTERS) {
        text.truncate(end);
        text.push('…');
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    #[test]
    fn a_long_text_is_cut_between_characters() {
        let mut record = sample::held();
        record.name = "é".repeat(5_000_000);
        record.verdict.why = "w".repeat(MAX_CHARACTERS);
        let bounded = bounded(&record);
        assert_eq!(bounded.name.chars().count(), MAX_CHARACTERS + 1);
        assert!(bounded.name.ends_with("é…"));
        assert_eq!(bounded.verdict.why, record.verdict.why, "what fits stays");
    }
}
