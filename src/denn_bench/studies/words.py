"""Compare solvers and kinds of terms for the witness `words`, in quality and time.

python -m denn_bench.studies.words DATA_FOLDER CORPUS... [--systems NAME...] [--seed 0] [--json results/words.json]

Thresholds are tuned on validation. CPU seconds cover all threads; on a busy machine they are more reliable than
wall-clock time. An existing JSON file keeps the rows of other corpora and systems. Omikuji runs if it is installed.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from denn.clock import Clock
from denn.core.calibration import calibration_error
from denn.core.metrics import multilabel_scores
from denn.core.thresholds import decide, tune_global
from denn.progress import Silent
from denn.types import Corpus
from denn.witnesses.ngrams import Matrix, Ngrams, WordTokens
from denn.witnesses.sparse_linear import Learner
from denn.witnesses.words import MOST_ENDINGS, MOST_PAIRS, MOST_WORDS, Words, gold_matrix
from denn_bench.studies.machine import report

GRID = tuple(step / 50 for step in range(-75, 51))  # decision values
NEGATIVES = 1000


class Notes(Silent):
    """Progress that prints its notes."""

    def note(self, message: str) -> None:
        """Print it."""
        print(message)


class Problem:
    """The rows of a corpus with some kinds of terms."""

    def __init__(self, corpus: Corpus, seed: int, *, endings: bool = True, pairs: bool = True) -> None:
        tokens = WordTokens.of(document.text for document in corpus.train)
        most = {"most_endings": MOST_ENDINGS * endings, "most_pairs": MOST_PAIRS * pairs}
        self.ngrams = Ngrams.of(tokens, least=2, most_words=MOST_WORDS, **most)
        self.rows, self.gold, self.seed = self.ngrams.learn(tokens), gold_matrix(corpus.train, corpus.labels), seed

    @property
    def labels(self) -> range:
        """The columns of labels."""
        return range(self.gold.shape[1])


Decide = Callable[[Matrix], Any]  # (n,V) rows → (n,L) decision values
Solver = Callable[[Problem], tuple[Decide, int]]  # → decisions, and the number of weights


def linear(weights: Any, bias: Any, prune: float = 0.05) -> tuple[Decide, int]:
    """Decide with (V,L) dense or sparse weights, without the small ones."""
    from scipy.sparse import csr_matrix

    weights = csr_matrix(weights, dtype=np.float32)
    weights.data[np.abs(weights.data) < prune] = 0
    weights.eliminate_zeros()
    return lambda rows: (rows @ weights).toarray() + bias, int(weights.nnz)


def one_by_one(problem: Problem, choose: Callable[[Any, Any], Any]) -> tuple[Decide, int]:
    """Train each label with scikit-learn's LinearSVC on its documents and those that `choose` returns."""
    import warnings

    from scipy.sparse import csr_matrix, vstack
    from sklearn.svm import LinearSVC

    def one(label: int) -> tuple[Any, float]:
        own = problem.gold.indices[problem.gold.indptr[label] : problem.gold.indptr[label + 1]]
        others = choose(own, np.random.default_rng((problem.seed, label))) if len(own) else []
        if not len(own) or not len(others):
            return csr_matrix((1, problem.rows.shape[1]), dtype=np.float32), -2.0
        chosen = np.concatenate([own, others])
        rows = problem.rows[chosen].astype(np.float64)
        machine = LinearSVC(tol=0.1, max_iter=30, random_state=problem.seed)
        machine.fit(rows, np.arange(len(chosen)) < len(own))
        return csr_matrix(np.where(np.abs(machine.coef_) < 0.05, 0, machine.coef_)), float(machine.intercept_[0])

    warnings.simplefilter("ignore")
    with ThreadPoolExecutor() as pool:
        found = list(pool.map(one, problem.labels))
    return linear(vstack([weights for weights, _ in found]).T, np.array([bias for _, bias in found]))


def all_documents(problem: Problem) -> tuple[Decide, int]:
    """Train each label on all documents."""
    return one_by_one(problem, lambda own, _: np.setdiff1d(np.arange(problem.rows.shape[0]), own))


def near_documents(problem: Problem) -> tuple[Decide, int]:
    """Train each label on its documents, those nearest to their mean, and a random sample."""
    mean = np.asarray(problem.rows.mean(axis=0)).ravel()

    def choose(own: Any, random: Any) -> Any:
        centroid = np.asarray(problem.rows[own].mean(axis=0)).ravel() - mean
        near = problem.rows @ centroid
        near[own] = -np.inf
        some = np.argsort(-near)[: NEGATIVES + 3 * len(own)]
        return np.setdiff1d(np.union1d(some, random.permutation(problem.rows.shape[0])[:NEGATIVES]), own)

    return one_by_one(problem, choose)


def within_margin(problem: Problem) -> tuple[Decide, int]:
    """Train each label on its documents and those within the margin: the solver of the witness."""
    learner = Learner(problem.rows, problem.gold, 1.0, NEGATIVES, 0.05, problem.seed, lambda: None)
    found = learner.learn(np.array(problem.labels), lambda done: None)
    return linear(found.weights, found.bias)


def all_labels(problem: Problem) -> tuple[Decide, int]:
    """Minimise the squared hinge loss of all labels at once by L-BFGS with sparse products."""
    rows, back = (
        torch.sparse_csr_tensor(*(torch.from_numpy(part) for part in (m.indptr, m.indices, m.data)), size=m.shape)
        for m in (problem.rows, problem.rows.T.tocsr())
    )
    sign = torch.from_numpy(problem.gold.toarray()).float() * 2 - 1
    found = torch.zeros(problem.rows.shape[1] + 1, len(problem.labels), requires_grad=True)  # the last row is the bias
    optimiser = torch.optim.LBFGS([found], max_iter=40, history_size=5, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        with torch.no_grad():
            short = (1 - sign * (rows @ found[:-1] + found[-1])).clamp(min=0)
            slope = -2 * sign * short
            found.grad = found + torch.cat([back @ slope, slope.sum(0, keepdim=True)])
            return found.square().sum() / 2 + short.square().sum()

    optimiser.step(closure)
    return linear(found[:-1].detach().numpy(), found[-1].detach().numpy())


def omikuji(problem: Problem) -> tuple[Decide, int]:
    """Train three trees of labels with Omikuji; labels that it does not return get the lowest score."""
    import omikuji as package

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "train.txt"
        file.write_text("".join(omikuji_lines(problem.rows, problem.gold)))
        model = package.Model.train_on_data(str(file), package.Model.default_hyper_param())
        model.save(str(Path(folder) / "model"))
        weights = sum(file.stat().st_size for file in (Path(folder) / "model").rglob("*")) // 6

    def decisions(rows: Matrix) -> Any:
        scores = np.full((rows.shape[0], len(problem.labels)), -1.5)
        for number, row in enumerate(rows):
            pairs = list(zip(row.indices.tolist(), row.data.tolist(), strict=True))
            for label, score in model.predict(pairs, top_k=30):
                scores[number, label] = 2 * score - 1.5  # from 0 to 1 onto the grid
        return scores

    return decisions, weights


def omikuji_lines(rows: Matrix, gold: Matrix) -> Iterator[str]:
    """Write (N,V) rows and (N,L) labels in Omikuji's format, without documents that have no terms."""
    filled, by_row = np.flatnonzero(np.diff(rows.indptr)), gold.tocsr()
    yield f"{len(filled)} {rows.shape[1]} {gold.shape[1]}\n"
    for number in filled:
        begin, end = rows.indptr[number : number + 2]
        terms = zip(rows.indices[begin:end], rows.data[begin:end], strict=True)
        labels = ",".join(map(str, by_row[number].indices))
        yield f"{labels} {' '.join(f'{term}:{value:.5g}' for term, value in terms)}\n"


SOLVERS: dict[str, tuple[Solver, dict[str, bool]]] = {
    "words": (within_margin, {"endings": False, "pairs": False}),
    "words and pairs": (within_margin, {"endings": False}),
    "words and endings": (within_margin, {"pairs": False}),
    "all terms": (within_margin, {}),
    "all terms, all documents": (all_documents, {}),
    "all terms, near documents": (near_documents, {}),
    "all terms, all labels at once": (all_labels, {}),
    "words, all documents": (all_documents, {"endings": False, "pairs": False}),
    "words, near documents": (near_documents, {"endings": False, "pairs": False}),
    "words, Omikuji": (omikuji, {"endings": False, "pairs": False}),
}


def load(name: str, data: Path, seed: int) -> Corpus:
    """Return a corpus with a validation split; `demo` is that of `denn demo`."""
    from importlib import import_module

    from denn.data.corpus import split_documents
    from denn.data.known import folder_of

    if name == "demo":
        from denn.cli.demo import _debian, parts

        return parts(_debian()[0], 3000, seed)
    corpus: Corpus = import_module(f"denn.data.{name}").load(folder_of(name, data))
    if corpus.valid:
        return corpus
    train, valid = split_documents(corpus.train, 0.1)
    return Corpus(train, valid, corpus.test, labels=corpus.labels, name=name)


def quality(corpus: Corpus, valid: Any, test: Any, grid: tuple[float, ...] | None) -> dict[str, Any]:
    """Return F1 in percent at the threshold tuned on validation."""
    golds = {name: corpus.labels.matrix(getattr(corpus, name)) for name in ("valid", "test")}
    scores = {"valid": torch.as_tensor(valid).float(), "test": torch.as_tensor(test).float()}
    cut = tune_global(scores["valid"], golds["valid"], grid)
    found: dict[str, Any] = {"threshold": round(cut, 2)}
    for name, gold in golds.items():
        metrics = multilabel_scores(decide(scores[name], cut), gold)
        found |= {f"{name}_{metric}": round(100 * metrics[metric], 2) for metric in ("micro_f1", "macro_f1")}
    return found


def measured(work: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
    """Return the result of a function, and its seconds."""
    clock, cpu = Clock(), time.process_time()
    result = work()
    return result, {"seconds": round(clock.elapsed(), 2), "cpu_seconds": round(time.process_time() - cpu, 3)}


def solve(corpus: Corpus, name: str, seed: int) -> dict[str, Any]:
    """Measure one solver on one corpus."""
    solver, kinds = SOLVERS[name]
    problem, reading = measured(lambda: Problem(corpus, seed, **kinds))
    (decisions, weights), learning = measured(lambda: solver(problem))
    valid, test = (
        decisions(problem.ngrams.rows(WordTokens.of(document.text for document in part)))
        for part in (corpus.valid, corpus.test)
    )
    facts = {"reading_seconds": reading["seconds"], "terms": problem.ngrams.terms, "weights": weights}
    per_text = {"terms_per_text": round(problem.rows.nnz / problem.rows.shape[0])}
    return learning | facts | per_text | quality(corpus, valid, test, GRID)


def witness(corpus: Corpus, seed: int) -> dict[str, Any]:
    """Measure the witness itself: fitting, scores, files, and milliseconds per text."""
    model, facts = measured(
        lambda: Words.learn(corpus.train, corpus.labels, seed=seed, progress=Notes(), seconds_left=lambda: None)
    )
    texts = [document.text for document in corpus.test]
    test, scoring = measured(lambda: model.scores(texts))
    valid = model.scores([document.text for document in corpus.valid])
    some = texts[:500]
    _, alone = measured(lambda: [model.scores([text]) for text in some])
    _, features = measured(lambda: [model.ngrams.rows(WordTokens.of([text])) for text in some])
    _, naming = measured(lambda: model.support(some, [[0, 1, 2, 3, 4]] * len(some)))
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder) / "words")
        size = sum(file.stat().st_size for file in (Path(folder) / "words").iterdir())
        _, loading = measured(lambda: Words.load(Path(folder) / "words", SimpleNamespace(names=corpus.labels.names)))
    gold = corpus.labels.matrix(corpus.test)
    return {
        **facts,
        **quality(corpus, valid, test, None),
        "terms": model.ngrams.terms,
        "weights": int(model.weights.nnz),
        "megabytes": round(size / 1e6, 1),
        "load_seconds": loading["seconds"],
        "words_per_text": round(len(WordTokens.of(some).ids) / len(some)),
        "ms_per_text": {
            "together": round(1000 * scoring["cpu_seconds"] / len(texts), 3),
            "alone": round(1000 * alone["cpu_seconds"] / len(some), 3),
            "alone_features": round(1000 * features["cpu_seconds"] / len(some), 3),
            "support_of_5_labels": round(1000 * naming["cpu_seconds"] / len(some), 3),
        },
        "calibration": {
            "mean_score": round(float(test.mean()), 5),
            "share_of_labels": round(float(gold.float().mean()), 5),
            "error": round(calibration_error(test, gold, lowest=0.05), 5),
        },
    }


def main() -> None:
    """Measure systems on corpora."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("corpora", nargs="+")
    parser.add_argument("--systems", nargs="+", default=["witness", *SOLVERS])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    before = json.loads(args.json.read_text())["rows"] if args.json and args.json.exists() else {}
    for name in args.corpora:
        corpus = load(name, args.data, args.seed)
        for system in args.systems:
            row = witness(corpus, args.seed) if system == "witness" else solve(corpus, system, args.seed)
            before.setdefault(name, {})[system] = row
            print(name, system, row, flush=True)
            report({"seed": args.seed, "rows": before}, args.json)


if __name__ == "__main__":
    main()
