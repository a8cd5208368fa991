"""A self-contained HTML page with pictures, style and text. It has no scripts and loads nothing."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from dpca.report.words import Highlight, StageText

_NAMES_SHOWN = 100


class ReportPicture(NamedTuple):
    """A picture of the page."""

    file: str
    """Name of the same picture in the report's folder."""
    heading: str
    caption: str
    png: bytes


class DataTable(NamedTuple):
    """A table of the page. The first cell of a row is its name, the others are numbers."""

    heading: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()
    """Sentences below the table."""


def html_page(
    *,
    title: str,
    lead: str,
    highlights: Sequence[Highlight],
    summary: Sequence[tuple[str, str]],
    stages: Sequence[StageText],
    rejected: Sequence[tuple[str, str]],
    pictures: Sequence[ReportPicture],
    tables: Sequence[DataTable] = (),
) -> str:
    """Return the page: heading, highlights, tables and pictures. All texts are escaped."""
    body = [
        f"<header><h1>{escape(title)}</h1><p>{escape(lead)}</p></header>",
        _highlight_strip(highlights),
        '<div class="tables">',
        f"<section><h2>Result</h2>{_table(summary)}</section>" if summary else "",
        f"<section><h2>Time and memory</h2>{_stage_table(stages)}</section>" if stages else "",
        "</div>",
        *(_data_section(table) for table in tables),
        _rejected_section(rejected),
        *(_figure(picture) for picture in pictures),
    ]
    return _PAGE.format(title=escape(title), style=_STYLE, body="\n".join(part for part in body if part))


def _highlight_strip(highlights: Sequence[Highlight]) -> str:
    entries = (
        f"<div><dt>{escape(label)}</dt><dd>{escape(value)}<small>{escape(note)}</small></dd></div>"
        for value, label, note in highlights
    )
    return f'<dl class="highlights">{"".join(entries)}</dl>' if highlights else ""


def _table(rows: Sequence[tuple[str, str]]) -> str:
    lines = (f"<tr><th scope=row>{escape(label)}</th><td>{escape(value)}</td></tr>" for label, value in rows)
    return f"<table><tbody>{''.join(lines)}</tbody></table>"


def _stage_table(stages: Sequence[StageText]) -> str:
    lines = []
    for name, seconds, rate, memory, share in stages:
        bar = f'<i style="width:{100 * share:.1f}%"></i>' if share else ""
        row = "<tr class=total>" if share is None else "<tr>"
        cells = "".join(f"<td>{escape(value)}</td>" for value in (seconds, rate, memory))
        lines.append(f"{row}<th scope=row>{escape(name)}{bar}</th>{cells}</tr>")
    head = "".join(f"<th scope=col>{name}</th>" for name in ("stage", "seconds", "GB/s", "peak memory"))
    return f'<table class="stages"><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table>'


def _data_section(table: DataTable) -> str:
    head = "".join(f"<th scope=col>{escape(name)}</th>" for name in table.head)
    lines = (
        f"<tr><th scope=row>{escape(name)}</th>{''.join(f'<td>{escape(value)}</td>' for value in values)}</tr>"
        for name, *values in table.rows
    )
    notes = "".join(f"<p>{escape(note)}</p>" for note in table.notes if note)
    body = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>" if table.rows else ""
    return f"<section class=data><h2>{escape(table.heading)}</h2>{body}{notes}</section>"


def _rejected_section(rejected: Sequence[tuple[str, str]]) -> str:
    if not rejected:
        return ""
    hidden = len(rejected) - _NAMES_SHOWN
    more = f"<p>And {hidden:,} more, all in report.json.</p>" if hidden > 0 else ""
    return f'<section class="rejected"><h2>Left out</h2>{_table(rejected[:_NAMES_SHOWN])}{more}</section>'


def _figure(picture: ReportPicture) -> str:
    source = f"data:image/png;base64,{base64.b64encode(picture.png).decode('ascii')}"
    caption = f"<figcaption>{escape(picture.caption)}</figcaption>" if picture.caption else ""
    return (
        f"<figure><h2>{escape(picture.heading)}<code>{escape(picture.file)}</code></h2>{caption}"
        f'<img src="{source}" alt="{escape(picture.heading)}"></figure>'
    )


_STYLE = """
:root { color-scheme: light dark; --paper: #fbfbfa; --card: #fff; --ink: #1d2530; --muted: #5d6978; --line: #dfe3e8;
  --accent: #2b6591; }
@media (prefers-color-scheme: dark) { :root { --paper: #14181d; --card: #1b2027; --ink: #e6e9ed; --muted: #98a3b0;
  --line: #2d343d; --accent: #8fbfe0; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "DejaVu Sans", sans-serif; }
main { max-width: 64rem; margin: 0 auto; padding: 3rem 1.5rem 4rem; }
h1 { margin: 0; font-size: 2rem; font-weight: 650; letter-spacing: -0.015em; }
h2 { margin: 0 0 .5rem; font-size: 1.1rem; font-weight: 600; }
header p { margin: .4rem 0 0; color: var(--muted); font-size: 1.1rem; max-width: 46rem; }
.highlights { display: grid; grid-template-columns: repeat(auto-fit, minmax(12rem, 1fr)); gap: 1.1rem 1.5rem;
  margin: 2rem 0 2.5rem; padding: 1.1rem 0 1.2rem; border-block: 1px solid var(--line); }
dt { color: var(--muted); font-size: .9rem; }
dd { margin: 0; font-size: 1.9rem; font-weight: 600; line-height: 1.25; color: var(--accent);
  font-variant-numeric: tabular-nums; }
dd small { display: block; font-size: .85rem; font-weight: 400; line-height: 1.4; color: var(--muted); }
.tables { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(24rem, 100%), 1fr)); gap: 2rem 3rem;
  align-items: start; }
table { border-collapse: collapse; width: 100%; font-size: .92rem; font-variant-numeric: tabular-nums; }
th, td { padding: .4rem 0; border-bottom: 1px solid var(--line); text-align: left; vertical-align: baseline;
  overflow-wrap: anywhere; }
tbody th { color: var(--muted); font-weight: 400; padding-right: 1rem; white-space: nowrap; }
thead th { color: var(--muted); font-weight: 400; font-size: .85rem; }
.stages td, .stages thead th:not(:first-child) { text-align: right; padding-left: 1rem; white-space: nowrap; }
.stages tbody th { color: var(--ink); width: 45%; white-space: normal; }
.stages .total > * { font-weight: 600; }
.stages i { display: block; height: 3px; margin-top: .35rem; border-radius: 2px; background: var(--accent); }
.data { margin-top: 2.5rem; overflow-x: auto; }
.data td, .data thead th:not(:first-child) { text-align: right; padding-left: 1rem; overflow-wrap: break-word; }
.data tbody th { color: var(--ink); }
.data p { margin: .5rem 0 0; color: var(--muted); font-size: .92rem; max-width: 46rem; }
.rejected { margin-top: 2.5rem; }
.rejected tbody th { white-space: normal; width: 50%; }
figure { margin: 3rem 0 0; }
figure h2 { display: flex; justify-content: space-between; align-items: baseline; gap: 1rem; margin: 0 0 .25rem; }
figcaption { margin: 0 0 .9rem; color: var(--muted); max-width: 46rem; }
code { font: .8rem ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; color: var(--muted); }
img { display: block; width: 100%; height: auto; padding: .75rem; background: #fff; border: 1px solid var(--line);
  border-radius: 6px; }
@media print { main { max-width: none; padding: 0; } figure { break-inside: avoid; } }
"""

# The content security policy is a second protection: text that is not escaped cannot load or run anything.
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="dask-dpca">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<main>
{body}
</main>
</body>
</html>
"""
