"""The Python and shell blocks of the pages run, in order, in a folder with a small corpus and a model of it.

A block that cannot run has a comment before it that says why: `<!-- not run: … -->`.
One that ends with an error has `<!-- exit code 2 -->`.
"""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from blocks import blocks_of, run_shell
from forked import commands

pytestmark = pytest.mark.slow
DOCS = Path(__file__).parents[2] / "docs"
TICKETS = DOCS / "tutorials" / "tickets"
RUN = [
    "../README.md",
    "index.md",
    "five-minutes.md",
    "quick-start.md",
    "coming-from.md",
    "troubleshooting.md",
    *(f"{path.parent.name}/{path.name}" for path in DOCS.glob("[ht]*/*.md")),
]
ADDRESS = "http://127.0.0.1:8000"  # port in the pages; tests use another one


def copy(source: Path, target: Path) -> None:
    """Copy a folder with models; encoders have 90 MB, are never changed in place, and become links."""
    linked = "/encoder/model.safetensors"
    shutil.copytree(source, target, copy_function=lambda a, b: (os.link if a.endswith(linked) else shutil.copy2)(a, b))


@pytest.fixture(scope="module")
def shell(tmp_path_factory):
    with commands(tmp_path_factory.mktemp("bin")) as environment:
        yield environment


@pytest.fixture(scope="module")
def prepared(tmp_path_factory, shell) -> Path:
    """The folder that every page starts with."""
    folder = tmp_path_factory.mktemp("pages") / "prepared"
    shutil.copytree(TICKETS, folder)
    train = ["denn", "-q", "train", "train.jsonl", "--valid-share", "0.3", "--out", "model"]
    subprocess.run(train, cwd=folder, env=shell, check=True)
    (folder / "some.jsonl").write_text('{"id": "some-id", "text": "How is VAT shown?", "labels": ["billing"]}\n')
    subprocess.run(["denn", "-q", "store", "add", "model", "some.jsonl"], cwd=folder, env=shell, check=True)
    copy(folder / "model", folder / "demo" / "model")  # the names of other tutorials
    shutil.copy(folder / "test.jsonl", folder / "demo" / "test.jsonl")
    shutil.copy(folder / "inbox.jsonl", folder / "new.jsonl")
    names = {label for row in (folder / "train.jsonl").read_text().splitlines() for label in json.loads(row)["labels"]}
    rows = (f"http://eurovoc.europa.eu/{number}\t{name}\n" for number, name in enumerate(sorted(names)))
    (folder / "eurovoc.tsv").write_text("id\tname\n" + "".join(rows))
    return folder


@pytest.fixture
def service(prepared, shell, tmp_path):
    """The address and the write key of a service over a copy of the model."""
    copy(prepared / "model", tmp_path / "served" / "model")
    command = ["denn", "serve", "model", "--teach", "--port", "0", "--log", "none"]
    with subprocess.Popen(command, cwd=tmp_path / "served", env=shell, stdout=subprocess.PIPE, text=True) as process:
        greeting = process.stdout.readline()
        found = re.search(r"(http://\S+?)/#key=([^\s,]+)", greeting)
        assert found, greeting
        try:
            yield found[1], found[2]
        finally:
            process.terminate()


@pytest.mark.parametrize("name", RUN)
def test_blocks_of_a_page_run(name, prepared, shell, tmp_path, monkeypatch, request):
    text = (DOCS / name).read_text(encoding="utf-8")
    for tool in ("curl", "jq"):
        if re.search(rf"\b{tool} -", text) and not shutil.which(tool):
            pytest.skip(f"the page uses {tool}, which is not installed")
    folder = tmp_path / "page"
    copy(prepared, folder)
    blocks = [block for block in blocks_of(text) if not block.reason]
    if any(re.search(r"denn train .*--out model\b", block.code) for block in blocks if not block.exit_code):
        shutil.rmtree(folder / "model")  # the page makes it
    monkeypatch.chdir(folder)
    environment, names = {**shell}, {"__name__": "__main__"}
    address = ADDRESS
    if ADDRESS in text:
        address, environment["KEY"] = request.getfixturevalue("service")
        monkeypatch.setenv("KEY", environment["KEY"])
    for block in blocks:
        code = block.code.replace(ADDRESS, address)
        if block.kind == "python":
            exec(compile("\n" * (block.line - 1) + code, str(DOCS / name), "exec"), names)
        else:
            ran = run_shell(code, environment, folder)
            assert ran.returncode == block.exit_code, f"{name}, line {block.line}:\n{code}\n{ran.stdout[-4000:]}"


def test_few_blocks_are_not_run():
    blocks = [block for name in RUN for block in blocks_of((DOCS / name).read_text(encoding="utf-8"))]
    assert len([block for block in blocks if block.reason]) <= len(blocks) / 4
