"""TF-IDF and one linear SVM per label: TfidfVectorizer, OneVsRestClassifier and LinearSVC with their defaults."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .contract import Document, Job, Matrix, Trained, fitting_documents, gold, seen_labels, spread

PACKAGES = ()  # scikit-learn comes with denn


def train(job: Job) -> Trained:
    """Fit on as many documents as the time allows."""
    import joblib
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.multiclass import OneVsRestClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.svm import LinearSVC

    def fit(documents: Sequence[Document]) -> Any:
        machines = OneVsRestClassifier(LinearSVC(random_state=job.seed), n_jobs=job.cores)
        wanted = gold(documents, len(job.labels))[:, seen_labels(documents)]
        with joblib.parallel_config("threading"):  # liblinear releases the GIL
            return make_pipeline(TfidfVectorizer(), machines).fit([document.text for document in documents], wanted)

    documents = fitting_documents(job, fit)
    model, columns = fit(documents), seen_labels(documents)
    joblib.dump(model, job.folder / "model.joblib")

    def score(texts: Sequence[str]) -> Matrix:
        decisions = model.decision_function(texts).reshape(len(texts), len(columns))
        return spread(decisions, columns, len(job.labels))

    complete = len(documents) == len(job.train)
    return Trained(score, len(documents), "fewer documents", complete, ["scikit-learn"], lambda scores, _: scores > 0)
