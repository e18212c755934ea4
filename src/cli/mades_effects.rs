//! Refuses options that would have no effect, each in a line that names what it needs.
use anyhow::{Result, bail};
use mailrun_journey::words::listed;

/// Refuses those that are `true`; `why` follows "has no effect".
///
/// # Errors
/// If there is one.
pub(super) fn refuse_without_effect(options: &[(&str, bool)], why: &str) -> Result<()> {
    let idle: Vec<String> =
        options.iter().filter(|(_, is_idle)| *is_idle).map(|(name, _)| (*name).to_owned()).collect();
    match idle.as_slice() {
        [] => Ok(()),
        [name] => bail!("{name} has no effect {why}"),
        names => bail!("{} have no effect {why}", listed(names)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_idle_is_named() {
        assert!(refuse_without_effect(&[("--a", false)], "without --b").is_ok());
        let said = |options: &[(&str, bool)]| refuse_without_effect(options, "without --b").unwrap_err().to_string();
        assert_eq!(said(&[("--a", true), ("--c", false)]), "--a has no effect without --b");
        assert_eq!(said(&[("--a", true), ("--c", true)]), "--a and --c have no effect without --b");
    }
}
