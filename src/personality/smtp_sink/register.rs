//! `--trace`: the messages that were recognised by the trace in their header, and their condition.
use crate::party;
use journey::tally::Runs;
use journey::trace::{ClockId, Found, MAX_RECIPIENTS, Trace, TraceReader, recipient_number};
use journey::{Latencies, Mark};
use net::clock;
use smtp::data::{DataReader, Piece};

/// Messages that a run has recognised.
#[derive(Debug)]
pub(super) struct Register {
    /// This host's clock, on which creation times can be compared with ours.
    clock: ClockId,
    runs: Runs,
    recognised: u64,
    corrupt: u64,
    /// Messages recognised that a relay had made 7-bit.
    converted: u64,
    foreign: u64,
    duplicates: u64,
    /// Recipients that there was no memory for.
    unkept: u64,
    latencies: Latencies,
}

impl Default for Register {
    fn default() -> Self {
        Self {
            clock: party::monotonic_clock(),
            runs: Runs::default(),
            recognised: 0,
            corrupt: 0,
            converted: 0,
            foreign: 0,
            duplicates: 0,
            unkept: 0,
            latencies: Latencies::default(),
        }
    }
}

impl Register {
    /// Records a message that was accepted.
    pub(super) fn enter(&mut self, letter: &Letter) {
        match &letter.found {
            Found::Intact(trace) | Found::Converted(trace) => {
                self.recognised += 1;
                self.converted += u64::from(matches!(letter.found, Found::Converted(_)));
                self.time(trace);
                self.mark(trace, letter);
            }
            Found::Corrupt(Some(trace)) => {
                self.corrupt += 1;
                self.mark(trace, letter);
            }
            // As in `mailrun sink`: a message whose header cannot be read is not ours.
            Found::Corrupt(None) | Found::Absent => self.foreign += 1,
        }
    }

    fn mark(&mut self, trace: &Trace, letter: &Letter) {
        let run = self.runs.open(trace.run);
        // The runs without messages for the longest time give way to new ones.
        run.last_delivered = Some(clock::now());
        for number in &letter.recipients {
            match run.units.mark(trace.sequence, *number) {
                Mark::First => {}
                Mark::Again => self.duplicates += 1,
                Mark::Full => self.unkept += 1,
            }
        }
        self.duplicates += letter.beyond;
    }

    fn time(&mut self, trace: &Trace) {
        if trace.clock == self.clock
            && let Some(took) = clock::now().checked_sub(trace.created)
        {
            self.latencies.record(took);
        }
    }

    /// Latencies of messages that were created on this host.
    pub(super) fn latencies(&self) -> Option<&Latencies> {
        Some(&self.latencies).filter(|times| times.count() > 0)
    }

    /// The summary at the end.
    pub(super) fn summary(&self) -> String {
        let Self { recognised, corrupt, foreign, duplicates, unkept, .. } = self;
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

/// A complete message: its trace, and its recipients.
#[derive(Debug)]
pub(super) struct Letter {
    found: Found,
    /// The numbers of its recipients.
    recipients: Vec<u32>,
    /// Recipients beyond those that a trace can tell apart: each has the number of an earlier one.
    beyond: u64,
}

/// A session's message, as it is read.
#[derive(Debug)]
pub(super) struct Reading {
    dots: DataReader,
    reader: TraceReader,
    letter: Letter,
}

impl Default for Reading {
    fn default() -> Self {
        Self {
            dots: DataReader::new(usize::MAX),
            reader: TraceReader::default(),
            letter: Letter { found: Found::Absent, recipients: Vec::new(), beyond: 0 },
        }
    }
}

impl Reading {
    /// Reads the arguments of RCPT.
    pub(super) fn address(&mut self, rest: &[u8]) {
        if self.letter.recipients.len() < MAX_RECIPIENTS as usize {
            self.letter.recipients.push(recipient_number(address(rest)));
        } else {
            self.letter.beyond += 1;
        }
    }

    /// Reads bytes as they came, the end of data included.
    pub(super) fn content(&mut self, mut octets: &[u8]) {
        while let Some(piece) = self.dots.next(&mut octets) {
            match piece {
                Piece::Content(content) => self.reader.receive(content),
                Piece::End => self.letter.found = self.reader.finish(),
            }
        }
    }

    /// Returns the complete message.
    pub(super) fn letter(self) -> Letter {
        self.letter
    }
}

/// The address in the arguments of RCPT: ` TO:<a@b> NOTIFY=…`.
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
    use journey::RunId;
    use proptest::prelude::*;
    use std::time::Duration;

    fn wire(run: u8, sequence: u64, body: &[u8]) -> Vec<u8> {
        let clock = party::monotonic_clock();
        let trace = Trace {
            run: RunId([run; 16]),
            sequence,
            created: Duration::ZERO,
            clock,
            checksum: journey::trace::checksum(b".a\r\n"),
        };
        let mut line = [0; Trace::HEADER_BYTES];
        trace.write(&mut line);
        [&line, b"Subject: x\r\n\r\n".as_slice(), body, b".\r\n"].concat()
    }

    fn read(recipients: &[&str], blocks: &[&[u8]]) -> Letter {
        let mut reading = Reading::default();
        recipients.iter().for_each(|recipient| reading.address(recipient.as_bytes()));
        blocks.iter().for_each(|block| reading.content(block));
        reading.letter()
    }

    const GOOD: &[u8] = b"..a\r\n";

    #[test]
    fn each_state_is_counted() {
        let mut register = Register::default();
        let both = [" TO:<a0@b>", " TO:<a1@b> NOTIFY=NEVER"];
        register.enter(&read(&both, &[&wire(1, 0, GOOD)]));
        register.enter(&read(&both[..1], &[&wire(1, 1, GOOD)]));
        register.enter(&read(&both[1..], &[&wire(1, 0, GOOD)]));
        register.enter(&read(&both[..1], &[&wire(2, 0, GOOD)]));
        register.enter(&read(&both[..1], &[&wire(1, 2, b"b\r\n")]));
        register.enter(&read(&both, &[b"Subject: x\r\n\r\n.\r\n"]));
        let said = "trace: 4 messages recognised, 5 recipients, 1 duplicates, 1 corrupt, 1 foreign";
        assert_eq!(register.summary(), said);
        assert_eq!(register.latencies().unwrap().count(), 4);
    }

    #[test]
    fn recipients_beyond_number_take_no_memory() {
        let mut register = Register::default();
        let many: Vec<String> = (0..3000).map(|number| format!(" TO:<a{}@b>", number % 1024)).collect();
        let letter = read(&many.iter().map(String::as_str).collect::<Vec<_>>(), &[&wire(1, 0, GOOD)]);
        assert_eq!(letter.recipients.len(), 1024);
        register.enter(&letter);
        assert!(register.summary().contains(" 1024 recipients, 1976 duplicates, "), "{}", register.summary());
    }

    #[test]
    fn addresses_in_all_their_forms() {
        for rest in [" TO:<a7@b>", "TO:<a7@b> X=<y", ":a7@b", " TO: a7@b NOTIFY=1", " TO:<a7@b", "a7@b"] {
            assert_eq!(recipient_number(address(rest.as_bytes())), 7, "{rest}");
        }
        assert_eq!(recipient_number(address(b"")), 0);
    }

    proptest! {
        #[test]
        fn any_cut_finds_the_same(cut in 0usize..150) {
            let wire = wire(1, 3, GOOD);
            let (first, second) = wire.split_at(cut.min(wire.len()));
            prop_assert!(matches!(read(&[], &[first, second]).found, Found::Intact(trace) if trace.sequence == 3));
        }

        #[test]
        fn any_octets_are_read(rest in proptest::collection::vec(any::<u8>(), 0..60)) {
            let mut reading = Reading::default();
            reading.address(&rest);
            reading.content(&rest);
            Register::default().enter(&reading.letter());
        }
    }
}
