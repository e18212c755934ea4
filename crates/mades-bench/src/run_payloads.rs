//! The payloads of a run. All payloads are of one kind, except in a market's load, in which each shape (`--shape`) has
//! its own document.
use super::document_id::DocumentId;
use super::market::{MarketLoad, MarketShape};
use super::market_document::DocumentText;
use super::options::MadesOptions;
use super::payload::Payloads;
use super::shape_schedule::ShapeSchedule;
use anyhow::Result;
use bytes::BytesMut;
use mailrun_measurement::RunId;
use mailrun_measurement::record::Varied;
use std::rc::Rc;
use std::time::Duration;

#[derive(Debug)]
pub(super) struct RunPayloads {
    /// One entry for each kind of message (`--shape`), or a single entry if the run does not use `--shape`.
    forms: Vec<Payloads>,
    documents: Option<Varied>,
    /// With `--shape`, the schedule that determines the shape of each message. Set when the run starts.
    pub(super) schedule: Option<Rc<ShapeSchedule>>,
}

impl RunPayloads {
    /// # Errors
    /// Fails if the file (`--payload`) cannot be read or exceeds 1 GiB, or if a payload does not fit into memory.
    pub(super) fn new(options: &MadesOptions, run: RunId) -> Result<Self> {
        let forms = match &options.market {
            Some(load) => load.documents(options.seed, run),
            None => vec![Payloads::new(&options.payload, &options.sizes, options.seed, run)?],
        };
        Ok(Self { forms, documents: options.market.as_ref().map(MarketLoad::sizes), schedule: None })
    }

    #[cfg(test)]
    pub(super) fn of_one_form(form: Payloads) -> Self {
        Self { forms: vec![form], documents: None, schedule: None }
    }

    pub(super) fn shape(&self, sequence: u64) -> usize {
        self.schedule.as_ref().map_or(0, |schedule| schedule.shape(sequence))
    }

    fn of(&self, sequence: u64) -> &Payloads {
        &self.forms[self.shape(sequence)]
    }

    /// Writes the payload of a message into the buffer, which must be empty or hold an earlier payload of this run.
    pub(super) fn render(&self, sequence: u64, created: Duration, buffer: &mut BytesMut) {
        if self.forms.len() > 1 {
            // Write the whole payload again: the buffer may hold the payload of another `--shape`, which cannot be
            // changed in place.
            buffer.clear();
        }
        self.of(sequence).render(sequence, created, buffer);
    }

    pub(super) fn is_intact<'o>(&self, sequence: u64, octets: impl Iterator<Item = &'o [u8]>) -> bool {
        self.of(sequence).is_intact(sequence, octets)
    }

    pub(super) fn document_id(&self, sequence: u64) -> Option<DocumentId> {
        self.of(sequence).document_id(sequence)
    }

    pub(super) fn size(&self, sequence: u64) -> usize {
        self.of(sequence).size(sequence)
    }

    pub(super) fn mean_size(&self) -> f64 {
        self.documents.as_ref().map_or_else(|| self.forms[0].mean_size(), |sizes| sizes.mean)
    }

    pub(super) fn varied(&self) -> Option<Varied> {
        match &self.documents {
            Some(sizes) => Some(sizes.clone()).filter(|sizes| sizes.least < sizes.most),
            None => self.forms[0].varied(),
        }
    }
}

impl MarketLoad {
    fn documents(&self, seed: u64, run: RunId) -> Vec<Payloads> {
        let document = |shape: &MarketShape| Payloads::document(DocumentText::new(shape.document, seed), seed, run);
        self.shapes.iter().map(document).collect()
    }

    /// Returns the smallest, mean and largest size of the messages that are due in a day.
    pub fn sizes(&self) -> Varied {
        let documents = self.documents(0, RunId([0; 16]));
        let sizes = || documents.iter().map(Payloads::mean_size);
        let counts = || self.shapes.iter().map(|shape| shape.per_day() as f64);
        Varied {
            expression: "documents of a market".to_owned(),
            least: sizes().fold(f64::INFINITY, f64::min),
            mean: sizes().zip(counts()).map(|(size, count)| size * count).sum::<f64>() / counts().sum::<f64>(),
            most: sizes().fold(0.0, f64::max),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::Timestamp;
    use jiff::tz::TimeZone;

    #[test]
    fn each_message_has_the_document_of_its_shape_whatever_the_buffer_held() {
        let shapes = ["every 10s", "quarter-hour:2x40", "heartbeat 12m,7m30s,3m before quarter"];
        let shapes = shapes.map(|shape| shape.parse().unwrap()).to_vec();
        let load = MarketLoad { shapes, acceleration: 1, time_zone: TimeZone::UTC };
        let documents = RunPayloads {
            forms: load.documents(7, RunId([7; 16])),
            documents: Some(load.sizes()),
            schedule: Some(Rc::new(ShapeSchedule::new(&load, Timestamp::UNIX_EPOCH))),
        };
        let mut buffer = BytesMut::new();
        for sequence in 0..200 {
            documents.render(sequence, Duration::from_secs(sequence), &mut buffer);
            let text = std::str::from_utf8(&buffer).unwrap();
            let is_bid = text.contains("<ReserveBid_MarketDocument");
            let id = documents.document_id(sequence).unwrap();
            let mrid = format!("\r\n<mRID>{}</mRID>", str::from_utf8(&id.text()).unwrap());
            assert!(text.contains(&mrid) && id.sequence == sequence, "{sequence}");
            assert_eq!(is_bid, (1..3).contains(&(sequence % 95)), "{sequence}");
            assert_eq!(text.matches("<Bid_TimeSeries>").count(), if is_bid { 40 } else { 0 });
            assert!(documents.is_intact(sequence, [&buffer[..]].into_iter()), "{sequence}");
            assert!(!documents.is_intact(sequence + 1, [&buffer[..]].into_iter()), "{sequence}");
        }
        let sizes = documents.varied().unwrap();
        assert!(sizes.least < sizes.mean && sizes.mean < sizes.most && sizes.most > 30_000.0, "{sizes:?}");
    }
}
