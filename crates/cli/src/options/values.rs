//! Parsers for values in the form in which people type them: `10s`, `64k`, `10k`, `1%`, `2s..3s`.
use mailrun_bench::mades_compare::SendWindow;
use mailrun_load::source::{AddressPattern, Distribution, RateStage};
use mailrun_measurement::Stage;
use mailrun_measurement::threshold::{MetricSource, RunProtocol, Threshold};
use mailrun_net::Endpoint;
pub(crate) use mailrun_process::party_options::value_name;
use mailrun_text::quantities::{self, MAX_COUNT, count_up_to, positive};
pub(crate) use mailrun_text::quantities::{bytes, count, duration, probability};
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

/// Parses the name of a run directory. Refuses `json=FILE` and `csv=FILE`, which name result files in k6, because they
/// would silently become directories here.
pub(crate) fn directory(text: &str) -> Result<PathBuf, String> {
    match text.split_once('=') {
        Some(("json", file)) => Err(format!("it is a directory; for a file use --json {file}")),
        Some(("csv", file)) => Err(format!("it is a directory; for a file use --export csv={file}")),
        _ => Ok(text.into()),
    }
}

/// Parses a duration that must be longer than zero.
pub(crate) fn some_duration(text: &str) -> Result<Duration, String> {
    positive(text, duration)
}

/// Largest message that a user may ask for: 2 GiB, because messages are held in memory.
const MAX_MESSAGE_BYTES: u64 = 2 << 30;

const MAX_RECIPIENTS: u64 = 1_000;

/// Parses message sizes in bytes: a number, a range, a list by weight or a log-normal distribution.
pub(crate) fn sizes(text: &str) -> Result<Distribution, String> {
    let spread = above_zero(text, bytes)?;
    if spread.max() > MAX_MESSAGE_BYTES {
        Err(format!("{text:?} is too large; a message can have at most 2G"))
    } else {
        Ok(spread)
    }
}

/// Parses payload sizes in bytes. Unlike a message, a payload may be empty, so the size `0` is allowed.
pub(crate) fn payload_sizes(text: &str) -> Result<Distribution, String> {
    if text == "0" { Ok(Distribution::constant(0)) } else { sizes(text) }
}

/// Parses a number or a distribution of numbers, all of which must be above zero.
fn above_zero(text: &str, read: fn(&str) -> Result<u64, String>) -> Result<Distribution, String> {
    Distribution::parse(text, |number| positive(number, read))
}

/// Parses the number of recipients per message. It may be a distribution, such as `1..5`.
pub(crate) fn recipients(text: &str) -> Result<Distribution, String> {
    counts(text, MAX_RECIPIENTS)
}

/// Parses the number of messages per connection. It may be a distribution, and 0 means that there is no limit.
pub(crate) fn reuse(text: &str) -> Result<Reuse, String> {
    if text == "0" { Ok(Reuse(None)) } else { counts(text, MAX_COUNT).map(|spread| Reuse(Some(spread))) }
}

/// Number of messages per connection, or `None` if there is no limit.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Reuse(pub(crate) Option<Distribution>);

fn counts(text: &str, limit: u64) -> Result<Distribution, String> {
    let spread = above_zero(text, count)?;
    match (spread.min(), spread.max()) {
        (0, _) => Err(format!("{text:?} begins at 0; the minimum is 1")),
        (_, max) if max > limit => Err(format!("{text:?} is too large; at most {limit}")),
        _ => Ok(spread),
    }
}

/// Parses a time or a distribution of times. The numbers in the result are nanoseconds.
pub(crate) fn times(text: &str) -> Result<Distribution, String> {
    let day = Duration::from_secs(86_400);
    let nanoseconds = |word: &str| match duration(word)? {
        time if time > day => Err(format!("{word:?} is too large; at most a day")),
        time => Ok(time.as_nanos() as u64),
    };
    Distribution::parse(text, nanoseconds)
}

/// Parses a stage of the load, for example `10s:100/s`, `60s:100/s..1000/s` or `peak=10s:500/s`.
pub(crate) fn stage(text: &str) -> Result<RateStage, String> {
    RateStage::parse(text)
}

/// Returns the number of recipients per message. With several `--to` patterns, this is the number of patterns, because
/// each message goes to one address of each pattern. Otherwise it is `copies`, the value of `--recipients`.
///
/// # Errors
///
/// Returns an error if `--recipients` is used with several patterns, or if there are too many recipients.
pub(crate) fn recipients_of(patterns: &[AddressPattern], copies: &Distribution) -> anyhow::Result<Distribution> {
    match patterns.len() as u64 {
        0 | 1 => Ok(copies.clone()),
        _ if copies.max() > 1 => {
            anyhow::bail!("--recipients counts copies of one --to pattern; remove it, or all --to but one")
        }
        several if several > MAX_RECIPIENTS => anyhow::bail!("a message can have at most {MAX_RECIPIENTS} recipients"),
        several => Ok(Distribution::constant(several)),
    }
}

/// Parses a sender or a pattern of senders. `<>` is the null sender (RFC 5321 §4.5.5).
pub(crate) fn sender(text: &str) -> Result<AddressPattern, String> {
    AddressPattern::parse(if text == "<>" { "" } else { text })
}

/// Hint for a user who typed `--to HOST:PORT`. COMMAND is replaced with the name of the command.
pub(crate) const POSITIONAL: &str = "the server is positional: mailrun COMMAND HOST:PORT";

/// Parses a recipient or a pattern of recipients. Refuses a text that looks like a server, because the user has
/// probably typed `--to HOST:PORT` instead of HOST:PORT without an option.
pub(crate) fn recipient(text: &str) -> Result<AddressPattern, String> {
    if is_like_server(text) { Err(POSITIONAL.to_owned()) } else { AddressPattern::parse(text) }
}

/// Returns true if the text looks like a server and not like a mailbox. Text without `@` looks like a server if, for
/// example, it contains a port or a dot, because a mailbox without a domain contains neither.
fn is_like_server(text: &str) -> bool {
    let has_port = text.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    let is_host = text == "localhost" || text.contains('.') || text.contains("://") || text.starts_with("unix:");
    !text.contains(['@', '{']) && (has_port || is_host || text.parse::<std::net::Ipv6Addr>().is_ok())
}

/// Parses a rate, which must be above zero. The result is per second.
pub(crate) fn rate(text: &str) -> Result<f64, String> {
    positive(text, quantities::rate)
}

/// Parses a host name, for example the name in EHLO or in a sink's greeting. Refuses control characters, because with a
/// line break, the name could contain a second SMTP command.
pub(crate) fn host_name(text: &str) -> Result<String, String> {
    match text {
        "" => Err("the name must not be empty".to_owned()),
        _ if text.chars().any(char::is_control) => Err(format!("{text:?} contains a control character")),
        _ => Ok(text.to_owned()),
    }
}

/// Parses a size in bytes, such as `64k`, which must be at least one byte.
pub(crate) fn some_bytes(text: &str) -> Result<u64, String> {
    positive(text, bytes)
}

pub(crate) fn write_size(text: &str) -> Result<NonZeroUsize, String> {
    let size = usize::try_from(some_bytes(text)?).ok().and_then(NonZeroUsize::new);
    size.ok_or_else(|| format!("{text:?} is too large"))
}

/// Parses a count of at least one.
pub(crate) fn some(text: &str) -> Result<u64, String> {
    positive(text, count)
}

/// Parses HOST:PORT to listen on, or `:PORT` for all addresses of this host.
pub(crate) fn tcp_address(text: &str) -> Result<SocketAddr, String> {
    match Endpoint::listening(text).map_err(|error| error.to_string())? {
        Endpoint::Tcp(address) => Ok(address),
        Endpoint::Unix(_) => Err(format!("{text:?} must have the form HOST:PORT")),
    }
}

pub(crate) fn workers(text: &str) -> Result<usize, String> {
    count_up_to(text, 1024).map(|number| number as usize)
}

pub(crate) fn seed(text: &str) -> Result<u64, String> {
    let error = || format!("{text:?} is not a valid seed; a seed is a whole number from 0 to {}", u64::MAX);
    text.parse().ok().filter(|_| !text.starts_with('+')).ok_or_else(error)
}

/// Checks an address to listen on, and returns it unchanged.
pub(crate) fn listening(text: &str) -> Result<String, String> {
    Endpoint::listening(text).map(|_| text.to_owned()).map_err(|error| error.to_string())
}

/// Parses the number of messages in a run of a scenario. The limit protects smtp-source, which counts recipients in a C
/// `int`: at the limit, up to 21 recipients per message do not overflow its counter.
pub(crate) fn scenario_messages(text: &str) -> Result<u64, String> {
    count_up_to(text, 100_000_000)
}

pub(crate) fn rounds(text: &str) -> Result<u32, String> {
    small_count(text, 1_000)
}

pub(crate) fn steps(text: &str) -> Result<u32, String> {
    small_count(text, 100)
}

pub(crate) fn sessions(text: &str) -> Result<u32, String> {
    small_count(text, 1_000_000)
}

pub(crate) fn recipient_count(text: &str) -> Result<u32, String> {
    small_count(text, MAX_RECIPIENTS as u32)
}

fn small_count(text: &str, max: u32) -> Result<u32, String> {
    count_up_to(text, u64::from(max)).map(|number| number as u32)
}

/// Parses the size of a message. The minimum leaves room for the header, including our trace header. The maximum is the
/// largest size that relays accept.
pub(crate) fn message_size(text: &str) -> Result<u64, String> {
    match bytes(text)? {
        bytes @ 300..=67_108_864 => Ok(bytes),
        _ => Err(format!("{text:?}: the size must be between 300 bytes and 64M")),
    }
}

/// Parses the size of a message's body. The minimum is one empty line, and the maximum is what a source can easily hold
/// in memory.
pub(crate) fn body_size(text: &str) -> Result<u64, String> {
    match bytes(text)? {
        bytes @ 2..=268_435_456 => Ok(bytes),
        _ => Err(format!("{text:?}: the size of a body must be between 2 bytes and 256M")),
    }
}

/// Parses the number of outstanding sends. For `defaults`, each of the compared programs uses its own number.
pub(crate) fn window(text: &str) -> Result<SendWindow, String> {
    match text {
        "defaults" => Ok(SendWindow::Defaults),
        number => sessions(number).map(SendWindow::Same),
    }
}

/// Parses a share above 0, such as `0.5` or `50%`.
pub(crate) fn some_share(text: &str) -> Result<f64, String> {
    positive(text, probability)
}

pub(crate) fn growth(text: &str) -> Result<f64, String> {
    let factor = text.parse::<f64>().ok().filter(|factor| (1.0..=1_000.0).contains(factor));
    factor.ok_or_else(|| format!("{text:?} is not a valid factor; a factor is a number from 1 to 1000, such as 1.2"))
}

/// Parses a threshold for runs in a closed loop. Refuses thresholds for the time until a message was created: in a
/// closed loop, a message is due when it is created, so this time is always 0.
pub(crate) fn closed_loop_threshold(text: &str) -> Result<Threshold, String> {
    let threshold = Threshold::parse(text, RunProtocol::Smtp)?;
    if threshold.is_of_time() && threshold.source() == Some(MetricSource::Stage(Stage::Created)) {
        return Err("in a closed loop a message is due when it is created; ask for sent or accepted".to_owned());
    }
    Ok(threshold)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_as_people_type_them() {
        assert_eq!(some_duration("10s"), Ok(Duration::from_secs(10)));
        assert_eq!(rate("500/s"), Ok(500.0));
        assert_eq!(rate("30k/m"), Ok(500.0));
        assert_eq!((some("10k"), sessions("1M"), workers("1_000")), (Ok(10_000), Ok(1_000_000), Ok(1_000)));
        assert_eq!(
            (scenario_messages("1M"), recipient_count("1k"), rounds("1k")),
            (Ok(1_000_000), Ok(1_000), Ok(1_000))
        );
    }

    #[test]
    fn distributions_are_read_in_their_units() {
        assert_eq!(sizes("400..64k").map(|sizes| sizes.max()), Ok(65_536));
        assert_eq!(sizes("64k").map(|sizes| sizes.as_constant()), Ok(Some(65_536)));
        assert_eq!(times("100ms..2s").map(|times| (times.min(), times.max())), Ok((100_000_000, 2_000_000_000)));
        assert_eq!(recipients("1..5").map(|counts| counts.mean()), Ok(3.0));
        assert_eq!(
            (sizes("1.5k").map(|sizes| sizes.as_constant()), payload_sizes("0")),
            (Ok(Some(1_536)), Ok(Distribution::constant(0)))
        );
        assert_eq!((sender("<>"), sender("")), (AddressPattern::parse(""), AddressPattern::parse("")));
        assert_eq!(reuse("0"), Ok(Reuse(None)));
        assert_eq!(reuse("1..10k").map(|reuse| reuse.0.map(|reuse| reuse.max())), Ok(Some(10_000)));
        assert_eq!(reuse("1..20").map(|reuse| reuse.0.map(|reuse| reuse.max())), Ok(Some(20)));
        for (result, named) in [
            (sizes("3G").map(drop), "2G"),
            (sizes("5x").map(drop), "5x"),
            (sizes("400..").map(drop), "not a valid size"),
            (sizes("0").map(drop), "more than zero"),
            (sizes("-1").map(drop), "must be positive"),
            (sizes("400..-1").map(drop), "must be positive"),
            (recipients("0").map(drop), "more than zero"),
            (recipients("0..5").map(drop), "more than zero"),
            (recipients("1e2").map(drop), "write 100"),
            (reuse("-5").map(drop), "must be positive"),
            (recipients("1001").map(drop), "1000"),
            (recipients("1..many").map(drop), "many"),
            (reuse("x").map(drop), "\"x\""),
            (times("2d").map(drop), "at most a day"),
            (times("1h..48h").map(drop), "a day"),
            (times("-1s").map(drop), "must not be negative"),
            (rate("-1").map(drop), "must be positive"),
            (rate("0").map(drop), "more than zero"),
            (some_duration("-1s").map(drop), "must be positive"),
            (some_bytes("-1k").map(drop), "must be positive"),
            (sessions("1_000_001").map(drop), "at most 1000000"),
            (stage("10s").map(drop), "not a valid stage"),
            (recipient("u{1..").map(drop), "has an unpaired"),
            (recipient("127.0.0.1:25").map(drop), "the server is positional"),
            (recipient("localhost").map(drop), "the server is positional"),
            (recipient("::1").map(drop), "the server is positional"),
            (recipient("smtp://mx").map(drop), "the server is positional"),
            (sender("<a@b>").map(drop), "<a@b>"),
        ] {
            let error = result.expect_err(named);
            assert!(error.contains(named), "{error}");
        }
    }

    #[test]
    fn nonsense_is_told_apart_from_values() {
        for text in ["0", "-1", "inf", "nan", "x"] {
            assert!(rate(text).is_err(), "{text}");
        }
        for text in ["", "a\r\nNOOP", "a\nb", "a\0b", "a\u{7f}"] {
            assert!(host_name(text).is_err(), "{text:?}");
        }
        assert_eq!((host_name("mx.example").as_deref(), some_bytes("0").is_err()), (Ok("mx.example"), true));
        assert!(some("0").is_err() && some("-1").is_err());
    }
}
