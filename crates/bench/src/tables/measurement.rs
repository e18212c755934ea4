//! Figures of one run of a table: the costs, and the proof that each recipient received each
//! message once and unchanged. The saved messages and the sink's own counts must agree.
use super::deliveries::Deliveries;
use super::sinks::ReportedCounts;
use crate::engine::Costs;
use mailrun_text::numbers::{count, counted};

#[derive(Clone, Debug)]
pub(super) struct TableMeasurement {
    pub(super) source: Costs,
    pub(super) sink: Costs,
    /// The sink's own counts. smtp-sink has none.
    pub(super) counts: Option<ReportedCounts>,
    /// What was found in the messages that the sink saved. `None` if it was not asked to save them.
    pub(super) deliveries: Option<Deliveries>,
}

impl TableMeasurement {
    /// Reports missing messages, if the sink has a count of its own.
    pub(super) fn shortfall(&self, messages: u64) -> Option<String> {
        let arrived = self.counts?.messages;
        (arrived != messages).then(|| format!("the sink has {} of {} messages", count(arrived), count(messages)))
    }

    /// Checks the deliveries of a run. Returns a description of all faults, or `None` if every
    /// recipient received every message once and unchanged.
    pub(super) fn delivery_fault(&self, messages: u64, recipients: u32) -> Option<String> {
        let units = messages * u64::from(recipients);
        let mut faults = Vec::new();
        let mut expect = |actual: u64, wanted: u64, what: &str| {
            if actual != wanted {
                faults.push(format!("{} of {} {what}", count(actual), count(wanted)));
            }
        };
        if let Some(deliveries) = &self.deliveries {
            expect(deliveries.messages, messages, "messages in its dump");
            expect(deliveries.recipients, units, "recipients in its dump");
        }
        if let Some(counts) = self.counts {
            expect(counts.messages, messages, "messages by its count");
            expect(counts.recipients, units, "recipients by its count");
        }
        if let Some(count) = self.deliveries.as_ref().map(|kept| kept.duplicates()).filter(|count| *count > 0) {
            faults.push(counted(count, "duplicate"));
        }
        if let Some(changed) = self.deliveries.as_ref().map(|kept| kept.changed).filter(|changed| *changed > 0) {
            faults.push(format!("{} with a changed text", counted(changed, "message")));
        }
        (!faults.is_empty()).then(|| format!("the sink has {}", faults.join(", ")))
    }
}

#[cfg(test)]
mod tests {
    use super::super::deliveries::of_mailrun;
    use super::*;

    /// Creates a run whose dump has messages with these numbers. Each message has two recipients
    /// and is counted once.
    fn run(ids: &[u32]) -> TableMeasurement {
        with_text(ids, "La de da de da 1.\r\nLa de da de da 2.\r\nLa de da de da 3.\r\nLa de da de da 4.\r\n")
    }

    fn with_text(ids: &[u32], text: &str) -> TableMeasurement {
        let message = |id: &u32| {
            let text = format!("Message-Id: <{id}>\r\n\r\n{text}");
            format!("{{\"bytes\":{},\"recipients\":[\"a@b\",\"c@d\"]}}\n{text}\n", text.len())
        };
        let dump: String = ids.iter().map(message).collect();
        let messages = ids.len() as u64;
        TableMeasurement {
            source: Costs::default(),
            sink: Costs::default(),
            counts: Some(ReportedCounts { messages, recipients: messages * 2 }),
            deliveries: Some(of_mailrun(dump.as_bytes()).unwrap()),
        }
    }

    #[test]
    fn all_of_it_once_is_no_fault() {
        assert_eq!(run(&[1, 2, 3]).delivery_fault(3, 2), None);
        assert_eq!(run(&[]).delivery_fault(0, 2), None);
    }

    #[test]
    fn what_is_missing_is_counted() {
        let text = run(&[1, 3]).delivery_fault(3, 2).unwrap();
        assert!(text.starts_with("the sink has 2 of 3 messages in its dump, 4 of 6 recipients in its dump"), "{text}");
    }

    #[test]
    fn a_double_is_found_though_the_sum_is_right() {
        assert_eq!(run(&[1, 2, 2]).delivery_fault(3, 2).unwrap(), "the sink has 2 duplicates");
    }

    #[test]
    fn a_changed_text_is_found() {
        let fault = with_text(&[1, 2], "La de da\r\n").delivery_fault(2, 2).unwrap();
        assert_eq!(fault, "the sink has 2 messages with a changed text");
    }

    #[test]
    fn a_sink_that_counts_otherwise_is_not_believed() {
        let mut run = run(&[1, 2, 3]);
        run.counts = Some(ReportedCounts { messages: 4, recipients: 8 });
        assert!(run.delivery_fault(3, 2).unwrap().contains("4 of 3 messages by its count"));
    }
}
