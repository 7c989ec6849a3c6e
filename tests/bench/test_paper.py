"""The printed numbers agree with each other, and with the paper's source if it is available."""

import re
from dataclasses import astuple
from pathlib import Path

import pytest

from denn_bench import paper
from denn_bench.measure import GROUPS

SOURCE = Path(__file__).parents[3] / "shared" / "paper" / "denn.tex"


@pytest.mark.parametrize("rows", [*paper.MAIN.values(), *paper.ABLATION.values()])
def test_micro_f1_is_that_of_the_printed_precision_and_recall(rows):
    for row in rows.values():
        if row.micro_precision is not None and row.micro_recall is not None:
            f1 = 2 * row.micro_precision * row.micro_recall / (row.micro_precision + row.micro_recall)
            assert row.micro_f1 == pytest.approx(f1, abs=0.2)


@pytest.mark.parametrize("rows", [paper.CONTRAST, paper.VIEWS])
def test_averages_of_the_variants(rows):
    for row in rows.values():
        assert row.average == pytest.approx((row.micro_f1 + row.macro_f1) / 2, abs=0.051)


def test_the_steps_in_the_text_are_those_of_the_ablation_table():
    text = {"aapd": ((1.1, 1.8), (1.2, 2.2), (0.2, 1.1)), "rcv1": ((0.3, 0.2), (0.8, 2.5), (0.2, 1.6))}
    order = ("BERT", "+ kNN", "+ DCL", "+ debiased λ")
    for corpus, steps in text.items():
        rows = [paper.ABLATION[corpus][name] for name in order]
        for before, after, (micro, macro) in zip(rows, rows[1:], steps, strict=False):
            assert after.micro_f1 - before.micro_f1 == pytest.approx(micro)
            assert after.macro_f1 - before.macro_f1 == pytest.approx(macro)


def test_groups_are_those_that_runs_measure():
    assert [*paper.GROUP_GAINS["aapd"]] == [*GROUPS]


def test_every_printed_row_stands_in_the_source():
    if not SOURCE.is_file():
        pytest.skip("the paper's source is not here")
    lines = re.sub(r"\\(?:bf|textbf)\b|[{}*\s\\]", "", SOURCE.read_text().replace("\\\\\n", "\\\\ @"))
    tables = [
        (left, right, name)
        for pair in (("aapd", "rcv1"), ("amazon531", "eurlex57k"))
        for left, right in [(paper.MAIN[pair[0]], paper.MAIN[pair[1]])]
        for name in left
    ] + [(paper.ABLATION["aapd"], paper.ABLATION["rcv1"], name) for name in paper.ABLATION["aapd"]]
    for left, right, name in tables:
        values = [*astuple(left[name])[:6], *astuple(right[name])[:6]]
        assert "&".join("-" if value is None else str(value) for value in values) in lines, name
    for rows in (paper.CONTRAST, paper.VIEWS):
        for name, row in rows.items():
            assert f"&{row.micro_f1}&{row.macro_f1}&{row.average}" in lines, name
    for name, first in paper.EXTRA_PARAMETERS["aapd"].items():
        assert re.search(rf"&{first}&[\d.]+/[\d.-]+&{paper.EXTRA_PARAMETERS['rcv1'][name]}\b", lines), name
