//! Drops the privileges that opening the socket may have needed (`-u` and `-R`).
use super::options::Settings;
use crate::stderr::StderrWriter;
use mailrun_process::reason::reason;
use nix::unistd::{self, User};
use std::ffi::CString;
use std::io;

/// Switches to the user, and to the root directory if one is given. Without a user, the root
/// directory is ignored, as in the original. The error is the text to print.
pub(super) fn drop_privileges(settings: &Settings, stderr: &StderrWriter) -> Result<(), String> {
    let Some(name) = &settings.user else { return Ok(()) };
    let unknown = || format!("unknown user: {name}");
    let user = User::from_name(name).ok().flatten().ok_or_else(unknown)?;
    let group_name = CString::new(name.as_str()).map_err(|_| unknown())?;
    describe_error(&format!("setgid({})", user.gid), unistd::setgid(user.gid))?;
    describe_error("initgroups", unistd::initgroups(&group_name, user.gid))?;
    if let Some(root) = &settings.root {
        describe_error(&format!("chroot({root})"), unistd::chroot(root.as_str()))?;
        describe_error("chdir(/)", unistd::chdir("/"))?;
    }
    describe_error(&format!("setuid({})", user.uid), unistd::setuid(user.uid))?;
    if settings.verbosity > 1 {
        stderr.print(format!("chroot {} user {name}", settings.root.as_deref().unwrap_or("(none)")));
    }
    Ok(())
}

fn describe_error(act: &str, outcome: nix::Result<()>) -> Result<(), String> {
    outcome.map_err(|error| format!("{act}: {}", reason(&io::Error::from(error))))
}
