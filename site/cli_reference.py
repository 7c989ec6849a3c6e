"""The reference of the command line, generated from the commands themselves."""

from collections.abc import Iterator
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

PAGE = "reference/cli.md"
BEGINNING = """# Command line

Every command with its arguments, options and defaults. `denn COMMAND --help` shows the same in a terminal.
Exit codes: 0 success, 2 an error that you can fix (one sentence on standard error), 1 an error in denn itself,
130 interrupted.

"""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the page."""
    from denn.cli.app import command

    made = "\n".join(_described(command([]), "denn", None))
    files.append(File.generated(config, PAGE, content=BEGINNING + made))
    return files


def _described(command: Any, path: str, parent: Any) -> Iterator[str]:
    """Write a command and, if it is a group, its subcommands."""
    context = command.context_class(command, info_name=path, parent=parent)
    yield f"{'#' * (path.count(' ') + 2)} {path} {{#{path.replace(' ', '-')}}}\n"
    yield f"{_words(command.help or '')}\n"
    yield "```text\n" + " ".join([path, *command.collect_usage_pieces(context)]) + "\n```\n"
    for title, kind in (("Argument", "argument"), ("Option", "option")):
        records = [one.get_help_record(context) for one in command.params if one.param_type_name == kind]
        rows = [_row(*record) for record in records if record]
        if rows:
            yield f"| {title} | Description | Default |\n|---|---|---|"
            yield from rows
            yield ""
    for name in getattr(command, "commands", {}):
        yield from _described(command.commands[name], f"{path} {name}", context)


def _row(shown: str, text: str) -> str:
    """Write the row of an argument or an option from its help text."""
    description, _, extra = text.partition("  [")
    facts = extra.removesuffix("]").split("; ") if extra else []
    default = next((fact.removeprefix("default: ") for fact in facts if fact.startswith("default: ")), "")
    required = "*required*" if "required" in facts else ""
    others = [fact for fact in facts if fact != "required" and not fact.startswith("default: ")]
    note = f" ({', '.join(others)})" if others else ""
    names = " ".join(_code(word) for word in shown.split(" "))
    return f"| {names} | {_words(description + note)} | {required or _code(default)} |"


def _code(text: str) -> str:
    text, comma = text.rstrip(","), "," * text.endswith(",")
    return f"`{text}`{comma}".replace("|", "\\|") if text else ""


def _words(text: str) -> str:
    """Return help as Markdown: nothing in it is markup, except for code between backticks."""
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*").strip()
