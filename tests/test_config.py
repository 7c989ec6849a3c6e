"""Recipes: files and overrides in, a checked method out."""

import json

import pytest

from denn.config import make_recipe, parse_settings, read_recipe
from denn.errors import ConfigError
from denn.methods.denn import DENN


def test_a_recipe_is_complete_and_survives_json():
    recipe = make_recipe("denn", {"epochs": 3, "learning_rate": 1, "time_budget": "90"})
    assert (recipe.parameters.epochs, recipe.parameters.learning_rate, recipe.parameters.time_budget) == (3, 1.0, 90.0)
    assert recipe.parameters.k == 30
    plain = json.loads(json.dumps(recipe.as_dict()))
    assert make_recipe(plain["method"], plain["parameters"]) == recipe
    assert isinstance(recipe.build(), DENN)


@pytest.mark.parametrize(
    ("given", "seconds"), [(None, None), (90, 90.0), ("90", 90.0), ("90s", 90.0), ("5m", 300.0), ("1h30m", 5400.0)]
)
def test_a_time_budget_is_in_seconds_or_written_as_on_the_command_line(given, seconds):
    assert make_recipe("denn", {"time_budget": given}).parameters.time_budget == seconds


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"epoch": 3}, r"'denn' has no parameter 'epoch'\. Did you mean 'epochs'\? It has: .*learning_rate"),
        ({"zzz": 3}, r"has no parameter 'zzz'\. It has: "),
        ({"epochs": "many"}, "epochs must be a whole number, not 'many'"),
        ({"epochs": -1}, "epochs must be at least 0, not -1"),
        ({"batch_size": 0}, "batch_size must be greater than 0, not 0"),
        ({"k": 0}, "k must be at least 1, not 0"),
        ({"temperature": 0}, "temperature must be greater than 0, not 0"),
        ({"warmup": 1.0}, r"warmup must be less than 1, not 1\.0"),
        ({"max_length": 2}, "max_length must be at least 3, not 2"),
        ({"pooling": "max"}, "pooling must be 'mean' or 'cls', not 'max'"),
        ({"time_budget": "soon"}, "time_budget: 'soon' is not a time. Give one such as 90, 90s, 5m or 1h30m"),
        ({"time_budget": -1}, "time_budget must be at least 0, not -1"),
        ({"select": None}, "select must be .* not None"),
    ],
)
def test_wrong_parameters_are_named(parameters, message):
    with pytest.raises(ConfigError, match=message):
        make_recipe("denn", parameters)


def test_an_unknown_method_lists_the_known_ones():
    with pytest.raises(
        ConfigError, match=r"Unknown method 'dnn', expected one of denn, bert, br,.*Did you mean 'denn'\?"
    ):
        make_recipe("dnn", {})


def test_recipe_files(tmp_path):
    file = tmp_path / "recipe.toml"
    file.write_text('method = "denn"\n[parameters]\nepochs = 4\nselect = "combined"\n')
    assert read_recipe(file) == ("denn", {"epochs": 4, "select": "combined"})
    file.write_text("")
    assert read_recipe(file) == (None, {})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"method = ", "is not valid TOML"),
        (b"\xff", "is not valid TOML"),
        (b"epochs = 3", r"has \['epochs'\]; expected only `method` and a `\[parameters\]` table"),
        (b"method = 3", r"method = 3"),
        (b"parameters = 3", r"parameters = 3"),
        (None, "cannot be read: No such file"),
    ],
)
def test_broken_recipe_files_say_what_is_wrong(tmp_path, content, message):
    file = tmp_path / "recipe.toml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        read_recipe(file)


def test_overrides_are_json_where_they_can_be():
    given = ["epochs=5", "alpha=0.5", "select=combined", "pooling=null", 'encoder="a=b"', "path=x=y", "empty="]
    assert parse_settings(given) == {
        "epochs": 5,
        "alpha": 0.5,
        "select": "combined",
        "pooling": None,
        "encoder": "a=b",
        "path": "x=y",
        "empty": "",
    }


@pytest.mark.parametrize("setting", ["epochs", "=5", ""])
def test_an_override_without_a_key_or_value(setting):
    with pytest.raises(ConfigError, match="expected key=value, for example --set epochs=5"):
        parse_settings([setting])


def test_numbers_without_end_are_refused():
    with pytest.raises(ConfigError, match="gamma must be a finite number, not inf"):
        make_recipe("denn", {"gamma": float("inf")})


@pytest.mark.parametrize("content", ["epochs = " + "9" * 5000, "epochs = " + "[" * 5000, "learning_rate = nan"])
def test_recipes_with_numbers_and_brackets_without_end_are_refused(tmp_path, content):
    (tmp_path / "recipe.toml").write_text(f"[parameters]\n{content}\n")
    with pytest.raises(ConfigError) as caught:
        make_recipe("denn", read_recipe(tmp_path / "recipe.toml")[1])
    assert len(str(caught.value)) < 400


def test_every_number_of_a_list_is_checked_and_shown_short():
    for value in (float("nan"), [1.0, float("inf")], 10**5000, "9" * 5000, "x" * 5000):
        with pytest.raises(ConfigError) as caught:
            make_recipe("denn", {"epochs": value})
        assert len(str(caught.value)) < 300
