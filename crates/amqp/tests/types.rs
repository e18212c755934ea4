//! Tests all encodings of the primitive types of AMQP 1.0 (OASIS amqp-core-types-v1.0-os §1.6), and
//! the compound and described examples of §1.1 and §1.5.
//!
//! The bytes come from the tables of the specification, and not from our own writer. Types that
//! mailrun does not use (floating point, decimals, characters) are skipped, and the value after
//! them is read.
#![allow(clippy::unwrap_used, reason = "a test may")]
use mailrun_amqp::{Reader, Scalar};

fn filler(width: usize) -> Vec<u8> {
    (1..=width as u8).collect()
}

/// Asserts that the bytes are read as one value, whether or not another value follows, and that reading fails if the
/// end of the bytes is missing.
fn assert_length(octets: &[u8]) {
    let mut reader = Reader::new(octets);
    assert_eq!(reader.value().unwrap().octets(), octets, "{octets:x?}");
    assert!(reader.rest().is_empty(), "{octets:x?}");
    let followed = [octets, &[0x41]].concat();
    let mut reader = Reader::new(&followed);
    reader.value().unwrap();
    assert_eq!(reader.value().unwrap().as_bool(), Some(true), "{octets:x?}");
    for cut in 0..octets.len() {
        assert!(Reader::new(&octets[..cut]).value().is_err(), "{octets:x?} without its end");
    }
}

/// All format codes of §1.6 with values, in the order of the specification. `Other` marks types that mailrun does not
/// use.
const SCALARS: &[(&[u8], Scalar<'_>)] = &[
    // These are the types null (§1.6.1) and boolean (§1.6.2).
    (&[0x40], Scalar::Null),
    (&[0x56, 0x00], Scalar::Boolean(false)),
    (&[0x56, 0x01], Scalar::Boolean(true)),
    (&[0x41], Scalar::Boolean(true)),
    (&[0x42], Scalar::Boolean(false)),
    // These are the types from ubyte (§1.6.3) to ulong (§1.6.6).
    (&[0x50, 0xff], Scalar::Ubyte(255)),
    (&[0x60, 0xff, 0xff], Scalar::Other),
    (&[0x70, 0xff, 0xff, 0xff, 0xff], Scalar::Uint(u32::MAX)),
    (&[0x52, 0xff], Scalar::Uint(255)),
    (&[0x43], Scalar::Uint(0)),
    (&[0x80, 0x12, 0x34, 0x56, 0x78, 0x9a, 0xbc, 0xde, 0xf0], Scalar::Ulong(0x1234_5678_9abc_def0)),
    (&[0x53, 0xff], Scalar::Ulong(255)),
    (&[0x44], Scalar::Ulong(0)),
    // These are the types from byte (§1.6.7) to long (§1.6.10).
    (&[0x51, 0x80], Scalar::Other),
    (&[0x61, 0x80, 0x00], Scalar::Other),
    (&[0x71, 0xff, 0xff, 0xff, 0xfe], Scalar::Int(-2)),
    (&[0x54, 0x80], Scalar::Int(-128)),
    (&[0x81, 0x80, 0, 0, 0, 0, 0, 0, 0], Scalar::Long(i64::MIN)),
    (&[0x55, 0x7f], Scalar::Long(127)),
    // These are the types from float (§1.6.11) to char (§1.6.16).
    (&[0x72, 0x3f, 0x80, 0x00, 0x00], Scalar::Other),
    (&[0x82, 0x3f, 0xf0, 0, 0, 0, 0, 0, 0], Scalar::Other),
    (&[0x74, 0x22, 0x50, 0x00, 0x01], Scalar::Other),
    (&[0x84, 0x22, 0x34, 0, 0, 0, 0, 0, 1], Scalar::Other),
    (&[0x94, 0x22, 0x07, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1], Scalar::Other),
    (&[0x73, 0x00, 0x01, 0xf6, 0x00], Scalar::Other),
    // These are the types timestamp (§1.6.17) and uuid (§1.6.18), with the values 2011-07-26T18:21:03.521Z and
    // f81d4fae-7dec-11d0-a765-00a0c91e6bf6.
    (&[0x83, 0x00, 0x00, 0x01, 0x31, 0x67, 0xed, 0x5f, 0x41], Scalar::Timestamp(0x0131_67ed_5f41)),
    (
        &[0x98, 0xf8, 0x1d, 0x4f, 0xae, 0x7d, 0xec, 0x11, 0xd0, 0xa7, 0x65, 0x00, 0xa0, 0xc9, 0x1e, 0x6b, 0xf6],
        Scalar::Uuid([0xf8, 0x1d, 0x4f, 0xae, 0x7d, 0xec, 0x11, 0xd0, 0xa7, 0x65, 0x00, 0xa0, 0xc9, 0x1e, 0x6b, 0xf6]),
    ),
    // These are the types from binary (§1.6.19) to symbol (§1.6.21).
    (&[0xa0, 0x02, 0x00, 0xff], Scalar::Binary(&[0x00, 0xff])),
    (&[0xb0, 0, 0, 0, 2, 0x00, 0xff], Scalar::Binary(&[0x00, 0xff])),
    (b"\xa1\x1eHello Glorious Messaging World", Scalar::String("Hello Glorious Messaging World")),
    (b"\xb1\x00\x00\x00\x1eHello Glorious Messaging World", Scalar::String("Hello Glorious Messaging World")),
    (b"\xa3\x04amqp", Scalar::Symbol("amqp")),
    (b"\xb3\x00\x00\x00\x04amqp", Scalar::Symbol("amqp")),
];

#[test]
fn every_primitive_encoding_has_its_value_and_its_length() {
    for (octets, expected) in SCALARS {
        assert_eq!(Reader::new(octets).value().unwrap().as_scalar(), Some(*expected), "{octets:x?}");
        assert_length(octets);
    }
}

#[test]
fn every_width_of_a_format_code_is_known_from_its_high_half() {
    // The upper half of a format code (its subcategory) determines the length of the value (§1.2). This is so even for
    // codes to which the specification assigns no type.
    for (high, width) in [(0x4_u8, 0), (0x5, 1), (0x6, 2), (0x7, 4), (0x8, 8), (0x9, 16)] {
        for low in 0..16 {
            assert_length(&[&[high << 4 | low][..], &filler(width)].concat());
        }
    }
    for high in [0x0_u8, 0x1, 0x2, 0x3] {
        for low in u8::from(high == 0)..16 {
            assert!(Reader::new(&[high << 4 | low, 0, 0, 0, 0, 0]).value().is_err(), "{high:x}{low:x}");
        }
    }
}

#[test]
fn lists_maps_and_arrays_have_their_elements_in_each_width() {
    // A list has the encodings list0, list8 and list32 (§1.6.22).
    let lists: [&[u8]; 3] =
        [&[0x45], &[0xc0, 0x04, 0x02, 0x52, 0x07, 0x41], &[0xd0, 0, 0, 0, 0x07, 0, 0, 0, 0x02, 0x52, 0x07, 0x41]];
    for (octets, expected) in lists.into_iter().zip([&[][..], &[Some(7), None], &[Some(7), None]]) {
        assert_length(octets);
        let mut elements = Reader::new(octets).value().unwrap().as_list().unwrap();
        for number in expected {
            assert_eq!(elements.element().unwrap().unwrap().as_number(), *number, "{octets:x?}");
        }
        assert_eq!(elements.element().unwrap(), None, "{octets:x?}");
    }
    // A map has the encodings map8 and map32 (§1.6.23). Its count includes both keys and values.
    let maps: [&[u8]; 2] = [b"\xc1\x06\x02\xa3\x01k\x52\x01", b"\xd1\x00\x00\x00\x09\x00\x00\x00\x02\xa3\x01k\x52\x01"];
    for octets in maps {
        assert_length(octets);
        let mut elements = Reader::new(octets).value().unwrap().as_map().unwrap();
        assert_eq!(elements.element().unwrap().unwrap().as_text(), Some("k"));
        assert_eq!(elements.number(), Ok(Some(1)));
        assert_eq!(elements.element(), Ok(None));
    }
    // An array has the encodings array8 and array32 (§1.6.24). All its elements share one constructor.
    let arrays: [&[u8]; 2] =
        [b"\xe0\x06\x02\xa3\x01a\x01b", b"\xf0\x00\x00\x00\x0f\x00\x00\x00\x02\xb3\x00\x00\x00\x01a\x00\x00\x00\x01b"];
    for octets in arrays {
        assert_length(octets);
        assert_eq!(Reader::new(octets).value().unwrap().as_symbols(), Some(vec!["a", "b"]), "{octets:x?}");
    }
}

#[test]
fn described_types_have_their_descriptor_and_their_value() {
    // A described type consists of a descriptor and a value of any type (§1.3.4 and figure 1.4).
    let url = b"\x00\xa3\x03URL\xa1\x1ehttp://example.org/hello-world";
    assert_length(url);
    let value = Reader::new(url).value().unwrap();
    assert_eq!((value.descriptor(), value.as_string()), (None, Some("http://example.org/hello-world")));
    // A composite type is a described list (§1.5 and figure 1.17). Its descriptor may be a number or a symbol.
    let book = b"\x00\xa3\x11amqp:accepted:list\xc0\x01\x00";
    assert!(Reader::new(book).value().is_err(), "a symbol of 18 octets that says 17");
    for octets in
        [&b"\x00\xa3\x12amqp:accepted:list\x45"[..], b"\x00\x53\x24\x45", b"\x00\x80\0\0\0\0\0\0\0\x24\xc0\x01\x00"]
    {
        assert_length(octets);
        let value = Reader::new(octets).value().unwrap();
        assert_eq!(value.descriptor(), Some(0x24), "{octets:x?}");
        assert_eq!(value.as_list().unwrap().element(), Ok(None), "{octets:x?}");
    }
}
