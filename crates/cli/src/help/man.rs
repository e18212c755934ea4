//! `mailrun man`: writes manual pages, which are generated from the commands and their options.
use anyhow::{Context, Result};
use clap::{Args, Command};
use clap_mangen::Man;
use mailrun_process::output_file;
use mailrun_process::output_file::cannot_write;
use roff::{Roff, roman};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Writes manual pages: one for each command into DIR, or the page of mailrun itself to standard
/// output.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ManArgs {
    /// Directory for the pages, such as /usr/local/share/man/man1.
    #[arg(value_name = "DIR")]
    directory: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  mailrun man | man -l -
  mailrun man /usr/local/share/man/man1

Exit status: 0 done; 2 a page could not be written.";

/// The sections at the end of a manual page. Their text is what the command's help shows below the options.
#[derive(Debug, Default, PartialEq, Eq)]
struct EndSections {
    examples: Vec<String>,
    notes: Vec<String>,
    exit_status: Vec<String>,
}

impl ManArgs {
    /// Writes the manual pages of `whole`, which must be the command `mailrun`, and of all its subcommands into the
    /// directory. Without a directory, prints only the page of `whole`.
    pub(crate) fn run(self, whole: &Command) -> Result<ExitCode> {
        let usual = EndSections::of(whole).exit_status;
        match self.directory {
            None => crate::report::messages::say(&page(whole, &usual, &names_of(whole))?)?,
            Some(directory) => {
                fs::create_dir_all(&directory).map_err(|error| cannot_write(&directory, &error))?;
                let count = write_pages(&directory, whole, &usual, "mailrun")?;
                crate::report::messages::say(&format!("{count} pages in {}\n", directory.display()))?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Writes the page of a command and the pages of all its subcommands, and returns the number of pages.
fn write_pages(directory: &Path, command: &Command, usual: &[String], parent: &str) -> Result<usize> {
    let mut others = names_of(command);
    if parent != command.get_display_name().unwrap_or(command.get_name()) {
        others.insert(0, parent.to_owned());
    }
    let name = display_name(command);
    let path = directory.join(format!("{name}.1"));
    output_file::write(&path, page(command, usual, &others)?)?;
    visible_commands(command).try_fold(1, |count, inner| Ok(count + write_pages(directory, inner, usual, &name)?))
}

pub(crate) fn visible_commands(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|inner| !inner.is_hide_set() && inner.get_name() != "help")
}

/// Returns the name of a command's page, for example `mailrun-queue-list`.
fn display_name(command: &Command) -> String {
    command.get_display_name().unwrap_or(command.get_name()).to_owned()
}

fn names_of(command: &Command) -> Vec<String> {
    visible_commands(command).map(display_name).collect()
}

/// Renders a manual page. `usual` is the text of the section EXIT STATUS if the command's help has no such section.
/// `others` are the names of the pages to list under SEE ALSO.
fn page(command: &Command, usual: &[String], others: &[String]) -> Result<String> {
    let name = display_name(command);
    let without_end = command.clone().after_help(None::<&str>).after_long_help(None::<&str>);
    let man = Man::new(without_end).title(name.to_uppercase()).manual("mailrun manual");
    let mut bytes = Vec::new();
    man.render(&mut bytes).with_context(|| format!("cannot make the page of {name}"))?;
    let sections = EndSections::of(command);
    let exit_status = if sections.exit_status.is_empty() { usual } else { &sections.exit_status };
    let mut end = Roff::new();
    push_section(&mut end, "EXAMPLES", &sections.examples);
    push_section(&mut end, "NOTES", &sections.notes);
    push_section(&mut end, "EXIT STATUS", exit_status);
    end.control("SH", ["SEE ALSO"]);
    end.text([roman(others.iter().map(|other| format!("{other}(1)")).collect::<Vec<_>>().join(", "))]);
    end.to_writer(&mut bytes).with_context(|| format!("cannot make the page of {name}"))?;
    String::from_utf8(bytes).map_err(|error| io::Error::other(error).into())
}

/// Adds a section, unless it has no lines. The request `nf` tells roff to keep the line breaks, because the lines may
/// be examples.
fn push_section(page: &mut Roff, heading: &str, lines: &[String]) {
    if lines.is_empty() {
        return;
    }
    page.control("SH", [heading]);
    page.control("nf", []);
    for line in lines {
        page.text([roman(line.as_str())]);
    }
    page.control("fi", []);
}

impl EndSections {
    /// Divides the text below a command's options into sections. A heading such as `Examples:` begins a section.
    fn of(command: &Command) -> Self {
        let end = command.get_after_long_help().or(command.get_after_help());
        let text = end.map(ToString::to_string).unwrap_or_default();
        let mut sections = Self::default();
        let mut current = &mut sections.notes;
        let mut follows_blank = true;
        for line in text.lines() {
            let begins_text = follows_blank && line.starts_with(|c: char| !c.is_whitespace());
            follows_blank = line.is_empty();
            if let Some(rest) = line.strip_prefix("Examples:").or(line.strip_prefix("Example:")) {
                current = &mut sections.examples;
                current.extend(non_empty(rest));
                continue;
            }
            if let Some(rest) = line.strip_prefix("Exit status:") {
                current = &mut sections.exit_status;
                current.extend(non_empty(rest));
                continue;
            }
            // Text that follows an empty line and is not indented ends the current section, and begins the notes.
            if begins_text {
                current = &mut sections.notes;
            }
            current.push(line.to_owned());
        }
        for lines in [&mut sections.examples, &mut sections.notes, &mut sections.exit_status] {
            while lines.last().is_some_and(String::is_empty) {
                lines.pop();
            }
        }
        sections
    }
}

fn non_empty(rest: &str) -> Option<String> {
    let rest = rest.trim();
    (!rest.is_empty()).then(|| rest.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cli;

    fn all_pages() -> Vec<(String, String)> {
        let directory = tempfile::tempdir().unwrap();
        let whole = Cli::all_commands();
        let usual = EndSections::of(&whole).exit_status;
        let count = write_pages(directory.path(), &whole, &usual, "mailrun").unwrap();
        let entries = fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().path());
        let pages: Vec<_> =
            entries.map(|path| (path.display().to_string(), fs::read_to_string(&path).unwrap())).collect();
        assert_eq!(pages.len(), count);
        pages
    }

    fn command_of<'a>(whole: &'a Command, page: &str) -> &'a Command {
        let name = Path::new(page).file_stem().unwrap().to_str().unwrap();
        fn find<'a>(command: &'a Command, name: &str) -> Option<&'a Command> {
            if display_name(command) == name {
                return Some(command);
            }
            visible_commands(command).find_map(|inner| find(inner, name))
        }
        find(whole, name).unwrap()
    }

    #[test]
    fn each_page_has_every_option_with_examples_and_exit_status() {
        let whole = Cli::all_commands();
        for (path, text) in all_pages() {
            let command = command_of(&whole, &path);
            for option in command.get_arguments().filter(|option| !option.is_hide_set()) {
                let Some(long) = option.get_long() else { continue };
                let shown = format!("\\-\\-{}", long.replace('-', "\\-"));
                assert!(text.contains(&shown), "{path}: no {shown}");
            }
            assert!(text.contains(".SH \"EXIT STATUS\""), "{path}: no exit status\n{text}");
            assert!(text.contains(".SH EXAMPLES") || command.has_subcommands(), "{path}: no examples");
            assert!(!text.contains(".SH EXTRA"), "{path}");
            let (_, end) = text.split_once(".nf\n").unwrap_or_else(|| panic!("{path}: no lines as they stand"));
            assert!(!end.contains(".br\n"), "{path}: a line feed and a break are two\n{end}");
        }
    }

    #[test]
    fn the_text_after_the_options_is_divided_by_its_headings() {
        let text = "Examples:\n  a\n  b\n\nThe relay must\nbe stopped.\n\nExit status:\n  0  done\n\n";
        let sections = EndSections::of(&Command::new("x").after_help(text));
        assert_eq!(sections.examples, ["  a", "  b"]);
        assert_eq!(sections.notes, ["The relay must", "be stopped."]);
        assert_eq!(sections.exit_status, ["  0  done"]);
        let one_line = EndSections::of(&Command::new("x").after_help("Exit status: 0 done; 2 not."));
        assert_eq!(one_line.exit_status, ["0 done; 2 not."]);
    }
}
