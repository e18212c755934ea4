//! Sessions that receive mail, and who is let in: Postfix's smtpd(8).
pub(crate) mod certificates;
pub(crate) mod login;
pub(crate) mod login_limits;
pub(crate) mod memory_budget;
pub(crate) mod session;
