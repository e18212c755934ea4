//! The mail of a run: one message that is sent many times, random messages of a set, or messages of random sizes.
use super::addresses::{AddressPattern, RecipientTag};
use super::corpus;
use super::message::{self, MessageIdMode, MessageTemplate, SizedTemplate, TraceStamp};
use super::mime::{self, MimeFields};
use super::options::SourceOptions;
use anyhow::{Context, Result, bail};
use mailrun_measurement::RunId;
use mailrun_measurement::record::{CorpusRow, Varied, Workload};
use mailrun_net::Outbox;
use mailrun_process::party_options::value_name;
use mailrun_schedule::distribution::{Distribution, RandomStream, SeededRng};
use std::time::Duration;

const DEFAULT_BYTES: u64 = 400;
/// By default, half of the MIME messages are below 24 KB, and one in a hundred is above 800 KB.
const DEFAULT_MIME_SIZES: &str = "lognormal:24576,1.5";

#[derive(Debug)]
pub(super) enum MessageSet {
    /// All messages are the same except for their number and time.
    Fixed(MessageTemplate),
    /// Each message uses one of these templates. The seed and the message's number decide which.
    OneOf { templates: Vec<MessageTemplate>, seed: u64 },
    /// Each message has a random size of at least `least` bytes.
    BySize { template: SizedTemplate, sizes: Distribution, least: u64, seed: u64 },
}

#[derive(Clone, Copy, Debug)]
pub(super) struct MessageChoice {
    index: usize,
    /// Size of the message as the receiver sees it, in bytes, without dot-stuffing and end of data.
    pub(super) bytes: u64,
    /// True if the message contains bytes above 127.
    pub(super) is_eight_bit: bool,
}

#[derive(Debug)]
pub(super) struct PreparedMessages {
    pub(super) messages: MessageSet,
    pub(super) summary: MessageSetSummary,
}

#[derive(Clone, Debug, Default)]
pub(super) struct MessageSetSummary {
    pub(super) mean_bytes: f64,
    /// Distribution from which sizes are drawn. `None` if all messages have the same size, or for a corpus, because its
    /// messages have their own sizes.
    pub(super) sizes: Option<Varied>,
    pub(super) corpus: Option<CorpusRow>,
    pub(super) mime_messages: Option<u64>,
}

impl PreparedMessages {
    /// Reads the messages from the file or corpus that the options name, or generates templates for them.
    ///
    /// # Errors
    ///
    /// Fails if a file cannot be read, or if a message cannot be generated.
    pub(super) fn new(options: &SourceOptions, stamp: TraceStamp, run: RunId, now: jiff::Timestamp) -> Result<Self> {
        if let Some(path) = &options.file {
            return Ok(Self::fixed(MessageTemplate::from_corpus(stamp, corpus::read_file(path)?)));
        }
        if let Some(from) = &options.corpus {
            return Self::from_corpus(from, stamp, options.seed);
        }
        let subject = options.subject.as_deref();
        if subject.is_some_and(|subject| subject.contains(['\r', '\n', '\0'])) {
            bail!("--subject contains a line end");
        }
        let from = message::from_field(&first_address(&options.from), &options.hello);
        let to = first_address(&options.recipient_patterns[0]);
        let date = message::date(now)?;
        let id = message::message_id_placeholder(run);
        if options.mime {
            let fields = MimeFields { from: &from, to: &bracketed(&to), date: &date, message_id: &id, subject };
            return Self::from_mime(options, stamp, fields);
        }
        Self::generated(options, stamp, &message::header_fields(&from, &to, subject, &date, &id))
    }

    fn fixed(template: MessageTemplate) -> Self {
        let about = MessageSetSummary { mean_bytes: template.bytes as f64, ..MessageSetSummary::default() };
        Self { messages: MessageSet::Fixed(template), summary: about }
    }

    fn generated(options: &SourceOptions, stamp: TraceStamp, fields: &str) -> Result<Self> {
        let sizes = options.sizes.clone().unwrap_or_else(|| Distribution::constant(DEFAULT_BYTES));
        if let Some(size) = sizes.as_constant() {
            return Ok(Self::fixed(message::generate(stamp, fields, size)?));
        }
        let least = SizedTemplate::min_bytes(stamp, fields.as_bytes()) as u64;
        if sizes.min() < least && !sizes.is_clamped() {
            bail!("--message-size {} is too small: variable sizes must be at least {least} bytes", sizes.expression());
        }
        let max_bytes =
            usize::try_from(sizes.max().max(least)).context("--message-size exceeds the memory of this machine")?;
        let cut = SizedTemplate::new(stamp, fields.as_bytes(), max_bytes);
        let described = sizes.summary_from(least);
        let about =
            MessageSetSummary { mean_bytes: described.mean, sizes: Some(described), ..MessageSetSummary::default() };
        Ok(Self { messages: MessageSet::BySize { template: cut, sizes, least, seed: options.seed }, summary: about })
    }

    fn from_corpus(from: &corpus::CorpusOptions, stamp: TraceStamp, seed: u64) -> Result<Self> {
        let read = corpus::read(from)?;
        let row = CorpusRow {
            path: from.path.display().to_string(),
            kind: read.kind.to_owned(),
            messages: read.messages.len() as u64,
            bytes: read.messages.iter().map(|message| message.bytes).sum(),
            skipped: read.skipped,
        };
        let templates = read.messages.into_iter().map(|message| MessageTemplate::from_corpus(stamp, message)).collect();
        let mut prepared = Self::one_of(templates, seed);
        prepared.summary.corpus = Some(row);
        Ok(prepared)
    }

    fn from_mime(options: &SourceOptions, stamp: TraceStamp, fields: MimeFields<'_>) -> Result<Self> {
        let usual = || Distribution::parse(DEFAULT_MIME_SIZES, |text| text.parse().map_err(|_| String::new()));
        let sizes = match &options.sizes {
            Some(sizes) => sizes.clone(),
            None => usual().expect("the usual distribution is well-formed"),
        };
        let messages = mime::messages(fields, &sizes, stamp.bytes() as u64, options.seed)?;
        let templates: Vec<MessageTemplate> = messages
            .iter()
            .map(|text| {
                let body_at = memchr::memmem::find(text, b"\r\n\r\n").map_or(text.len(), |at| at + 4);
                let (headers, body) = text.split_at(body_at);
                MessageTemplate::new(stamp, headers, body, MessageIdMode::Patched)
            })
            .collect();
        let made = templates.len() as u64;
        let mut prepared = Self::one_of(templates, options.seed);
        prepared.summary.mime_messages = Some(made);
        prepared.summary.sizes = sizes.summary();
        Ok(prepared)
    }

    fn one_of(templates: Vec<MessageTemplate>, seed: u64) -> Self {
        let total: f64 = templates.iter().map(|template| template.bytes as f64).sum();
        let about =
            MessageSetSummary { mean_bytes: total / templates.len().max(1) as f64, ..MessageSetSummary::default() };
        Self { messages: MessageSet::OneOf { templates, seed }, summary: about }
    }
}

impl MessageSet {
    /// Chooses the content of the message with this number. The caller must clear the bit of `number` that marks
    /// messages of the warm-up, so that a message has the same content with and without a warm-up.
    pub(super) fn choose(&self, number: u64) -> MessageChoice {
        let of = |index: usize, template: &MessageTemplate| MessageChoice {
            index,
            bytes: template.bytes,
            is_eight_bit: template.is_eight_bit,
        };
        match self {
            Self::Fixed(template) => of(0, template),
            Self::OneOf { templates, seed } => {
                let index = SeededRng::new(*seed, RandomStream::Message, number).below(templates.len() as u64) as usize;
                of(index, &templates[index])
            }
            Self::BySize { sizes, least, seed, .. } => MessageChoice {
                index: 0,
                bytes: sizes.sample(*seed, RandomStream::Message, number).max(*least),
                is_eight_bit: false,
            },
        }
    }

    /// Returns the template if all messages of the run come from a single template and have the same size.
    pub(super) fn fixed_template(&self) -> Option<&MessageTemplate> {
        match self {
            Self::Fixed(template) => Some(template),
            Self::OneOf { .. } | Self::BySize { .. } => None,
        }
    }

    pub(super) fn set_zero(&mut self, zero: Duration) {
        match self {
            Self::Fixed(template) => template.set_zero(zero),
            Self::OneOf { templates, .. } => templates.iter_mut().for_each(|template| template.set_zero(zero)),
            Self::BySize { template, .. } => template.set_zero(zero),
        }
    }

    pub(super) fn render(&self, pick: MessageChoice, sequence: u64, since: Duration, outbox: &mut Outbox) {
        match self {
            Self::Fixed(template) => template.render(sequence, since, outbox),
            Self::OneOf { templates, .. } => templates[pick.index].render(sequence, since, outbox),
            Self::BySize { template: cut, .. } => cut.render(pick.bytes, sequence, since, outbox),
        }
    }

    /// Renders the chosen message as a chunk (RFC 3030). A chunk has neither dot-stuffing nor an end of data.
    pub(super) fn render_chunk(&self, pick: MessageChoice, sequence: u64, since: Duration, outbox: &mut Outbox) {
        let mut message = Outbox::default();
        self.render(pick, sequence, since, &mut message);
        message.drop_last(mailrun_smtp::data::END_OF_DATA.len());
        if message.length() as u64 == pick.bytes {
            outbox.append(message);
        } else {
            // BDAT sends dots unchanged, so copy the message without the stuffed dots. This is rare, because few
            // messages have such dots.
            outbox.bytes().extend_from_slice(&mailrun_smtp::data::unstuffed(&message.to_vec()));
        }
    }
}

/// Returns the address for the header field To. For a pattern, this is one of its addresses, drawn
/// with a fixed seed so that it is the same in every run.
fn first_address(pattern: &AddressPattern) -> String {
    let mut address = Vec::new();
    pattern.write(&mut SeededRng::new(0, RandomStream::Words, 0), RecipientTag::Bare, 0, &mut address);
    String::from_utf8_lossy(&address).into_owned()
}

fn bracketed(address: &str) -> String {
    format!("<{address}>")
}

impl SourceOptions {
    pub(super) fn workload(&self, about: &MessageSetSummary) -> Workload {
        Workload {
            messages: self.messages,
            duration_limit_s: self.time_limit().map(|limit| limit.as_secs_f64()),
            recipients: self.recipients.max() as u32,
            sessions: self.sessions,
            message_bytes: about.mean_bytes.round() as u64,
            reuse: self.reuse.as_ref().map(Distribution::max),
            pipelining: self.pipelining,
            chunking: self.transport.chunking == mailrun_smtp::client::Chunking::IfOffered,
            tls: value_name(self.transport.tls),
            arrival: self.arrival,
            rate_per_s: self.rate_per_s(),
            protocol: mailrun_process::outputs::protocol_name(self.transport.protocol).to_owned(),
            target: self.to.clone(),
            seed: self.seed,
            sizes_varied: about.sizes.clone(),
            recipients_varied: self.recipients.summary(),
            reuse_varied: self.reuse.as_ref().and_then(Distribution::summary),
            think_ms: self.think.as_ref().map(|think| think.summary_in(1e6)),
            from: self.from.expression().to_owned(),
            rcpt: super::addresses::expressions(&self.recipient_patterns),
            corpus: about.corpus.clone(),
            mime_messages: about.mime_messages,
            stages: self.own_stages(),
            dsn: self.dsn_parameters.description(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::TraceHeaders as Tracing;
    use super::super::message::TraceClock;
    use super::*;
    use mailrun_measurement::trace::RecipientNumbering;

    fn stamp() -> TraceStamp {
        TraceStamp::new(RunId([1; 16]), Tracing::Off, TraceClock::Monotonic, RecipientNumbering::SINGLE)
    }

    fn set(bodies: &[&str], seed: u64) -> MessageSet {
        let template =
            |body: &&str| MessageTemplate::new(stamp(), b"a: b\r\n\r\n", body.as_bytes(), MessageIdMode::Unchanged);
        MessageSet::OneOf { templates: bodies.iter().map(template).collect(), seed }
    }

    /// Returns the content that is chosen for this number, and the length of the rendered message.
    /// No line of the message may start with a dot, because dot-stuffing would change the length.
    fn rendered(mail: &MessageSet, number: u64) -> (MessageChoice, usize) {
        let pick = mail.choose(number);
        let mut outbox = Outbox::default();
        mail.render(pick, number, Duration::ZERO, &mut outbox);
        (pick, outbox.to_vec().len() - mailrun_smtp::data::END_OF_DATA.len())
    }

    #[test]
    fn a_set_is_picked_from_evenly_and_by_the_seed() {
        let mail = set(&["1\r\n", "22\r\n", "333\r\n", "4444\r\n", "\u{fc}\r\n"], 1);
        let mut counts = [0_u32; 5];
        for number in 0..10_000 {
            let (pick, bytes) = rendered(&mail, number);
            assert_eq!((pick.bytes, pick.is_eight_bit), (bytes as u64, pick.index == 4));
            counts[pick.index] += 1;
        }
        assert!(counts.iter().all(|count| (1_800..2_200).contains(count)), "{counts:?}");
        let picks = |seed| (0..100).map(|number| set(&["1\r\n"; 9], seed).choose(number).index).collect::<Vec<_>>();
        assert_eq!(picks(1), picks(1));
        assert_ne!(picks(1), picks(2));
    }

    #[test]
    fn what_is_cut_is_as_long_as_drawn_and_never_too_short() {
        let sizes = Distribution::parse("lognormal:300,1.5", |text| text.parse().map_err(|_| String::new())).unwrap();
        let fields = "a: b\r\n";
        let least = SizedTemplate::min_bytes(stamp(), fields.as_bytes()) as u64;
        let cut = SizedTemplate::new(stamp(), fields.as_bytes(), sizes.max() as usize);
        let described = sizes.summary_from(least);
        let mail = MessageSet::BySize { template: cut, sizes, least, seed: 1 };
        let picks: Vec<(MessageChoice, usize)> = (0..2_000).map(|number| rendered(&mail, number)).collect();
        assert!(picks.iter().all(|(pick, bytes)| pick.bytes == *bytes as u64 && pick.bytes >= least));
        assert!(picks.iter().any(|(pick, _)| pick.bytes == least) && described.least == least as f64);
        let mean = picks.iter().map(|(pick, _)| pick.bytes as f64).sum::<f64>() / 2_000.0;
        assert!((mean / described.mean - 1.0).abs() < 0.15, "{mean} for {}", described.mean);
    }

    #[test]
    fn a_header_names_the_first_address_of_a_pattern() {
        let first = first_address(&AddressPattern::parse("u{7..7}@{b,b}").unwrap());
        assert_eq!((first.as_str(), bracketed(&first).as_str()), ("u7@b", "<u7@b>"));
    }
}
