"""Short tables repeat long ones: their numbers are the same."""

from pathlib import Path

ROOT = Path(__file__).parents[2]


def rows(name: str) -> list[list[str]]:
    """Return the cells of all tables of a page."""
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]


def test_the_readme_has_the_numbers_of_the_peers():
    header, *table = [row for row in rows("README.md") if not row[0].startswith("---")]
    long = rows("docs/peers.md")
    assert ["Time", *header] in long and len(table) == 7
    for row in table:
        assert ["5 min", *row] in long, "Copy the row from docs/peers.md"


def test_the_findings_have_the_numbers_of_the_tables():
    text = (ROOT / "docs/paper.md").read_text(encoding="utf-8")
    short = [row for row in rows("docs/replication.md") if row[0] in ("AAPD", "EUR-LEX57K")]
    assert len(short) == 8
    for corpus, system, *numbers in short:
        table = text.split(f"### {corpus}: all systems")[1].split("\n### ")[0]
        assert f"| {system} | {' | '.join(numbers)} |" in table
