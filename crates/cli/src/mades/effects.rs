//! Refuses options that would have no effect. The error names them and says what they need.
use anyhow::{Result, bail};
use mailrun_process::party_options::PartyOptions;
use mailrun_text::words::listed;

/// Fails if an option is marked `true`. In the error, `reason` follows "has no effect".
pub(crate) fn refuse_without_effect(options: &[(&str, bool)], reason: &str) -> Result<()> {
    refuse(options.iter().filter(|(_, is_idle)| *is_idle).map(|(name, _)| (*name).to_owned()), reason)
}

/// Fails if there are options. In the error, `reason` follows "has no effect".
pub(crate) fn refuse_all(options: &PartyOptions, reason: &str) -> Result<()> {
    refuse(options.names().map(|name| format!("--{name}")), reason)
}

fn refuse(idle: impl Iterator<Item = String>, reason: &str) -> Result<()> {
    match idle.collect::<Vec<String>>().as_slice() {
        [] => Ok(()),
        [name] => bail!("{name} has no effect {reason}"),
        names => bail!("{} have no effect {reason}", listed(names)),
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
