"""denn in scikit-learn: estimator checks, pipelines, searches, pickles, and every form of labels."""

import ast
import gc
import os
import re
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import joblib
import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.metrics import f1_score
from sklearn.model_selection import GridSearchCV, KFold, cross_val_predict, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, MultiLabelBinarizer
from sklearn.utils.estimator_checks import parametrize_with_checks
from sklearn.utils.validation import check_is_fitted, validate_data

import denn
from denn.errors import ConfigError
from denn.sklearn import DennClassifier

pytestmark = pytest.mark.slow  # trains

ONE_LABEL = "the check has one class per text; denn takes indicator matrices and lists of labels"
NOT_INDICATORS = "the check has targets other than 0 and 1, which are not indicators"
EXPECTED_FAILURES = {  # also in docs/sklearn.md
    "check_classifier_not_supporting_multiclass": ONE_LABEL,
    "check_classifiers_classes": ONE_LABEL,
    "check_classifiers_one_label": ONE_LABEL,
    "check_classifiers_train": ONE_LABEL,
    "check_classifier_data_not_an_array": NOT_INDICATORS,
    "check_estimators_dtypes": NOT_INDICATORS,
    "check_fit2d_1feature": NOT_INDICATORS,
}


class ReadsNumbers(DennClassifier):
    """The classifier on rows of numbers written as texts, because scikit-learn's checks use numbers."""

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.string, tags.input_tags.two_d_array = False, True
        return tags

    def fit(self, X, y):
        return super().fit(written(validate_data(self, X)), y)

    def _scores(self, X):
        check_is_fitted(self)
        return super()._scores(written(validate_data(self, X, reset=False)))


def written(rows) -> list[str]:
    return [" ".join(f"x{column}is{round(float(value))}" for column, value in enumerate(row)) for row in rows]


@pytest.fixture
def classifier(tiny_encoder) -> DennClassifier:
    """A classifier that trains in a third of a second."""
    return DennClassifier(str(tiny_encoder), device="cpu", parameters={"precision": "float32", "epochs": 1})


@pytest.fixture
def data(tiny_corpus) -> tuple[list[str], list[list[str]]]:
    return [d.text for d in tiny_corpus.train], [list(d.labels) for d in tiny_corpus.train]


@pytest.fixture
def own_temporary_folder(tmp_path, monkeypatch) -> Path:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@parametrize_with_checks(
    [ReadsNumbers(device="cpu", parameters={"precision": "float32", "epochs": 1})],
    expected_failed_checks=lambda _: EXPECTED_FAILURES,
    xfail_strict=True,
)
def test_the_checks_of_scikit_learn(estimator, check, tiny_encoder):
    check(estimator.set_params(encoder=str(tiny_encoder)))


@pytest.mark.parametrize(
    ("form", "kind"),
    [
        (np.asarray, np.ndarray),
        (lambda matrix: matrix.astype(bool), np.ndarray),
        (lambda matrix: matrix.tolist(), np.ndarray),
        (sparse.csr_matrix, sparse.csr_array),
        (sparse.coo_array, sparse.csr_array),
        (lambda matrix: pd.DataFrame(matrix, columns=[f"label {n}" for n in range(matrix.shape[1])]), np.ndarray),
    ],
)
def test_indicators_in_any_form_give_indicators(classifier, data, form, kind):
    X, lists = data
    matrix = MultiLabelBinarizer().fit_transform(lists)
    y = form(matrix)
    found = classifier.fit(pd.Series(X), y).predict(np.array(X, dtype=object))
    assert isinstance(found, kind) and found.shape == matrix.shape
    dense = found.toarray() if sparse.issparse(found) else found
    assert dense.dtype == int and f1_score(matrix, dense, average="micro") > 0.9
    assert list(classifier.classes_) == (list(y.columns) if hasattr(y, "columns") else list(range(6)))
    assert classifier.score(X, y) == pytest.approx((dense == matrix).all(1).mean())


def test_lists_of_labels_give_lists_of_labels(classifier, data):
    X, lists = data
    found = classifier.fit(X, lists).predict(X)
    assert all(isinstance(labels, list) and all(isinstance(label, str) for label in labels) for labels in found)
    binarizer = MultiLabelBinarizer()
    matrix = binarizer.fit_transform(lists)
    assert list(classifier.classes_) == list(binarizer.classes_) == sorted(classifier.model_.labels)
    assert f1_score(matrix, binarizer.transform(found), average="micro") > 0.9
    right = [set(own) == set(other) for own, other in zip(found, lists, strict=True)]
    assert classifier.score(X, lists) == pytest.approx(np.mean(right))
    assert classifier.score(X, lists, sample_weight=right) == 1
    assert clone(classifier).fit(X, [frozenset(labels) for labels in lists]).predict(X) == found
    arrays = pd.Series([np.array(labels, dtype=object) for labels in lists])  # as pandas reads them from Parquet
    again = clone(classifier).fit(X, arrays)
    assert again.predict(X) == found and again.score(X, arrays) == pytest.approx(np.mean(right))
    assert {neighbour.id for one in classifier.model_.predict(X[:2]) for neighbour in one.neighbours} <= {
        str(number) for number in range(60)
    }


def test_probabilities_are_the_models_scores_in_the_order_of_the_classes(classifier, data, tiny_corpus):
    X, lists = data
    texts = [document.text for document in tiny_corpus.test]
    found = classifier.fit(X, lists).predict_proba(texts)
    assert found.shape == (20, 6) and found.dtype == np.float64
    for row, prediction in zip(found, classifier.model_.predict(texts), strict=True):
        for label, score in prediction.scores.items():
            assert row[list(classifier.classes_).index(label)] == pytest.approx(score, abs=1e-6)
    assert classifier.predict(texts) == [sorted(one.labels) for one in classifier.model_.predict(texts)]
    every = clone(classifier).set_params(threshold=0, min_labels=1).fit(X, lists).predict(texts[:1])
    assert every == [list(classifier.classes_)]


def test_pipelines_cross_validation_and_searches(classifier, data):
    X, y = data[0], MultiLabelBinarizer().fit_transform(data[1])
    y = y[:, y.sum(0) > 1]  # each fold has every label
    pipeline = make_pipeline(FunctionTransformer(lambda texts: [text.lower() for text in texts]), classifier)
    found = cross_validate(pipeline, X, y, cv=2, scoring=["f1_micro", "average_precision"], error_score="raise")
    assert (found["test_f1_micro"] > 0.4).all() and (found["test_average_precision"] > 0.4).all()
    grid = {"dennclassifier__combination": ["average", "confidence"]}
    search = GridSearchCV(pipeline, grid, scoring="f1_micro", cv=2, error_score="raise").fit(X, y)
    assert search.best_params_["dennclassifier__combination"] in ("average", "confidence")
    assert search.predict(X[:3]).shape == (3, 5)
    assert cross_val_predict(classifier, X, sparse.csr_array(y), cv=KFold(2)).shape == (60, 5)


def test_cross_validation_with_lists_of_labels(classifier, data):
    found = cross_validate(classifier, *data, cv=KFold(2), error_score="raise")
    assert (found["test_score"] > 0.2).all()


def test_a_pickle_works_in_another_process_without_the_folder(classifier, data, tmp_path, own_temporary_folder):
    classifier.fit(*data)
    classifier.model_.add([denn.Document("brand new words", ("sport",), "later")])
    joblib.dump(classifier, tmp_path / "classifier.joblib")
    expected = classifier.predict_proba(data[0])
    del classifier.model_
    gc.collect()
    assert list(own_temporary_folder.iterdir()) == []
    program = (
        "import joblib, sys; c = joblib.load(sys.argv[1]); import numpy as np; "
        "np.save(sys.argv[2], c.predict_proba(sys.argv[3:])); assert 'later' in c.model_.store.ids()"
    )
    command = [sys.executable, "-c", program, tmp_path / "classifier.joblib", tmp_path / "found.npy", *data[0]]
    subprocess.run(command, check=True, env={**os.environ, "TMPDIR": str(own_temporary_folder)})
    np.testing.assert_allclose(np.load(tmp_path / "found.npy"), expected, atol=1e-6)
    assert list(own_temporary_folder.iterdir()) == []  # the other process has cleaned up


def test_a_folder_lives_as_long_as_its_model(classifier, data, own_temporary_folder):
    model = classifier.fit(*data).model_
    classifier.fit(*data)
    assert len(list(own_temporary_folder.iterdir())) == 2
    assert model.predict(["goal match"])
    del model
    gc.collect()
    assert len(list(own_temporary_folder.iterdir())) == 1
    with pytest.raises(ConfigError, match="nosuch"):
        clone(classifier).set_params(combination="nosuch").fit(*data)
    assert len(list(own_temporary_folder.iterdir())) == 1


def test_saved_models_are_models(classifier, data, tmp_path):
    (tmp_path / "new" / ".model.part" / "store").mkdir(parents=True)  # of a save that was interrupted
    classifier.fit(*data).save(tmp_path / "new" / "model")
    with denn.load(tmp_path / "new" / "model") as model:
        expected = [list(prediction.labels) for prediction in model.predict(data[0])]
    assert [sorted(labels) for labels in expected] == classifier.predict(data[0])
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["model"]
    with pytest.raises(ConfigError, match=r"already exists\. Give a new folder"):
        classifier.save(tmp_path / "new")


def test_random_states_are_seeds(classifier, data):
    def seed(state: object) -> int:
        return clone(classifier).set_params(random_state=state).fit(*data).model_.card.parameters["seed"]

    assert seed(np.int64(7)) == 7
    assert seed(np.random.RandomState(1)) == seed(np.random.RandomState(1)) != seed(None)


@pytest.mark.parametrize(
    ("X", "y", "message"),
    [
        ("one text", [["a"]], "Got str, expected a list of texts"),
        (7, [["a"]], "Got int, expected a list of texts"),
        (["one", 2], [["a"], []], r"Text 1: the text is a number \(2\), expected a string"),
        (["one"], [["a"], ["b"]], "Got labels for 2 texts, expected 1. Give labels for each text"),
        (
            ["one", "two"],
            ["a", "b"],
            r"Unknown label type: got an array of shape \(2,\) and type <U1, expected",
        ),
        (["one", "two"], [[2], [0, 1]], "Unknown label type: got rows of different lengths that are not lists of"),
        (pd.DataFrame({"text": ["one"]}), [["a"]], r"Got a table, expected a list of texts. .* X\['text'\]"),
        (["one", "two"], [[2], [0]], r"Unknown label type: got an array of shape \(2, 1\) and type int64"),
        (["one", "two"], np.array([["1", "0"], ["0", "1"]]), r"Unknown label type: got an array of shape \(2, 2\)"),
    ],
)
def test_what_cannot_be_learnt_is_a_value_error(X, y, message):
    with pytest.raises(ValueError, match=message) as caught:
        DennClassifier().fit(X, y)
    assert isinstance(caught.value, denn.DennError)


def test_the_page_says_what_is_so(data, tiny_encoder, tmp_path, monkeypatch):
    page = (Path(__file__).parents[1] / "docs" / "sklearn.md").read_text(encoding="utf-8")
    assert set(re.findall(r"`(check_\w+)`", page)) - {"check_estimator"} == set(EXPECTED_FAILURES)
    table = page.partition("## Parameters")[2].partition("##")[0]
    defaults = {name: ast.literal_eval(text) for name, text in re.findall(r"^\| `(\w+)` \| `(.+?)` \|", table, re.M)}
    assert defaults == DennClassifier().get_params()
    monkeypatch.chdir(tmp_path)
    names = {"texts": data[0], "labels": data[1]}
    brief = {"encoder": str(tiny_encoder), "device": "cpu", "parameters": {"precision": "float32", "epochs": 1}}
    names["DennClassifier"] = partial(DennClassifier, **brief)
    for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(code.replace("from denn.sklearn import DennClassifier\n", ""), names)
    assert names["search"].best_score_ > 0.4 and (tmp_path / "model" / "bundle.json").is_file()


def test_a_parameter_is_given_once_and_known(data):
    with pytest.raises(TypeError, match="multiple values for keyword argument 'encoder'"):
        DennClassifier(parameters={"encoder": "mpnet"}).fit(*data)
    with pytest.raises(ConfigError, match=r"has no parameter 'epoch'\. Did you mean 'epochs'"):
        DennClassifier(parameters={"epoch": 1}).fit(*data)
    with pytest.raises(NotFittedError):
        DennClassifier().predict(["text"])
    with pytest.raises(NotFittedError):
        DennClassifier().save("nowhere")
    with pytest.raises(NotFittedError):
        DennClassifier().score(*data)


def test_denn_imports_scikit_learn_when_it_is_asked_for():
    program = "import denn, sys; assert 'sklearn' in dir(denn) and not {'sklearn', 'torch'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)
    assert denn.__getattr__("sklearn").DennClassifier is DennClassifier
