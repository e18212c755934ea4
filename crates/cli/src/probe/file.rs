use crate::options::server::ServerArg;
use crate::options::values;
use crate::probe::route::{LoginKeys, MailboxKeys, PasswordPlace, RouteKeys};
use crate::sink::mailboxes;
use anyhow::{Context, Result};
use clap::ValueEnum;
use mailrun_process::text_file;
use mailrun_process::tls_mode::TlsMode;
use mailrun_process::toml_file::{ConfigErrors, ErrorCollector, Section};
use mailrun_process::users::PASSWORD_VARIABLE;
use std::path::{Path, PathBuf};

const MAX_FILE_BYTES: usize = 1 << 20;

/// Example of a configuration file with all keys, which `mailrun probe --help` prints.
pub(crate) const EXAMPLE: &str = include_str!("probe.toml");

#[derive(Clone, Debug, Default)]
pub(crate) struct ProbeFile {
    pub(crate) state: Option<PathBuf>,
    pub(crate) http: Option<String>,
    pub(crate) allow_public: bool,
    pub(crate) routes: Vec<RouteKeys>,
}

/// Reads the configuration file. Relative paths in the file are relative to the directory of the file.
///
/// # Errors
///
/// Returns an error with everything that is wrong with the file, one problem per line.
pub(crate) fn read(path: &Path) -> Result<ProbeFile> {
    let text = text_file::read(path, text_file::MAX_BYTES);
    let text = text.with_context(|| format!("cannot read {}", path.display()))?;
    Ok(parse(path, &text)?)
}

fn parse(path: &Path, text: &str) -> Result<ProbeFile, ConfigErrors> {
    let directory = path.parent().unwrap_or(Path::new(""));
    let errors = ErrorCollector::default();
    let mut file = ProbeFile::default();
    if let Some(mut root) = Section::root(text, MAX_FILE_BYTES, &errors) {
        file.state = root.text("state", "\"/var/lib/mailrun-probe\"").map(|(_, state)| directory.join(state));
        file.http = root.value("http", "\"127.0.0.1:9725\"", values::listening);
        file.allow_public = root.flag("allow_public").unwrap_or_default();
        for section in root.tables("route") {
            file.routes.extend(route(section, directory, &errors));
        }
        for (place, route) in file.routes.iter().enumerate() {
            if file.routes[..place].iter().any(|other| other.name == route.name) {
                errors.add(&(0..0), format!("two routes have the name {:?}", route.name));
            }
        }
        root.finish();
    }
    errors.finish(path, text)?;
    Ok(file)
}

fn route(mut section: Section<'_>, directory: &Path, errors: &ErrorCollector) -> Option<RouteKeys> {
    let span = section.span.clone();
    refuse_lone(&section, "user", &["password_file", "password_env"], errors);
    refuse_lone(&section, "mailbox", &["mailbox_password_file", "mailbox_password_env", "keep_mail"], errors);
    let text = |section: &mut Section<'_>, key, example| section.text(key, example).map(|(_, text)| text);
    let path = |section: &mut Section<'_>, key| text(section, key, "\"FILE\"").map(|file| directory.join(file));
    let server = section.value("server", "\"mx.example:25\"", ServerArg::parse);
    let to = text(&mut section, "to", "\"probe@a.example\"");
    let name = text(&mut section, "name", "\"office\"");
    let is_insecure = section.flag("insecure").unwrap_or_default();
    let cacert = path(&mut section, "cacert");
    if is_insecure && cacert.is_some() {
        errors.add(&span, "cacert has no effect with insecure = true");
    }
    let mut password = |file_key, variable_key, default: &str| {
        let file = path(&mut section, file_key);
        let variable = text(&mut section, variable_key, "\"NAME\"");
        if file.is_some() && variable.is_some() {
            errors.add(&span, format!("a password has one place; use {file_key} or {variable_key}"));
        }
        PasswordPlace::new(file, variable.as_deref().unwrap_or(default))
    };
    let own_password = password("password_file", "password_env", PASSWORD_VARIABLE);
    let mailbox_password = password("mailbox_password_file", "mailbox_password_env", mailboxes::PASSWORD_VARIABLE);
    let user = text(&mut section, "user", "\"ann\"");
    let mailbox = text(&mut section, "mailbox", "\"imaps://probe@a.example\"");
    let keep_mail = section.flag("keep_mail").unwrap_or_default();
    for (is_missing, key) in [(server.is_none(), "server"), (to.is_none(), "to")] {
        if is_missing && errors.is_empty() {
            errors.add(&span, format!("the route has no key {key:?}"));
        }
    }
    let keys = server.clone().zip(to).map(|(server, to)| RouteKeys {
        name: name.unwrap_or_else(|| server.address().to_owned()),
        server,
        to,
        rate: section.value("rate", "\"1/10s\"", values::rate),
        from: text(&mut section, "from", "\"probe@a.example\""),
        hello: section.value("hello", "\"probe.a.example\"", values::host_name),
        lost_after: section.value("lost_after", "\"10m\"", values::some_duration),
        timeout: section.value("timeout", "\"60s\"", values::some_duration),
        tls: section.value("tls", "\"starttls\"", |text| TlsMode::from_str(text, true)),
        tls_name: text(&mut section, "tls_name", "\"mx.a.example\""),
        cacert,
        insecure: is_insecure,
        login: user.map(|user| LoginKeys { user, password: own_password }),
        sink: text(&mut section, "sink", "\"http://127.0.0.1:8025\""),
        mailbox: mailbox.map(|url| MailboxKeys { url, password: mailbox_password, keep_mail }),
    });
    if keys.is_some() {
        section.finish();
    }
    keys
}

/// If a route lacks the key `needed`, adds an error for each of `keys` in the route, because these keys then have no
/// effect. For example, a password without a user is refused, because the probe would send without a login. Must be
/// called before the keys are read, because reading removes them.
fn refuse_lone(section: &Section<'_>, needed: &str, keys: &[&str], errors: &ErrorCollector) {
    if section.key(needed).is_some() {
        return;
    }
    for key in keys {
        if let Some(span) = section.key(key) {
            errors.add(&span, format!("{key} has no effect without the key {needed}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errors_of(text: &str) -> String {
        parse(Path::new("p.toml"), text)
            .map_or_else(|errors| errors.to_string(), |file| format!("{} routes", file.routes.len()))
    }

    #[test]
    fn the_example_has_every_key_and_is_accepted() {
        let file = parse(Path::new("/etc/mailrun/probe.toml"), EXAMPLE).unwrap();
        assert_eq!(file.state.as_deref(), Some(Path::new("/var/lib/mailrun-probe")));
        let office = &file.routes[0];
        assert_eq!((office.name.as_str(), office.server.address()), ("office", "mx.a.example:587"));
        assert_eq!(office.cacert.as_deref(), Some(Path::new("/etc/mailrun/ca.pem")), "relative to the file");
        let login = office.login.as_ref().unwrap();
        assert!(matches!(&login.password, PasswordPlace::File(file) if file == Path::new("/etc/mailrun/password")));
        assert!(file.routes[1].login.is_none() && file.routes[1].mailbox.is_none());
    }

    #[test]
    fn mistakes_have_their_place() {
        let route = "[[route]]\nserver = \"127.0.0.1:25\"\nto = \"a@b.example\"\n";
        let again = format!("{route}{route}");
        for (text, expected) in [
            (route, "1 routes"),
            ("", "0 routes"),
            ("[[route]]\nto = \"a@b.example\"\n", "p.toml:1:1: the route has no key \"server\""),
            (&again, "p.toml:1:1: two routes have the name \"127.0.0.1:25\""),
            (
                &format!("{route}rat = \"1/10s\"\n"),
                "p.toml:4:1: unknown key \"rat\" in route 1; did you mean \"rate\"?",
            ),
            (&format!("{route}rate = \"fast\"\n"), "p.toml:4:8: \"fast\" is not a valid rate"),
            (&format!("{route}tls = \"yes\"\n"), "p.toml:4:7: invalid variant: yes"),
            (&format!("{route}password = \"x\"\n"), "p.toml:4:1: unknown key \"password\" in route 1"),
            (
                &format!("{route}password_file = \"x\"\n"),
                "p.toml:4:1: password_file has no effect without the key user",
            ),
            (&format!("{route}password_env = \"X\"\n"), "p.toml:4:1: password_env has no effect without the key user"),
            (
                &format!("{route}user = \"ann\"\nmailbox_password_file = \"x\"\n"),
                "p.toml:5:1: mailbox_password_file has no effect without the key mailbox",
            ),
            (
                &format!("{route}mailbox_password_env = \"X\"\n"),
                "p.toml:4:1: mailbox_password_env has no effect without the key mailbox",
            ),
            (&format!("{route}keep_mail = true\n"), "p.toml:4:1: keep_mail has no effect without the key mailbox"),
            (&format!("{route}user = \"ann\"\npassword_env = \"X\"\n"), "1 routes"),
            (
                &format!("{route}user = \"ann\"\npassword_file = \"x\"\npassword_env = \"X\"\n"),
                "p.toml:1:1: a password has one place; use password_file or password_env",
            ),
            (
                &format!("{route}insecure = true\ncacert = \"x\"\n"),
                "p.toml:1:1: cacert has no effect with insecure = true",
            ),
        ] {
            let errors = errors_of(text);
            assert!(errors.starts_with(expected), "{text}: {errors}");
        }
    }
}
