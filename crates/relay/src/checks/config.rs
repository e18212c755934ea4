//! Checks the parser of relay configurations with arbitrary text, for fuzz targets and property tests. The parser must
//! either report mistakes at positions within the text, or return a configuration that routes or refuses every address.
//! Texts that contain `listen`, `http` or `lmtp` are skipped, because the parser looks up host names in such keys, and
//! the check must not ask DNS.
use crate::config::{Config, ConfigEnvironment, DeliveryScope};
use crate::routing::Access;
use std::io;
use std::path::Path;

fn file(path: &Path) -> io::Result<Vec<u8>> {
    let text = match path.file_name().and_then(|name| name.to_str()) {
        Some("users") => "ann:secret\n",
        Some("mailboxes") => "# ours\nann\nBob:x\npostmaster\n",
        Some("aliases") => "sales: ann, bob@else.example\nnowhere: .\n",
        Some("loop") => "a: b\nb: a\n",
        Some("password") => "pass word\nsecond line\n",
        _ => return Err(io::ErrorKind::NotFound.into()),
    };
    Ok(text.into())
}

pub fn check(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if ["listen", "http", "lmtp"].iter().any(|key| text.contains(key)) {
        return;
    }
    let variable = |name: &str| (name == "MAILRUN_PASSWORD").then(|| "s3cret".to_owned());
    let outside = ConfigEnvironment {
        read: &file,
        variable: &variable,
        mode: &|_| None,
        hostname: "host.example".to_owned(),
        delivery_scope: DeliveryScope::Local,
        can_store_in: &|_| Ok(()),
    };
    match Config::parse(text, Path::new("/etc/relay/relay.toml"), &outside) {
        Ok(config) => {
            for address in ["ann@a.example", "postmaster@example.com", "x@[127.0.0.1]", "nowhere@local.example"] {
                let address = mailrun_smtp::Path::mailbox(address.as_bytes()).expect("it is one");
                for standing in [Access::Trusted, Access::Untrusted] {
                    let _ = config.router.route(standing, &address, &address);
                }
            }
            assert!(
                config.delivery.overall > 0
                    && config.delivery.per_destination > 0
                    && config.needs_restart(&config).is_empty()
            );
        }
        Err(complaints) => {
            let lines = text.split('\n').count();
            assert!(!complaints.errors.is_empty() && !complaints.to_string().is_empty());
            for complaint in &complaints.errors {
                assert!((1..=lines.max(1)).contains(&complaint.line) && complaint.column > 0, "{complaint:?}");
            }
        }
    }
}
