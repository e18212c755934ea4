//! Formats the subject as Go's `Printf` does. The only argument of the format is an integer, the number of the message.
//! It can be used in many ways: `%d`, `%05d`, `%#x`, `%[1]*d` and so on.

/// Largest width and precision that Go accepts in a format.
const MAX_WIDTH: i64 = 1_000_000;
/// Text that Go appends if the format did not use its argument. This program cuts the text off, as go-smtp-source does.
const EXTRA_ARGUMENT: &str = "%!(EXTRA";

/// Inserts the number of a message into the user's format for the subject, as Go's `Printf` does.
pub(crate) fn subject(format: &str, number: i64) -> Vec<u8> {
    let mut printer =
        SubjectFormatter { rest: format.as_bytes(), out: Vec::new(), number, is_used: false, is_reordered: false };
    while printer.literal() {
        let spec = printer.spec();
        printer.verb(spec);
    }
    let mut out = printer.out;
    if let Some(end) = memchr::memmem::find(&out, EXTRA_ARGUMENT.as_bytes()) {
        out.truncate(end);
    }
    out
}

#[derive(Clone, Copy, Debug, Default)]
struct FormatSpec {
    is_sharp: bool,
    has_zeros: bool,
    has_plus: bool,
    is_left: bool,
    has_space: bool,
    width: Option<usize>,
    precision: Option<usize>,
    /// Set if an index such as `[2]` names no argument or is in the wrong place.
    is_misplaced: bool,
}

struct SubjectFormatter<'f> {
    rest: &'f [u8],
    out: Vec<u8>,
    number: i64,
    /// Set when a verb such as `%d`, or a `*`, has consumed the only argument, the number. Later verbs print
    /// `%!d(MISSING)`, unless the index `[1]` selects the number again.
    is_used: bool,
    /// Set when the format contains an index of an argument, such as `[1]`. Go then does not report an unused argument.
    is_reordered: bool,
}

impl<'f> SubjectFormatter<'f> {
    fn literal(&mut self) -> bool {
        let Some(at) = memchr::memchr(b'%', self.rest) else {
            self.out.extend_from_slice(self.rest);
            self.rest = &[];
            if !self.is_used && !self.is_reordered {
                self.out.extend_from_slice(EXTRA_ARGUMENT.as_bytes());
            }
            return false;
        };
        self.out.extend_from_slice(&self.rest[..at]);
        self.rest = &self.rest[at + 1..];
        true
    }

    fn spec(&mut self) -> FormatSpec {
        let mut spec = self.flags();
        let mut is_indexed = self.index(&mut spec);
        if self.skip(b'*') {
            let width = self.take_argument();
            if width.is_none() {
                self.out.extend_from_slice(b"%!(BADWIDTH)");
            }
            spec.is_left |= width.is_some_and(i64::is_negative);
            spec.width = width.map(|width| width.unsigned_abs() as usize);
            is_indexed = false;
        } else {
            spec.width = self.decimal();
            spec.is_misplaced |= is_indexed && spec.width.is_some();
        }
        if self.skip(b'.') {
            spec.is_misplaced |= is_indexed;
            is_indexed = self.index(&mut spec);
            if self.skip(b'*') {
                spec.precision = self.take_argument().and_then(|precision| usize::try_from(precision).ok());
                if spec.precision.is_none() {
                    self.out.extend_from_slice(b"%!(BADPREC)");
                }
                is_indexed = false;
            } else {
                spec.precision = self.decimal().or(Some(0));
            }
        }
        if !is_indexed {
            self.index(&mut spec);
        }
        spec
    }

    fn flags(&mut self) -> FormatSpec {
        let mut spec = FormatSpec::default();
        while let Some((&flag, rest)) = self.rest.split_first() {
            match flag {
                b'#' => spec.is_sharp = true,
                b'0' => spec.has_zeros = true,
                b'+' => spec.has_plus = true,
                b'-' => spec.is_left = true,
                b' ' => spec.has_space = true,
                _ => break,
            }
            self.rest = rest;
        }
        spec
    }

    fn skip(&mut self, octet: u8) -> bool {
        let rest = self.rest.strip_prefix(&[octet]);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn take_argument(&mut self) -> Option<i64> {
        let is_there = !std::mem::replace(&mut self.is_used, true);
        Some(self.number).filter(|number| is_there && number.unsigned_abs() <= MAX_WIDTH.unsigned_abs())
    }

    /// Reads a decimal number, if the rest of the format starts with one. If the number is too large, the rest of the
    /// format is skipped, as in Go.
    fn decimal(&mut self) -> Option<usize> {
        let (number, used) = decimal(self.rest);
        self.rest = &self.rest[used..];
        number
    }

    /// Reads an index such as `[1]`. Returns true if the index is well-formed.
    fn index(&mut self, spec: &mut FormatSpec) -> bool {
        if self.rest.first() != Some(&b'[') {
            return false;
        }
        self.is_reordered = true;
        let end = if self.rest.len() < 3 { None } else { memchr::memchr(b']', self.rest) };
        let Some(end) = end else {
            self.rest = &self.rest[1..];
            spec.is_misplaced = true;
            return false;
        };
        let inside = &self.rest[1..end];
        self.rest = &self.rest[end + 1..];
        match decimal(inside) {
            (Some(number), used) if used == inside.len() => {
                self.is_used &= number != 1;
                spec.is_misplaced |= number != 1;
                true
            }
            _ => {
                spec.is_misplaced = true;
                false
            }
        }
    }

    fn verb(&mut self, spec: FormatSpec) {
        let text = String::from_utf8_lossy(self.rest);
        let Some(verb) = text.chars().next() else {
            self.out.extend_from_slice(b"%!(NOVERB)");
            return;
        };
        self.rest = &self.rest[verb.len_utf8()..];
        let printed = match verb {
            '%' => "%".to_owned(),
            _ if spec.is_misplaced => format!("%!{verb}(BADINDEX)"),
            _ if self.is_used => format!("%!{verb}(MISSING)"),
            _ => {
                self.is_used = true;
                spec.print(verb, self.number)
            }
        };
        self.out.extend_from_slice(printed.as_bytes());
    }
}

/// Returns the number at the start of the text, and the number of bytes that it takes up.
fn decimal(text: &[u8]) -> (Option<usize>, usize) {
    let mut number = 0;
    for (at, digit) in text.iter().enumerate() {
        if !digit.is_ascii_digit() {
            return (Some(number).filter(|_| at > 0).map(|number: i64| number.unsigned_abs() as usize), at);
        }
        if number > MAX_WIDTH {
            return (None, text.len());
        }
        number = number * 10 + i64::from(digit - b'0');
    }
    (Some(number).filter(|_| !text.is_empty()).map(|number| number.unsigned_abs() as usize), text.len())
}

impl FormatSpec {
    fn print(self, verb: char, number: i64) -> String {
        match verb {
            // Drop `+` and `#`, because with `%+v` and `%#v` Go prints an integer without a plus sign or a prefix.
            'v' => Self { is_sharp: false, has_plus: false, ..self }.integer('d', number),
            'd' | 'b' | 'o' | 'O' | 'x' | 'X' => self.integer(verb, number),
            'c' => self.padded(character(number).to_string()),
            'q' => self.padded(self.quoted(character(number))),
            'U' => self.unicode(number),
            'T' => self.padded("int".chars().take(self.precision.unwrap_or(usize::MAX)).collect()),
            _ => format!("%!{verb}(int={})", self.integer('d', number)),
        }
    }

    fn integer(self, verb: char, number: i64) -> String {
        let size = number.unsigned_abs();
        let sign = match number {
            ..0 => "-",
            _ if self.has_plus => "+",
            _ if self.has_space => " ",
            _ => "",
        };
        let min_digits = match (self.precision, self.width) {
            (Some(0), _) if number == 0 => return Self { has_zeros: false, ..self }.padded(String::new()),
            (Some(precision), _) => precision,
            (None, Some(width)) if self.has_zeros && !self.is_left => width.saturating_sub(sign.len()),
            _ => 0,
        };
        let digits = match verb {
            'b' => format!("{size:b}"),
            'o' | 'O' => format!("{size:o}"),
            'x' => format!("{size:x}"),
            'X' => format!("{size:X}"),
            _ => size.to_string(),
        };
        let zeros = "0".repeat(min_digits.saturating_sub(digits.len()));
        let prefix = match verb {
            'b' if self.is_sharp => "0b",
            'O' if self.is_sharp && !zeros.starts_with('0') => "0o0",
            'O' => "0o",
            'o' if self.is_sharp && zeros.is_empty() && !digits.starts_with('0') => "0",
            'x' if self.is_sharp => "0x",
            'X' if self.is_sharp => "0X",
            _ => "",
        };
        Self { has_zeros: false, ..self }.padded(format!("{sign}{prefix}{zeros}{digits}"))
    }

    fn padded(self, text: String) -> String {
        let padding = self.width.unwrap_or(0).saturating_sub(text.chars().count());
        match (self.is_left, self.has_zeros) {
            (true, _) => text + &" ".repeat(padding),
            (false, true) => "0".repeat(padding) + &text,
            (false, false) => " ".repeat(padding) + &text,
        }
    }

    /// Formats a character in single quotes. With the flag `+`, every non-ASCII character is escaped.
    fn quoted(self, c: char) -> String {
        let mut out = String::from('\'');
        match u32::from(c) {
            number @ 0x80..=0xffff if self.has_plus => out.push_str(&format!("\\u{number:04x}")),
            number @ 0x10000.. if self.has_plus => out.push_str(&format!("\\U{number:08x}")),
            _ => crate::go::flags::quote(c, '\'', &mut out),
        }
        out + "'"
    }

    fn unicode(self, number: i64) -> String {
        let digits = self.precision.unwrap_or(0).max(4);
        let shown = character(number);
        let is_shown = self.is_sharp && (shown.escape_debug().len() == 1 || "'\"\\".contains(shown));
        let picture = if is_shown { format!(" '{shown}'") } else { String::new() };
        Self { has_zeros: false, ..self }.padded(format!("U+{number:0digits$X}{picture}"))
    }
}

fn character(number: i64) -> char {
    u32::try_from(number).ok().and_then(char::from_u32).unwrap_or(char::REPLACEMENT_CHARACTER)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn formats_as_go_prints_them() {
        let rows = [
            ("plain", 1, "plain"),
            ("%d", 12, "12"),
            ("no %d of all", 3, "no 3 of all"),
            ("100%% %d", 1, "100% 1"),
            ("100%%", 1, "100%"),
            ("%5d|", 12, "   12|"),
            ("%-5d|", 12, "12   |"),
            ("%05d|", 12, "00012|"),
            ("%+d", 7, "+7"),
            ("% d", 7, " 7"),
            ("%.4d", 7, "0007"),
            ("%8.4d|", 7, "    0007|"),
            ("%x %X", 255, "ff %!X(MISSING)"),
            ("%#x", 255, "0xff"),
            ("%#o", 8, "010"),
            ("%O", 8, "0o10"),
            ("%b", 5, "101"),
            ("%c", 65, "A"),
            ("%q", 65, "'A'"),
            ("%q", 10, r"'\n'"),
            ("%U", 65, "U+0041"),
            ("%#U", 65, "U+0041 'A'"),
            ("%v", 9, "9"),
            ("%T", 9, "int"),
            ("%s", 9, "%!s(int=9)"),
            ("%f", 9, "%!f(int=9)"),
            ("%z", 9, "%!z(int=9)"),
            ("%é", 9, "%!é(int=9)"),
            ("%", 9, "%!(NOVERB)"),
            ("%d %d", 9, "9 %!d(MISSING)"),
            ("%[1]d %[1]d", 9, "9 9"),
            ("%[2]d", 9, "%!d(BADINDEX)"),
            ("%[x]d", 9, "%!d(BADINDEX)"),
            ("%[1]*d", 3, "%!d(MISSING)"),
            ("%[1]*[1]d", 3, "  3"),
            ("%*d", 3, "%!d(MISSING)"),
            ("%*[1]d|", 3, "  3|"),
        ];
        for (format, number, expected) in rows {
            assert_eq!(String::from_utf8(subject(format, number)).unwrap(), expected, "{format}");
        }
    }

    proptest! {
        #[test]
        fn any_format_is_printed(format in "[%a-zA-Z0-9 #+.*\\[\\]é-]{0,12}", number in 1i64..2000) {
            prop_assert!(!String::from_utf8(subject(&format, number)).unwrap().contains(EXTRA_ARGUMENT));
            crate::checks::go_subject::check(&[&number.to_le_bytes(), format.as_bytes()].concat());
        }
    }
}
