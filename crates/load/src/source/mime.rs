//! Generates MIME messages that resemble mail of people. Each message has a text, the same text as
//! HTML, and an attachment that brings it to its size.
//!
//! A run sends the messages of a set that is generated from the seed. Their sizes are evenly spaced quantiles of the
//! requested distribution. Because attachments consist of whole lines of Base64, a message may be up to 80 bytes
//! smaller than requested. If the requested size leaves no room beside the text, the message has no attachment.
use anyhow::{Context, Result, bail};
use mail_builder::MessageBuilder;
use mail_builder::headers::content_type::ContentType;
use mail_builder::headers::raw::Raw;
use mail_builder::mime::MimePart;
use mailrun_schedule::distribution::{Distribution, RandomStream, SeededRng};
use std::fmt::Write;

const MAX_SET_MESSAGES: u64 = 64;
/// Maximum number of bytes of all messages in a set. A single message may be longer.
const MAX_SET_BYTES: u64 = 256 << 20;
const LINE_CONTENT_BYTES: u64 = 57;
const LINE_BYTES: u64 = 78;

const WORDS: [&str; 48] = [
    "the",
    "meeting",
    "invoice",
    "please",
    "find",
    "attached",
    "report",
    "for",
    "last",
    "quarter",
    "we",
    "have",
    "moved",
    "our",
    "schedule",
    "to",
    "Thursday",
    "and",
    "will",
    "send",
    "new",
    "figures",
    "before",
    "noon",
    "thank",
    "you",
    "very",
    "much",
    "regards",
    "delivery",
    "contract",
    "draft",
    "with",
    "all",
    "changes",
    "as",
    "discussed",
    "let",
    "me",
    "know",
    "if",
    "anything",
    "is",
    "missing",
    "from",
    "your",
    "side",
    "tomorrow",
];

const ATTACHMENT_TYPES: [(&str, &str); 5] = [
    ("application/pdf", "pdf"),
    ("image/jpeg", "jpg"),
    ("application/zip", "zip"),
    ("application/vnd.openxmlformats-officedocument.wordprocessingml.document", "docx"),
    ("application/octet-stream", "bin"),
];

#[derive(Clone, Copy, Debug)]
pub(super) struct MimeFields<'a> {
    pub(super) from: &'a str,
    pub(super) to: &'a str,
    pub(super) date: &'a str,
    pub(super) message_id: &'a str,
    /// Subject of all messages, or `None` to generate one for each message.
    pub(super) subject: Option<&'a str>,
}

/// Generates a set of messages whose sizes are evenly spaced quantiles of `sizes`. `overhead` is the number of bytes
/// that will be added to each message, for example for its trace.
///
/// # Errors
///
/// Fails if a message is too large for the memory of this machine.
pub(super) fn messages(fields: MimeFields<'_>, sizes: &Distribution, overhead: u64, seed: u64) -> Result<Vec<Vec<u8>>> {
    sizes
        .quantiles(set_size(sizes.mean()))
        .enumerate()
        .map(|(number, size)| {
            let mut rng = SeededRng::new(seed, RandomStream::Words, number as u64);
            message(fields, size.saturating_sub(overhead), &mut rng)
        })
        .collect()
}

/// Returns how many messages of `mean_bytes` bytes a set should have: as many as fit into [`MAX_SET_BYTES`], but at
/// least 1 and at most `MAX_SET_MESSAGES`.
fn set_size(mean_bytes: f64) -> u64 {
    ((MAX_SET_BYTES as f64 / mean_bytes.max(1.0)) as u64).clamp(1, MAX_SET_MESSAGES)
}

/// Generates a message of `bytes` bytes, or up to one line of Base64 less. If `bytes` is too small
/// for an attachment, the message has none and may be longer than `bytes`.
fn message(fields: MimeFields<'_>, bytes: u64, rng: &mut SeededRng) -> Result<Vec<u8>> {
    let mime_text = MimeText::new(rng);
    let bare = mime_text.write(fields, None)?;
    let one = mime_text.write(fields, Some(vec![0]))?.len() as u64;
    let Some(room) = bytes.checked_sub(one) else { return Ok(bare) };
    // `one` is the length of a message with an attachment of one byte, which takes six bytes in Base64: four characters
    // and a line end. The real attachment replaces these six bytes, so it may take `room` + 6 bytes in Base64.
    let lines = (room + 6) / LINE_BYTES;
    let content = usize::try_from(lines.max(1) * LINE_CONTENT_BYTES)
        .context("--message-size exceeds the memory of this machine")?;
    let content = if lines == 0 { 1 } else { content };
    let text = mime_text.write(fields, Some(random_bytes(content, rng)))?;
    if text.len() as u64 > bytes {
        bail!("an attachment of {content} bytes came out {} bytes too long", text.len() as u64 - bytes);
    }
    Ok(text)
}

#[derive(Debug)]
struct MimeText {
    subject: String,
    paragraphs: Vec<String>,
    attachment_type: (&'static str, &'static str),
    boundary: String,
}

impl MimeText {
    fn new(rng: &mut SeededRng) -> Self {
        let paragraphs = (0..2 + rng.below(4)).map(|_| {
            let sentences: Vec<String> =
                (0..2 + rng.below(4)).map(|_| format!("{}.", sentence(4 + rng.below(12), rng))).collect();
            sentences.join(" ")
        });
        let paragraphs = paragraphs.collect();
        Self {
            paragraphs,
            subject: sentence(3 + rng.below(5), rng),
            attachment_type: ATTACHMENT_TYPES[rng.below(ATTACHMENT_TYPES.len() as u64) as usize],
            boundary: format!("{:016x}", rng.next_u64()),
        }
    }

    fn write(&self, fields: MimeFields<'_>, attachment: Option<Vec<u8>>) -> Result<Vec<u8>> {
        let alternative = MimePart::new(
            ContentType::new("multipart/alternative").attribute("boundary", format!("alternative-{}", self.boundary)),
            vec![
                MimePart::new(ContentType::new("text/plain").attribute("charset", "utf-8"), self.text()),
                MimePart::new(ContentType::new("text/html").attribute("charset", "utf-8"), self.html()),
            ],
        );
        let body = match attachment {
            None => alternative,
            Some(content) => {
                let (kind, ending) = self.attachment_type;
                let name = format!("{}.{ending}", self.subject.split(' ').next().unwrap_or("file"));
                MimePart::new(
                    ContentType::new("multipart/mixed").attribute("boundary", format!("mixed-{}", self.boundary)),
                    vec![alternative, MimePart::new(kind, content).attachment(name)],
                )
            }
        };
        // Use raw headers, so that the builder writes these fields exactly as they are.
        MessageBuilder::new()
            .header("From", Raw::new(fields.from))
            .header("To", Raw::new(fields.to))
            .header("Date", Raw::new(fields.date))
            .header("Message-ID", Raw::new(fields.message_id))
            .subject(fields.subject.unwrap_or(&self.subject))
            .body(body)
            .write_to_vec()
            .context("a message is written to memory")
    }

    fn text(&self) -> String {
        self.paragraphs.iter().fold(String::new(), |mut text, paragraph| {
            wrap(paragraph, &mut text);
            text.push_str("\r\n");
            text
        })
    }

    fn html(&self) -> String {
        let mut html = String::from("<html><body>\r\n");
        for paragraph in &self.paragraphs {
            html.push_str("<p>");
            wrap(paragraph, &mut html);
            html.push_str("</p>\r\n");
        }
        write!(html, "</body></html>\r\n").expect("a String takes any text");
        html
    }
}

fn wrap(paragraph: &str, text: &mut String) {
    let mut column = 0;
    for word in paragraph.split(' ') {
        if column + word.len() > 72 {
            text.push_str("\r\n");
            column = 0;
        } else if column > 0 {
            text.push(' ');
        }
        text.push_str(word);
        column += word.len() + 1;
    }
    text.push_str("\r\n");
}

fn sentence(words: u64, rng: &mut SeededRng) -> String {
    let words: Vec<&str> = (0..words).map(|_| WORDS[rng.below(WORDS.len() as u64) as usize]).collect();
    let text = words.join(" ");
    let (first, rest) = text.split_at(1);
    first.to_uppercase() + rest
}

/// Makes an attachment's content. It is random, because a relay could compress anything else.
fn random_bytes(count: usize, rng: &mut SeededRng) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..count.div_ceil(8)).flat_map(|_| rng.next_u64().to_le_bytes()).collect();
    bytes.truncate(count);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIELDS: MimeFields<'static> = MimeFields {
        from: "<a@b>",
        to: "<c@d>",
        date: "Sat, 21 Nov 2026 09:30:00 +0000",
        message_id: "<0000000000000000.1@mailrun>",
        subject: None,
    };

    fn set(sizes: &str, seed: u64) -> Vec<String> {
        let read = |text: &str| text.parse::<u64>().map_err(|_| "not a number".to_owned());
        let all = messages(FIELDS, &Distribution::parse(sizes, read).unwrap(), 100, seed).unwrap();
        all.into_iter().map(|message| String::from_utf8(message).unwrap_or_else(|_| panic!("it is ASCII"))).collect()
    }

    #[test]
    fn messages_have_the_sizes_asked_for() {
        for sizes in ["20000", "10000..500000", "lognormal:30000,1"] {
            let read = |text: &str| text.parse::<u64>().map_err(|_| "not a number".to_owned());
            let distribution = Distribution::parse(sizes, read).unwrap();
            let set = set(sizes, 1);
            assert_eq!(set.len(), 64);
            for (message, size) in set.iter().zip(distribution.quantiles(64)) {
                let bytes = message.len() as u64 + 100;
                assert!(bytes <= size && bytes + 80 >= size || size < 6_000, "{bytes} for {size}");
            }
        }
    }

    #[test]
    fn they_are_mail_with_text_html_and_an_attachment() {
        let set = set("50000", 1);
        for message in &set {
            for part in ["multipart/mixed", "multipart/alternative", "text/plain", "text/html", "attachment", "base64"]
            {
                assert!(message.contains(part), "{part}: {message}");
            }
            assert_eq!(message.matches("Message-ID: <0000000000000000.1@mailrun>\r\n").count(), 1);
            assert_eq!(message.matches("From: <a@b>\r\n").count(), 1);
            assert!(message.ends_with("--\r\n"), "{}", &message[message.len() - 60..]);
            assert!(message.is_ascii() && message.lines().all(|line| line.len() <= 998));
            assert_eq!(message.replace("\r\n", "").find(['\r', '\n']), None, "no line end is bare");
        }
        assert!(set.windows(2).any(|pair| pair[0] != pair[1]), "they differ");
    }

    #[test]
    fn a_seed_gives_the_same_set() {
        assert_eq!(set("9000..20000", 1), set("9000..20000", 1));
        assert_ne!(set("9000..20000", 1), set("9000..20000", 2));
    }

    #[test]
    fn the_smallest_have_no_attachment_and_the_largest_few_companions() {
        assert!(set("400", 1).iter().all(|message| !message.contains("attachment;")));
        assert_eq!([1e3, 4e6, 1e8, 3e8, 1e12].map(set_size), [64, 64, 2, 1, 1]);
    }
}
