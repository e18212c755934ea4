//! Expands the names of dump files, which are strftime(3) templates in the C locale.
use jiff::Zoned;
use jiff::fmt::strtime::{BrokenDownTime, Config, PosixCustom};

/// Directives of glibc's strftime that the crate jiff formats in the same way. Other directives stay unchanged.
const DIRECTIVES: &str = "aAbBcCdDeFgGhHIjklmMnpPrRsStTuUVwWxXyYzZ%";
/// Flags that may be between the percent sign and the letter of a directive.
const FLAGS: &str = "_-0^#";

/// Replaces the directives in a template, such as `%Y`, with parts of `time`. A percent sign that does not begin a
/// directive stays unchanged, as in glibc.
pub(crate) fn expand(template: &str, time: &Zoned) -> String {
    let config = Config::new().custom(PosixCustom::new()).lenient(true);
    let time = BrokenDownTime::from(time);
    let mut result = String::new();
    let mut rest = template;
    while let Some(at) = rest.find('%') {
        result.push_str(&rest[..at]);
        let length = directive_length(&rest[at..]);
        let (directive, after) = rest[at..].split_at(length);
        match directive.chars().next_back() {
            Some(letter) if length > 1 && DIRECTIVES.contains(letter) => {
                // Remove the modifiers `E` and `O` of glibc, which have no effect in the C locale.
                let plain: String = directive.chars().filter(|c| !matches!(c, 'E' | 'O')).collect();
                let written = time.to_string_with_config(&config, &plain);
                result.push_str(written.as_deref().unwrap_or(directive));
            }
            _ => result.push_str(directive),
        }
        rest = after;
    }
    result.push_str(rest);
    result
}

/// Returns the length of the directive at the start of the text in bytes. A directive consists of a percent sign and a
/// letter. Flags, a width and a modifier may come between them.
fn directive_length(text: &str) -> usize {
    let is_prefix = |c: char| FLAGS.contains(c) || c.is_ascii_digit() || matches!(c, 'E' | 'O');
    let mut letters = text.char_indices().skip(1).skip_while(|(_, c)| is_prefix(*c));
    letters.next().map_or(text.len(), |(at, letter)| at + letter.len_utf8())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn time() -> Zoned {
        "2026-11-05T03:04:09+00:00[UTC]".parse().unwrap()
    }

    #[test]
    fn a_table_of_templates() {
        let rows = [
            ("dump", "dump"),
            ("", ""),
            ("%Y%m%d%H/%M.", "2026110503/04."),
            ("%e|%-d|%_H|%j|%y|%%", " 5|5| 3|309|26|%"),
            ("%a %A %b %B %h %p", "Thu Thursday Nov November Nov AM"),
            ("%D %F %T %R", "11/05/26 2026-11-05 03:04:09 03:04"),
            ("%c|%x|%X|%r", "Thu Nov  5 03:04:09 2026|11/05/26|03:04:09|03:04:09 AM"),
            ("%s %z %Z", "1793847849 +0000 UTC"),
            ("%Ey%Od", "2605"),
            ("%Q%f%i%é", "%Q%f%i%é"),
            ("100%", "100%"),
        ];
        for (template, expected) in rows {
            assert_eq!(expand(template, &time()), expected, "{template}");
        }
    }

    proptest! {
        #[test]
        fn any_template_expands(template in "[%a-zA-Z0-9_./é-]{0,12}") {
            crate::checks::dump_name::check(template.as_bytes());
        }
    }
}
