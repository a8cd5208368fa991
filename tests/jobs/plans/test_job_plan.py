"""What a plan foretells, beside what is measured and what is computed by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from sklearn.base import clone

from dpca import PCA, CellPCA, StreamingPCA
from dpca.cli import main
from dpca.engine.clusters.cluster import open_client
from dpca.engine.folds.plan import TASK_OVERHEAD, FoldPlan, Group
from dpca.engine.folds.rehearsal import MOVING, SCHEDULING, FoldCost, Workers, rehearsing
from dpca.engine.sources.source import ZarrSource, as_source
from dpca.jobs import CompressionSettings, compress, open_input, plan_job, transform_store
from dpca.jobs.plans.plan import _Tried
from dpca.jobs.plans.timing import fewest_seconds
from dpca.jobs.scores.transform import fill_scores
from dpca.kernels import integer_products
from dpca.rules.incremental.incremental_svd import IncrementalSVD
from dpca.storage import DataError, Stack, create_synthetic, ingest, open_stack
from dpca.storage.disk import folder_bytes
from dpca.storage.run import Run
from tests.conftest import smooth_images

pytestmark = pytest.mark.usefixtures("small_pictures")


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Stack:
    folder = tmp_path_factory.mktemp("plan")
    np.save(folder / "a.npy", smooth_images(80, (36, 32, 3)))
    return ingest(folder / "a.npy", folder / "a.zarr", cell_shape=8)


@pytest.mark.long
def test_a_job_keeps_its_plan_beside_what_it_took(stack: Stack, tmp_path: Path) -> None:
    settings = CompressionSettings(CellPCA(3, cell_shape=8, random_state=0))
    given = open_input(Path(stack.path).with_name("a.npy"))
    with open_client(workers=1, memory="2GB") as client:
        done = compress(given, tmp_path / "out.zarr", settings, run=Run(client=client), plan=True)
    assert list(done.report["stages"]) == ["start", "ingest", "fit", "scores", "report"]
    for stage in [done.report["stages"][name] for name in ("ingest", "fit", "scores")]:
        planned = stage["planned"]
        assert planned["seconds"] > 0
        assert planned["bytes"] == stage["bytes"]
        assert planned["memory"] >= stage["peak_memory"]
    page = (done.folder / "index.html").read_text()
    assert "planned" in page
    written = done.report["bytes_written"]
    (plan,) = plan_job(stack, settings, workers=[1])
    assert plan.bytes_written == pytest.approx(written["scores"] + written["model"], rel=0.2)


def test_the_table_has_a_column_for_each_number_of_workers(stack: Stack, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", stack.path, "--cell", "8", "--components", "3", "--workers", "1,4"]) == 0
    begun, *told = capsys.readouterr().out.splitlines()
    assert begun.endswith(" plan: 1 job")  # a bar in a terminal
    assert told[0].startswith("80 samples of 36 x 32 x 3 uint8: ")
    assert told[2].split() == ["1", "worker", "4", "workers"]
    labels = [line.split("   ")[0] for line in told[3:]]
    assert labels[:3] == ["fit", "scores", "all stages"]
    argv = ["plan", stack.path, "--method", "incremental-svd", "--components", "2", "--workers", "1,4", "--json"]
    assert main(argv) == 0
    one, four = map(json.loads, capsys.readouterr().out.splitlines())
    assert (one["workers"], four["workers"]) == (1, 4)
    assert one["bytes_decoded"] == stack.nbytes
    assert set(one["seconds"]) == {"fit", "scores"}
    with pytest.raises(SystemExit):
        main(["plan", stack.path, "--method", "no-rule", "--components", "2"])
    assert main(["plan", stack.path, "--memory", "much"]) == 3


@pytest.mark.parametrize(
    ("model", "ssim"), [(CellPCA(3, cell_shape=8), True), (StreamingPCA(2, method="incremental-svd"), False)]
)
def test_what_the_job_does_not_measure_is_not_planned(
    stack: Stack, model: Any, ssim: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[bool] = []

    def watched(*args: Any, **kwargs: Any) -> Any:
        measured.append(kwargs["ssim"])
        return fill_scores(*args, **kwargs)

    monkeypatch.setattr("dpca.jobs.plans.plan.fill_scores", watched)
    plan_job(stack, CompressionSettings(model), workers=[1])
    assert set(measured) == {ssim}


@pytest.mark.parametrize("model", [PCA(3), CellPCA(3, cell_shape=10), StreamingPCA(2)])
@pytest.mark.parametrize("reconstruct", [False, True])
def test_no_whole_sample_is_read_of_large_ones(
    model: Any, reconstruct: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape, read = (6, 400, 500), set[int]()
    values = np.random.default_rng(0).normal(size=shape).astype("f4").cumsum(axis=2)
    zarr.create_array(str(tmp_path / "x.zarr"), data=values, chunks=(1, 50, 100))
    monkeypatch.setattr("dpca.jobs.scores.boxes.LARGE_SAMPLE", 0)
    monkeypatch.setattr("dpca.jobs.scores.boxes._BOX_BYTES", 2**19)
    monkeypatch.setattr("dpca.jobs.scores.boxes._LEAST_BOX", 2**12)
    monkeypatch.setattr("dpca.jobs.scores.boxes.TRIED_BYTES", 2**14)
    reader = ZarrSource.reader

    def watched(self: Any) -> Any:
        read_box = reader(self)

        def box(samples: Any, region: Any, out: Any) -> None:
            read.add(int(np.prod([b - a for a, b in region])))
            read_box(samples, region, out)

        return box

    def scores(self: Any) -> Any:
        with monkeypatch.context() as patched:  # a fit reads whole samples if they fit
            patched.setattr(ZarrSource, "reader", watched)
            return rehearse(self)

    rehearse = _Tried._scores
    monkeypatch.setattr(_Tried, "_scores", scores)
    settings = CompressionSettings(model, reconstruct=reconstruct)
    (plan,) = plan_job(open_stack(tmp_path / "x.zarr"), settings, workers=[1], budget=2**24 + TASK_OVERHEAD)
    assert max(read) < 400 * 500
    assert list(plan.stages) == ["range", "fit", "scores"]
    assert all(stage.seconds > 0 for stage in plan.stages.values())
    assert plan.bytes_written == pytest.approx(transform_bytes(model, reconstruct, tmp_path), rel=0.35)


def transform_bytes(model: Any, reconstruct: bool, folder: Path) -> int:
    """Return the bytes of a model and its scores."""
    stack = open_stack(folder / "x.zarr", data_range=(-99, 99))
    clone(model).fit(stack).save(folder / "model.zarr")
    transform_store(stack, folder / "model.zarr", folder / "scores.zarr", reconstruct=reconstruct)
    return folder_bytes(folder / "model.zarr") + folder_bytes(folder / "scores.zarr")


def test_the_fewest_seconds_of_some_turns_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 9.0, 10.0, 14.0, 20.0, 21.0, 30.0, 32.0, 40.0, 43.0, 50.0, 55.0])
    targets: list[Path] = []
    with monkeypatch.context() as patched:
        patched.setattr("dpca.jobs.plans.timing.time.process_time", lambda: next(clock))
        found = fewest_seconds(["few", "many"], lambda part, target: targets.append(target), tmp_path / "made")
    assert found == [1.0, 2.0]
    assert len(set(targets)) == 6


def test_a_goal_that_is_not_reached_is_one_sentence(stack: Stack) -> None:
    settings = CompressionSettings(CellPCA(1, cell_shape=8, random_state=0), goal={"psnr": 90.0})
    with pytest.raises(DataError, match="psnr"):
        plan_job(stack, settings)


class Counted(ZarrSource):
    """Counts the samples that are read."""

    read = 0

    def reader(self) -> Any:
        inner = super().reader()

        def read(samples: tuple[int, int], region: Any, out: Any) -> None:
            Counted.read += samples[1] - samples[0]
            inner(samples, region, out)

        return read


def test_a_rehearsal_of_a_long_stack_reads_a_few_batches_of_it(stack: Stack, tmp_path: Path) -> None:
    known: Any = as_source(stack)
    source = Counted(known.path, known.shape, known.dtype, known.chunks, known.array_identity)
    workers = Workers(2, 2, 2**29)
    for model in (CellPCA(3, cell_shape=8), StreamingPCA(3, method="incremental-svd", batch_size=8, random_state=0)):
        Counted.read = 0
        with rehearsing(workers, str(tmp_path)) as rehearsal:
            model.fit(source)
        (cost,) = rehearsal.costs
        assert cost.planned(workers).read_bytes == stack.nbytes
        assert cost.n_samples == stack.n_samples
        assert cost.reading >= 0 < cost.folding
        # The components are those of samples: a fit can go on with them.
        assert model.components_.shape[0] == 3


@pytest.mark.skipif(integer_products.INSTRUCTION is None, reason="no dot-product instruction here")
def test_a_rehearsal_measures_the_steps_in_the_middle_of_a_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first steps are small, because components that are noise have little more variance than the rest."""
    sizes: list[int] = []
    step = IncrementalSVD._nystrom_step

    def noted(self: Any, state: Any, batch: Any, kernel: Any) -> bool:
        accepted = step(self, state, batch, kernel)
        sizes.append(len(batch) if accepted else 0)
        return accepted

    monkeypatch.setattr(IncrementalSVD, "_nystrom_step", noted)
    stack = create_synthetic(tmp_path / "many.zarr", n_samples=1_000_000, sample_shape=(40, 40, 3))
    with rehearsing(Workers(2, 2, 2**31), str(tmp_path)) as rehearsal:
        StreamingPCA(30, method="incremental-svd", oversampling=10, random_state=0).fit(stack)
    assert len(rehearsal.costs) == 1
    assert sizes[-3:] == [2048] * 3
    assert max(sizes[1:4]) < 1024


def test_seconds_are_those_of_the_busiest_worker() -> None:
    """Three groups of two segments each, on two workers and on five."""

    def planned(workers: Workers) -> FoldPlan:
        groups = tuple(Group((g,), ((g, g + 1),)) for g in range(3))
        return FoldPlan(groups, ((0, 50), (50, 100)), 10, 1000, 1, round(MOVING))

    cost = FoldCost("fit", planned, 100, True, 1.0, 3.0, 6.0, 0.3, 9.0, round(3 * MOVING))
    # A processor each: 100 samples of 4 s on two; then checkpoints of 3 tasks each, merges of 3 pairs on 2 workers, a
    # state that moves and 2 s each, results of 3 groups in 2 turns, and the results' way here.
    assert cost.seconds(Workers(2, 2, 0)) == pytest.approx(200 + 3 * 0.1 + 2 * (2 + 1) + 2 * 3 + 1)
    # Processors for reading, too: arithmetic alone counts. Six tasks on five workers take two turns.
    assert cost.seconds(Workers(5, 10, 0)) == pytest.approx(100 * 3 / 3 + 2 * 0.1 + 3 + 3 + 1)
    nothing = FoldCost("fit", planned, 100, True, 0.0, 0.0, 0.0, 0.0, 0.0, 0)
    assert nothing.seconds(Workers(2, 2, 0)) == pytest.approx(max(1, 12 * SCHEDULING))
