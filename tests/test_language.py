"""Phrases that are gone from what people read (documentation, docstrings, messages, comments) and do not come back."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
READ = ("*.py", "*.md", "*.toml", "*.ipynb", "*.service", "*.timer", "*.yaml", ".ci/run")

#: A regular expression, and what to write.
PHRASES = {
    r"goes? on (where|with|from|behind)": "resumes",
    r"going on (where|with|from)": "resuming",
    r"told in (a|one) sentence": "reported",
    r"\b(is|are|was|were) told\b": "is reported, receives",
    r"\b(ends?|is refused|are refused) in (a|one) sentence": "raises an error",
    r"in the place of": "instead of",
    r"small by the byte": "compressed",
    r"(?<!as )(?<!too )(?<!a )\bfew bytes\b": "a compressed store",
    r"bytes as given": "input size",
    r"\bfor who(ever)?\b": "if you",
    r"\bwhoever\b": "anyone who, a program that",
    r"\bfor ever\b": "indefinitely, no limit",
    r"\bof ours\b": "of this project",
    r"\bnone of ours\b": "not created by dpca",
    r"nothing but what was written": "verified on every read",
    r"no claim of a header": "memory is never allocated from a header alone",
    r"something to try things on": "a synthetic stack",
    r"\bvirtual stacks?\b": "synthetic stack",
    r"where nobody": "by default",
    r"where somebody": "if a user",
    r"where nothing is said": "by default",
    r"to the last bit": "bit-identical",
    r"\bgiven up\b": "discarded",
    r"\bgives? up what\b": "discards",
    r"\bmend(s|ed|ing)?\b": "fix",
    r"made anew": "made again",
    r"see to (it|its)\b": "fix this",
    r"takes the environment to be": "assumes the environment is",
    r"as what it is\b": "say what it is",
    r"of which (some|one|those|only|the first)": "a sentence of its own",
    r"which of whose": "a sentence of its own",
    r"is said of\b": "is stated",
    r"\banybody\b": "anyone",
    r"\bsome (dozens?|hundreds?|tens)\b": "about a hundred, a few dozen",
    r"\bso many (of|times|samples)\b": "a number",
    r"as it is where": "in place",
    r"without a word\b": "silently",
    r"in silence": "silently",
    r"in sight\b": "known",
    r"is not said\b": "missing key",
    r"that which\b": "the noun",
    r"who (reads|asks|opens|writes) (it|one|them)\b": "a reader, a program",
    r"nothing has to be asked for": "automatic",
    r"nowhere else\b": "only",
    r"(?<!there )\b(is|are) no (basis|picture|stack|store|array|number|model|TOML|volume|class|amount)\b": "is not a",
    r"that is no (file|folder)\b": "is not a",
    r"what it promises": "error bound",
    r"keeps? (what )?(it|they) promises?": "error bound",
    r"\bthe house\b": "the layout",
    r"what it is told": "its arguments",
    r"takes? in (further|samples|all|another)": "reads, adds",
    r"went on from": "resumed from",
    r"what was left out": "the excluded samples",
    r"cannot be kept": "is exceeded",
    r"ask for (at most|fewer|so many)": "request, use",
    r"one (name|entry) an axis": "one name per axis",
    r"\bsomebody('s| else)?\b": "a user, another program",
    r"make the store again": "create the store again",
    r"lies? in the (input|output|finished)": "overlaps",
    r"must stay as it is": "must not change",
    r"made from other input": "has another input",
    r"nobody (states|says|stated)": "is not stated",
    r"leave no trace": "are not written",
    r"was asked for\b": "was requested",
    r"once it is whole": "when it is complete",
    r"that a task may take": "budget of a task",
    r"now and then": "at intervals",
    r"has no meaning for": "does not apply to",
    r"that makes? no sense": "is invalid",
    r"\bmeans nothing\b": "is undefined",
    r"once more,? where": "again if",
    r"places (with|without) data": "grid points",
    r"stands? for (missing|samples|scores)": "represents",
    r"\btold where\b": "reported if",
    r"what (a store|tasks|was found) (states|keeps|holds|are sent|is)\b": "the noun",
    r"the best (ones )?would\b": "the optimum",
    r"not have settled": "not converged",
}


def _texts() -> list[tuple[str, str]]:
    listed = subprocess.run(["git", "ls-files", *READ], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    files = listed.split() or [str(path.relative_to(ROOT)) for glob in READ for path in ROOT.rglob(glob)]
    return [(name, (ROOT / name).read_text()) for name in files if not name.startswith((".venv", "tests/"))]


@pytest.fixture(scope="module")
def texts() -> list[tuple[str, str]]:
    """All files outside the tests, with line breaks and comment signs as spaces."""
    return [(name, re.sub(r"\s*\n\s*(#:? ?)?", " ", text)) for name, text in _texts()]


@pytest.mark.parametrize("phrase", PHRASES)
def test_phrases_stay_away(texts: list[tuple[str, str]], phrase: str) -> None:
    pattern = re.compile(phrase, re.IGNORECASE)
    found = [f"{name}: {match[0]}" for name, text in texts for match in pattern.finditer(text)]
    assert not found, f"write {PHRASES[phrase]!r} instead: {found[:10]} and {max(len(found) - 10, 0)} more"


def test_errors_are_matched_by_key_words() -> None:
    found = []
    for path in (ROOT / "tests").rglob("*.py"):
        for literal in re.finditer(r"""\bmatch=[rf]*(["'])(.*?)\1""", path.read_text()):
            if " " in re.sub(r"\{[^}]*\}", "", literal[2]):
                found.append(f"{path.name}: {literal[2]}")
    assert not found, f"match one key word or value, and leave the wording free: {found}"
