//! Fuzz check that parses arbitrary bytes as a PROXY protocol header. The result must be the same whether the bytes
//! arrive at once or one by one. An accepted header must keep its meaning when it is written and parsed again.
use crate::proxy::{self, MAX_V1_BYTES, MAX_V2_BYTES, ProxyHeader, parse, render_v1, render_v2};

pub fn check(data: &[u8]) {
    let whole = parse(data);
    let grown = (0..=data.len().min(MAX_V2_BYTES + 1)).map(|length| parse(&data[..length]));
    let first = grown.into_iter().find(|outcome| *outcome != Ok(None)).unwrap_or(Ok(None));
    assert_eq!(first, whole, "decided at the same octet, whatever follows");
    let Ok(Some((header, length))) = whole else { return };
    assert!(length <= data.len() && length <= MAX_V2_BYTES);
    assert_eq!(parse(&data[..length]), whole);
    assert_eq!(
        proxy::length(&data[..data.len().min(MAX_V1_BYTES)]),
        Ok(Some(length)),
        "the first bytes tell the length"
    );
    let v2 = render_v2(&header);
    assert_eq!(parse(&v2), Ok(Some((header, v2.len()))));
    let v1 = render_v1(&header);
    let expected = if header == ProxyHeader::Unix { ProxyHeader::Local } else { header };
    assert_eq!(parse(v1.as_bytes()), Ok(Some((expected, v1.len()))));
}
