"""Tables that a job adds to its page, and the same numbers as text."""

from __future__ import annotations

from pathlib import Path

from dpca.report.page import DataTable
from dpca.report.record import aligned, write_report


def test_a_table_is_on_the_page_and_escaped(tmp_path: Path) -> None:
    table = DataTable("Rules & more", ("rule", "CPU s"), [("a<b", "1.5"), ("c", "2")])
    write_report(tmp_path, {"samples": 3, "sample_shape": [4], "components": 2}, {}, title="T", tables=[table])
    page = (tmp_path / "index.html").read_text()
    assert "Rules &amp; more" in page
    assert "<th scope=row>a&lt;b</th><td>1.5</td>" in page
    assert "<th scope=col>CPU s</th>" in page
    # Without cells, components are those of whole samples.
    assert "3 samples of 4, 2 principal components." in page
    assert "in each cell" not in page


def test_text_is_aligned_first_column_to_the_left() -> None:
    assert aligned(("rule", "CPU s"), [("a", "1.5"), ("longer", "10")]) == (
        "rule     CPU s\na          1.5\nlonger      10"
    )


def test_sentences_stand_under_a_table_or_by_themselves(tmp_path: Path) -> None:
    tables = [
        DataTable("With", ("a", "b"), [("c", "1")], ("Told & done.", "")),
        DataTable("Without", (), (), ("Only.",)),
    ]
    write_report(tmp_path, {}, {}, title="T", tables=tables)
    page = (tmp_path / "index.html").read_text()
    assert "</table><p>Told &amp; done.</p></section>" in page
    assert "<h2>Without</h2><p>Only.</p></section>" in page
    assert "<p></p>" not in page.split("<main>")[1].split("</header>")[1]
