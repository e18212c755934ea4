use super::message::{SectionFields, begin_data, write_text_body};
use super::{AmqpMessage, AmqpMessageId, Payload};

/// Builds a message. Endpoints write only durable messages (reference §3.1).
pub(super) struct AmqpMessageBuilder<'a> {
    head: SectionFields<'a>,
    application: Vec<(&'a str, &'a str)>,
}

impl<'a> AmqpMessageBuilder<'a> {
    /// Begins a message that answers `correlation`. `created_at_ms` is in milliseconds since 1970.
    pub(super) fn new(correlation: Option<AmqpMessageId<'a>>, created_at_ms: i64) -> Self {
        let head = SectionFields { is_durable: true, correlation, created_at_ms, ..SectionFields::default() };
        Self { head, application: Vec::new() }
    }

    pub(super) fn id(mut self, id: &'a str) -> Self {
        self.head.message_id = Some(id);
        self
    }

    pub(super) fn with(mut self, name: &'a str, value: &'a str) -> Self {
        self.application.push((name, value));
        self
    }

    pub(super) fn with_some(self, name: &'a str, value: Option<&'a str>) -> Self {
        match value {
            Some(value) => self.with(name, value),
            None => self,
        }
    }

    fn sections(&self) -> Vec<u8> {
        let mut sections = Vec::new();
        self.head.write(&mut sections, |entries| {
            for text in self.application.iter().flat_map(|(name, value)| [name, value]) {
                entries.string(text);
            }
        });
        sections
    }

    pub(super) fn text(self, text: &str) -> AmqpMessage {
        let mut sections = self.sections();
        write_text_body(&mut sections, text);
        AmqpMessage { sections, payload: Payload::new() }
    }

    pub(super) fn data(self, payload: Payload) -> AmqpMessage {
        let mut sections = self.sections();
        begin_data(&mut sections, payload.len());
        AmqpMessage { sections, payload }
    }
}
