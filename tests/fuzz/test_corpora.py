"""Damaged corpus files are read or rejected with a sentence, in little time and memory.

Texts read from JSONL, CSV and TSV are compared with those that other libraries read.

DENN_MUTATIONS=2500 makes more of them; DENN_SOAK=FOLDER writes what was found there.
"""

import json
import os
import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pytest
from corpus_cases import SEED

MUTATIONS = int(os.environ.get("DENN_MUTATIONS", "120"))
COMMANDS = MUTATIONS // 12
MEMORY = 2 << 30
HERE = Path(__file__).parent

pytestmark = pytest.mark.slow


def run_helper(name: str, *arguments: object) -> list[dict]:
    """Run a helper and return its lines."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(HERE / name), *map(str, arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_damaged_files_are_read_rightly_or_refused(tmp_path):
    cases = run_helper("corpus_reader.py", MUTATIONS, tmp_path)
    assert len(cases) == MUTATIONS
    wrong = [case for case in cases if case["outcome"] == "fault" or case["memory"] > MEMORY or case["left"]]
    assert not wrong, json.dumps(wrong, indent=1)
    assert {case["outcome"] for case in cases} == {"read", "refused"}
    assert all(case["outcome"] == "read" for case in cases if case["kind"] == "untouched")
    if folder := os.environ.get("DENN_SOAK"):
        (Path(folder) / "fuzz-corpora.json").write_text(json.dumps(summary(cases), indent=1) + "\n")


def test_commands_refuse_damaged_files_in_one_line(tmp_path):
    cases = run_helper("corpus_commands.py", 10_000, 10_000 + COMMANDS, tmp_path)  # other cases than above
    assert len(cases) == COMMANDS
    for case in cases:
        complaints = [line for line in case["said"].splitlines() if line.startswith("denn: ")]
        assert (case["code"], len(complaints)) in ((0, 0), (2, 1)), case
        assert "Traceback" not in case["said"] and "bug in denn" not in case["said"], case
        assert not case["left"] and case["memory"] < MEMORY, case


def summary(cases: list[dict]) -> dict:
    """Return what was found, with the machine."""
    from denn_bench.machine import commit, machine

    def count(key: str) -> dict:
        found = Counter((case[key], case["outcome"]) for case in cases)
        names = sorted({case[key] for case in cases})
        return {name: {end: found[name, end] for end in ("read", "refused")} for name in names}

    cases = [case | {"file": case["format"] + case["compression"]} for case in cases]
    return {
        "mutations": len(cases),
        "read": sum(case["outcome"] == "read" for case in cases),
        "refused": sum(case["outcome"] == "refused" for case in cases),
        "faults": sum(case["outcome"] == "fault" for case in cases),
        "kinds": count("kind"),
        "files": count("file"),
        "seconds": round(sum(case["seconds"] for case in cases), 1),
        "longest_seconds": max(case["seconds"] for case in cases),
        "peak_memory_bytes": max(case["memory"] for case in cases),
        "seed": SEED,
        "machine": machine(),
        "commit": commit(),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }
