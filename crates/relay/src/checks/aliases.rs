//! Checks the parser of alias files with arbitrary text, for fuzz targets and property tests. The parser must either
//! report mistakes at positions within the text, or return aliases that each expand to at most 1,000 targets.
use crate::routing::aliases::{AliasContext, AliasTarget, Aliases, normalize_local_part};
use mailrun_smtp::Domain;

pub fn check(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let is_local = |domain: &Domain<'_>| domain.ends_with('a');
    let around = AliasContext { is_local: &is_local, is_user: &|name| name.len() < 4 };
    let aliases = match Aliases::parse(text, &around) {
        Ok(aliases) => aliases,
        Err(mistakes) => {
            assert!(!mistakes.is_empty());
            for mistake in mistakes {
                let line = text.lines().nth(mistake.line - 1).expect("it is a line of the text");
                assert!((1..=line.chars().count() + 1).contains(&mistake.column));
            }
            return;
        }
    };
    // Split at all characters that delimit aliases, so that every alias of the file is among the names to expand.
    for name in text.split([':', '\n', '@']).map(str::trim) {
        let _ = normalize_local_part(name);
        let Some(meant) = aliases.expand(name, &Domain::new("a")) else { continue };
        assert!((1..=1000).contains(&meant.len()));
        for one in meant {
            if let AliasTarget::Remote(address) = one {
                let path = mailrun_smtp::Path::mailbox(address.as_bytes()).expect("an address can be sent to");
                let domain = Domain::new(path.domain().expect("it is somewhere"));
                assert!(!domain.ends_with('a'), "{address} is local");
            }
        }
    }
}
