//! Help, man pages and completions, and what a user is told who typed something wrong.
pub(crate) mod completions;
#[cfg(test)]
pub(crate) mod examples;
pub(crate) mod links;
pub(crate) mod man;
pub(crate) mod misuse;
pub(crate) mod other_names;
pub(crate) mod summary;
