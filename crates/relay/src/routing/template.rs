//! Maildir paths with placeholders for user and domain, such as `/var/mail/{domain}/{user}`. No
//! address can lead to a path outside of the pattern, because names such as `..` are refused.
use std::path::{Component, Path, PathBuf};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MaildirTemplate(Vec<PathSegment>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum PathSegment {
    Text(String),
    User,
    Domain,
}

impl MaildirTemplate {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("\"\" is not a valid path; use something like \"/var/mail/{domain}/{user}\"".to_owned());
        }
        let mut pieces = Vec::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('{') {
            let (name, after) = after.split_once('}').ok_or_else(|| format!("{text:?}: a {{ without its }}"))?;
            pieces.push(PathSegment::Text(before.to_owned()));
            pieces.push(match name {
                "user" => PathSegment::User,
                "domain" => PathSegment::Domain,
                _ => return Err(format!("{text:?}: {{{name}}} is unknown; there are {{user}} and {{domain}}")),
            });
            rest = after;
        }
        pieces.push(PathSegment::Text(rest.to_owned()));
        Ok(Self(pieces))
    }

    /// Resolves a relative path against `directory`. An absolute path stays unchanged.
    pub(crate) fn below(mut self, directory: &Path) -> Self {
        if let Some(PathSegment::Text(first)) = self.0.first_mut() {
            *first = directory.join(&*first).to_string_lossy().into_owned();
        }
        self
    }

    /// Returns true if the path contains the placeholder `{user}`. The configuration must then list the mailboxes,
    /// because otherwise mail to any address would create a directory.
    pub(crate) fn names_users(&self) -> bool {
        self.0.contains(&PathSegment::User)
    }

    /// Returns the path of the Maildir of a user in a domain. The caller must pass the user without quotes and in lower
    /// case, and the domain in the form of [`mailrun_smtp::Domain`]. Returns `None` if the user or the domain would
    /// change the structure of the path, for example because it contains a slash.
    pub(crate) fn fill(&self, user: &str, domain: &str) -> Option<PathBuf> {
        let mut path = String::new();
        for piece in &self.0 {
            path.push_str(match piece {
                PathSegment::Text(text) => text,
                PathSegment::User => safe_component(user)?,
                PathSegment::Domain => safe_component(domain)?,
            });
        }
        Some(path.into())
    }
}

/// Returns the name if it can safely be a component of a path. Returns `None` for `..`, for hidden files, and for names
/// with slashes, backslashes or control characters.
fn safe_component(name: &str) -> Option<&str> {
    let is_one =
        matches!(Path::new(name).components().collect::<Vec<_>>()[..], [Component::Normal(only)] if only == name);
    let has_control = name.chars().any(char::is_control);
    (is_one && !name.contains(['/', '\\']) && !name.starts_with('.') && !has_control).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn blanks_are_filled() {
        let template = MaildirTemplate::parse("/var/mail/{domain}/{user}/Maildir").unwrap();
        assert_eq!(template.fill("ann", "a.example"), Some("/var/mail/a.example/ann/Maildir".into()));
        assert!(template.names_users());
        let one = MaildirTemplate::parse("all").unwrap().below(Path::new("/srv"));
        assert_eq!((one.fill("..", "/"), one.names_users()), (Some("/srv/all".into()), false));
        assert_eq!(
            MaildirTemplate::parse("{user}").unwrap().below(Path::new("/srv")).fill("a", "b"),
            Some("/srv/a".into())
        );
        assert_eq!(
            MaildirTemplate::parse("/x/{user}").unwrap().below(Path::new("/srv")).fill("a", "b"),
            Some("/x/a".into())
        );
    }

    #[test]
    fn what_is_no_template_is_refused() {
        for (text, named) in [("", "not a valid path"), ("/{user", "without its"), ("/{name}", "{name} is unknown")] {
            let error = MaildirTemplate::parse(text).unwrap_err();
            assert!(error.contains(named), "{error}");
        }
    }

    #[test]
    fn no_name_leads_out() {
        let template = MaildirTemplate::parse("/var/mail/{domain}/{user}").unwrap();
        for (user, domain) in [
            ("..", "a"),
            (".", "a"),
            ("", "a"),
            ("a/../../etc", "a"),
            ("/etc/passwd", "a"),
            ("a/", "a"),
            (".hidden", "a"),
            ("a\0b", "a"),
            ("a", "[../..]"),
            ("a", ".."),
        ] {
            assert_eq!(template.fill(user, domain), None, "{user:?} at {domain:?}");
        }
    }

    proptest! {
        #[test]
        fn a_filled_path_is_always_two_below(user in "[ -~/.]{0,12}", domain in "[ -~/.]{0,12}") {
            let filled = MaildirTemplate::parse("/m/{domain}/{user}").unwrap().fill(&user, &domain);
            if let Some(path) = filled {
                let components: Vec<_> = path.components().skip(1).collect();
                prop_assert_eq!(components.len(), 3);
                prop_assert!(components.iter().all(|component| matches!(component, Component::Normal(_))));
            }
        }
    }
}
