//! Checks that load goes only to permitted addresses.
use mailrun_process::local_address;
use std::net::IpAddr;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PublicTargets {
    Allowed,
    Refused,
}

impl PublicTargets {
    /// Reads the same environment variable as `mailrun source`.
    pub(super) fn from_environment() -> Self {
        let value = std::env::var("MAILRUN_ALLOW_PUBLIC").unwrap_or_default();
        let is_no = ["", "0", "n", "no", "f", "false", "off"].contains(&value.to_ascii_lowercase().as_str());
        if is_no { Self::Refused } else { Self::Allowed }
    }

    /// Checks that load may be sent to this address. Otherwise returns advice that calls the
    /// address `named`.
    pub(super) fn check(self, address: IpAddr, named: impl std::fmt::Display) -> Result<(), String> {
        if self == Self::Allowed || local_address::is_local_address(address) {
            return Ok(());
        }
        Err(format!(
            "{named}: public address: only loopback and private addresses are allowed; if the server is yours, set \
             MAILRUN_ALLOW_PUBLIC=1"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn public_addresses_are_refused_unless_allowed() {
        let check = |public: PublicTargets, address: &str| public.check(address.parse().unwrap(), "h:25");
        let refused = check(PublicTargets::Refused, "8.8.8.8").unwrap_err();
        assert!(
            refused.starts_with("h:25: public address") && refused.ends_with("set MAILRUN_ALLOW_PUBLIC=1"),
            "{refused}"
        );
        assert_eq!(check(PublicTargets::Allowed, "8.8.8.8"), Ok(()));
        assert_eq!(check(PublicTargets::Refused, "127.0.0.1"), Ok(()));
    }
}
