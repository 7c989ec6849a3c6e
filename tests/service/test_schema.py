"""schemathesis over the description of the API: valid and invalid requests to every operation, with all its checks.

Its command also loads this module, which adds rules that the schema cannot express.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import schemathesis

from denn.service.request_schemas import MergeRequest

CHECKS = "all"
PHASES = "examples,coverage,fuzzing"  # no sequences of requests
EXAMPLES = "200" if "DENN_SOAK" in os.environ else "10"  # of fuzzing, for each operation


@schemathesis.serializer("application/x-ndjson")
def lines(_, value):
    """Send the generated body as one line of JSON."""
    return json.dumps(value).encode()


@schemathesis.hook
def map_body(_, body):
    """Give the documents of a request different ids, which a JSON schema cannot require."""
    if isinstance(body, dict) and isinstance(body.get("documents"), list):
        seen = set()
        for document in body["documents"]:
            if isinstance(document, dict) and isinstance(document.get("id"), str):
                if document["id"] in seen:
                    document.pop("id")
                else:
                    seen.add(document["id"])
    return body


@schemathesis.hook
def before_call(_, case, __):
    """Remove rejected labels that are also given, which a JSON schema cannot forbid, and merge known labels."""
    if case.path.endswith("/labels/merge") and _is_valid_merge(case.body):
        case.body |= {"labels": ["sport"], "into": "music"}
    documents = case.body.get("documents") if isinstance(case.body, dict) else None
    for body in (case.body, *(documents if isinstance(documents, list) else ())):
        if not isinstance(body, dict):
            continue
        lists = {name: value for name, value in body.items() if isinstance(value, list)}
        given = [*lists.get("labels", []), *lists.get("add", [])]
        for name in {"rejected", "reject"} & lists.keys():
            body[name] = [label for label in lists[name] if label not in given]


def _is_valid_merge(body):
    try:
        MergeRequest.model_validate(body)
    except ValueError:
        return False
    return True


@pytest.mark.slow
def test_every_operation(serving, tiny_model, tmp_path):
    folder = shutil.copytree(tiny_model, tmp_path / "tiny")
    with serving(folder) as running:
        command = [
            Path(sys.executable).with_name("schemathesis"), "run", f"{running.url}/openapi.json",
            "--header", f"Authorization: Bearer {running.write_key}", "--checks", CHECKS, "--phases", PHASES,
            "--max-examples", EXAMPLES, "--generation-deterministic",
            "--suppress-health-check", "all", "--request-timeout", "60", "--continue-on-failure", "--no-color",
        ]  # fmt: skip
        here = {"SCHEMATHESIS_HOOKS": Path(__file__).stem, "PYTHONPATH": str(Path(__file__).parent)}
        ran = subprocess.run(command, cwd=tmp_path, env={**os.environ, **here}, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stdout[-6000:] + ran.stderr
        assert "No issues found" in ran.stdout and re.search(r"(\d\d) selected / \1 total", ran.stdout), ran.stdout
    assert not [line for line in running.log if json.loads(line)["level"] == "error"]
