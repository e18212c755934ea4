//! Sessions that receive mail like Postfix's smtpd(8), with their logins, limits and certificates.
pub(crate) mod certificates;
pub(crate) mod login;
pub(crate) mod login_limits;
pub(crate) mod memory_budget;
pub(crate) mod session;
