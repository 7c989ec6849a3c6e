"""Short tables repeat long ones: their numbers are the same."""

from pathlib import Path

ROOT = Path(__file__).parents[2]


def rows(name: str) -> list[list[str]]:
    """Return the cells of all tables of a page."""
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]


def test_the_readme_has_the_numbers_of_the_peers():
    header, *table = [row for row in rows("README.md") if not row[0].startswith("---")]
    machines, names = [], []
    for row in rows("docs/peers.md"):
        if row[0] == "Corpus":
            names = row
            machines.append({})
        elif row[0] == "Reuters-21578":
            machines[-1][row[1]] = dict(zip(names, row, strict=True))
    assert len(table) == 6
    same = [
        all(row[1:] == [peers.get(row[0], {}).get(column) for column in header[1:]] for row in table)
        for peers in machines
    ]
    assert same.count(True) == 1  # all numbers are from one machine


def test_the_findings_have_the_numbers_of_the_tables():
    text = (ROOT / "docs/paper.md").read_text(encoding="utf-8")
    short = [row for row in rows("docs/replication.md") if row[0] in ("AAPD", "EUR-LEX57K")]
    assert len(short) == 8
    for corpus, system, *numbers in short:
        table = text.split(f"### {corpus}: all systems")[1].split("\n### ")[0]
        assert f"| {system} | {' | '.join(numbers)} |" in table
