"""A project of the real Annif that gets its suggestions from `denn serve`, through Annif's backend http.

Annif's dependencies conflict with denn's, so it is installed into a separate environment, once, by `make soak`.
"""

import os
import re
import shutil
import subprocess
from urllib.parse import urlencode

import httpx
import pytest

from denn_bench.peers.environments import EnvironmentFailed, python_of

PACKAGES = ("annif==1.4.3", "scikit-learn==1.7.2")
TEXT = "referee goal stadium coach"
SPORT = "http://example.org/0"
PROJECTS = """
[denn]
name=Suggestions by denn
language=en
backend=http
vocab=subjects
endpoint={url}/v1/projects/named/suggest
limit=100
"""


@pytest.fixture(scope="module")
def named(named_model, tmp_path_factory, serving):
    with serving(shutil.copytree(named_model, tmp_path_factory.mktemp("served") / "named"), teach=False) as running:
        yield running


def test_the_requests_of_the_backend_are_answered_as_it_reads_them(named, names_of_labels):
    """Send what annif/backend/http.py of version 1.4.3 sends, and read what it reads."""
    endpoint = f"{named.url}/v1/projects/named/suggest"
    headers = {"User-Agent": "Annif/1.4.3"}
    project = httpx.get(endpoint.replace("/suggest", ""), headers=headers).json()
    assert project["is_trained"] is True and re.match(r"\d{4}-\d\d-\d\dT", project["modification_time"])
    body = urlencode({"text": TEXT, "metadata_title": "A match", "project": "named", "limit": "100"})
    form = headers | {"Content-Type": "application/x-www-form-urlencoded"}
    answer = httpx.post(endpoint, content=body, headers=form)
    assert answer.status_code == 200
    hits = answer.json()["results"]
    assert hits[0]["uri"] == SPORT and {hit["uri"] for hit in hits} <= set(names_of_labels)
    assert all(0 < hit["score"] <= 1 for hit in hits)


@pytest.fixture(scope="module")
def annif(named, tmp_path_factory, names_of_labels):
    """Run `annif` in a folder with a project of denn and its vocabulary."""
    try:
        python = python_of("annif-http", PACKAGES)
    except (EnvironmentFailed, OSError) as error:
        pytest.skip(f"Annif cannot be installed: {error}")
    folder = tmp_path_factory.mktemp("annif")
    (folder / "projects.cfg").write_text(PROJECTS.format(url=named.url))
    lines = (f"<{id}>\t{name}\n" for id, name in names_of_labels.items())
    (folder / "subjects.tsv").write_text("".join(lines), encoding="utf-8")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(*arguments: str, stdin: str = "") -> str:
        command = [str(python.with_name("annif")), *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, cwd=folder, env=environment)
        assert done.returncode == 0, done.stderr
        return done.stdout

    run("load-vocab", "--language", "en", "subjects", "subjects.tsv")
    return run


@pytest.mark.skipif("DENN_SOAK" not in os.environ, reason="installing Annif takes minutes; `make soak` runs this test")
def test_annif_suggests_and_evaluates_with_a_model_of_denn(annif, tiny_corpus, names_of_labels, tmp_path):
    assert re.search(r"^denn +Suggestions by denn +subjects +en +True +2", annif("list-projects"), re.M)
    first = annif("suggest", "denn", stdin=TEXT).splitlines()[0].split("\t")
    assert first[:2] == [f"<{SPORT}>", "sport"] and float(first[2]) > 0.5
    ids = {name: id for id, name in names_of_labels.items()}
    test = tmp_path / "test.tsv"
    rows = ((one.text, " ".join(f"<{ids[label]}>" for label in one.labels)) for one in tiny_corpus.test if one.labels)
    test.write_text("".join(f"{text}\t{subjects}\n" for text, subjects in rows), encoding="utf-8")
    said = annif("eval", "--threshold", "0.5", "denn", str(test))
    (score,) = re.findall(r"F1 score \(microavg\): +\t(\S+)", said)
    assert float(score) > 0.9
    assert "Documents evaluated:          \t19" in said
