"""The assignment of samples to the streams of a round."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpca.engine.folds.rounds import Averaging, DataParallel, rounds, runs_of_streams, segments


def test_streams_take_a_run_each() -> None:
    dealt = list(rounds((0, 70), Averaging(3, 10, 5), 16))
    assert dealt == [
        ((0, 10), (10, 20), (20, 30)),
        ((30, 40), (40, 50), (50, 60)),
        ((60, 65), (65, 70)),
    ]


def test_what_is_left_is_dealt_evenly_in_whole_batches() -> None:
    assert runs_of_streams(100, 147, 3, 5) == ((100, 120), (120, 135), (135, 147))
    assert runs_of_streams(0, 3, 4, 1) == ((0, 1), (1, 2), (2, 3))
    assert runs_of_streams(0, 3, 2, 10) == ((0, 3),)


def test_parts_of_a_batch_are_whole_chunks_where_that_is_possible() -> None:
    assert list(rounds((0, 100), DataParallel(64, 2), 16)) == [((0, 32), (32, 64)), ((64, 96), (96, 100))]
    assert next(rounds((0, 100), DataParallel(60, 2), 16)) == ((0, 30), (30, 60))
    assert next(rounds((0, 100), DataParallel(16, 2), 16)) == ((0, 8), (8, 16))


@given(
    st.integers(1, 400),
    st.integers(1, 7),
    st.integers(1, 9),
    st.integers(1, 6),
    st.integers(1, 50),
    st.integers(0, 300),
    st.booleans(),
)
def test_every_sample_goes_to_one_stream(
    n: int, n_streams: int, size: int, batch: int, chunk: int, longest: int, averaging: bool
) -> None:
    scheme = Averaging(n_streams, size * batch, batch) if averaging else DataParallel(size * batch, n_streams)
    cuts = segments(n, scheme.round_rows, longest)
    dealt = [runs for cut in cuts for runs in rounds(cut, scheme, chunk)]
    taken = [i for runs in dealt for start, stop in runs for i in range(start, stop)]
    assert taken == list(range(n))
    # Segments hold whole rounds, so that they change nothing.
    assert dealt == list(rounds((0, n), scheme, chunk))
    for runs in dealt:
        assert 1 <= len(runs) <= n_streams
        assert all(start < stop for start, stop in runs)
        # Updates end where they would in one stream.
        assert all((a[1] - runs[0][0]) % scheme.rows_together(chunk) == 0 for a, _ in itertools.pairwise(runs))
    for runs in dealt[:-1]:
        assert runs[-1][1] - runs[0][0] == scheme.round_rows
    assert all(cut[1] - cut[0] <= max(longest, scheme.round_rows) for cut in cuts)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Averaging(0, 10), "n_streams is 0"),
        (lambda: Averaging(2, 0), "round_size is 0"),
        (lambda: Averaging(2, 250, 100), "give 300"),
        (lambda: DataParallel(0, 2), "batch_size is 0"),
        (lambda: DataParallel(10, -1), "n_streams is -1"),
    ],
)
def test_numbers_that_make_no_sense(make: object, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        make()  # type: ignore[operator]
