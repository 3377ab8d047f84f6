"""A figure that two documents give is the same in both."""

from __future__ import annotations

from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"


def rows(page: str, heading: str) -> list[list[str]]:
    """The cells of the tables of a section."""
    text = (DOCS / page).read_text(encoding="utf-8")
    section = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    assert section, f"{page} has no section {heading!r}"
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in section.splitlines()
        if line.startswith("|")
    ]


def test_the_figures_of_spark_are_those_of_the_benchmarks() -> None:
    measured = {row[0]: row[1:] for row in rows("benchmarks.md", "Spark")}
    repeated = [row for row in rows("spark.md", "Figures") if row[0] and "-" not in row[0][:1]]
    assert repeated
    for name, *figures in repeated:
        found = measured[name.replace(" (the ceiling)", "")]
        assert found[: len(figures)] == figures, name
