//! The payloads of a run: all of one kind, or the documents of a market, of which each shape has its own.
use super::market::{MarketLoad, MarketShape};
use super::market_document::DocumentText;
use super::options::MadesOptions;
use super::payload::Payloads;
use anyhow::Result;
use bytes::BytesMut;
use journey::RunId;
use journey::record::Varied;
use std::time::Duration;

/// The payloads of a run.
#[derive(Debug)]
pub(super) enum RunPayloads {
    /// All of one kind.
    Alike(Payloads),
    /// Documents of a market.
    Market(MarketDocuments),
}

impl RunPayloads {
    /// # Errors
    /// If a file cannot be read.
    pub(super) fn new(options: &MadesOptions, run: RunId) -> Result<Self> {
        match &options.market {
            Some(load) => Ok(Self::Market(MarketDocuments::new(load, options.seed, run))),
            None => Payloads::new(&options.payload, &options.sizes, options.seed, run).map(Self::Alike),
        }
    }

    /// The payloads that a message's is one of.
    fn of(&self, sequence: u64) -> &Payloads {
        match self {
            Self::Alike(payloads) => payloads,
            Self::Market(documents) => documents.of(sequence),
        }
    }

    /// Renders the payload of a message into the buffer, which is empty or holds an earlier payload of this run.
    pub(super) fn render(&self, sequence: u64, created: Duration, buffer: &mut BytesMut) {
        if matches!(self, Self::Market(documents) if documents.forms.len() > 1) {
            // It may hold a document of another shape.
            buffer.clear();
        }
        self.of(sequence).render(sequence, created, buffer);
    }

    /// Reports whether the bytes are the payload of that message.
    pub(super) fn is_intact<'o>(&self, sequence: u64, octets: impl Iterator<Item = &'o [u8]>) -> bool {
        self.of(sequence).is_intact(sequence, octets)
    }

    /// Bytes of the message with that number.
    pub(super) fn size(&self, sequence: u64) -> usize {
        self.of(sequence).size(sequence)
    }

    /// Mean size of a message in bytes.
    pub(super) fn mean_size(&self) -> f64 {
        match self {
            Self::Alike(payloads) => payloads.mean_size(),
            Self::Market(documents) => documents.sizes().mean,
        }
    }

    /// Distribution of sizes, for the record.
    pub(super) fn varied(&self) -> Option<Varied> {
        match self {
            Self::Alike(payloads) => payloads.varied(),
            Self::Market(documents) => Some(documents.sizes()).filter(|sizes| sizes.least < sizes.most),
        }
    }
}

/// Documents of a market.
#[derive(Debug)]
pub(super) struct MarketDocuments {
    /// The document of each shape.
    forms: Vec<(MarketShape, Payloads)>,
    /// The form of each message of a quarter-hour.
    order: Vec<usize>,
}

impl MarketDocuments {
    fn new(load: &MarketLoad, seed: u64, run: RunId) -> Self {
        let mut forms: Vec<(MarketShape, Payloads)> = Vec::new();
        let mut order = Vec::new();
        for shape in load.order() {
            let known = forms.iter().position(|(known, _)| *known == shape);
            order.push(known.unwrap_or_else(|| {
                forms.push((shape, Payloads::document(DocumentText::new(shape, seed), seed, run)));
                forms.len() - 1
            }));
        }
        Self { forms, order }
    }

    fn of(&self, sequence: u64) -> &Payloads {
        let form = self.order[(sequence % self.order.len() as u64) as usize];
        &self.forms[form].1
    }

    /// Sizes of the messages of a quarter-hour.
    fn sizes(&self) -> Varied {
        let sizes = || self.order.iter().map(|form| self.forms[*form].1.mean_size());
        Varied {
            expression: "documents of a market".to_owned(),
            least: sizes().fold(f64::INFINITY, f64::min),
            mean: sizes().sum::<f64>() / self.order.len() as f64,
            most: sizes().fold(0.0, f64::max),
        }
    }
}

impl MarketLoad {
    /// Sizes of the messages of a quarter-hour.
    pub fn sizes(&self) -> Varied {
        MarketDocuments::new(self, 0, RunId([0; 16])).sizes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_message_has_the_document_of_its_shape_whatever_the_buffer_held() {
        let shapes = ["values", "bids:2x40", "heartbeats"].map(|shape| shape.parse().unwrap()).to_vec();
        let load = MarketLoad { shapes, acceleration: 1 };
        let documents = RunPayloads::Market(MarketDocuments::new(&load, 7, RunId([7; 16])));
        let mut buffer = BytesMut::new();
        for sequence in 0..200 {
            documents.render(sequence, Duration::from_secs(sequence), &mut buffer);
            let text = std::str::from_utf8(&buffer).unwrap();
            let is_bid = text.contains("<ReserveBid_MarketDocument");
            assert_eq!(is_bid, (1..3).contains(&(sequence % 95)), "{sequence}");
            assert_eq!(text.matches("<Bid_TimeSeries>").count(), if is_bid { 40 } else { 0 });
            assert!(documents.is_intact(sequence, [&buffer[..]].into_iter()), "{sequence}");
            assert!(!documents.is_intact(sequence + 1, [&buffer[..]].into_iter()), "{sequence}");
        }
        let sizes = load.sizes();
        assert!(sizes.least < sizes.mean && sizes.mean < sizes.most && sizes.most > 30_000.0, "{sizes:?}");
    }
}
