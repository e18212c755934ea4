#!/usr/bin/env python3
"""Lays out the book: the pages of docs/, and the chapters that are made from the program, as sources of mdBook.

    scripts/book.py BINARY DIRECTORY     writes book.toml, src/, src/SUMMARY.md and src/llms.txt into DIRECTORY

The order of the pages and the line on each are those of docs/README.md. Made from the program are: all commands with their
options (`BINARY ... --help`), the keys of relay.toml (from the comments of its example), and the schema of run.json.
"""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
REPOSITORY = "https://github.com/mailrun/mailrun"
KEYS_FILE = "crates/relay/src/config/example.toml"
BOOK = f"""[book]
title = "mailrun"
description = "Measures how fast mail really gets through, with every message accounted for"
language = "en"

[build]
create-missing = false

[output.html]
smart-punctuation = false
git-repository-url = "{REPOSITORY}"
"""


def parts():
    """The parts of the book: title, and rows of (path, summary), from the tables of docs/README.md."""
    found = []
    for line in (DOCS / "README.md").read_text().splitlines():
        if line.startswith("## "):
            found.append((line[3:], []))
        row = re.match(r"\| \[[^]]*\]\(([^)]*)\) \| (.*) \|$", line)
        if row:
            found[-1][1].append(row.groups())
    return found


def title(text):
    """The heading of a page, without the number of a decision."""
    return re.sub(r"^\d+[.:] ", "", re.search(r"^# (.*)$", text, re.M).group(1))


def decisions():
    return sorted(f"decisions/{path.name}" for path in (DOCS / "decisions").glob("*.md"))


def help_of(binary, words):
    answer = subprocess.run([binary, *words, "--help"], capture_output=True, text=True, check=False)
    return (answer.stdout + answer.stderr).rstrip()


def commands_in(text):
    """Names below "Commands:" in a help text; bench has "Scenarios:"."""
    names = []
    for line in "".join(re.split(r"\n(?:Commands|Scenarios):\n", text)[1:2]).splitlines():
        if not line.strip():
            break
        name = re.match(r"  (\S+)  ", line + "  ")
        if name and name.group(1) != "help":
            names.append(name.group(1))
    return names


def command_sections(binary, words, level):
    """Headings and help texts of a command and of all below it."""
    text = help_of(binary, words)
    name = " ".join(["mailrun", *words])
    yield f"{'#' * min(level, 4)} {name}\n\n```text\n{text}\n```\n"
    for inner in commands_in(text):
        yield from command_sections(binary, [*words, inner], level + 1)


def command_pages(binary):
    """Path and text of the chapter on the program, and of one for each of its commands."""
    whole = help_of(binary, [])
    yield "commands.md", f"# Commands and options\n\nWhat `--help` prints.\n\n```text\n{whole}\n```\n"
    for name in commands_in(whole):
        yield f"commands/{name}.md", "\n".join(command_sections(binary, [name], 1))


def keys_page():
    """The keys of relay.toml: each with a value, and with its comment. Of the routes each key once."""
    sections, before = {"At the top": []}, []
    rows = sections["At the top"]
    for line in (ROOT / KEYS_FILE).read_text().splitlines():
        heading = re.match(r"(\[+[^]]+\]+)", line)
        key = re.match(r"(\w[\w.]*) = (.*)$", line)
        if line.startswith("#"):
            before.append(line.strip("# "))
            continue
        if heading:
            rows = sections.setdefault(f"`{heading.group(1)}`", [])
        elif key and not any(row[0] == f"`{key.group(1)}`" for row in rows):
            value, remark = split_comment(key.group(2))
            rows.append((f"`{key.group(1)}`", f"`{value}`", " ".join([*before, remark]).strip()))
        before = []
    lines = ["# Keys of relay.toml", "", "Each key with an example, as `mailrun relay --help` shows them.",
             "[The relay](relay.md#the-file) explains them."]
    for name, rows in sections.items():
        lines += ["", f"## {name}", "", "| key | example | meaning |", "|---|---|---|"]
        lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def split_comment(text):
    """A value of TOML and the comment behind it. A `#` in a string is none."""
    in_string = False
    for at, letter in enumerate(text):
        in_string ^= letter == '"'
        if letter == "#" and not in_string:
            return text[:at].strip(), text[at + 1:].strip()
    return text.strip(), ""


def type_of(schema):
    """A type of the schema, as a link where it has a heading."""
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[1]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(type_of(one) for one in schema["anyOf"])
    if schema.get("type") == "array":
        return f"list of {type_of(schema.get('items', {}))}"
    if "additionalProperties" in schema and isinstance(schema["additionalProperties"], dict):
        return f"map to {type_of(schema['additionalProperties'])}"
    if "const" in schema:
        return f"`{schema['const']}`"
    if "enum" in schema:
        return ", ".join(f"`{one}`" for one in schema["enum"])
    kind = schema.get("type", "any")
    return " or ".join(kind) if isinstance(kind, list) else kind


def fields(schema):
    cell = lambda text: " ".join(text.split()).replace("|", "\\|")
    if "properties" in schema:
        rows = [(f"`{name}`", type_of(one), one.get("description", "")) for name, one in schema["properties"].items()]
        return ["| field | type | meaning |", "|---|---|---|", *(f"| {a} | {cell(b)} | {cell(c)} |" for a, b, c in rows)]
    if "oneOf" in schema:
        rows = [(type_of(one), one.get("description", "")) for one in schema["oneOf"]]
        return ["| value | meaning |", "|---|---|", *(f"| {cell(a)} | {cell(b)} |" for a, b in rows)]
    return [type_of(schema)]


def schema_page(binary):
    """The schema of run.json as tables."""
    schema = json.loads(subprocess.run([binary, "report", "--schema"], capture_output=True, check=True).stdout)
    lines = ["# Schema of run.json", "", f"What `mailrun report --schema` prints. {schema.get('description', '')}", "",
             "## The record", "", *fields(schema)]
    for name, one in schema["$defs"].items():
        lines += ["", f"## {name}", "", " ".join(one.get("description", "").split()), "", *fields(one)]
    return "\n".join(lines) + "\n"


def mended(text, home):
    """The text of docs/HOME with links that are right in the book: to files that are not in it they go to the repository."""
    def link(match):
        target, mark, anchor = match.group(1).partition("#")
        if not target or "://" in target or target.startswith("mailto:"):
            return match.group(0)
        path = os.path.normpath(DOCS / os.path.dirname(home) / target)
        inside = os.path.relpath(path, DOCS)
        if inside == "README.md":
            return f"]({os.path.relpath('index.md', os.path.dirname(home) or '.')}{mark}{anchor})"
        if not inside.startswith("..") and not os.path.isdir(path):
            return match.group(0)
        kind = "tree" if os.path.isdir(path) else "blob"
        return f"]({REPOSITORY}/{kind}/main/{os.path.relpath(path, ROOT)}{mark}{anchor})"
    return "".join(part if at % 2 else re.sub(r"\]\(([^)\s]+)\)", link, part)
                   for at, part in enumerate(re.split(r"(^```.*?^```$)", text, flags=re.M | re.S)))


def lay_out(binary, place):
    """Writes the sources of the book."""
    source = place / "src"
    shutil.rmtree(source, ignore_errors=True)
    shutil.copytree(DOCS, source, ignore=shutil.ignore_patterns("*.md"))
    (source / "decisions").mkdir(exist_ok=True)
    (place / "book.toml").write_text(BOOK)

    def add(path, text):
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        (source / path).write_text(text)
        return title(text)

    index = mended((DOCS / "README.md").read_text(), "README.md")
    add("index.md", index)
    summary = ["# Summary", "", "[mailrun](index.md)"]
    list_ = ["# mailrun", "", "> mailrun measures mail throughput and latency end to end, and checks that no message is lost, "
             "duplicated or changed. One program is the load generator, the test server and a durable relay.", ""]
    for part, rows in parts():
        summary += ["", f"# {part}", ""]
        list_ += [f"## {part}", ""]
        for path, line in rows:
            name = add(path, mended((DOCS / path).read_text(), path))
            name = re.sub("^Tutorial: (.)", lambda first: first.group(1).upper(), name)
            summary.append(f"- [{name}]({path})")
            list_.append(f"- [{name}]({path}): {mended(line, 'README.md')}")
            if path == "architecture.md":
                summary += [f"  - [{add(one, mended((DOCS / one).read_text(), one))}]({one})" for one in decisions()]
        if part == "Reference":
            (path, text), *others = command_pages(binary)
            summary.append(f"- [{add(path, text)}]({path})")
            list_.append(f"- [Commands and options]({path}): what `--help` prints, of all commands")
            for path, text in others:
                summary.append(f"  - [{add(path, text)}]({path})")
            for path, text, line in [("relay-keys.md", keys_page(), "each key of the relay's configuration file"),
                                     ("run-schema.md", schema_page(binary), "types and meanings of all fields")]:
                summary.append(f"- [{add(path, text)}]({path})")
                list_.append(f"- [{title(text)}]({path}): {line}")
        list_.append("")
    (source / "SUMMARY.md").write_text("\n".join(summary) + "\n")
    (source / "llms.txt").write_text("\n".join(list_))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    lay_out(str(pathlib.Path(sys.argv[1]).resolve()), pathlib.Path(sys.argv[2]))
