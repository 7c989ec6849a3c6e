"""Annif with its Omikuji and fastText backends and the ensemble of both, each at its own settings.

Its tokenizer needs NLTK's punkt_tab, which NLTK downloads; here it comes from a package.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from .contract import Document, Job, Matrix, Trained, fitting_documents

PACKAGES = ("annif[fasttext,omikuji]==1.4.3", "omikuji==0.5.2", "fasttext-numpy2==0.10.4", "scikit-learn==1.7.2")
CARRIERS = ("llama-index-core==0.12.52",)  # installed without dependencies, only for its data
PROJECTS = """
[omikuji]
name=Omikuji
language=en
backend=omikuji
analyzer=snowball(english)
vocab=labels

[fasttext]
name=fastText
language=en
backend=fasttext
analyzer=snowball(english)
vocab=labels

[ensemble]
name=Ensemble
language=en
backend=ensemble
sources=omikuji,fasttext
vocab=labels
"""
URI = "http://example.org/"
BATCH = 32  # documents, as in its REST API
TRIES = 3
M_PERTURB, ZEROS = -6, 255  # of glibc's mallopt


def train(job: Job) -> Trained:
    """Load the labels as a vocabulary, and train on as many documents as the time allows."""
    carrier = metadata.distribution("llama-index-core")
    os.environ["NLTK_DATA"] = str(carrier.locate_file("llama_index/core/_static/nltk_cache"))
    projects = job.folder / "projects.cfg"
    projects.write_text(PROJECTS, encoding="utf-8")
    os.environ |= {"ANNIF_PROJECTS": str(projects), "ANNIF_DATADIR": str(job.folder / "data")}
    import annif
    import annif.registry
    from annif.corpus import Document as AnnifDocument
    from annif.corpus import DocumentFileTSV
    from annif.vocab import VocabFileTSV

    app = annif.create_flask_app("annif.default_config.Config")
    vocabulary = job.folder.parent / "labels.tsv"
    lines = (f"<{URI}{column}>\t{_one_line(name)}" for column, name in enumerate(job.labels))
    vocabulary.write_text("\n".join(lines) + "\n", encoding="utf-8")
    with app.app_context():
        annif.registry.get_vocab("labels").load_vocabulary(VocabFileTSV(str(vocabulary), "en"))
        chosen = annif.registry.get_project(job.variant)
        parts = [annif.registry.get_project(name) for name in ("omikuji", "fasttext")]
        trained = parts if job.variant == "ensemble" else [chosen]
        failures: list[int] = []  # of fastText, in each training run

        def fit(documents: Sequence[Document]) -> None:
            path = _write(documents, job.folder.parent / "train.tsv")
            for project in trained:
                corpus = DocumentFileTSV(str(path), project.subjects, require_subjects=True)
                failures.append(_train(project, corpus, job.cores))

        documents = fitting_documents(job, fit)
        fit(documents)
        columns = [chosen.subjects.by_uri(f"{URI}{column}") for column in range(len(job.labels))]

    def score(texts: Sequence[str]) -> Matrix:
        batches = []
        with app.app_context():
            for begin in range(0, len(texts), BATCH):
                found: Any = chosen.suggest([AnnifDocument(text=text) for text in texts[begin : begin + BATCH]])
                batches.append(found.array.toarray()[:, columns])
        return np.concatenate(batches).astype(np.float32)

    complete = len(documents) == len(job.train)
    packages = ["annif", "omikuji", "fasttext-numpy2", "scikit-learn"]
    facts = {"failures_of_fasttext": sum(failures)}
    return Trained(score, len(documents), "fewer documents", complete, packages, facts=facts)


def _train(project: Any, corpus: Any, threads: int) -> int:
    """Train a project, and return how often fastText failed first.

    fastText reads uninitialised memory and fails if it contains NaN, so a retry fills memory with zeros. By
    default it uses one thread fewer than the machine has cores, even if this process may use fewer cores.
    """
    for failures in range(TRIES):
        try:
            if failures:
                _fill_memory(ZEROS)
            project.train(corpus, jobs=threads)
            return failures
        except RuntimeError as error:
            if "NaN" not in str(error):
                raise
        finally:
            _fill_memory(0)
    raise RuntimeError(f"fastText failed {TRIES} times.")


def _fill_memory(byte: int) -> None:
    """Make glibc fill allocated memory with the complement of a byte; 0 turns this off."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt:
        mallopt(M_PERTURB, byte)


def _write(documents: Sequence[Document], path: Path) -> Path:
    rows = (
        f"{_one_line(document.text)}\t{' '.join(f'<{URI}{column}>' for column in document.labels)}"
        for document in documents
        if document.labels
    )
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path


def _one_line(text: str) -> str:
    return " ".join(text.split())
