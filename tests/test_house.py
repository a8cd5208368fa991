"""The rooms of `dpca/ARCHITECTURE.md`: which imports which, and how long a file is."""

import ast
import re
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import dpca

ROOT = Path(dpca.__file__).parent
FILES = {
    ".".join(("dpca", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__"): path
    for room in (ROOT, *(entry for entry in ROOT.iterdir() if entry.is_dir()))  # a link is not followed further down
    for path in (room.glob("*.py") if room == ROOT else room.rglob("*.py"))
}
#: What each room may call, from the ground up.
CALLS: dict[str, set[str]] = {
    "kernels": {"choices"},
    "storage": set(),
    "choices": set(),
    "parameters": {"choices"},
    "__main__": {"cli"},
    "metrics": {"kernels", "storage"},
    "rules": {"kernels"},
    "partition": {"kernels"},
    "codec": {"kernels", "partition", "choices"},
    "engine": {"kernels", "rules", "partition", "storage"},
    "representation": {"kernels", "partition", "engine", "codec", "storage", "choices"},
    "models": {"kernels", "rules", "partition", "engine", "representation", "storage", "choices", "parameters"},
    "analysis": {"kernels", "engine", "representation", "models", "storage"},
    "timeseries": {"kernels", "rules", "engine", "representation", "models", "storage"},
    "plots": {"kernels", "partition", "engine", "representation", "models", "storage", "metrics", "choices"},
    "report": {"plots", "storage"},
    "torch": {"storage"},
    "jobs": {
        *("kernels", "partition", "engine", "codec", "representation"),
        *("models", "plots", "report", "storage", "metrics", "choices", "parameters"),
    },
    "explore": {"kernels", "engine", "representation", "models", "analysis", "plots", "jobs", "storage", "choices"},
    "cli": {"kernels", "engine", "models", "plots", "report", "jobs", "explore", "storage", "choices", "parameters"},
}
# Programs and studies may use all of the library; nothing uses them.
CALLS["pipelines"] = set(CALLS)

#: Who changes files, and where. Whatever a person names goes through `check_output`, `Workspace` or `OutputFile`.
WRITERS = {
    "dpca.storage.transaction.claim": "locks: beside an output that was checked, never through a link",
    "dpca.kernels.compiled": "folders of a cache, of this user alone",
    "dpca.kernels.compiling": "machine code, by a new name and a rename, in a cache of this user alone",
    "dpca.storage.disk": "whole files, by a new name and a rename",
    "dpca.storage.arrays.shards": "shards, by a new name and a rename, in the store of a workspace",
    "dpca.storage.transaction.growing": "work folders that are claimed, and the rename of a store of a workspace",
    "dpca.storage.transaction.inherited": "inner stores, in a work folder that is claimed",
    "dpca.storage.transaction.lease": "locks in buckets",
    "dpca.storage.integrity.manifest": "the manifests of stores and reports, in the folders of their writers",
    "dpca.storage.transaction.outputs": "`OutputFile`",
    "dpca.storage.transaction.plain": "the rename of a complete file to a name that nothing has",
    "dpca.storage.transaction.markers": "done-markers, in a work folder that is claimed",
    "dpca.storage.transaction.checkpoints": "checkpoints, by a new name and a rename, in a work folder that is claimed",
    "dpca.explore.sources": "a temporary file without a name",
    "dpca.engine.clusters.private": "a folder for temporary files, of this user alone",
    "dpca.engine.clusters.worker_setup": "the null device",
    "dpca.cli.running": "the null device",
    "dpca.jobs.base.input_stack": "a temporary folder",
    "dpca.jobs.compressed.append_write": "links of shards, in the store of a workspace",
    "dpca.jobs.export.nifti_files": "b-values beside an exported file: never over others, never through a link",
    "dpca.jobs.export.passes": "files of samples, in the store of a workspace",
    "dpca.jobs.export.value_files": "a file of all samples, in the store of a workspace",
    "dpca.jobs.plans.denoising_plan": "a temporary folder",
    "dpca.jobs.plans.plan": "a temporary folder",
    "dpca.jobs.plans.tried": "a temporary folder",
    "dpca.models.base.store": "links of shards, in the store of a workspace",
    "dpca.models.base.mapped": "temporary files without names",
    "dpca.models.linear.component_store": "a temporary folder of this user alone, or the checkpoints of a run",
    "dpca.plots.png": "memory",
    "dpca.report.record": "the folder of a report, which `check_output` or `check_report` was given",
    "dpca.pipelines.reproduce_streaming": "a temporary folder beside an `OutputFile`",
    "dpca.pipelines.studies.partitions.samples": "by a new name and a rename, in a work folder that is claimed",
    "dpca.pipelines.studies.rednet.inputs": "in the folder of a report that was checked",
    "dpca.pipelines.studies.rednet.trials": "in the folder of a report that was checked",
}
# Names by which Python and libraries change files; of `open` and `replace` those calls that do.
_CHANGES = {
    *("atomic_write_bytes", "write_bytes", "write_text", "touch", "mkdir", "makedirs", "mkdtemp", "mkstemp"),
    *(
        "TemporaryDirectory",
        "TemporaryFile",
        "NamedTemporaryFile",
        "rename",
        "renames",
        "link",
        "symlink",
        "symlink_to",
    ),
    *("hardlink_to", "mkfifo", "copyfile", "copytree", "copy2", "move", "tofile", "savez", "savez_compressed"),
    *("savetxt", "open_memmap", "savefig", "imsave", "to_netcdf", "to_zarr"),
}
# Which make nothing: methods of xarray's objects, and an object of a bucket, whose place was checked as any other's.
_OTHER = {"dpca.storage.remote.objects", "dpca.models.eof.fields", "dpca.models.base.labelled"}


@cache
def parsed(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(path.read_text())


def room_of(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def imports(path: Path) -> Iterator[str]:
    """Yield the modules that a file imports, those that only the type checker sees included."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, path
            assert node.module is not None
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield name if name in FILES else node.module


@cache  # every process that runs tests imports this file: only the one that runs these reads all files
def edges() -> dict[str, set[str]]:
    """Return which modules of ours each module imports."""
    return {module: {name for name in imports(path) if name in FILES} - {module} for module, path in FILES.items()}


def test_all_rooms_are_seen() -> None:
    rooms = {room_of(module) for module in FILES}
    assert rooms == {*CALLS, ""}, f"state in CALLS what these rooms may import: {sorted(rooms ^ {*CALLS, ''})}"


@pytest.mark.parametrize("room", CALLS)
def test_no_arrow_points_upward(room: str) -> None:
    # The package itself holds the version, and its public names, which it imports on first use.
    called = {(module, name) for module in FILES if room_of(module) == room for name in edges()[module] if "." in name}
    assert not {(module, name) for module, name in called if room_of(name) not in {room, *CALLS[room]}}


def test_nothing_is_imported_in_a_circle() -> None:
    TopologicalSorter({module: names for module, names in edges().items() if module != "dpca"}).prepare()


def test_no_file_has_more_than_400_lines() -> None:
    long = {module for module, path in FILES.items() if len(path.read_text().splitlines()) > 400}
    assert not long, f"move what belongs together from {sorted(long)} to a file of its own"


def test_no_two_classes_have_one_name() -> None:
    names = Counter(
        node.name for path in FILES.values() for node in ast.walk(parsed(path)) if isinstance(node, ast.ClassDef)
    )
    assert not {name for name, count in names.items() if count > 1}


def test_no_two_test_files_have_one_name() -> None:
    """pytest imports them by their names alone."""
    names = Counter(path.name for path in Path(__file__).parent.rglob("*.py") if path.name.startswith("test_"))
    assert not {name for name, count in names.items() if count > 1}


def test_no_function_has_more_than_9_parameters() -> None:
    """What belongs together is one object, such as `dpca.Run`. The constructors of dataclasses are not written out."""
    many = []
    for module, path in FILES.items():
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                if sum(one.arg not in ("self", "cls") for one in given) > 9:
                    many.append(f"{module}.{node.name}")
    assert not many


def test_the_library_takes_no_names_but_its_own() -> None:
    """Files in a user's folder may be called storage.py or pipelines.py."""
    ours = {"storage", "pipelines", "tests"}
    assert not {module for module, path in FILES.items() for name in imports(path) if name.split(".")[0] in ours}
    assert not {"storage", "pipelines"} & sys.modules.keys()


def changes_files(path: Path) -> bool:
    """Whether a file calls what makes, changes or moves other files."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            first = ast.unparse(node.func).partition(".")[0]
            modes = {
                one.value for one in [*node.args, *(k.value for k in node.keywords)] if isinstance(one, ast.Constant)
            }
            writes = any(isinstance(m, str) and re.fullmatch(r"[rbt]*[wax+][bt+]*", m) for m in modes)
            if (
                name in _CHANGES
                or (name == "replace" and first == "os")
                or (name == "save" and first == "np")
                or (name == "open" and (writes or re.search("O_(WRONLY|RDWR|CREAT)", ast.unparse(node))))
            ):
                return True
    return False


def test_every_writer_is_known() -> None:
    """A new one says here why it harms no input, no finished store and nobody's file."""
    found = {module for module, path in FILES.items() if changes_files(path)} - _OTHER
    assert not found - set(WRITERS), f"add {sorted(found - set(WRITERS))} to WRITERS, with the reason"
    assert not set(WRITERS) - found, f"remove {sorted(set(WRITERS) - found)} from WRITERS: they change no file"


@pytest.mark.parametrize("kind", [DeprecationWarning, PendingDeprecationWarning, FutureWarning])
def test_what_our_code_does_no_longer_is_an_error_and_what_others_do_is_theirs(kind: type[Warning]) -> None:
    def told(module: str) -> None:
        warnings.warn_explicit("it will go away", kind, "a file", 1, module, registry={})

    for ours in ("dpca.models.linear.pca", "dpca.storage.stack", "tests.conftest", __name__):
        with pytest.raises(kind):
            told(ours)
    with warnings.catch_warnings(record=True) as theirs:
        told("xeofs.utils.compat")
    assert len(theirs) == 1
    with pytest.raises(UserWarning):
        warnings.warn_explicit("look here", UserWarning, "a file", 1, "xeofs.utils.compat", registry={})
