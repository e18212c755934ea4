//! Renders the envelopes of messages. If all messages have the same addresses and size, their envelope is rendered only
//! once. Otherwise, each message has its own envelope, which is rendered into memory that the session reuses.
use super::addresses::{AddressPattern, RecipientTag};
use super::domains::RecipientDomains;
use super::dsn_parameters::DsnParameters;
use super::message_set::{MessageChoice, MessageSet};
use super::options::{BodyParameter, SourceOptions};
use super::recipients::Recipients;
use mailrun_measurement::RunId;
use mailrun_measurement::trace::MessageName;
use mailrun_schedule::distribution::{RandomStream, SeededRng};
use mailrun_smtp::{Envelope, Extensions};
use std::io::Write;
use std::sync::Arc;

#[derive(Debug)]
pub(super) enum Envelopes {
    /// All messages have the same envelope. It is rendered once for each combination of extensions
    /// that a server can offer.
    Fixed(FixedEnvelopes),
    Generated(GeneratedEnvelopes),
}

#[derive(Debug)]
pub(super) struct FixedEnvelopes {
    /// One envelope for each combination of MAIL parameters that a server may support. In the index, bit 0 means SIZE,
    /// bit 1 BODY=8BITMIME, bit 2 SMTPUTF8, and bit 3 BODY=BINARYMIME.
    variants: [Arc<Envelope>; 16],
    needs_eight_bit: bool,
    needs_utf8: bool,
    body_parameter: BodyParameter,
    /// Numbers under which the ledger counts the recipients, in the order of the envelope.
    numbers: Vec<u32>,
    generator: GeneratedEnvelopes,
}

#[derive(Clone, Debug)]
pub(super) struct GeneratedEnvelopes {
    sender: AddressPattern,
    recipients: Recipients,
    dsn_parameters: DsnParameters,
    body_parameter: BodyParameter,
    seed: u64,
    run: RunId,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct EnvelopeInput<'a> {
    pub(super) number: u64,
    /// The message's number as in its trace. Some of its bits give the stage of the load and mark messages of the
    /// warm-up.
    pub(super) sequence: u64,
    pub(super) recipients: u32,
    pub(super) content: MessageChoice,
    pub(super) extensions: &'a Extensions,
}

/// Memory in which a session writes its envelopes. It has room for two envelopes, because the SMTP client may still use
/// one of them while the session writes the next.
#[derive(Debug, Default)]
pub(super) struct EnvelopeBuffer {
    envelopes: [Option<Arc<Envelope>>; 2],
    /// For each entry of `envelopes`, the numbers by which the ledger tells the envelope's recipients apart.
    numbers: [Vec<u32>; 2],
    current_slot: usize,
    /// Text of an envelope: the sender, each recipient with its parameters of RCPT, and the parameters of MAIL.
    text: Vec<u8>,
    ends: Vec<usize>,
}

/// Parameters of MAIL that the message needs and the server understands.
#[derive(Clone, Copy, Debug)]
struct MailParameters {
    size: Option<u64>,
    eight_bit: bool,
    /// True for BODY=BINARYMIME. It takes precedence over `eight_bit`, because a message has only one BODY parameter.
    binary: bool,
    /// True if an address contains letters that need SMTPUTF8.
    utf8: bool,
}

impl Envelopes {
    pub(super) fn new(options: &SourceOptions, run: RunId, recipients: Recipients, mail: &MessageSet) -> Self {
        let drawn = GeneratedEnvelopes {
            sender: options.from.clone(),
            recipients,
            dsn_parameters: options.dsn_parameters.clone(),
            body_parameter: options.body_parameter,
            seed: options.seed,
            run,
        };
        match (mail.fixed_template(), options.recipients.as_constant()) {
            (Some(template), Some(count)) if drawn.is_literal() => {
                let is_eight_bit = template.is_eight_bit;
                Self::Fixed(drawn.render_fixed(count as u32, template.bytes, is_eight_bit))
            }
            _ => Self::Generated(drawn),
        }
    }

    pub(super) fn envelope_for(&self, input: EnvelopeInput<'_>, buffer: &mut EnvelopeBuffer) -> Arc<Envelope> {
        match self {
            Self::Fixed(same) => Arc::clone(same.envelope_for(input.extensions)),
            Self::Generated(drawn) => drawn.envelope_for(input, buffer),
        }
    }

    /// Returns the recipients of the message with this number, in the order of its envelope. The recipients are not
    /// stored for each message, so this function draws them again from the seed.
    pub(super) fn recipients_of(&self, number: u64, recipients: u32) -> Vec<String> {
        let mut buffer = EnvelopeBuffer::default();
        self.generator().write_envelope([number; 2], recipients, MailParameters::NONE, &mut buffer);
        buffer.recipients().map(|address| String::from_utf8_lossy(address).into_owned()).collect()
    }

    pub(super) fn domains_of(&self, number: u64, recipients: u32, domains: &RecipientDomains) -> Vec<u16> {
        let mut buffer = EnvelopeBuffer::default();
        self.generator().write_envelope([number; 2], recipients, MailParameters::NONE, &mut buffer);
        buffer.recipients().map(|address| domains.number_of(address)).collect()
    }

    fn generator(&self) -> &GeneratedEnvelopes {
        match self {
            Self::Fixed(same) => &same.generator,
            Self::Generated(drawn) => drawn,
        }
    }

    /// Returns the numbers by which the ledger tells the recipients of an envelope apart. `slot` is the index of the
    /// envelope in the buffer, which holds two envelopes.
    pub(super) fn recipient_numbers<'a>(&'a self, buffer: &'a EnvelopeBuffer, slot: usize) -> &'a [u32] {
        match self {
            Self::Fixed(same) => &same.numbers,
            Self::Generated(_) => &buffer.numbers[slot],
        }
    }
}

impl FixedEnvelopes {
    fn envelope_for(&self, extensions: &Extensions) -> &Arc<Envelope> {
        let eight_bit = extensions.eight_bit_mime && self.needs_eight_bit;
        let utf8 = extensions.smtp_utf8 && self.needs_utf8;
        let bits = [extensions.size.is_some(), eight_bit, utf8, self.body_parameter.is_binary(extensions)];
        &self.variants[bits.into_iter().rev().fold(0, |number, bit| number << 1 | usize::from(bit))]
    }
}

impl GeneratedEnvelopes {
    fn is_literal(&self) -> bool {
        self.sender.literal().is_some() && self.recipients.is_literal() && self.dsn_parameters.is_constant()
    }

    /// Renders the envelope once for each combination of MAIL parameters. This is possible only if all messages have
    /// the same addresses and size.
    fn render_fixed(&self, recipients: u32, bytes: u64, is_eight_bit: bool) -> FixedEnvelopes {
        let mut buffer = EnvelopeBuffer::default();
        let variants = std::array::from_fn(|bits| {
            let has = |bit: usize| bits >> bit & 1 != 0;
            let size = has(0).then_some(bytes);
            let parameters = MailParameters { size, eight_bit: has(1), utf8: has(2), binary: has(3) };
            self.write_envelope([0; 2], recipients, parameters, &mut buffer);
            Arc::new(buffer.new_envelope())
        });
        FixedEnvelopes {
            variants,
            needs_eight_bit: is_eight_bit,
            needs_utf8: !buffer.text.is_ascii(),
            body_parameter: self.body_parameter,
            numbers: std::mem::take(&mut buffer.numbers[buffer.current_slot]),
            generator: self.clone(),
        }
    }

    fn envelope_for(&self, input: EnvelopeInput<'_>, buffer: &mut EnvelopeBuffer) -> Arc<Envelope> {
        let EnvelopeInput { number, sequence, recipients, content, extensions } = input;
        let parameters = MailParameters {
            size: extensions.size.is_some().then_some(content.bytes),
            eight_bit: extensions.eight_bit_mime && content.is_eight_bit,
            binary: self.body_parameter.is_binary(extensions),
            utf8: extensions.smtp_utf8,
        };
        buffer.current_slot ^= 1;
        self.write_envelope([number, sequence], recipients, parameters, buffer);
        buffer.reuse_envelope()
    }

    /// Writes the addresses and parameters of a message into `buffer`, together with the numbers by which the ledger
    /// tells the message's recipients apart. `sequence` is the message's number as in its trace.
    fn write_envelope(
        &self,
        [number, sequence]: [u64; 2],
        recipients: u32,
        parameters: MailParameters,
        buffer: &mut EnvelopeBuffer,
    ) {
        let EnvelopeBuffer { text, ends, numbers, current_slot, .. } = buffer;
        let numbers = &mut numbers[*current_slot];
        text.clear();
        ends.clear();
        numbers.clear();
        self.sender.write(&mut SeededRng::new(self.seed, RandomStream::Sender, number), RecipientTag::Bare, 0, text);
        ends.push(text.len());
        let mut rng = SeededRng::new(self.seed, RandomStream::Recipient, number);
        for place in 0..recipients {
            let begin = text.len();
            self.recipients.write(&mut rng, place, numbers, text);
            ends.push(text.len());
            self.dsn_parameters.write_recipient(begin, text);
            ends.push(text.len());
        }
        let utf8 = parameters.utf8 && !text.is_ascii();
        let begin = text.len();
        MailParameters { utf8, ..parameters }.write(text);
        let message = MessageName { run: self.run, sequence, numbering: self.recipients.numbering() };
        self.dsn_parameters.write_mail(self.seed, number, &message, begin, text);
        ends.push(text.len());
    }
}

impl MailParameters {
    const NONE: Self = Self { size: None, eight_bit: false, binary: false, utf8: false };

    fn write(self, text: &mut Vec<u8>) {
        let start = text.len();
        if let Some(bytes) = self.size {
            write!(text, "SIZE={bytes}").expect("a vector takes all");
        }
        let is_eight_bit = self.eight_bit && !self.binary;
        let words = [(self.binary, "BODY=BINARYMIME"), (is_eight_bit, "BODY=8BITMIME"), (self.utf8, "SMTPUTF8")];
        for (is_wanted, word) in words {
            if is_wanted {
                text.extend_from_slice(if text.len() > start { b" " } else { b"" });
                text.extend_from_slice(word.as_bytes());
            }
        }
    }
}

impl EnvelopeBuffer {
    pub(super) fn current_slot(&self) -> usize {
        self.current_slot
    }

    fn sender(&self) -> &[u8] {
        &self.text[..self.ends[0]]
    }

    fn recipients(&self) -> impl Iterator<Item = &[u8]> {
        self.recipients_and_parameters().map(|(recipient, _)| recipient)
    }

    fn recipients_and_parameters(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let last = self.ends.len() - 1;
        let piece = |from, to| &self.text[self.ends[from]..self.ends[to]];
        (1..last).step_by(2).map(move |at| (piece(at - 1, at), piece(at, at + 1)))
    }

    fn parameters(&self) -> &[u8] {
        &self.text[self.ends[self.ends.len() - 2]..]
    }

    /// Makes an envelope from the content of this buffer. Overwrites the older of the two envelopes in the buffer,
    /// unless the SMTP client still holds that envelope.
    fn reuse_envelope(&mut self) -> Arc<Envelope> {
        let mut kept = self.envelopes[self.current_slot].take();
        match kept.as_mut().and_then(Arc::get_mut) {
            Some(envelope) => self.write(envelope),
            None => kept = Some(Arc::new(self.new_envelope())),
        }
        let envelope = kept.expect("it was there or has been made");
        self.envelopes[self.current_slot] = Some(Arc::clone(&envelope));
        envelope
    }

    fn new_envelope(&self) -> Envelope {
        // An envelope needs addresses, so create it with placeholders, which `write` replaces.
        let mut envelope = Envelope::new("", "", ["postmaster"]).expect("these addresses are well-formed");
        self.write(&mut envelope);
        envelope
    }

    fn write(&self, envelope: &mut Envelope) {
        let written = envelope.rewrite_with(self.sender(), self.parameters(), self.recipients_and_parameters());
        written.expect("every address that a pattern gives was checked before the run");
    }
}

#[cfg(test)]
mod tests {
    use super::super::recipients::RecipientTags;
    use super::*;
    use mailrun_measurement::trace::RecipientId;
    use mailrun_smtp::dsn::{Notify, Return};
    use std::collections::BTreeSet;

    fn drawn(from: &str, rcpt: &str, most: u64) -> GeneratedEnvelopes {
        drawn_to(from, &[rcpt], most, RecipientTags::On)
    }

    fn drawn_to(from: &str, to: &[&str], most: u64, tags: RecipientTags) -> GeneratedEnvelopes {
        let patterns: Vec<AddressPattern> = to.iter().map(|typed| AddressPattern::parse(typed).unwrap()).collect();
        let recipients = Recipients::new(&patterns, most, tags).unwrap();
        let sender = AddressPattern::parse(from).unwrap();
        GeneratedEnvelopes {
            sender,
            recipients,
            dsn_parameters: DsnParameters::default(),
            body_parameter: BodyParameter::Automatic,
            seed: 1,
            run: RunId([7; 16]),
        }
    }

    fn extensions(lines: &str) -> Extensions {
        Extensions::parse(std::iter::once("me").chain(lines.lines()).map(str::as_bytes))
    }

    #[test]
    fn each_recipient_has_a_number_that_the_sink_reads_back() {
        for rcpt in ["to@example.com", "bob7@example.com", "to+@example.com", "user{0..9999}@{a,b}.example"] {
            let same = drawn("", rcpt, 120).render_fixed(120, 400, false);
            assert_eq!(same.numbers, (0..120).collect::<Vec<_>>(), "{rcpt}");
        }
        let one = drawn("from@example.com", "bob7@example.com", 1).render_fixed(1, 400, false);
        assert_eq!(one.variants[0].recipient(0), b"RCPT TO:<bob7@example.com>\r\n");
        let read = RecipientId::new(b"bob7@example.com");
        assert_eq!(one.numbers, [one.generator.recipients.numbering().number(read)]);
        assert_ne!(one.numbers, [0], "another address would have another number");
        let two = drawn("a@b", "a@b", 2).render_fixed(2, 400, false);
        assert_eq!(
            [two.variants[1].recipient(0), two.variants[1].recipient(1)],
            [b"RCPT TO:<a0@b>\r\n", b"RCPT TO:<a1@b>\r\n"]
        );
    }

    #[test]
    fn a_message_goes_to_each_pattern_in_the_order_typed() {
        let to_each = |tags| drawn_to("", &["b7@x", "a@y", "c@z"], 3, tags).render_fixed(3, 400, false);
        let same = to_each(RecipientTags::On);
        assert_eq!(same.numbers, [7, 0, 1]);
        let lines: Vec<_> = (0..3).map(|place| same.variants[0].recipient(place)).collect();
        assert_eq!(lines, [&b"RCPT TO:<b7@x>\r\n"[..], b"RCPT TO:<a@y>\r\n", b"RCPT TO:<c+1@z>\r\n"]);
        let fixed = Envelopes::Fixed(to_each(RecipientTags::Off));
        assert_eq!(fixed.recipients_of(99, 3), ["b7@x", "a@y", "c@z"]);

        let offered = extensions("");
        for tags in [RecipientTags::On, RecipientTags::Off] {
            let drawn = drawn_to("", &["u{0..9999}@x", "a@y", "u{0..9999}@x"], 3, tags);
            let numbering = drawn.recipients.numbering();
            let envelopes = Envelopes::Generated(drawn);
            let mut buffer = EnvelopeBuffer::default();
            for number in 0..50 {
                let content = MessageSet::Fixed(template()).choose(number);
                let input = EnvelopeInput { number, sequence: number, recipients: 3, content, extensions: &offered };
                let envelope = envelopes.envelope_for(input, &mut buffer);
                let numbers = envelopes.recipient_numbers(&buffer, buffer.current_slot());
                assert_eq!((envelope.recipients(), numbers.len()), (3, 3));
                assert_eq!(numbers.iter().collect::<BTreeSet<_>>().len(), 3, "{numbers:?}");
                let recipients = envelopes.recipients_of(number, 3);
                for (place, recipient) in recipients.iter().enumerate() {
                    assert_eq!(envelope.recipient(place), format!("RCPT TO:<{recipient}>\r\n").as_bytes());
                    assert_eq!(numbers[place], numbering.number(RecipientId::new(recipient.as_bytes())));
                    assert!(tags == RecipientTags::On || !recipient.contains('+'), "{recipient}");
                }
            }
        }
    }

    #[test]
    fn parameters_are_said_where_the_server_offers_them() {
        let same = drawn("jürgen@example.com", "to@example.com", 1).render_fixed(1, 400, true);
        for (offered, expected) in [
            ("", "MAIL FROM:<jürgen@example.com>\r\n"),
            ("SIZE 1000", "MAIL FROM:<jürgen@example.com> SIZE=400\r\n"),
            ("SIZE\n8BITMIME\nSMTPUTF8", "MAIL FROM:<jürgen@example.com> SIZE=400 BODY=8BITMIME SMTPUTF8\r\n"),
            ("SMTPUTF8", "MAIL FROM:<jürgen@example.com> SMTPUTF8\r\n"),
        ] {
            assert_eq!(same.envelope_for(&extensions(offered)).mail(), expected.as_bytes(), "{offered}");
        }
    }

    #[test]
    fn a_message_is_said_to_be_binary_only_where_it_may_be() {
        let binary = GeneratedEnvelopes { body_parameter: BodyParameter::Binary, ..drawn("a@b", "c@d", 1) };
        let same = binary.render_fixed(1, 400, true);
        for (offered, expected) in [
            ("CHUNKING\nBINARYMIME\n8BITMIME", "MAIL FROM:<a@b> BODY=BINARYMIME\r\n"),
            ("CHUNKING\nBINARYMIME\nSIZE", "MAIL FROM:<a@b> SIZE=400 BODY=BINARYMIME\r\n"),
            ("BINARYMIME\n8BITMIME", "MAIL FROM:<a@b> BODY=8BITMIME\r\n"),
            ("CHUNKING", "MAIL FROM:<a@b>\r\n"),
        ] {
            let offered = extensions(offered);
            assert_eq!(same.envelope_for(&offered).mail(), expected.as_bytes(), "{offered:?}");
            let mut content = MessageSet::Fixed(template()).choose(0);
            (content.bytes, content.is_eight_bit) = (400, true);
            let input = EnvelopeInput { number: 0, sequence: 0, recipients: 1, content, extensions: &offered };
            let envelope = binary.envelope_for(input, &mut EnvelopeBuffer::default());
            assert_eq!(envelope.mail(), expected.as_bytes(), "{offered:?}");
        }
    }

    #[test]
    fn a_drawn_envelope_is_written_where_another_was() {
        let drawn = drawn("bounce-{0..9}@example.com", "user{0..9999}@{a,b}.example", 3);
        let mut buffer = EnvelopeBuffer::default();
        let mut held: Option<Arc<Envelope>> = None;
        let mut memory = BTreeSet::new();
        let offered = extensions("SIZE\n8BITMIME");
        for number in 0..100 {
            let content = MessageSet::Fixed(template()).choose(number);
            let input = EnvelopeInput {
                number,
                sequence: number,
                recipients: 1 + number as u32 % 3,
                content,
                extensions: &offered,
            };
            let envelope = drawn.envelope_for(input, &mut buffer);
            memory.insert(Arc::as_ptr(&envelope));
            let fresh = drawn.envelope_for(input, &mut EnvelopeBuffer::default());
            assert_eq!(envelope, fresh, "message {number} is the same wherever it is written");
            assert_eq!(envelope.recipients(), 1 + number as usize % 3);
            assert!(envelope.mail().ends_with(b"@example.com> SIZE=109\r\n"), "{envelope:?}");
            // Keep this envelope while the next envelope is made, because an SMTP client may still be sending it. The
            // buffer must not overwrite a kept envelope, so it must use two places in memory in turn.
            held = Some(envelope);
        }
        assert!(held.is_some() && memory.len() == 2, "{} envelopes", memory.len());
    }

    #[test]
    fn what_is_to_be_told_is_asked_of_mail_and_of_each_recipient() {
        let wanted = |envelope_id: &str| DsnParameters {
            notify: Notify::parse(b"success,delay"),
            returns: Some(Return::Header),
            envelope_id: Some(super::super::dsn_parameters::parse_envelope_id(envelope_id).unwrap()),
            original_recipient: true,
        };
        let same = GeneratedEnvelopes { dsn_parameters: wanted("a run=1"), ..drawn("a@b", "c+d@e", 2) };
        assert!(same.is_literal());
        let same = same.render_fixed(2, 400, false);
        assert_eq!(
            same.envelope_for(&extensions("SIZE")).mail(),
            b"MAIL FROM:<a@b> SIZE=400 RET=HDRS ENVID=a+20run+3D1\r\n"
        );
        let rcpt = &same.envelope_for(&extensions("")).recipient(1).to_vec();
        assert_eq!(rcpt, b"RCPT TO:<c+d1@e> NOTIFY=SUCCESS,DELAY ORCPT=rfc822;c+2Bd1@e\r\n");
        assert_eq!(same.numbers, [0, 1], "what is behind an address is none of it");

        let drawn = GeneratedEnvelopes { dsn_parameters: wanted("run1-{n}"), ..drawn("", "u{1..9}@e", 3) };
        assert!(!drawn.is_literal(), "each message has its own ENVID");
        let content = MessageSet::Fixed(template()).choose(7);
        let input = EnvelopeInput { number: 7, sequence: 7, recipients: 3, content, extensions: &extensions("") };
        let envelope = drawn.envelope_for(input, &mut EnvelopeBuffer::default());
        assert_eq!(envelope.mail(), b"MAIL FROM:<> RET=HDRS ENVID=run1-7\r\n");
        assert_eq!(envelope.recipients(), 3);
        let line = String::from_utf8(envelope.recipient(2).to_vec()).unwrap();
        let address = line.split(['<', '>']).nth(1).unwrap();
        assert!(
            line.ends_with(&format!(" NOTIFY=SUCCESS,DELAY ORCPT=rfc822;{}\r\n", address.replace('+', "+2B"))),
            "{line}"
        );
    }

    fn template() -> crate::source::message::MessageTemplate {
        use crate::source::message::{MessageIdMode, MessageTemplate, TraceClock, TraceStamp};
        let stamp = TraceStamp::new(
            mailrun_measurement::RunId([1; 16]),
            crate::source::TraceHeaders::On,
            TraceClock::Monotonic,
            mailrun_measurement::trace::RecipientNumbering::SINGLE,
        );
        MessageTemplate::new(stamp, b"a: b\r\n\r\n", b".", MessageIdMode::Unchanged)
    }
}
