//! Through the relay to the next hop: every unit once, every octet as it was, whatever the way and whatever happens on
//! it.
use crate::party::{Deaf, Process, Sink, bench, fates, low_port, numbers, source, wait_until};
use crate::relay::{Den, MAILRUN, QUICK, Relay, all_to, await_kept, await_recipients, closes, expect, introduced, kept};
use crate::relay::{mailbox, submit};
use crate::secured::{Files, PASSWORD, USER};
use std::fs;
