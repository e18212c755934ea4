//! Sessions that receive mail, and the decision who may use them, like Postfix's smtpd(8).
pub(crate) mod certificates;
pub(crate) mod login;
pub(crate) mod login_limits;
pub(crate) mod memory_budget;
pub(crate) mod session;
