"""Tables that a job adds to its page, and the same numbers as text."""

from __future__ import annotations

from pathlib import Path

from dpca.report import aligned, write_report
from dpca.report_page import DataTable


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
