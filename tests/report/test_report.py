"""The report: JSON that reads back, a page that stands alone, a table that fits the numbers."""

from __future__ import annotations

import base64
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from matplotlib.figure import Figure

from dpca.plots.png import png
from dpca.report import record, words
from dpca.report.record import format_table, read_pictures, read_report, write_report
from dpca.storage import disk
from dpca.storage.errors import StoreError
from dpca.storage.integrity import manifest
from dpca.storage.transaction.outputs import check_output

REPORT = {
    "stages": {
        "ingest": {"peak_memory": 412_000_000, "seconds": 5.0, "bytes": 10**9},
        "fit": {"seconds": 2.5, "bytes": 10**9, "peak_memory": 1_630_000_000},
        "pictures": {"seconds": None, "bytes": None, "peak_memory": None},
    },
    "ssim_mean": 0.95,
    "samples": 2000,
    "sample_shape": (218, 178, 3),
    "cells": 396,
    "cell_shape": (10, 10),
    "components": np.int64(20),
    "scalars_ratio": 14.7,
    "bytes_ratio": np.float64(3.68),
    "mse": np.float32(0.000312),
    "psnr": 35.06,
    "ssim_min": 0.935,
    "ssim_min_name": "portrait-00246",
    "explained_variance_ratio": 0.99997,
    "rejected": [],
}
ORDER = [
    *("samples", "sample_shape", "cells", "cell_shape", "components", "scalars_ratio", "bytes_ratio", "mse", "psnr"),
    *("ssim_mean", "ssim_min", "ssim_min_name", "explained_variance_ratio", "rejected", "stages"),
]
HOSTILE = "<script>alert(1)</script>\"'&.jpg"


class Page(HTMLParser):
    """Collects tags, attributes and text, and checks that every element that needs it is closed."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.text = ""
        self.feed(source)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in ("meta", "img", "input"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def figure() -> Figure:
    made = Figure(figsize=(2, 1), dpi=50)
    made.add_subplot().plot([0, 1])
    return made


def read_page(folder) -> Page:
    page = Page((folder / "index.html").read_text(encoding="utf-8"))
    assert page.open == []
    return page


def test_json_reads_back_in_a_fixed_order(tmp_path):
    write_report(tmp_path / "r", {**REPORT, "zeta": 1, "alpha": [np.bool_(True)]}, {})
    text = (tmp_path / "r" / "report.json").read_text()
    read = json.loads(text)
    assert list(read) == [*ORDER, "alpha", "zeta"]
    assert list(read["stages"]) == ["ingest", "fit", "pictures"]
    assert list(read["stages"]["ingest"]) == ["seconds", "bytes", "peak_memory"]
    assert read["sample_shape"] == [218, 178, 3]
    assert (read["components"], read["alpha"]) == (20, [True])
    assert read["mse"] == pytest.approx(0.000312)
    assert text.startswith('{\n  "samples": 2000,')
    assert text.endswith("}\n")


def test_what_is_not_finite_is_null(tmp_path):
    write_report(tmp_path, {"mse": 0.0, "psnr": np.inf, "ssim_mean": float("nan"), "samples": 3}, {})
    read = json.loads((tmp_path / "report.json").read_text())
    assert read == {"samples": 3, "mse": 0.0, "psnr": None, "ssim_mean": None}
    assert "infinite" in format_table(read)


def test_same_report_gives_the_same_bytes(tmp_path):
    for name in "ab":
        write_report(tmp_path / name, REPORT, {"comparison": figure()})
    files = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert files == ["comparison.png", "index.html", "manifest.json", "report.json"]
    for name in files:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_a_report_whose_run_was_killed_is_recognized_and_made_again(tmp_path, monkeypatch):
    write = disk.atomic_write_bytes
    for n in range(1, 4):
        left = iter(range(n))
        folder = tmp_path / f"{n}.report"

        def killed(path, content, left=left):
            next(left)
            write(path, content)

        monkeypatch.setattr(record, "atomic_write_bytes", killed)
        monkeypatch.setattr(manifest, "atomic_write_bytes", killed)
        with pytest.raises(StopIteration):
            write_report(folder, REPORT, {"comparison": Figure()}, title="faces")
        check_output(tmp_path / f"{n}.zarr", report=folder)
        assert read_report(folder) is None


def test_page_holds_everything_in_itself(tmp_path):
    write_report(tmp_path, REPORT, {"comparison": figure(), "my_own": figure()})
    page = read_page(tmp_path)
    assert not {"script", "link", "iframe", "object", "a", "form"} & set(page.tags)
    sources = [value for tag, name, value in page.attributes if tag == "img" and name == "src"]
    assert [base64.b64decode(source.removeprefix("data:image/png;base64,")) for source in sources] == [
        (tmp_path / f"{name}.png").read_bytes() for name in ("comparison", "my_own")
    ]
    raw = (tmp_path / "index.html").read_text(encoding="utf-8")
    without_pictures = re.sub(r"data:image/png;base64,[A-Za-z0-9+/=]*", "", raw)
    assert not re.search(r"https?:|//|url\(|@import|\bsrc=\"[^\"]|\bhref=", without_pictures)
    assert not [name for _, name, _ in page.attributes if name.startswith("on")]
    assert "default-src 'none'" in raw


def test_page_says_what_the_numbers_say(tmp_path):
    write_report(
        tmp_path,
        REPORT,
        {"comparison": figure(), "my_own": figure(), "eigenfaces": figure()},
        title="Faces",
        captions={"eigenfaces": ("Modes", "One sentence.")},
    )
    page = read_page(tmp_path)
    x = "\N{MULTIPLICATION SIGN}"
    for expected in (
        *(
            "Faces",
            f"2,000 samples of 218 {x} 178 {x} 3, cut into 396 cells of 10 {x} 10, 20 principal components each.",
        ),
        *("0.9500", "worst 0.9350", "35.1 dB", "3.7 times smaller", "portrait-00246", "412 MB", "1.63 GB", "7.50"),
        "20 components in each cell.",
        *("Originals and reconstructions", "My own", "Modes", "One sentence.", "comparison.png"),
    ):
        assert expected in page.text
    widths = [value for tag, name, value in page.attributes if (tag, name) == ("i", "style")]
    assert widths == ["width:66.7%", "width:33.3%"]
    assert page.tags.count("figure") == page.tags.count("img") == 3
    assert all(value for tag, name, value in page.attributes if (tag, name) == ("img", "alt"))


def test_hostile_names_stay_text(tmp_path):
    report = {
        **REPORT,
        "ssim_min_name": HOSTILE,
        "rejected": [[HOSTILE, "is <b>broken</b>"], ("\udc80\x1b[31m\x00.png", "has {braces}")],
        "stages": {HOSTILE: {"seconds": 1.0}},
    }
    write_report(tmp_path, report, {"comparison": figure()}, title=HOSTILE)
    page = read_page(tmp_path)
    assert not {"script", "b"} & set(page.tags)
    assert page.text.count(HOSTILE) == 5  # title, heading, worst, stage, left out
    assert "is <b>broken</b>" in page.text
    assert "has {braces}" in page.text
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", page.text)
    assert json.loads((tmp_path / "report.json").read_text())["rejected"][1][0] == "\udc80\x1b[31m\x00.png"
    table = format_table(report)
    assert "\x1b" not in table
    table.encode("utf-8")


def test_long_lists_of_rejected_are_cut_on_the_page_only(tmp_path):
    rejected = [(f"image-{i}.jpg", "is truncated") for i in range(1103)]
    write_report(tmp_path, {"rejected": rejected}, {})
    assert len(json.loads((tmp_path / "report.json").read_text())["rejected"]) == 1103
    page = read_page(tmp_path)
    assert page.text.count("is truncated") == 100
    assert "And 1,003 more" in page.text
    assert "1,103 left out" in format_table({"rejected": rejected})


def test_undefined_ssim_and_missing_keys_are_borne(tmp_path):
    write_report(tmp_path, {**REPORT, "ssim_mean": None, "ssim_min": None, "ssim_min_name": None}, {})
    page = read_page(tmp_path)
    assert "not defined for these samples" in page.text
    assert "99.99%" in page.text  # in place of SSIM, and never rounded up to 100%
    write_report(tmp_path / "empty", {}, {})
    assert "table" not in read_page(tmp_path / "empty").tags
    assert json.loads((tmp_path / "empty" / "report.json").read_text()) == {}
    assert format_table({}) == ""


def test_table_is_aligned_and_complete():
    lines = format_table(REPORT).splitlines()
    assert "samples              2,000" in lines
    assert "sample shape         218 x 178 x 3" in lines
    assert "components           20 in each cell" in lines
    assert any(line.startswith("ratio                3.7 times smaller than the decoded samples (") for line in lines)
    assert "14.7" not in "".join(lines)  # the thesis's ratio of scalars is in report.json
    assert "SSIM, worst          0.9350 (portrait-00246)" in lines
    assert "rejected             none" in lines
    stages = lines[lines.index("") + 1 :]
    assert [line.split() for line in stages] == [
        ["stage", "seconds", "speed", "peak", "memory"],
        ["ingest", "5.00", "200", "MB/s", "412", "MB"],
        ["fit", "2.50", "400", "MB/s", "1.63", "GB"],
        ["pictures", "-", "-", "-"],
        ["total", "7.50", "-", "1.63", "GB"],
    ]
    assert len({len(line) for line in stages}) == 1
    assert all(line.isascii() for line in lines)


STREAMING = {
    "samples": 3_000_000,
    "sample_shape": (64, 64, 3),
    "attributes": 12288,
    "components": 50,
    "method": "incremental-svd",
    "passes": 1,
    "explained_variance_ratio": 0.8761,
    "leading_ratios": np.array([0.3, 0.05]),
    "captured_bound": 0.99998,
    "captured_estimate": 0.999996,
    "captured_estimate_error": 0.00112,
    "notes": ["<b>mind</b> the order"],
}


def test_components_of_whole_samples_have_words_of_their_own(tmp_path):
    rows = dict(line.split("   ", 1) for line in format_table(STREAMING).splitlines())
    assert {key.strip(): value.strip() for key, value in rows.items()} == {
        "samples": "3,000,000",
        "sample shape": "64 x 64 x 3",
        "attributes": "12,288",
        "components": "50",
        "method": "incremental-svd",
        "passes": "1",
        "explained variance": "87.61% of the total",
        "first components": "30.00%, 5.00% of the variance",
        "certificate": "at least 99.99% of the variance that the best components explain",
        "certificate, estimated": "99.99% of the variance that the best components explain, standard error 0.11%",
        "note": "<b>mind</b> the order",
    }
    write_report(tmp_path, STREAMING, {})
    page = read_page(tmp_path)
    assert "64 \N{MULTIPLICATION SIGN} 3, 50 principal components by incremental-svd in 1 pass." in page.text
    assert "b" not in page.tags
    assert json.loads((tmp_path / "report.json").read_text())["leading_ratios"] == [0.3, 0.05]


def test_ranks_that_differ_are_told_from_the_least_to_the_most(tmp_path):
    ranks = {"min": 3, "mean": 11.25, "max": 41, "total": 4455}
    report = {**REPORT, "components": 41, "ranks": ranks}
    assert "components           3 to 41 in each cell, 11.2 on average, 4,455 in all" in format_table(report)
    write_report(tmp_path / "r", report, {"ranks": figure()})
    page = read_page(tmp_path / "r")
    assert "3 to 41 principal components each" in page.text
    assert "The number of components of each cell or band" in page.text


def test_bands_have_words_of_their_own(tmp_path):
    banded = {key: value for key, value in REPORT.items() if not key.startswith("cell")}
    banded |= {"bands": 100, "band_size": 1875, "mapping": "mean", "components": 1}
    assert "partition            100 bands of at most 1,875 attributes, mapped by mean" in format_table(banded)
    assert "components           1 in each band" in format_table(banded)
    write_report(tmp_path / "r", banded, {})
    assert "in 100 bands of at most 1,875 attributes, 1 principal component each." in read_page(tmp_path / "r").text


def test_cells_that_are_not_plain_ones_say_so():
    told = format_table({**REPORT, "overlap": 4, "shared": True})
    assert ", overlap 4, shared components" in told
    assert "overlap" not in format_table(REPORT)


def test_a_method_without_a_bound_says_what_would_measure_it():
    assert "none: this method gives no bound in one pass" in format_table({**STREAMING, "captured_bound": None})


def test_files_are_replaced_whole_and_nothing_stays_behind(tmp_path, monkeypatch):
    write_report(tmp_path, {"samples": 1}, {"comparison": figure()})
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def refuse(_source, _target):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.replace", refuse)
        with pytest.raises(StoreError, match="full"):
            write_report(tmp_path, {"samples": 2}, {"comparison": figure()})
    for name, content in before.items():
        assert (tmp_path / name).read_bytes() == content
    write_report(tmp_path, {"samples": 2}, {"comparison": figure()})
    assert json.loads((tmp_path / "report.json").read_text()) == {"samples": 2}
    assert {path.name for path in tmp_path.iterdir()} == set(before)


def test_bad_places_and_names_are_refused_before_anything_is_written(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(StoreError, match="file"):
        write_report(tmp_path / "file", REPORT, {})
    assert (tmp_path / "file").read_text() == "mine"
    for name in ("../evil", "a/b", "", ".hidden", "with space"):
        with pytest.raises(ValueError, match="letters"):
            write_report(tmp_path / "new", REPORT, {"comparison": figure(), name: figure()})
    assert not (tmp_path / "new").exists()


def test_what_grew_is_not_called_a_compression():
    told = format_table({"bytes_ratio": 3.7, "bytes_given": 10**6, "bytes_decoded": 20 * 10**6})
    assert "5.4 times larger than the input (1 MB, scores and model 5.41 MB)" in told
    assert "3.7 times smaller than the decoded samples (20 MB, scores and model 5.41 MB)" in told
    assert " : " not in told


def test_an_array_that_is_as_large_as_its_samples_has_one_ratio() -> None:
    sizes = {"bytes_ratio": 20.0, "bytes_decoded": 20 * 10**6}
    told = format_table({**sizes, "bytes_given": 20 * 10**6 + 128})  # the header of a file
    assert told.count("ratio") == 1
    assert "20.0 times smaller than the input (20 MB, scores and model 1 MB)" in told
    assert format_table({**sizes, "bytes_given": 21 * 10**6}).count("ratio") == 2


def test_a_picture_that_was_changed_is_not_taken_over(tmp_path):
    pictures = {name: png(figure()) for name in ("comparison", "worst", "ssim_histogram", "appended")}
    write_report(tmp_path, REPORT, pictures)
    kept = {name: pictures[name] for name in ("comparison", "worst")}  # the others are drawn anew
    assert read_pictures(tmp_path, besides="ssim_histogram") == kept
    (tmp_path / "ssim_histogram.png").write_bytes(b"renewed by a run that was killed then")
    assert read_pictures(tmp_path, besides="ssim_histogram") == kept
    (tmp_path / "worst.png").write_bytes(b"another one")
    with pytest.raises(StoreError, match=r"worst\.png.*folder"):
        read_pictures(tmp_path, besides="ssim_histogram")


def test_an_error_bound_comes_first() -> None:
    report = {"error_bound": 0.01, "max_error": 0.0099871, "max_error_name": "17", "psnr": 51.2, "mse": 1e-5}
    report |= {"bytes_compressed": 10, "bytes_given": 100, "bytes_decoded": 100, "bytes_ratio": 10.0, "samples": 1}
    report["goal"] = {"name": "max_relative_error", "value": 0.001}
    first, second = words.highlights(report)[:2]
    assert (first.value, first.label, first.note) == ("0.009987", "largest error", "promised at most 0.01")
    assert second.label == "size"
    assert words.summary(report)[:2] == [
        ("promised error, largest", "0.01 (0.001 of the data range)"),
        ("reached error, largest", "0.009987 (sample 17)"),
    ]
    assert words.result(report) == "10.0 times smaller than the input, largest error 0.009987, promised 0.01"
    without = {key: value for key, value in report.items() if key != "error_bound"}
    assert not any("largest" in label for label, _ in words.summary(without))
