"""Models damaged in many ways: each one loads and scores, or is rejected in one sentence; none runs code or hangs.

DENN_MUTATIONS says how many; `make soak` tries thousands and writes their figures to results/fuzz-bundles.json.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pytest
from bundle_worker import sign

import denn
from denn_bench.machine import commit, machine

pytestmark = pytest.mark.slow  # trains, and loads every damaged model

COUNT = int(os.environ.get("DENN_MUTATIONS", "80"))
SEED = os.environ.get("DENN_FUZZ_SEED", "0")
REPORT = os.environ.get("DENN_SOAK")  # a folder
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def models(named_model, tiny_corpus, tmp_path_factory) -> list[Path]:
    """Folders of a DENN model with a vocabulary, of one on TF-IDF and of a network of words."""
    folder = tmp_path_factory.mktemp("others")
    denn.train(tiny_corpus, method="br", out=folder / "br", min_df=1, jobs=1).close()
    settings = {"device": "cpu", "epochs": 1, "word_width": 32, "max_length": 40, "allow_poor": True}
    denn.train(tiny_corpus, method="leam", out=folder / "leam", **settings).close()
    return [named_model, folder / "br", folder / "leam"]


def test_every_damaged_model_loads_or_is_refused_in_a_sentence(models, tmp_path):
    out, begun = tmp_path / "results.jsonl", time.monotonic()
    (tmp_path / "scratch").mkdir()
    command = [sys.executable, HERE / "bundle_worker.py", str(COUNT), SEED, tmp_path / "scratch", out, *models]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60 + 20 * COUNT)
    rows = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    assert ended.returncode == 0, f"{ended.stderr[-2000:]} after {rows[-1:]}"
    assert len(rows) == COUNT
    if REPORT:
        write_report(Path(REPORT) / "fuzz-bundles.json", rows, time.monotonic() - begun)
    failed = [row for row in rows if row["ended"] not in ("loaded", "refused")]
    assert not failed, "\n".join(json.dumps(row) for row in failed)
    assert {row["ended"] for row in rows} == {"loaded", "refused"}


def without_weights(folder: Path) -> None:
    (folder / "head.safetensors").write_bytes(b"")


def with_code(folder: Path) -> None:
    (folder / "encoder" / "evil.py").write_text(f"open({str(folder.parent / 'canary')!r}, 'w')")
    config = folder / "encoder" / "config.json"
    content = json.loads(config.read_text()) | {"model_type": "evil", "auto_map": {"AutoConfig": "evil.Evil"}}
    config.write_text(json.dumps(content))


def with_another_tokenizer(folder: Path) -> None:
    (folder / "encoder" / "tokenizer.json").write_text('{"a": "valid JSON"}')


def with_a_link(folder: Path) -> None:
    (folder / "labels.txt").unlink()
    (folder / "labels.txt").symlink_to("/dev/zero")


def with_a_huge_layer(folder: Path) -> None:
    config = folder / "encoder" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"hidden_size": 10**6}))


@pytest.mark.parametrize("change", [without_weights, with_code, with_another_tokenizer, with_a_link, with_a_huge_layer])
def test_the_command_refuses_in_one_line(tiny_model, tmp_path, change):
    folder = Path(shutil.copytree(tiny_model, tmp_path / "model"))
    change(folder)
    sign(folder)
    ended = subprocess.run(
        [sys.executable, "-m", "denn", "predict", folder, "-"], input="a text\n1\ny\n", capture_output=True, text=True
    )
    assert (ended.returncode, ended.stdout) == (2, "")
    assert len(ended.stderr.splitlines()) == 1, ended.stderr
    assert "bug in denn" not in ended.stderr
    assert not (tmp_path / "canary").exists()


def write_report(path: Path, rows: list[dict[str, object]], seconds: float) -> None:
    """Write what a long run found."""
    kinds = {
        kind: dict(Counter(str(row["ended"]).partition(":")[0] for row in rows if row["kind"] == kind))
        for kind in sorted({str(row["kind"]) for row in rows})
    }
    facts = {
        "mutations": len(rows),
        **{end: sum(row["ended"] == end for row in rows) for end in ("loaded", "refused")},
        "failed": sum(row["ended"] not in ("loaded", "refused") for row in rows),
        "with_digests_recomputed": sum(bool(row["signed"]) for row in rows),
        "models": dict(Counter(str(row["model"]) for row in rows)),
        "kinds": kinds,
        "seconds": round(seconds, 1),
        "slowest_seconds": max(float(str(row["seconds"])) for row in rows),
        "peak_bytes": max(int(str(row["peak"])) for row in rows),
        "seed": SEED,
        "machine": machine(),
        "commit": commit(),
        "date": datetime.now(UTC).date().isoformat(),
    }
    path.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
