"""The model card of a model on the hub: README.md with metadata, in plain English."""

from __future__ import annotations

import re

from denn.bundle_card import Card, Trained
from denn.hub import client
from denn.types import LabelSpace

MOST_LABELS = 50  # maximum number of labels to list
METRICS = {  # in bundle.json → on the hub: type and name
    "micro_f1": ("f1", "Micro F1"),
    "macro_f1": ("f1", "Macro F1"),
    "micro_precision": ("precision", "Micro precision"),
    "micro_recall": ("recall", "Micro recall"),
    "p_at_1": ("precision", "Precision at 1"),
    "p_at_5": ("precision", "Precision at 5"),
}


def readme(name: str, card: Card, labels: LabelSpace, stored: int, kept: int, license: str | None) -> str:
    """Write the card of a model that is pushed with this many stored and kept validation documents."""
    sections = (
        f"---\n{_metadata(name, card, license)}\n---\n\n# {name.partition('/')[2]}",
        _introduction(card, labels),
        _usage(name, labels),
        _labels(card, labels),
        _training(card, labels),
        _results(card),
        _limitations(card, labels, stored, kept),
    )
    return "\n\n".join(section for section in sections if section) + "\n"


def _metadata(name: str, card: Card, license: str | None) -> str:
    """Return the YAML that the hub reads, written by its own client."""
    hub = client()
    corpus = str(card.corpus["name"])
    identity = re.sub(r"[^\w.-]+", "-", corpus) or "corpus"
    results = [
        hub.EvalResult(
            task_type="text-classification",
            task_name="Multi-label text classification",
            dataset_type=identity,
            dataset_name=corpus,
            dataset_split="validation",
            metric_type=kind,
            metric_name=title,
            metric_value=round(float(card.metrics[metric]), 4),
        )
        for metric, (kind, title) in METRICS.items()
        if metric in card.metrics
    ]
    content = hub.ModelCardData(
        library_name="denn",
        pipeline_tag="text-classification",
        tags=["denn", "multi-label", "text-classification", "nearest-neighbours"],
        license=license,
        model_name=name.partition("/")[2],
        metrics=["f1", "precision", "recall"],
        eval_results=results or None,
    )
    return str(content.to_yaml())


def _introduction(card: Card, labels: LabelSpace) -> str:
    witnesses = card.parameters.get("witnesses")
    named = f" Its witnesses are {_listed(witnesses)}." if witnesses else ""
    version = card.versions.get("denn", "")
    return (
        f"This model assigns any number of {len(labels):,} labels to a text and shows the evidence for each one."
        f"{named} It was trained with denn {version} (method {_code(card.method)}) on {card.created[:10]}."
    )


def _usage(name: str, labels: LabelSpace) -> str:
    return f"""## How to use it

```
pip install 'denn[hub]'
denn predict {name} texts.txt --evidence
```

```python
import denn

with denn.load("{name}") as model:
    prediction = model.predict(["some text"])[0]
    print(prediction.labels, prediction.scores, prediction.neighbours)
```

denn checks every file against its digest and runs no code from a model. The datastore is downloaded with the model:
`model.add` and `model.remove` change your local copy only."""


def _labels(card: Card, labels: LabelSpace) -> str:
    counts = Trained.model_validate(card.corpus).label_counts
    ranked = sorted(zip(labels.names, counts, strict=True), key=lambda pair: -pair[1])[:MOST_LABELS]
    rows = "\n".join(f"| {_code(label)} | {count:,} |" for label, count in ranked)
    rest = len(labels) - len(ranked)
    more = f"\n\nThe other {rest:,} are in labels.txt." if rest else ""
    return f"## Labels\n\n| label | training documents |\n|---|--:|\n{rows}{more}"


def _training(card: Card, labels: LabelSpace) -> str:
    trained = Trained.model_validate(card.corpus)
    encoder = card.parameters.get("encoder")
    lines = [
        f"- Corpus: {_code(trained.name)}, {trained.train:,} training and {trained.valid:,} validation documents.",
        f"- Encoder: {_code(str(encoder))}." if encoder else "",
        _decision(card),
    ]
    if card.refitted is not None:
        lines.append("- Classifier, words, combination and thresholds were learnt again later from its datastore.")
    return "## Training\n\n" + "\n".join(line for line in lines if line)


def _decision(card: Card) -> str:
    thresholds = card.thresholds["final"]
    if thresholds.decides == "per_label":
        return "- Decision: by a threshold for each label, tuned on held-out documents."
    return (
        f"- Decision threshold: {thresholds.overall:.2f}, tuned on held-out documents. The model also has a "
        "threshold for each label (`per_label=True`)."
    )


def _results(card: Card) -> str:
    found = [(title, float(card.metrics[name])) for name, (_, title) in METRICS.items() if name in card.metrics]
    if not found:
        return ""
    rows = "\n".join(f"| {title} | {100 * value:.1f} % |" for title, value in found)
    caution = "Thresholds were chosen on the same documents, so expect slightly lower figures on new ones."
    measured = f"Measured on {card.judged_on}. " if card.training.get("cross_fitted") else ""
    return f"## Results on held-out documents\n\n| metric | value |\n|---|--:|\n{rows}\n\n{measured}{caution}"


def _limitations(card: Card, labels: LabelSpace, stored: int, kept: int) -> str:
    counts = Trained.model_validate(card.corpus).label_counts
    rare = sum(count < 10 for count in counts)
    lines = [
        f"- **It contains texts:** the datastore holds {stored:,} documents and the model keeps {kept:,} validation "
        "documents. Everyone who can download it can read them.",
        "- Labels are suggestions. Have a person check texts unlike the training documents (`prediction.unfamiliar`).",
        f"- {rare:,} of {len(labels):,} labels have fewer than 10 training documents; expect more errors there."
        if rare
        else "",
        "- It learnt from how people labelled the corpus, and repeats their mistakes.",
    ]
    return "## Limitations\n\n" + "\n".join(line for line in lines if line)


def _listed(names: object) -> str:
    return ", ".join(_code(str(name)) for name in (names if isinstance(names, list | tuple) else ()))


def _code(text: str) -> str:
    """Return a text as inline code that is safe in a line or a cell."""
    return "`" + text.replace("`", "'").replace("|", "¦") + "`"
