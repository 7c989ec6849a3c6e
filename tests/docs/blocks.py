"""The blocks of code in a page and their outputs; `python tests/docs/blocks.py PAGE FOLDER` writes the outputs again.

The output of a block is in a block ```text right after it. If it begins or ends with a line …, it has as many of the
last or the first lines as it had before.
"""

import contextlib
import io
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from forked import commands

BLOCK = re.compile(
    r"^( *)(?:<!-- (?:not run: (?P<reason>.+?)|exit code (?P<code_of_exit>\d)) -->\n+ *)?"
    r"```(?P<kind>sh|python)\n(?P<code>.*?)^\1```$"
    r"(?:\n\n\1```text\n(?P<output>.*?)^\1```$)?",
    re.M | re.S,
)
CUT = "…\n"


@dataclass(frozen=True)
class Block:
    """A block of a page: where it begins, what it is written in, and why it is not run, if it is not."""

    line: int
    kind: str
    code: str
    reason: str | None
    exit_code: int = 0  # that it is to end with


def blocks_of(text: str) -> list[Block]:
    """Find the blocks of shell and Python code."""
    found = [_block(match) for match in BLOCK.finditer(text)]
    assert len(found) == len(re.findall(r"^ *```(?:sh|python)\n", text, flags=re.M))
    return found


def _block(match: re.Match) -> Block:
    code = re.sub(f"^{match[1]}", "", match["code"], flags=re.M)
    return Block(
        match.string.count("\n", 0, match.start("code")) + 1,
        match["kind"],
        code,
        match["reason"],
        int(match["code_of_exit"] or 0),
    )


def run_shell(code: str, environment: dict[str, str], folder: Path) -> subprocess.CompletedProcess:
    """Run a block of shell code; the first command that fails ends it."""
    command = ["bash", "-euo", "pipefail", "-c", code]
    return subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def write_outputs(page: Path, folder: Path) -> None:
    """Run a page in a folder and put what its blocks print into it."""
    names: dict[str, object] = {"__name__": "__main__"}
    page, text = page.resolve(), page.read_text(encoding="utf-8")
    os.chdir(folder)
    with tempfile.TemporaryDirectory() as bin_folder, commands(Path(bin_folder)) as environment:
        environment |= {"COLUMNS": "90"}

        def renewed(match: re.Match) -> str:
            block = _block(match)
            if block.reason:
                return match[0]
            if block.kind == "python":
                with contextlib.redirect_stdout(io.StringIO()) as said:
                    exec(block.code, names)
                output = said.getvalue()
            else:
                ran = run_shell(block.code, environment, folder)
                output = ran.stdout
                assert ran.returncode == block.exit_code, f"line {block.line}:\n{block.code}\n{output}"
            old = match["output"]
            if old is None:
                return match[0]
            lines = [f"{line.rstrip()}\n" for line in output.replace(f"{folder.resolve()}/", "").splitlines()]
            count = len(old.splitlines()) - 1
            if old.startswith(CUT):
                lines = [CUT, *lines[-count:]]
            elif old.endswith(CUT):
                lines = [*lines[:count], CUT]
            begin, end = (place - match.start() for place in match.span("output"))
            return match[0][:begin] + "".join(match[1] + line for line in lines) + match[0][end:]

        page.write_text(BLOCK.sub(renewed, text), encoding="utf-8")


if __name__ == "__main__":
    write_outputs(Path(sys.argv[1]), Path(sys.argv[2]))
