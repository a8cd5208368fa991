"""The command that `dpca plan` prints reads as the same options."""

from __future__ import annotations

import shlex
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from dpca.cli import main
from dpca.cli.program import _parser
from dpca.jobs.plans import plan, plan_words

_PATH = st.text("ab '\"$\\*;é=-", min_size=1, max_size=6).map("x{}".format)
_MODEL = (
    st.just([])
    | st.sampled_from(
        [[f"--cell={cell}", *more] for cell in ("8", "4x6") for more in ([], ["--shared"], ["--overl=2"])]
    )
    | st.just(["--band-size", "9", "--mapping", "mean-variance"])
    | st.just(["--kernel", "rbf"])
)
_OPTIONS = {
    "rank": st.sampled_from(
        [[], ["--components", "3"], ["--target-psnr", "31.5"], ["--ratio=4"], ["--components=all"]]
    ),
    "quality": st.sampled_from([[], ["--quality", "high"], ["--quality=max-error=2"], ["--quality", "ratio=9"]]),
    "reading": st.sampled_from([[], ["--resize", "20x30"], ["--crop=20x30"], ["--on-error", "skip"], ["--keep-jpegs"]]),
    "range": st.sampled_from([[], ["--data-range=-6,6"], ["--data-range", "0,1"]]),
    "axes": st.sampled_from([[], ["--axes", "z,y,x"], ["--axes=tyx"]]),
    "kept": st.sampled_from([[], ["--reconstruct"], ["--no-reconstruct", "--keep-stack"], ["--no-keep-stack"]]),
    "several": st.lists(st.sampled_from(["a=1", "endpoint_url=https://h", 'b={"c": 2}']), max_size=2).map(
        lambda values: [part for value in values for part in ("--storage-option", value)]
    ),
    "workers": st.sampled_from([[], ["--workers", "3"], ["--workers=2,8"], ["--seed", "7"], ["--memory=2GB"]]),
    "mask": st.just([]) | _PATH.map(lambda path: ["--mask", path]),
    "key": st.just([]) | _PATH.map(lambda key: [f"--key={key}"]),
}


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is opened or tried."""
    plans = lambda *_, workers, **__: [SimpleNamespace(seconds=1.0, workers=(workers or [2])[0])]  # noqa: E731
    model = SimpleNamespace(model=SimpleNamespace(check_parameters_for=lambda _: None))
    monkeypatch.setattr(plan, "plan_job", plans)
    monkeypatch.setattr(plan_words, "in_words", lambda plans: [])
    monkeypatch.setattr("dpca.cli.jobs.settings_of", lambda *_: model)
    monkeypatch.setattr("dpca.cli.jobs._model", lambda *_: None)
    monkeypatch.setattr("dpca.cli.jobs.given_input", lambda *_: None)
    monkeypatch.setattr("dpca.cli.jobs.samples_of_input", lambda _: 9)
    monkeypatch.setattr("dpca.storage.remote.network.use_storage_options", lambda _: None)


@settings(
    max_examples=25,
    phases=[Phase.generate],  # shrinking takes minutes
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    deadline=None,
)
@given(st.lists(_PATH, min_size=1, max_size=3), _MODEL, st.fixed_dictionaries(_OPTIONS))
def test_the_next_command_has_all_options(
    planned: None, capsys: pytest.CaptureFixture[str], sources: list[str], model: list[str], options: dict[str, Any]
) -> None:
    given = [*model, *(part for parts in options.values() for part in parts)]
    capsys.readouterr()
    assert main(["plan", *sources, *given]) == 0
    program, *command = shlex.split(capsys.readouterr().out.splitlines()[-1].partition("; next: ")[2])
    wanted, found = (vars(_parser().parse_args(argv)) for argv in (["plan", *sources, *given], command))
    assert program == "dpca"
    assert command[0] == ("compress" if options["quality"] else "scores")
    assert (found.pop("source"), found.pop("output")) == (sources, "OUTPUT.zarr")
    assert found.pop("workers") == (wanted.pop("workers") or [None])[0]
    del wanted["storage_option"]
    assert not found.pop("storage_option")  # they may be secrets
    for name in wanted.keys() & found.keys() - {"run"}:
        assert found[name] == wanted[name], name
    lost = {
        name for name, value in wanted.items() if name not in found and value not in (None, False, wanted["source"])
    }
    assert lost <= {"reconstruct"}
    assert not (lost and not options["quality"])


def test_a_streaming_method_has_no_command(planned: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "x.npy", "--method", "incremental-svd"]) == 0
    assert "StreamingPCA" in capsys.readouterr().out.splitlines()[-1]


def test_the_command_runs(tmp_path: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("my movie.npy", np.random.default_rng(0).normal(size=(30, 8, 8)).astype("f4"))
    assert main(["plan", "my movie.npy", "--cell", "4x8", "--components", "2", "--workers=1", "--data-range=-9,9"]) == 0
    _, *command = shlex.split(capsys.readouterr().out.splitlines()[-1].partition("; next: ")[2])
    assert command == [
        *("scores", "my movie.npy", "OUTPUT.zarr", "--cell=4x8", "--components=2", "--data-range=-9,9", "--workers=1")
    ]
