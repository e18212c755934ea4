//! The command line of a personality.

/// Command line of a personality. `program` is the word before the arguments, as its messages
/// repeat it.
#[derive(Debug)]
pub(crate) struct Invocation {
    pub(crate) program: String,
    pub(crate) arguments: Vec<String>,
}
