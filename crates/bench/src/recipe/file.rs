//! The recipe file, which describes how to run a mail server under test: its keys, the built-in recipes, and error
//! messages with the position of the mistake.
use crate::toml_file::{self, MAX_BYTES, error_at, is_toml_file, parse};
use anyhow::{Result, anyhow, bail};
use mailrun_process::party_options::PartyOptions;
use mailrun_text::quantities::{duration, positive};
use mailrun_text::words::is_misspelling;
use serde::de::{self, Deserializer};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Component, Path};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use toml::Spanned;

/// Built-in recipes, from the files in `crates/bench/recipes`.
const BUILT_IN: &[(&str, &str)] = &[
    ("chasquid", include_str!("../../recipes/chasquid.toml")),
    ("courier", include_str!("../../recipes/courier.toml")),
    ("cyrus", include_str!("../../recipes/cyrus.toml")),
    ("dovecot", include_str!("../../recipes/dovecot.toml")),
    ("dovecot-debian", include_str!("../../recipes/dovecot-debian.toml")),
    ("exim", include_str!("../../recipes/exim.toml")),
    ("haraka", include_str!("../../recipes/haraka.toml")),
    ("mailrun", include_str!("../../recipes/mailrun.toml")),
    ("nullmailer", include_str!("../../recipes/nullmailer.toml")),
    ("opensmtpd", include_str!("../../recipes/opensmtpd.toml")),
    ("postfix", include_str!("../../recipes/postfix.toml")),
    ("postfix-debian", include_str!("../../recipes/postfix-debian.toml")),
    ("sendmail", include_str!("../../recipes/sendmail.toml")),
];

/// Placeholders for addresses. `LISTEN` stands for the address on which the server must listen, `TO` for the address of
/// its next hop, and `READ` for the address at which its mailboxes can be read. Every recipe must use a placeholder
/// from `LISTEN`. If the server delivers to mailboxes, the recipe must also use a placeholder from `READ`, and
/// otherwise a placeholder from `TO`.
const LISTEN: [&str; 2] = ["{listen}", "{listen_port}"];
const TO: [&str; 2] = ["{to}", "{to_port}"];
const READ: [&str; 2] = ["{read}", "{read_port}"];

/// Allowed values of `durability`: how durable a message is when the server answers 250, according
/// to the server's documentation.
const DURABILITIES: [&str; 4] = ["sync", "write", "memory", "unknown"];

#[derive(Clone, PartialEq, Eq)]
pub struct Recipe {
    /// Name in reports, for example `postfix` or `mailrun:write`. For a recipe file, the file's
    /// name without its extension.
    name: String,
    /// Path or name that error messages show, for example `recipe postfix`.
    file: String,
    text: String,
    /// Chosen variant: the variant that the user named after the colon, or else the recipe's first variant. Empty if
    /// the recipe has no variants.
    pub(super) variant: String,
    pub(super) keys: RecipeKeys,
    /// First line that the recipe's `version` command prints. Set when the server is prepared for the first time, and
    /// shared by all clones of the recipe.
    pub(super) version: Arc<OnceLock<String>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RecipeKeys {
    pub(super) title: Option<String>,
    /// How durable a message is when the server answers 250: one of `DURABILITIES`.
    durability: Spanned<String>,
    /// Names of the recipe's variants. The user chooses a variant with `NAME:VARIANT`, and the first is the default.
    /// The chosen name replaces `{variant}` in the recipe.
    #[serde(default)]
    variants: Vec<String>,
    /// Changes that a variant makes to this recipe. The key is the name of the variant.
    #[serde(default, rename = "variant")]
    of_variant: BTreeMap<String, VariantKeys>,
    /// Programs that must be installed in addition to the program that `command` starts.
    #[serde(default = "nowhere")]
    pub(super) programs: Spanned<Vec<String>>,
    /// Name of a Debian root directory that contains the server, such as `exim-trixie`. The command
    /// `packaging/tests/debian-root.sh exim trixie` makes a tar file of it, which is unpacked into `{dir}/root`.
    pub(super) debian: Option<Spanned<String>>,
    pub(super) install: Option<String>,
    /// Set if only root can start the server.
    #[serde(default = "nowhere")]
    pub(super) root: Spanned<bool>,
    /// Set if the server has processes of other users, which need access to the server's directory.
    #[serde(default = "nowhere")]
    pub(super) other_users: Spanned<bool>,
    /// Set if the server calls setsid(2). Such a server must not be started as the leader of a process group, because
    /// setsid(2) fails for a leader.
    #[serde(default)]
    own_session: bool,
    #[serde(default = "nowhere")]
    pub(super) version: Spanned<Vec<String>>,
    /// Commands that are run one after another before the server is started.
    #[serde(default = "nowhere")]
    pub(super) prepare: Spanned<Vec<Vec<String>>>,
    /// Command that starts the server. The server must stay in the foreground and exit at SIGTERM.
    pub(super) command: Spanned<Vec<String>>,
    #[serde(default)]
    pub(super) environment: BTreeMap<String, String>,
    /// Maximum time from the start of the server until it greets a client with 220.
    #[serde(default = "default_ready_within", deserialize_with = "time")]
    ready_within: Duration,
    /// Path of the server's log, relative to the server's directory. If the server does not start, the error message
    /// quotes the last error in the log.
    pub(super) log: Option<String>,
    pub(super) queue: Option<QueueKeys>,
    mailboxes: Option<MailboxKeys>,
    #[serde(default, rename = "file")]
    pub(super) files: Vec<FileKeys>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct VariantKeys {
    title: Option<String>,
    /// Programs that must be installed in addition to the recipe's own `programs`.
    #[serde(default)]
    programs: Vec<String>,
    install: Option<String>,
    /// Commands that are run after the recipe's own `prepare` commands.
    #[serde(default)]
    prepare: Vec<Vec<String>>,
    /// Command that starts the server. It replaces the recipe's own `command`.
    command: Option<Spanned<Vec<String>>>,
    /// Configuration files. If the recipe also has a file with the same path, the variant's text is appended to it.
    #[serde(default, rename = "file")]
    files: Vec<FileKeys>,
}

/// Commands that check whether the server's queue is empty, and that make the server retry its mail now.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct QueueKeys {
    pub(super) command: Spanned<Vec<String>>,
    /// Text that the command prints if the queue is empty. Surrounding white space is ignored.
    pub(super) empty: String,
    /// Command that makes the server retry all mail in its queue. It must not wait until this mail is delivered.
    pub(super) flush: Option<Spanned<Vec<String>>>,
}

/// The mailboxes of a server that delivers mail to them instead of forwarding it to a next hop.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MailboxKeys {
    /// Mailboxes in the syntax of `--mailbox`, such as `imap://user{0..99}@{read}`. `{read}` is the server's address.
    url: Spanned<String>,
    /// Value of the source's option `--to`, such as `user{0..99}@mail.example`. All recipients must have the same
    /// domain.
    recipients: Spanned<String>,
    pub(crate) password: String,
    /// Set if the server takes mail by LMTP instead of SMTP.
    #[serde(default)]
    lmtp: bool,
}

impl RecipeKeys {
    fn change(&mut self, variant: VariantKeys) {
        self.title = variant.title.or(self.title.take());
        self.install = variant.install.or(self.install.take());
        self.programs.get_mut().extend(variant.programs);
        self.prepare.get_mut().extend(variant.prepare);
        if let Some(command) = variant.command {
            self.command = command;
        }
        for file in variant.files {
            match self.files.iter_mut().find(|known| known.path.get_ref() == file.path.get_ref()) {
                Some(known) => known.text += &file.text,
                None => self.files.push(file),
            }
        }
    }
}

impl MailboxKeys {
    pub(crate) fn sink_options(&self, address: &str) -> PartyOptions {
        let domain = self.recipients.get_ref().rsplit_once('@').map(|(_, domain)| domain);
        PartyOptions::default()
            .with("mailbox", self.url.get_ref().replace(READ[0], address))
            .with_some("mailbox-domain", domain)
    }

    pub(crate) fn source_options(&self) -> PartyOptions {
        PartyOptions::default().with("to", self.recipients.get_ref()).flag("lmtp", self.lmtp)
    }

    /// Checks the values of these keys. The error has the byte offset of the first mistake in the recipe's text, and a
    /// message.
    fn check(&self) -> Result<(), (usize, String)> {
        let offset = |value: &Spanned<String>| value.span().start;
        if !self.url.get_ref().contains(READ[0]) {
            let words = format!("mailboxes.url: it must contain {} for the address of the server", READ[0]);
            return Err((offset(&self.url), words));
        }
        if !self.recipients.get_ref().contains('@') {
            return Err((offset(&self.recipients), "mailboxes.recipients: it must be an address".to_owned()));
        }
        Ok(())
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FileKeys {
    /// Path of the file, relative to the server's directory.
    pub(super) path: Spanned<String>,
    pub(super) text: String,
    #[serde(default)]
    pub(super) executable: bool,
}

/// Returns the default value of a key that the file lacks. Error messages about the key point to the start of the file.
fn nowhere<T: Default>() -> Spanned<T> {
    Spanned::new(0..0, T::default())
}

fn default_ready_within() -> Duration {
    Duration::from_secs(60)
}

fn time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    positive(&String::deserialize(deserializer)?, duration).map_err(de::Error::custom)
}

pub fn names() -> impl Iterator<Item = &'static str> {
    BUILT_IN.iter().map(|(name, _)| *name)
}

/// Returns the names of all built-in recipes and of their variants, for example `postfix` and `postfix:tuned`. The list
/// leaves out the default variants, because the recipe's name alone already means them.
pub fn names_and_variants() -> Vec<String> {
    let variants = |name: &'static str| {
        let variants = Recipe::load(name).map(|recipe| recipe.keys.variants).unwrap_or_default();
        // Skip a recipe's first variant, because it is the default.
        let others = variants.into_iter().skip(1).map(move |variant| format!("{name}:{variant}"));
        std::iter::once(name.to_owned()).chain(others)
    };
    names().flat_map(variants).collect()
}

/// A recipe with its whole text. An audit stores it, so that `mailrun audit explain` can start the server again even if
/// the recipe's file has changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StoredRecipe {
    name: String,
    file: String,
    text: String,
    variant: String,
}

impl StoredRecipe {
    /// Parses the stored text of the recipe.
    ///
    /// # Errors
    /// Returns an error if the recipe contains a mistake.
    pub(crate) fn recipe(&self) -> Result<Recipe> {
        let variant = Some(self.variant.as_str()).filter(|variant| !variant.is_empty());
        Recipe::read(&self.text, &self.file, self.name.clone(), variant).map_err(anyhow::Error::msg)
    }
}

impl Recipe {
    /// Returns the recipe's text and the chosen variant, which an audit stores. [`StoredRecipe::recipe`] makes a recipe
    /// of them again.
    pub(crate) fn stored(&self) -> StoredRecipe {
        let Self { name, file, text, variant, .. } = self.clone();
        StoredRecipe { name, file, text, variant }
    }

    /// Loads a recipe. The `word` is `NAME` or `NAME:VARIANT` for a built-in recipe, or else the path of a `.toml`
    /// file.
    ///
    /// # Errors
    /// Returns an error if the recipe does not exist or contains a mistake.
    pub fn load(word: &str) -> Result<Self> {
        if is_toml_file(word) {
            let path = Path::new(word);
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            return Self::read(&toml_file::read(path)?, word, name, None).map_err(anyhow::Error::msg);
        }
        let (name, variant) = word.split_once(':').map_or((word, None), |(name, variant)| (name, Some(variant)));
        Self::read(Self::built_in_text(name)?, &format!("recipe {name}"), word.to_owned(), variant)
            .map_err(anyhow::Error::msg)
    }

    /// # Errors
    /// Returns an error if there is no built-in recipe of that name. The error suggests a similar name if there is one.
    pub fn built_in_text(name: &str) -> Result<&'static str> {
        if let Some((_, text)) = BUILT_IN.iter().find(|(known, _)| *known == name) {
            return Ok(text);
        }
        match names().find(|known| is_misspelling(name, known)) {
            Some(suggestion) => bail!("unknown recipe {name:?}; did you mean {suggestion:?}?"),
            None => bail!(
                "unknown recipe {name:?}; built in are {}; the name of a file ends in .toml",
                names().collect::<Vec<_>>().join(", ")
            ),
        }
    }

    fn read(text: &str, file: &str, name: String, variant: Option<&str>) -> Result<Self, String> {
        let at = |offset, words: &str| error_at(text, Path::new(file), offset, words);
        if text.len() > MAX_BYTES {
            return Err(at(0, &format!("a recipe has at most {MAX_BYTES} bytes")));
        }
        let mut keys: RecipeKeys = parse(text, Path::new(file))?;
        let variant = match variant {
            None => keys.variants.first().cloned().unwrap_or_default(),
            Some(word) if keys.variants.iter().any(|known| known == word) => word.to_owned(),
            Some(word) if keys.variants.is_empty() => {
                return Err(at(0, &format!("there is no {word:?}: the recipe has no variants")));
            }
            Some(word) => {
                return Err(at(0, &format!("{word:?} is not one of the variants {}", keys.variants.join(", "))));
            }
        };
        if let Some(unknown) = keys.of_variant.keys().find(|name| !keys.variants.contains(name)) {
            return Err(at(0, &format!("variant.{unknown}: {unknown:?} is not in the list of variants")));
        }
        let changes = keys.of_variant.remove(&variant).unwrap_or_default();
        keys.change(changes);
        let (file, text) = (file.to_owned(), text.to_owned());
        let recipe = Self { name, file, text, variant, keys, version: Arc::default() };
        recipe.check().map_err(|(offset, words)| at(offset, &words))?;
        Ok(recipe)
    }

    /// Checks the values of the recipe. The error has the byte offset of the first mistake in the text, and a message.
    fn check(&self) -> Result<(), (usize, String)> {
        let keys = &self.keys;
        let known = DURABILITIES.join(", ");
        if !DURABILITIES.contains(&self.durability().as_str()) {
            let offset = keys.durability.span().start;
            return Err((offset, format!("durability: {:?} is not one of {known}", self.durability())));
        }
        let queue = keys.queue.as_ref().map(|queue| ("queue.command", &queue.command));
        let flush = keys.queue.as_ref().and_then(|queue| Some(("queue.flush", queue.flush.as_ref()?)));
        for (key, command) in [("command", &keys.command)].into_iter().chain(queue).chain(flush) {
            if command.get_ref().is_empty() {
                return Err((command.span().start, format!("{key}: the list must have at least one word")));
            }
        }
        if keys.prepare.get_ref().iter().any(Vec::is_empty) {
            return Err((keys.prepare.span().start, "prepare: a command must have at least one word".to_owned()));
        }
        for file in &keys.files {
            let path = Path::new(file.path.get_ref());
            if path.components().count() == 0 || !path.components().all(|part| matches!(part, Component::Normal(_))) {
                let words =
                    format!("file.path: {:?} must be in the server's directory, and without ..", file.path.get_ref());
                return Err((file.path.span().start, words));
            }
        }
        let far_end = match &keys.mailboxes {
            None => (TO, "where to send mail to"),
            Some(mailboxes) => {
                mailboxes.check()?;
                (READ, "where its mailboxes are to be read")
            }
        };
        for (placeholders, meaning) in [(LISTEN, "which address to listen on"), far_end] {
            let texts = keys.files.iter().map(|file| &file.text).chain(keys.environment.values());
            let is_used = |text: &String| placeholders.iter().any(|placeholder| text.contains(placeholder));
            if !texts.chain(keys.command.get_ref()).any(is_used) {
                let words = format!(
                    "command: neither it nor a file has {} in it, so the server is not told {meaning}",
                    placeholders.join(" or ")
                );
                return Err((keys.command.span().start, words));
            }
        }
        Ok(())
    }

    /// Returns how durable a message is when the server answers 250, according to the server's documentation.
    pub fn durability(&self) -> String {
        self.keys.durability.get_ref().replace("{variant}", &self.variant)
    }

    /// Returns the recipe's name and the path of its file, or `None` if the recipe is built in. The
    /// caller may change the name, to tell recipes of the same name apart.
    pub(crate) fn name_of_file(&mut self) -> Option<(&mut String, String)> {
        is_toml_file(&self.file).then(|| (&mut self.name, self.file.clone()))
    }

    /// Returns the first line that the server prints about its version. The line is empty before the
    /// server is prepared, or if the recipe does not say how to ask for the version.
    pub(crate) fn version(&self) -> &str {
        self.version.get().map_or("", String::as_str)
    }

    /// Returns a hash of the recipe's text and its variant. Two recipes of the same name have different hashes if, for
    /// example, one of them is an edited copy of a built-in recipe.
    pub(crate) fn hash(&self) -> String {
        let digest = Sha256::new().chain_update(&self.text).chain_update([0_u8]).chain_update(&self.variant).finalize();
        digest.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    pub fn title(&self) -> &str {
        self.keys.title.as_deref().unwrap_or_default()
    }

    pub fn knows_its_queue(&self) -> bool {
        self.keys.queue.is_some()
    }

    /// Returns the mailboxes to which the server delivers, or `None` if it forwards mail to a next hop.
    pub(crate) fn mailboxes(&self) -> Option<&MailboxKeys> {
        self.keys.mailboxes.as_ref()
    }

    /// Returns true if the recipe puts the server's mail into `{state}`, the only directory for which the audit can
    /// simulate a power cut.
    pub(crate) fn uses_state(&self) -> bool {
        let words = self.keys.command.get_ref().iter().chain(self.keys.environment.values());
        words.chain(self.keys.files.iter().map(|file| &file.text)).any(|text| text.contains("{state}"))
    }

    pub(crate) fn has_own_session(&self) -> bool {
        self.keys.own_session
    }

    pub(crate) fn ready_within(&self) -> Duration {
        self.keys.ready_within
    }

    /// Creates an error about a value that turned out to be wrong after the recipe was loaded, for
    /// example a command that failed. The message shows the position of the value in the file.
    pub(crate) fn error(&self, key: &str, offset: usize, words: &str) -> anyhow::Error {
        anyhow!("{}", error_at(&self.text, Path::new(&self.file), offset, &format!("{key}: {words}")))
    }

    pub(crate) fn server_error(&self, words: &str) -> anyhow::Error {
        self.error("command", self.keys.command.span().start, words)
    }
}

impl fmt::Display for Recipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl fmt::Debug for Recipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Recipe({:?})", self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const SMALL: &str = "durability = \"memory\"\nvariants = [\"a\", \"b\"]\ncommand = [\"mta\", \"{listen}\", \"{to}\"]\n\
                         ready_within = \"2s\"\n[[file]]\npath = \"etc/x\"\ntext = \"\"\n";

    fn read(text: &str, variant: Option<&str>) -> Result<Recipe, String> {
        Recipe::read(text, "my.toml", "my".to_owned(), variant)
    }

    #[test]
    fn all_files_are_built_in_and_can_be_read() {
        let files = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/recipes")).unwrap();
        let files: BTreeSet<String> = files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
        assert_eq!(names().map(|name| format!("{name}.toml")).collect::<BTreeSet<_>>(), files);
        for name in names() {
            let recipe = Recipe::load(name).unwrap();
            assert!(!recipe.title().is_empty() && Recipe::built_in_text(name).unwrap().starts_with("# "), "{name}");
        }
    }

    #[test]
    fn a_variant_is_the_word_behind_the_colon() {
        let [default, write] = ["mailrun", "mailrun:write"].map(|word| Recipe::load(word).unwrap());
        assert_eq!((default.durability().as_str(), default.to_string().as_str()), ("sync", "mailrun"));
        assert_eq!((write.durability().as_str(), write.to_string().as_str()), ("write", "mailrun:write"));
        assert_ne!(default, write);
        assert_ne!(default.hash(), write.hash());
        for (word, error) in [
            ("mailrun:never", "recipe mailrun:1:1: \"never\" is not one of the variants sync, write, memory"),
            ("exim:x", "recipe exim:1:1: there is no \"x\": the recipe has no variants"),
            ("postfx", "unknown recipe \"postfx\"; did you mean \"postfix\"?"),
            (
                "fnord",
                "unknown recipe \"fnord\"; built in are chasquid, courier, cyrus, dovecot, dovecot-debian, exim, haraka, \
                 mailrun, nullmailer, opensmtpd, postfix, postfix-debian, sendmail; the name of a file ends in .toml",
            ),
            ("/nowhere/x.toml", "cannot read /nowhere/x.toml"),
        ] {
            assert_eq!(Recipe::load(word).unwrap_err().to_string(), error);
        }
    }

    #[test]
    fn a_variant_changes_its_recipe_and_no_other() {
        let changed = format!(
            "{SMALL}[variant.b]\ntitle = \"B\"\nprograms = [\"x\"]\nprepare = [[\"y\"]]\ncommand = [\"z\", \"{{listen}}\"]\n\
             [[variant.b.file]]\npath = \"etc/x\"\ntext = \"more {{to}}\"\n[[variant.b.file]]\npath = \"new\"\ntext = \"\"\n"
        );
        let words = |variant| {
            let recipe = read(&changed, variant).unwrap();
            let keys = recipe.keys.clone();
            let files = keys.files.iter().map(|file| format!("{}={}", file.path.get_ref(), file.text));
            let prepare = keys.prepare.get_ref().concat().join(" ");
            let [programs, command] = [&keys.programs, &keys.command].map(|words| words.get_ref().join(" "));
            format!("{}|{programs}|{prepare}|{command}|{}", recipe.title(), files.collect::<Vec<_>>().join(","))
        };
        assert_eq!(words(None), words(Some("a")));
        assert_eq!(words(Some("a")), "|||mta {listen} {to}|etc/x=");
        assert_eq!(words(Some("b")), "B|x|y|z {listen}|etc/x=more {to},new=");
        let error = read(&changed.replace("variant.b", "variant.c"), None).unwrap_err();
        assert!(error.contains("variant.c: \"c\" is not in the list of variants"), "{error}");
        let listed = names_and_variants();
        assert!(
            ["postfix", "postfix:tuned", "mailrun:write"].iter().all(|name| listed.iter().any(|other| other == name))
        );
        for name in listed {
            assert!(Recipe::load(&name).is_ok_and(|recipe| !recipe.title().is_empty()), "{name}");
        }
    }

    #[test]
    fn a_mistake_has_its_place_and_its_key() {
        assert_eq!(read(SMALL, Some("b")).map(|recipe| recipe.variant), Ok("b".to_owned()));
        for (from, to, reason) in [
            ("durability", "durabilty", "my.toml:1:1: unknown key \"durabilty\"; did you mean \"durability\"?"),
            ("\"memory\"", "\"disk\"", "my.toml:1:14: durability: \"disk\" is not one of sync, write, memory, unknown"),
            ("\"memory\"", "7", "my.toml:1:14: invalid type: integer `7`, expected a string"),
            ("[\"mta\", \"{listen}\", \"{to}\"]", "[]", "my.toml:3:11: command: the list must have at least one word"),
            ("\"{to}\"", "\"x\"", "my.toml:3:11: command: neither it nor a file has {to} or {to_port} in it, so"),
            ("\"{listen}\"", "\"x\"", "is not told which address to listen on"),
            ("command = [\"mta\", \"{listen}\", \"{to}\"]\n", "", "the key \"command\" is missing"),
            ("\"2s\"", "\"soon\"", "my.toml:4:16: "),
            ("etc/x", "../x", "my.toml:6:8: file.path: \"../x\" must be in the server's directory, and without .."),
            ("etc/x", "/etc/x", "must be in the server's directory"),
            ("etc/x", "", "must be in the server's directory"),
            ("[[file]]", "[[file]", "my.toml:5:"),
            (
                "[[file]]",
                "[queue]\ncommand = [\"q\"]\nempty = \"\"\nflush = []\n[[file]]",
                "my.toml:8:9: queue.flush: the list must have at least one word",
            ),
        ] {
            let error = read(&SMALL.replace(from, to), None).expect_err(to);
            assert!(error.contains(reason) && !error.contains('\n'), "{to}: {error}");
        }
        let delivering = "durability = \"sync\"\ncommand = [\"imapd\", \"{listen}\", \"{read}\"]\n[mailboxes]\n\
                          url = \"imap://user{0..9}@{read}\"\nrecipients = \"user{0..9}@a.example\"\npassword = \"x\"\n";
        assert!(read(delivering, None).unwrap().mailboxes().is_some());
        for (from, to, reason) in [
            ("\"{read}\"]", "\"{to}\"]", "is not told where its mailboxes are to be read"),
            ("@{read}", "@{to}", "my.toml:4:7: mailboxes.url: it must contain {read} for the address of the server"),
            ("@a.example", "", "my.toml:5:14: mailboxes.recipients: it must be an address"),
            ("password", "pasword", "unknown key \"pasword\""),
        ] {
            let error = read(&delivering.replacen(from, to, 1), None).expect_err(to);
            assert!(error.contains(reason), "{to}: {error}");
        }
        assert!(read(&" ".repeat(MAX_BYTES + 1), None).is_err_and(|error| error.contains("at most")));
    }
}
