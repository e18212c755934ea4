//! The length of a run that shows no progress. Without it, nobody can tell a long run from a program
//! that hangs.
use mailrun_measurement::record::Workload;
use mailrun_process::live::LiveMode;
use mailrun_text::numbers::seconds;
use std::time::Duration;

/// A shorter silence is not announced.
const MIN_SILENCE: Duration = Duration::from_secs(60);

/// Tells the user on standard error how long a load takes, if nothing else would be said for a
/// minute. A closed loop with a number of messages has no length that is known before.
pub(crate) fn announce_load(live: LiveMode, load: &Workload) {
    let all_due = load.messages.zip(load.rate_per_s).map(|(messages, per_s)| messages as f64 / per_s);
    let length_s = load.duration_limit_s.into_iter().chain(all_due).reduce(f64::min);
    if let Some(length) = length_s.and_then(|length_s| Duration::try_from_secs_f64(length_s).ok()) {
        announce(live, "this run takes", length);
    }
}

/// Does the same for work with this length. `work` is the beginning of the sentence.
pub(crate) fn announce(live: LiveMode, work: &str, length: Duration) {
    if let Some(text) = announcement(live, work, length) {
        mailrun_process::tell!("mailrun: {text}");
    }
}

fn announcement(live: LiveMode, work: &str, length: Duration) -> Option<String> {
    let is_silent = live == LiveMode::Off && length >= MIN_SILENCE;
    is_silent.then(|| format!("{work} {}, and shows no progress", seconds(length.as_secs_f64())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_long_silence_is_announced() {
        let said = |live, s| announcement(live, "this run takes", Duration::from_secs(s));
        assert_eq!(said(LiveMode::Off, 300).as_deref(), Some("this run takes 5 min 00 s, and shows no progress"));
        assert_eq!(said(LiveMode::Off, 60).as_deref(), Some("this run takes 60.00 s, and shows no progress"));
        assert_eq!(said(LiveMode::Off, 59), None);
        for live in [LiveMode::Line, LiveMode::Auto, LiveMode::Json] {
            assert_eq!(said(live, 300), None, "{live:?}");
        }
    }
}
