from __future__ import annotations

import glob
import itertools
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpca.storage.arrays.arrays import create_root
from dpca.storage.errors import StoreError
from dpca.storage.integrity.manifest import write_folder_manifest, write_manifest
from dpca.storage.readers import open_reader
from dpca.storage.readers.opening import paths_of
from dpca.storage.transaction.outputs import OutputFile, check_output, check_report, matched
from dpca.storage.transaction.workspace import Workspace


def everything(root):
    return {
        os.path.relpath(os.path.join(folder, name), root)
        for folder, folders, files in os.walk(root)
        for name in (*folders, *files)
    }


def one_sentence(error):
    text = str(error.value)
    assert "\n" not in text
    assert text.isprintable()
    return text


# -- an output and its inputs


#: How the output lies to an input, made of real folders: (input, output), both below one folder.
RELATIONS = {
    "is": ("a/in", "a/in"),
    "lies in": ("a/in", "a/in/out"),
    "lies deep in": ("a/in", "a/in/not/yet/there"),
    "holds": ("a/in/samples", "a/in"),
    "holds deep down": ("a/in/b/c", "a/in"),
    "work folder is": ("a/out.partial", "a/out"),
    "work folder holds": ("a/out.partial/stack", "a/out"),
    "report is": ("a/out.report", "a/out.zarr"),
    "report holds a file": ("a/out.report/index.html", "a/out.zarr"),
}


def plain(root, path):
    return root / path


def dotted(root, path):
    (root / "elsewhere").mkdir(exist_ok=True)
    return root / "elsewhere" / ".." / path


def linked(root, path):
    (root / "link").unlink(missing_ok=True)
    (root / "link").symlink_to(root / "a")
    return root / "link" / Path(path).relative_to("a")


def linked_itself(root, path):
    if not (root / path).exists():
        return root / path
    link = root / f"link-to-{Path(path).name}"
    link.unlink(missing_ok=True)
    link.symlink_to(root / path)
    return link


def relative(root, path):
    return Path(os.path.relpath(root / path))


ROUTES = (plain, dotted, linked, linked_itself, relative)


@pytest.mark.parametrize(("of_input", "of_output"), list(itertools.product(ROUTES, ROUTES)))
@pytest.mark.parametrize("relation", RELATIONS)
def test_an_output_that_is_holds_or_lies_in_an_input_is_refused_whatever_the_way(
    tmp_path, relation, of_input, of_output
):
    source, target = RELATIONS[relation]
    made = tmp_path / source
    made.parent.mkdir(parents=True)
    made.write_text("page") if made.suffix == ".html" else made.mkdir()
    given_source = of_input(tmp_path, source)
    given_target = (
        tmp_path / target if of_output is linked_itself and "report" in relation else of_output(tmp_path, target)
    )
    before = everything(tmp_path)
    report = given_target.with_name("out.report")
    with pytest.raises(StoreError, match="another") as caught:
        check_output(given_target, given_source, report=report)
    assert "the input" in one_sentence(caught)
    assert everything(tmp_path) == before


@given(
    source=st.lists(st.sampled_from(["a", "b", "..", ".", "link"]), min_size=1, max_size=6),
    target=st.lists(st.sampled_from(["a", "b", "..", ".", "link"]), min_size=1, max_size=6),
)
@settings(max_examples=150, deadline=None)
def test_any_two_paths_are_judged_by_what_the_system_says_they_are(tmp_path_factory, source, target):
    root = tmp_path_factory.getbasetemp() / "tree"
    if not root.exists():
        for folder in ("a/a", "a/b", "b/a"):
            (root / "base" / folder).mkdir(parents=True)
        (root / "base" / "link").symlink_to(root / "base" / "a")
        (root / "base" / "b" / "link").symlink_to(root / "base")
    read, written = (os.path.join(root, "base", *parts) for parts in (source, target))
    told = subprocess.check_output(["realpath", "-m", read, written], text=True).splitlines()
    there, here = (f"{path}/" for path in told)
    work = f"{told[1]}.partial/"
    clash = here.startswith(there) or there.startswith(here) or work.startswith(there) or there.startswith(work)
    if clash:
        with pytest.raises(StoreError):
            check_output(written, read)
    else:
        check_output(written, read)


@pytest.mark.parametrize("target", ["b/out.zarr", "a/in.zarr.model", "a/in2", "a/i", "a/out.zarr"])
def test_an_output_beside_an_input_is_welcome(tmp_path, target):
    (tmp_path / "a" / "in").mkdir(parents=True)
    check_output(tmp_path / target, tmp_path / "a" / "in", [tmp_path / "a" / "in"], None, report=tmp_path / "a" / "r")


def test_every_match_of_a_glob_and_every_other_input_counts(tmp_path):
    for name in ("1", "2", "3"):
        (tmp_path / name).mkdir()
    with pytest.raises(StoreError, match=r"\binput\b"):
        check_output(tmp_path / "3" / "x", [str(tmp_path / "1"), str(tmp_path / "2")], tmp_path / "3")
    check_output(tmp_path / "x", "s3://bucket/stack.zarr", "https://example.org/x")


def test_a_second_mount_of_an_input_is_the_input(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "again").mkdir()
    if (
        shutil.which("mount") is None
        or subprocess.run(["mount", "--bind", tmp_path / "in", tmp_path / "again"], capture_output=True).returncode
    ):
        pytest.skip("mounting is not allowed here")
    try:
        with pytest.raises(StoreError, match=r"\binput\b"):
            check_output(tmp_path / "again" / "out.zarr", tmp_path / "in")
        with pytest.raises(StoreError, match="mount.point"):
            check_output(tmp_path / "again")
    finally:
        subprocess.run(["umount", tmp_path / "again"], check=True)


# -- targets that are none


def target_of(kind, folder):
    if kind == "loop":
        (folder / "one").symlink_to(folder / "two")
        (folder / "two").symlink_to(folder / "one")
        return folder / "one"
    if kind == "below a loop":
        return target_of("loop", folder) / "out.zarr"
    if kind == "below a file":
        (folder / "file").write_text("x")
        return folder / "file" / "out.zarr"
    if kind == "deep":
        return folder.joinpath(*["d" * 100] * 39, "out.zarr")
    return {
        "root": "/",
        "root by ..": "/../..",
        "NUL": f"{folder}/a\0b",
        "long": folder / ("x" * 250),
        "longer than any": folder / ("x" * 300),
        "long parent": folder / ("x" * 300) / "out.zarr",
        "not UTF-8": os.fsdecode(os.fsencode(folder) + b"/out\xff.zarr"),
        "below what is not UTF-8": os.fsdecode(os.fsencode(folder) + b"/out\xff/a.zarr"),
        "too deep": folder.joinpath(*["d" * 100] * 60),
        "working folder": ".",
        "nothing": "",
        "holds the working folder": "..",
        "working folder by its name": Path.cwd(),
        "URL": "https://example.org/x",
        "process": "/proc/out.zarr",
    }[kind]


KINDS = (
    *("root", "root by ..", "NUL", "long", "longer than any", "long parent", "not UTF-8", "below what is not UTF-8"),
    *("deep", "too deep", "working folder", "nothing", "holds the working folder", "working folder by its name", "URL"),
    *("loop", "below a loop", "below a file", "process"),
)


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_target_that_is_none_is_refused_in_a_sentence_and_nothing_is_made(tmp_path, monkeypatch, kind, overwrite):
    (tmp_path / "here" / "there").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here" / "there")
    target = target_of(kind, tmp_path)
    before = everything(tmp_path)

    def enter():
        with Workspace(target, kind="stack", fingerprint="f", overwrite=overwrite):
            pass

    with pytest.raises(StoreError) as caught:
        enter()
    assert "choose" in one_sentence(caught) or "give" in one_sentence(caught)
    assert everything(tmp_path) == before


def test_a_name_whose_work_folder_just_fits_is_welcome(tmp_path):
    with Workspace(tmp_path / ("x" * 247), kind="stack", fingerprint="f") as work:
        assert work.state == "new"


def test_a_working_folder_that_is_gone_spoils_only_relative_names(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    (tmp_path / "here").rmdir()
    with pytest.raises(StoreError, match="working"):
        check_output("out.zarr")
    check_output(tmp_path / "out.zarr")


def test_a_read_only_folder_is_refused(tmp_path):
    if os.geteuid() == 0:
        made = subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "none", tmp_path], capture_output=True)
        if made.returncode:
            pytest.skip("root may write anywhere, and mounting is not allowed here")
    else:
        tmp_path.chmod(0o500)
    try:
        with (
            pytest.raises(StoreError, match="permissions"),
            Workspace(tmp_path / "deep" / "out.zarr", kind="stack", fingerprint="f"),
        ):
            pass
    finally:
        if os.geteuid() == 0:
            subprocess.run(["umount", tmp_path], check=True)


@pytest.mark.parametrize("inside", ["model", "samples", "new.zarr", "deep/new.zarr"])
def test_an_output_in_a_finished_store_is_refused_and_the_store_stays_whole(tmp_path, make_stack, inside):
    """It would be whole no more: its manifest knows every store in it."""
    store = make_stack(tmp_path / "in.zarr", np.zeros((4, 6, 5), np.uint8))
    write_manifest(store)
    before = everything(tmp_path)
    with pytest.raises(StoreError, match="finished.store"):
        check_output(store / inside, store / "name", report=tmp_path / "r")
    assert everything(tmp_path) == before


def test_a_report_folder_that_is_not_ours_is_refused_and_left_alone(tmp_path):
    output, report = tmp_path / "out.zarr", tmp_path / "out.report"
    report.mkdir()
    check_output(output, report=report)
    (report / "index.html").write_text("mine")
    with pytest.raises(StoreError, match="'index.html'"):
        check_output(output, report=report)
    (report / "manifest.json").write_text("{}")  # a program for browsers has one, too
    with pytest.raises(StoreError, match=r"\bmove\b"):
        check_output(output, report=report)
    write_folder_manifest(report, "report", {})
    check_output(output, report=report)
    check_report(report)


# -- single files


def is_mine(content):
    return content.startswith(b"mine")


def in_the_way(kind, folder):
    path = folder / "file"
    if kind == "another's":
        path.write_text("not mine")
    elif kind == "nothing in it":
        path.touch()
    elif kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        return Path("/dev/null")
    elif kind == "link to mine":
        (folder / "other").write_text("mine")
        path.symlink_to("other")
    elif kind == "link to nothing":
        path.symlink_to("nothing")
    return path


@pytest.mark.parametrize("when", ["at first", "later"])
@pytest.mark.parametrize(
    "kind", ["another's", "nothing in it", "folder", "pipe", "device", "link to mine", "link to nothing"]
)
def test_a_file_that_is_not_recognized_as_ours_is_not_replaced(tmp_path, kind, when):
    file = OutputFile(tmp_path / "file", "record", is_mine)
    path = in_the_way(kind, tmp_path)
    before, status = everything(tmp_path), os.lstat(path)
    with pytest.raises(StoreError, match="record") as caught:
        OutputFile(path, "record", is_mine) if when == "at first" or kind == "device" else file.write(b"mine, too")
    one_sentence(caught)
    assert everything(tmp_path) == before
    assert (os.lstat(path).st_ino, os.lstat(path).st_mtime_ns) == (status.st_ino, status.st_mtime_ns)


def test_a_file_of_ours_is_replaced_as_a_whole(tmp_path):
    file = OutputFile(tmp_path / "new" / "file", "record", is_mine)
    assert file.read() is None
    file.write(b"mine")
    os.link(tmp_path / "new" / "file", tmp_path / "kept")
    OutputFile(tmp_path / "new" / "file", "record", is_mine).write(b"mine, again")
    assert (file.read(), (tmp_path / "kept").read_bytes()) == (b"mine, again", b"mine")
    assert everything(tmp_path) == {"new", "new/file", "kept"}


def test_a_file_is_not_written_into_an_input_an_output_or_a_finished_store(tmp_path):
    (tmp_path / "in").mkdir()
    with pytest.raises(StoreError, match=r"\binput\b"):
        OutputFile(tmp_path / "in" / "file", "record", is_mine, tmp_path / "in")
    with pytest.raises(StoreError, match="the.output"):
        OutputFile(tmp_path / "out" / "file", "record", is_mine, others=tmp_path / "out")
    with Workspace(tmp_path / "store", kind="stack", fingerprint="f") as work:
        create_root(work.store, kind="stack", fingerprint="f")
        work.publish()
    before = (tmp_path / "store" / "zarr.json").read_bytes()
    for name in ("zarr.json", "file"):
        with pytest.raises(StoreError, match="finished.store"):
            OutputFile(tmp_path / "store" / name, "record", lambda content: True)
    inner = Workspace(tmp_path / "store" / "inner", kind="stack", fingerprint="f")
    with pytest.raises(StoreError, match="finished.store"), inner:
        pass
    assert everything(tmp_path) == {"in", "store", "store/zarr.json"}
    assert (tmp_path / "store" / "zarr.json").read_bytes() == before


# -- patterns


PARTS = ["a", "b", "ab", ".a", "*", "a*", "?", "**", "[ab]"]


@given(pattern=st.lists(st.sampled_from(PARTS), min_size=1, max_size=4))
@settings(max_examples=150, deadline=None)
def test_a_pattern_matches_what_glob_finds(tmp_path_factory, pattern):
    root = tmp_path_factory.getbasetemp() / "to-match"
    paths = [Path(*parts) for n in (1, 2, 3) for parts in itertools.product(["a", "b", "ab", ".a"], repeat=n)]
    if not root.exists():
        for path in paths:
            (root / path).mkdir(parents=True, exist_ok=True)
    found = set(map(Path, glob.glob(f"{root}/{'/'.join(pattern)}", recursive=True)))
    for path in (root / path for path in paths):
        assert matched(f"{root}/{'/'.join(pattern)}", path) == bool(found & {path, *path.parents}), path


def test_no_pattern_stands_for_a_report_or_a_work_folder(tmp_path):
    for name in ("a.npy", "b.report", "c.partial"):
        (tmp_path / "in" / name).mkdir(parents=True)
        (tmp_path / "in" / name / "picture.png").touch()
    every = paths_of(f"{tmp_path}/in/*")
    write_folder_manifest(tmp_path / "in" / "b.report", "report", {})
    with Workspace(tmp_path / "in" / "d.zarr", kind="stack", fingerprint="f") as work:
        work.mark_done("x")
    assert paths_of(f"{tmp_path}/in/*") == [path for path in every if not path.endswith(".report")]
    assert paths_of(f"{tmp_path}/in/*/*.png") == [f"{path}/picture.png" for path in every if "b.report" not in path]
    assert not any("d.zarr" in path for path in paths_of(f"{tmp_path}/in/**"))
    # Whoever names a report means it.
    assert paths_of(f"{tmp_path}/in/b.report/*.png") == [f"{tmp_path}/in/b.report/picture.png"]
    assert paths_of(f"{tmp_path}/in/b.report") == [f"{tmp_path}/in/b.report"]


@pytest.mark.parametrize(
    ("pattern", "output"),
    [
        ("in/*", "in/out.zarr"),
        ("in/*", "in/new/out.zarr"),
        ("in/*/*", "in/out"),
        ("in/**", "in/a/aim"),
        ("link/*", "in/b"),
    ],
)
def test_an_output_that_the_next_run_would_read_is_refused_by_the_first(tmp_path, monkeypatch, pattern, output):
    (tmp_path / "in").mkdir()
    (tmp_path / "link").symlink_to("in")
    samples = tmp_path / "in" / ("a.npy" if pattern != "in/*/*" else "sub/a.npy")
    samples.parent.mkdir(exist_ok=True)
    np.save(samples, np.zeros((3, 4, 4), "u1"))
    monkeypatch.chdir(tmp_path)
    reader = open_reader(pattern if pattern != "in/**" else "in/**/a*")
    with pytest.raises(StoreError, match="pattern"):
        check_output(output, reader)
    check_output("out.zarr", reader)
