//! Normalises server names, so that names from a master can be compared.

/// The port if none is given.
const DEFAULT_PORT: &str = "25";

/// A server's name in lower case with its port: `smtp://Mail.Example/` becomes `mail.example:25`. Other schemes are
/// kept.
pub fn canonical_target(name: &str) -> String {
    let name = name.trim().trim_end_matches('/');
    if name.starts_with("unix:") {
        return name.to_owned();
    }
    let name = name.to_ascii_lowercase();
    let name = name.strip_prefix("smtp://").unwrap_or(&name);
    if name.contains("://") || has_port(name) {
        return name.to_owned();
    }
    format!("{name}:{DEFAULT_PORT}")
}

fn has_port(name: &str) -> bool {
    let is_port = |port: &str| !port.is_empty() && port.bytes().all(|letter| letter.is_ascii_digit());
    match name.rsplit_once(':') {
        Some((host, port)) => is_port(port) && (host.ends_with(']') || !host.contains(':')),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::canonical_target;

    #[test]
    fn names_of_one_server_are_one_name() {
        for name in ["mail.example", "Mail.Example:25", "smtp://mail.example/", " mail.example "] {
            assert_eq!(canonical_target(name), "mail.example:25");
        }
        assert_eq!(canonical_target("[::1]"), "[::1]:25");
        assert_eq!(canonical_target("[::1]:2525"), "[::1]:2525");
        assert_eq!(canonical_target("smtps://A"), "smtps://a");
        assert_eq!(canonical_target("unix:/Run/x"), "unix:/Run/x");
    }
}
