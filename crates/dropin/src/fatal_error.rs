/// An error that ends a program with status 1.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct FatalError(pub(crate) String);
