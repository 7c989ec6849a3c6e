"""Valid rows, and errors for all others."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from denn.data.rows import Columns, find_separator, missing, parse_id, parse_labels, parse_text, split_labels
from denn.errors import DataError

names = st.text(st.characters(exclude_categories=("Cs", "Cc", "Zl", "Zp"), exclude_characters="|"), min_size=1)


@given(st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0")))
def test_any_encodable_text_is_kept_as_it_is(text):
    assert parse_text(text) == text


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (3, r"a number \(3\)"),
        (2.5, r"a number \(2.5\)"),
        (None, "null"),
        (["a"], "a list"),
        ({"a": 1}, "an object"),
        (True, "a boolean"),
        (b"x", "bytes"),
    ],
)
def test_a_text_of_another_type_is_named(value, said):
    with pytest.raises(DataError, match=f"the text is {said}.*expected a string"):
        parse_text(value)


def test_a_nul_and_a_lone_surrogate_are_no_text():
    with pytest.raises(DataError, match="NUL character at position 3"):
        parse_text("ab\0c")
    with pytest.raises(DataError, match=r"lone surrogate U\+D800 at position 2"):
        parse_text("a\ud800")
    with pytest.raises(DataError, match="a label contains the lone surrogate"):
        parse_labels(["\udc00"])


def test_labels_are_stripped_and_empty_and_repeated_ones_dropped():
    assert parse_labels([" b ", "a", "", "b", "  "]) == ("b", "a")
    assert parse_labels(("a",)) == ("a",)
    assert parse_labels(None) == ()
    assert split_labels("", "|", explicit=False) == ()


@pytest.mark.parametrize("value", [3, [1, 2], ["a", None], {"a": 1.0}, 1.5, True])
def test_labels_of_the_wrong_type_say_what_to_do(value):
    with pytest.raises(DataError, match=r"label column has the wrong type: got .* Write label names instead"):
        parse_labels(value)


def test_a_label_with_a_line_break_is_refused():
    with pytest.raises(DataError, match="line break"):
        parse_labels(["a\nb"])


@given(st.lists(names))
def test_joined_labels_come_apart_as_the_list_would(labels):
    assert split_labels("|".join(labels), "|", explicit=True) == parse_labels(labels)


def test_the_first_of_the_separators_that_occurs_anywhere_is_taken():
    assert find_separator(["a,b", "c;d", "e|f"]) == "|"
    assert find_separator(["a,b", "c;d"]) == ";"
    assert find_separator(["a,b", "c"]) == ","
    assert find_separator(["a", "c"]) is None
    assert find_separator(['["a", "b|c"]']) is None


def test_a_string_that_starts_with_a_bracket_is_a_json_list_unless_a_separator_is_given():
    assert split_labels('["a", "b,c"]', ",", explicit=False) == ("a", "b,c")
    assert split_labels("[x]|y", "|", explicit=True) == ("[x]", "y")
    with pytest.raises(DataError, match="not a JSON or Python list"):
        split_labels("['a' 'b']", None, explicit=False)
    with pytest.raises(DataError, match="wrong type"):
        split_labels("[1, 2]", None, explicit=False)


@given(st.lists(names))
def test_a_list_as_pandas_writes_it_is_read(labels):
    assert split_labels(str(labels), ",", explicit=False) == parse_labels(labels)


@pytest.mark.parametrize(
    "written",
    [
        "['a', b]",
        "['a'] + ['b']",
        "[f('a')]",
        "['a'",
        "['a',,]",
        "[('a',)]",
        "['\\x1']",
        "[b'a']",
        "['a\nb']",
        "[None]",
    ],
)
def test_other_python_is_not_read(written):
    with pytest.raises(DataError, match="not a JSON or Python list"):
        split_labels(written, None, explicit=False)


def test_a_python_list_has_a_limit_and_takes_no_time_to_refuse():
    assert len(split_labels(str([str(number) for number in range(10_000)]), None, explicit=False)) == 10_000
    with pytest.raises(DataError, match="expected at most 100,000"):
        split_labels(str(["long"] * 20_000), None, explicit=False)
    with pytest.raises(DataError, match="not a JSON or Python list"):
        split_labels("['a'" + 50_000 * " " + "x", None, explicit=False)


def test_ids_are_strings_or_whole_numbers():
    assert [parse_id(value) for value in ("x", 7, None, "")] == ["x", "7", None, None]
    for wrong in (1.0, True, ["x"]):
        with pytest.raises(DataError, match="expected a string or a whole number"):
            parse_id(wrong)


def test_a_missing_column_is_named_with_those_found():
    assert "found: 'Text', 'y'. Did you mean 'Text'?" in missing("text", ["Text", "y"])
    with pytest.raises(DataError, match=r"f\.csv: there is no column 'labels'; found: 'text', 'label'.*mean 'label'"):
        Columns().among(["text", "label"], "f.csv")
    assert Columns(needs_labels=False).among(["text"], "f.csv") == ["text"]


def test_the_id_column_may_be_missing_only_under_its_usual_name():
    assert Columns().among(["labels", "text"], "f.csv") == ["text", "labels"]
    with pytest.raises(DataError, match="no column 'key'"):
        Columns(id="key").among(["text", "labels"], "f.csv")


def test_a_column_that_occurs_twice_is_refused():
    with pytest.raises(DataError, match="'text' occurs twice"):
        Columns().among(["text", "labels", "text"], "f.csv")
