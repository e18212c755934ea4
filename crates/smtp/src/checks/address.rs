//! Fuzz check that parses arbitrary bytes as the path of MAIL or RCPT. An accepted path must obey the length limits,
//! consist of its local part and its domain, and parse to the same path when it is put in brackets.
use crate::Path;
use crate::limits::{MAX_DOMAIN_BYTES, MAX_LOCAL_PART_BYTES, MAX_PATH_BYTES};

pub fn check(data: &[u8]) {
    if let Ok((path, rest)) = Path::parse(data) {
        assert!(data.ends_with(rest));
        assert_eq!(Path::mailbox(path.as_bytes()), Ok(path), "a path holds a mailbox");
    }
    let Ok(path) = Path::mailbox(data) else { return };
    assert_eq!(Path::checked_before(data), path, "it is divided as before");
    assert_eq!(path.as_bytes(), data);
    assert!(path.local_part().len() <= MAX_LOCAL_PART_BYTES);
    assert!(!data.iter().any(u8::is_ascii_control) && std::str::from_utf8(data).is_ok());
    match path.domain() {
        Some(domain) => {
            assert!((1..=MAX_DOMAIN_BYTES).contains(&domain.len()));
            assert_eq!([path.local_part(), b"@", domain].concat(), data);
        }
        None => assert_eq!(path.local_part(), data),
    }
    let bracketed = [b"<".as_slice(), data, b"> SIZE=1"].concat();
    assert!(data.len() + 2 <= MAX_PATH_BYTES);
    assert_eq!(Path::parse(&bracketed), Ok((path, b" SIZE=1".as_slice())));
}
