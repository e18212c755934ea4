//! Parses command lines as getopt(3) does if its list of letters begins with `+`: the first word that is not an option
//! ends the options. Letters may be joined (`-ab`), and an argument may directly follow its letter (`-l10`).

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Arguments {
    pub(super) options: Vec<(char, Option<String>)>,
    pub(super) rest: Vec<String>,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum BadOption {
    #[error("invalid option -- '{0}'")]
    Unknown(char),
    #[error("option requires an argument -- '{0}'")]
    NeedsArgument(char),
}

/// Parses `words` with the options in `letters`, where a colon follows each letter that takes an argument. Stops at the
/// first bad option, and returns it together with the options before it. The caller needs them all, because Postfix's
/// programs act on each option as they read it, and may print something before they reach the bad one.
pub(super) fn parse_until_error(letters: &str, words: &[String]) -> (Arguments, Option<BadOption>) {
    let mut arguments = Arguments::default();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match word.strip_prefix('-') {
            Some("-") => break,
            Some(cluster) if !cluster.is_empty() => {
                if let Err(error) = read_cluster(letters, cluster, &mut words, &mut arguments) {
                    return (arguments, Some(error));
                }
            }
            _ => {
                arguments.rest.push(word.clone());
                break;
            }
        }
    }
    arguments.rest.extend(words.cloned());
    (arguments, None)
}

fn read_cluster<'w>(
    letters: &str,
    cluster: &str,
    words: &mut impl Iterator<Item = &'w String>,
    arguments: &mut Arguments,
) -> Result<(), BadOption> {
    for (at, letter) in cluster.char_indices() {
        let known = letters.find(letter).filter(|_| letter != ':').ok_or(BadOption::Unknown(letter))?;
        if !letters[known + letter.len_utf8()..].starts_with(':') {
            arguments.options.push((letter, None));
            continue;
        }
        let joined = &cluster[at + letter.len_utf8()..];
        let argument = if joined.is_empty() { words.next().cloned() } else { Some(joined.to_owned()) };
        arguments.options.push((letter, Some(argument.ok_or(BadOption::NeedsArgument(letter))?)));
        break;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(words: &[&str]) -> Result<Arguments, BadOption> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        let (arguments, bad) = parse_until_error("ab:c", &words);
        bad.map_or(Ok(arguments), Err)
    }

    #[test]
    fn clusters_joined_arguments_and_the_end_of_options() {
        let expected = Arguments {
            options: vec![('a', None), ('c', None), ('b', Some("x".to_owned())), ('b', Some("-y".to_owned()))],
            rest: vec!["host".to_owned(), "-a".to_owned()],
        };
        assert_eq!(read(&["-ac", "-bx", "-b", "-y", "host", "-a"]), Ok(expected));
        assert_eq!(read(&["--", "-a"]).unwrap().rest, ["-a"]);
        assert_eq!(read(&["-", "-a"]).unwrap().rest, ["-", "-a"]);
    }

    #[test]
    fn complaints_are_getopts() {
        assert_eq!(read(&["-x"]).unwrap_err().to_string(), "invalid option -- 'x'");
        assert_eq!(read(&["-ab"]).unwrap_err().to_string(), "option requires an argument -- 'b'");
        assert_eq!(read(&["-:"]), Err(BadOption::Unknown(':')));
        let words = ["-a", "-cx", "-b", "-y"].map(str::to_owned);
        let (before, bad) = parse_until_error("ab:c", &words);
        assert_eq!((before.options, bad), (vec![('a', None), ('c', None)], Some(BadOption::Unknown('x'))));
    }
}
