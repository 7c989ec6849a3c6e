"""Recipes that refer to others: variants keep the settings of their results, others differ only where they say so."""

from pathlib import Path

import pytest

from denn_bench.result import completed, read
from denn_bench.run import plan

ROOT = Path(__file__).parents[2]
NEUTRAL = {"seed", "device", "time_budget", "checkpoint_seconds"}  # affect no method
SAME_AS = {"word_dropout": "dropout", "head_dropout": "dropout", "label_width": "word_width"}  # what None stands for
VARIANTS = {
    "exam": ["exam-short"],
    "ocd": ["ocd-alone", "ocd-alone-spread", "ocd-batch-256", "ocd-five", "ocd-undropped"],
    "seq2seq": ["seq2seq-batch-256", "seq2seq-spread", "seq2seq-steps", "seq2seq-undropped"],
    "seq2set": ["seq2set-batch-256", "seq2set-five", "seq2set-spread"],
    "sgm": ["sgm-batch-256", "sgm-long", "sgm-spread", "sgm-undropped"],
}
LARGE = [ROOT / f"results/aapd-{one}-0.json" for some in VARIANTS.values() for one in some]
SMALL = sorted((ROOT / "results/small").glob("*.json"))


def effective(parameters):
    """Return the parameters that affect the method, with values instead of None where it stands for another one's."""
    resolved = {name: parameters[SAME_AS[name]] for name in SAME_AS if parameters.get(name, 0) is None}
    return {name: value for name, value in {**parameters, **resolved}.items() if name not in NEUTRAL}


def settings(recipe, corpus="aapd"):
    (run,) = plan(ROOT / "recipes", [corpus], [recipe], [0])
    return effective(run.settings()["parameters"])


def different(first, second):
    a, b = settings(first), settings(second)
    return {name for name in a.keys() | b.keys() if a.get(name) != b.get(name)}


@pytest.mark.parametrize("file", [*LARGE, *SMALL], ids=lambda file: file.stem)
def test_a_variant_keeps_the_settings_of_its_result(file):
    result = read(file)
    recipe = result.recipe.removesuffix("-20").removesuffix("-50") if file in SMALL else result.recipe
    assert settings(recipe) == effective(completed(result.data["recipe"])["parameters"])


@pytest.mark.parametrize("base", sorted(set(VARIANTS) - {"seq2seq"}))  # its recipe has not changed
def test_a_variant_of_a_recipe_that_has_changed_says_so(base):
    for recipe in VARIANTS[base]:
        first = (ROOT / f"recipes/aapd/{recipe}.toml").read_text(encoding="utf-8").splitlines()[0]
        assert first == (
            f"# Variant of the recipe {base} as it was on 16 November 2026; the method's code has changed since."
        )


def test_recipes_differ_from_their_base_where_they_say():
    assert different("ocd-released", "ocd") == {"logistic_weight", "decoding"}
    assert different("seq2set-full", "seq2set") == {"form"}
    sizes = {"hidden", "convolution"}  # dropout is the same
    assert different("seqtag", "core") == sizes | {"head_learning_rate", "layer_decay"}
    assert different("seq2seq-steps", "seq2seq") == {"epochs"}


def test_the_second_stage_of_seq2set_is_the_released_one_on_every_corpus():
    for recipe, corpus in (("seq2set", "aapd"), ("seq2set-full", "aapd"), ("seq2set", "eurlex57k")):
        found = settings(recipe, corpus)
        released = {"batch_size": 64, "reinforced_epochs": 10, "reinforced_schedule": "cosine", "head_dropout": 0.0}
        assert released.items() <= found.items()
