//! For `--trace`: counts the messages with a recognised trace header, and checks that they arrived unchanged.
use mailrun_measurement::tally::RunTallies;
use mailrun_measurement::trace::{ClockId, MAX_RECIPIENTS, RecipientId, Trace, TraceReader, TraceResult};
use mailrun_measurement::{Latencies, MarkResult};
use mailrun_net::clock;
use mailrun_process::outputs;
use mailrun_smtp::data::{DataPiece, DataReader};

#[derive(Debug)]
pub(super) struct TraceStats {
    /// Identity of this host's clock. The latency of a message is computed only if its sender used the same clock.
    clock: ClockId,
    runs: RunTallies,
    recognised: u64,
    corrupt: u64,
    /// Number of messages with a trace header and a body that a relay has converted to 7-bit.
    converted: u64,
    foreign: u64,
    duplicates: u64,
    /// Number of recipients that were not checked for duplicates, because that would have needed too much memory.
    unchecked: u64,
    latencies: Latencies,
}

impl Default for TraceStats {
    fn default() -> Self {
        Self {
            clock: outputs::monotonic_clock(),
            runs: RunTallies::default(),
            recognised: 0,
            corrupt: 0,
            converted: 0,
            foreign: 0,
            duplicates: 0,
            unchecked: 0,
            latencies: Latencies::default(),
        }
    }
}

impl TraceStats {
    pub(super) fn record(&mut self, message: &TracedMessage) {
        match &message.found {
            TraceResult::Intact(trace) | TraceResult::Converted(trace) => {
                self.recognised += 1;
                self.converted += u64::from(matches!(message.found, TraceResult::Converted(_)));
                self.record_latency(trace);
                self.mark_recipients(trace, message);
            }
            TraceResult::Corrupt(Some(trace)) => {
                self.corrupt += 1;
                self.mark_recipients(trace, message);
            }
            // As in `mailrun sink`, a message whose trace header is missing or unreadable counts as foreign, because
            // only this header names the run that sent the message.
            TraceResult::Corrupt(None) | TraceResult::Absent => self.foreign += 1,
        }
    }

    fn mark_recipients(&mut self, trace: &Trace, message: &TracedMessage) {
        let run = self.runs.open(trace.run);
        // Record when the run last received mail. If there are too many runs, `RunTallies` discards the run that has
        // received no mail for the longest time.
        run.last_delivered = Some(clock::now());
        for recipient in &message.recipients {
            match run.units.mark(trace.sequence, trace.numbering.number(*recipient)) {
                MarkResult::First => {}
                MarkResult::Again => self.duplicates += 1,
                MarkResult::Full => self.unchecked += 1,
            }
        }
        self.duplicates += message.excess_recipients;
    }

    fn record_latency(&mut self, trace: &Trace) {
        if trace.clock == self.clock
            && let Some(latency) = clock::now().checked_sub(trace.created)
        {
            self.latencies.record(latency);
        }
    }

    pub(super) fn latencies(&self) -> Option<&Latencies> {
        Some(&self.latencies).filter(|times| times.count() > 0)
    }

    pub(super) fn summary(&self) -> String {
        let Self { recognised, corrupt, foreign, duplicates, unchecked: unkept, .. } = self;
        let units: u64 = self.runs.iter().map(|(_, run)| run.units.count()).sum();
        let mut text = format!(
            "trace: {recognised} messages recognised, {units} recipients, {duplicates} duplicates, {corrupt} corrupt, {foreign} foreign"
        );
        if self.converted > 0 {
            text += &format!("; {} of them were converted to 7 bits in transit", self.converted);
        }
        if self.runs.evicted > 0 {
            text += &format!("; recipients of {} older runs are not included", self.runs.evicted);
        }
        if *unkept > 0 {
            text += &format!("; {unkept} recipients were not checked for duplicates: out of memory");
        }
        text
    }
}

#[derive(Debug)]
pub(super) struct TracedMessage {
    found: TraceResult,
    recipients: Vec<RecipientId>,
    /// Number of recipients of this message beyond the first `MAX_RECIPIENTS`. These recipients count as duplicates,
    /// because a traced message has at most `MAX_RECIPIENTS` different recipients.
    excess_recipients: u64,
}

#[derive(Debug)]
pub(super) struct TracedMessageReader {
    data_reader: DataReader,
    trace_reader: TraceReader,
    message: TracedMessage,
}

impl Default for TracedMessageReader {
    fn default() -> Self {
        Self {
            data_reader: DataReader::new(usize::MAX),
            trace_reader: TraceReader::default(),
            message: TracedMessage { found: TraceResult::Absent, recipients: Vec::new(), excess_recipients: 0 },
        }
    }
}

impl TracedMessageReader {
    pub(super) fn add_recipient(&mut self, rest: &[u8]) {
        if self.message.recipients.len() < MAX_RECIPIENTS as usize {
            self.message.recipients.push(RecipientId::new(address(rest)));
        } else {
            self.message.excess_recipients += 1;
        }
    }

    pub(super) fn content(&mut self, mut octets: &[u8]) {
        while let Some(piece) = self.data_reader.next(&mut octets) {
            match piece {
                DataPiece::Content(content) => self.trace_reader.receive(content),
                DataPiece::End => self.message.found = self.trace_reader.finish(),
            }
        }
    }

    pub(super) fn into_message(self) -> TracedMessage {
        self.message
    }
}

/// Returns the address in the arguments of RCPT, such as `a@b` in ` TO:<a@b> NOTIFY=…`.
fn address(rest: &[u8]) -> &[u8] {
    match memchr::memchr(b'<', rest) {
        Some(at) => {
            let address = &rest[at + 1..];
            &address[..memchr::memrchr(b'>', address).unwrap_or(address.len())]
        }
        None => {
            let address = memchr::memchr(b':', rest).map_or(rest, |at| &rest[at + 1..]).trim_ascii();
            &address[..memchr::memchr(b' ', address).unwrap_or(address.len())]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mailrun_measurement::RunId;
    use mailrun_measurement::trace::{RecipientNumbering, ZeroPhase};
    use proptest::prelude::*;
    use std::time::Duration;

    fn wire(run: u8, sequence: u64, body: &[u8]) -> Vec<u8> {
        let clock = outputs::monotonic_clock();
        let trace = Trace {
            run: RunId([run; 16]),
            sequence,
            zero: ZeroPhase::default(),
            numbering: RecipientNumbering::TAG,
            created: Duration::ZERO,
            clock,
            checksum: mailrun_measurement::trace::checksum(b".a\r\n"),
        };
        let mut line = [0; Trace::HEADER_BYTES];
        trace.write(&mut line);
        [&line, b"Subject: x\r\n\r\n".as_slice(), body, b".\r\n"].concat()
    }

    fn read(recipients: &[&str], blocks: &[&[u8]]) -> TracedMessage {
        let mut reader = TracedMessageReader::default();
        recipients.iter().for_each(|recipient| reader.add_recipient(recipient.as_bytes()));
        blocks.iter().for_each(|block| reader.content(block));
        reader.into_message()
    }

    const GOOD: &[u8] = b"..a\r\n";

    #[test]
    fn each_state_is_counted() {
        let mut stats = TraceStats::default();
        let both = [" TO:<a0@b>", " TO:<a1@b> NOTIFY=NEVER"];
        stats.record(&read(&both, &[&wire(1, 0, GOOD)]));
        stats.record(&read(&both[..1], &[&wire(1, 1, GOOD)]));
        stats.record(&read(&both[1..], &[&wire(1, 0, GOOD)]));
        stats.record(&read(&both[..1], &[&wire(2, 0, GOOD)]));
        stats.record(&read(&both[..1], &[&wire(1, 2, b"b\r\n")]));
        stats.record(&read(&both, &[b"Subject: x\r\n\r\n.\r\n"]));
        let expected = "trace: 4 messages recognised, 5 recipients, 1 duplicates, 1 corrupt, 1 foreign";
        assert_eq!(stats.summary(), expected);
        assert_eq!(stats.latencies().unwrap().count(), 4);
    }

    #[test]
    fn recipients_beyond_number_take_no_memory() {
        let mut stats = TraceStats::default();
        let many: Vec<String> = (0..3000).map(|number| format!(" TO:<a{}@b>", number % 1024)).collect();
        let message = read(&many.iter().map(String::as_str).collect::<Vec<_>>(), &[&wire(1, 0, GOOD)]);
        assert_eq!(message.recipients.len(), 1024);
        stats.record(&message);
        assert!(stats.summary().contains(" 1024 recipients, 1976 duplicates, "), "{}", stats.summary());
    }

    #[test]
    fn addresses_in_all_their_forms() {
        for rest in [" TO:<a7@b>", "TO:<a7@b> X=<y", ":a7@b", " TO: a7@b NOTIFY=1", " TO:<a7@b", "a7@b"] {
            assert_eq!(RecipientId::new(address(rest.as_bytes())), RecipientId::new(b"a7@b"), "{rest}");
        }
        assert_eq!(address(b""), b"");
    }

    proptest! {
        #[test]
        fn any_cut_finds_the_same(cut in 0usize..150) {
            let wire = wire(1, 3, GOOD);
            let (first, second) = wire.split_at(cut.min(wire.len()));
            prop_assert!(matches!(read(&[], &[first, second]).found, TraceResult::Intact(trace) if trace.sequence == 3));
        }

        #[test]
        fn any_octets_are_read(rest in proptest::collection::vec(any::<u8>(), 0..60)) {
            let mut reader = TracedMessageReader::default();
            reader.add_recipient(&rest);
            reader.content(&rest);
            TraceStats::default().record(&reader.into_message());
        }
    }
}
