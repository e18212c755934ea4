//! A recipe is a TOML file that describes how to run a mail server under test in a directory of its own. This module
//! knows nothing about loads or scenarios.
//!
//! ```text
//! built-in name or FILE.toml ─→ file ─→ Recipe ─→ server: checks, files, prepare ─→ ServerCommand
//!                                                 leftovers: processes of recipes whose mailrun is gone
//! ```
mod file;
pub(crate) mod leftovers;
mod server;

pub(crate) use file::{MailboxKeys, StoredRecipe};
pub use file::{Recipe, names, names_and_variants};
pub use server::{Missing, Places};
pub(crate) use server::{ServerCommand, next_hop};
