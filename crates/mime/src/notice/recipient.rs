//! What a notification says about one recipient: addresses, action, status code and reason.

/// Maximum length of an address: 64 characters before the `@`, and 255 after it (RFC 5321 §4.5.3.1).
const MAX_ADDRESS_CHARACTERS: usize = 320;
/// Maximum length of a diagnostic text in characters, which is enough for the longest line of a reply.
const MAX_DIAGNOSTIC_CHARACTERS: usize = 510;

/// What the server did with the message for a recipient (RFC 3464 §2.3.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NoticeAction {
    /// The server gave up, so the recipient never gets the message.
    #[default]
    Failed,
    /// The server keeps the message and tries again.
    Delayed,
    /// Any other action: the server delivered, relayed or expanded the message, or stated an action that RFC 3464 does
    /// not define.
    Other,
}

/// What a notification says about one recipient. A text is empty if the notification does not contain it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NoticeRecipient {
    /// Address to which the sender sent the message, or an empty text if the notification does not contain it.
    pub original: String,
    /// Address to which the server tried to deliver. It differs from `original` if servers have rewritten it.
    pub address: String,
    /// Tells whether the server gave up, tries again, or did something else with the message.
    pub action: NoticeAction,
    /// Enhanced status code, such as `5.1.1`, or an empty text if the notification has none.
    pub status: String,
    /// Reply of the next hop, or another reason, or an empty text if the notification gives no reason.
    pub diagnostic: String,
}

impl NoticeRecipient {
    pub(super) fn to(address: &[u8], action: NoticeAction) -> Self {
        Self { address: mailbox(address), action, ..Self::default() }
    }

    /// Returns the recipient as its sender knows it: the original address if the notification has it, and otherwise the
    /// address to which the server tried to deliver.
    pub fn known_as(&self) -> &str {
        if self.original.is_empty() { &self.address } else { &self.original }
    }

    /// Adds a line to the diagnostic text, up to `MAX_DIAGNOSTIC_CHARACTERS` in total. The first line that is an SMTP
    /// reply replaces the lines before it, because they only say which server sent the reply.
    pub(super) fn explain(&mut self, line: &[u8]) {
        let line = line.trim_ascii();
        if is_reply(line) && !is_reply(self.diagnostic.as_bytes()) {
            self.diagnostic.clear();
        }
        let line = text(line, MAX_DIAGNOSTIC_CHARACTERS.saturating_sub(self.diagnostic.chars().count() + 1));
        if !self.diagnostic.is_empty() && !line.is_empty() {
            self.diagnostic.push(' ');
        }
        self.diagnostic.push_str(&line);
    }

    /// Takes the enhanced status code from the reply if the notification has no field for it.
    pub(super) fn complete(&mut self) {
        if self.status.is_empty() {
            let word = self.diagnostic.split(' ').nth(1).filter(|_| is_reply(self.diagnostic.as_bytes()));
            self.status = word.and_then(|word| status(word.as_bytes())).unwrap_or_default();
        }
    }
}

/// Returns true if the text begins like an SMTP reply that refuses something, for example with `550 `.
pub(super) fn is_reply(text: &[u8]) -> bool {
    matches!(text, [b'4' | b'5', b'0'..=b'5', b'0'..=b'9', b' ' | b'-', ..])
}

/// Returns the enhanced status code (RFC 3463) with which the text begins.
pub(super) fn status(text: &[u8]) -> Option<String> {
    let word = text.trim_ascii().split(u8::is_ascii_whitespace).next()?;
    let numbers: Vec<&[u8]> = word.split(|byte| *byte == b'.').collect();
    let is_number = |number: &&[u8]| (1..=3).contains(&number.len()) && number.iter().all(u8::is_ascii_digit);
    (numbers.len() == 3 && numbers.iter().all(is_number)).then(|| String::from_utf8_lossy(word).into_owned())
}

/// Returns an address without white space and angle brackets around it.
pub(super) fn mailbox(address: &[u8]) -> String {
    let address = address.trim_ascii();
    let inner = address.strip_prefix(b"<").and_then(|inner| inner.strip_suffix(b">")).unwrap_or(address);
    text(inner, MAX_ADDRESS_CHARACTERS)
}

fn text(bytes: &[u8], limit: usize) -> String {
    String::from_utf8_lossy(bytes).chars().filter(|character| !character.is_control()).take(limit).collect()
}
