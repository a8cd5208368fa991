"""The embedded source makes portraits of a few subjects, the same ones everywhere, and behaves as any other reader."""

from __future__ import annotations

import itertools
import pickle
import socket

import numpy as np
import pytest

from dpca.pipelines.portraits import HEIGHT, SUBJECTS, WIDTH, Jitter, Portraits, cut_portrait, draw_jitter
from dpca.plots.panels import spread_over
from dpca.storage.errors import DataError
from dpca.storage.readers.base import Reader

ALIGNED = Jitter(shift=(0, 0), scale=1, angle=0, gamma=1, gain=(1, 1, 1), slope=(0, 0))


def test_is_a_reader_of_celebas_size():
    portraits = Portraits()
    assert isinstance(portraits, Reader)
    assert (len(portraits), portraits.sample_shape, portraits.dtype) == (2000, (218, 178, 3), np.uint8)
    assert not portraits.encoded
    assert portraits.random_access
    assert portraits.labels is None
    assert portraits.names[42] == "portrait-00042"
    assert len(portraits.names) == len(set(portraits.names)) == 2000


def test_fetch_gives_what_the_reader_declares():
    block = Portraits(count=5).fetch(range(1, 4))
    assert block.shape == (3, HEIGHT, WIDTH, 3)
    assert block.dtype == np.uint8
    assert Portraits().fetch([]).shape == (0, HEIGHT, WIDTH, 3)


def test_every_portrait_follows_from_seed_and_number_alone():
    portraits = Portraits(seed=3)
    alone = portraits.fetch([1234])[0]
    np.testing.assert_array_equal(portraits.fetch(np.array([7, 1234, 1999]))[1], alone)
    np.testing.assert_array_equal(Portraits(count=1235, seed=3).fetch(range(1234, 1235))[0], alone)
    assert np.any(Portraits(seed=4).fetch([1234])[0] != alone)


def test_reader_and_parts_ship_as_a_few_bytes():
    portraits = Portraits(seed=1)
    part = pickle.dumps(portraits.part(range(0, 2000, 500)))
    assert len(part) < 300
    np.testing.assert_array_equal(pickle.loads(part)(), portraits.fetch([0, 500, 1000, 1500]))
    assert pickle.loads(pickle.dumps(portraits)).fingerprint() == portraits.fingerprint()


def test_fingerprint_tells_parameters_apart():
    prints = {Portraits(count, seed).fingerprint() for count in (10, 2000) for seed in (0, 1)}
    assert len(prints) == 4
    assert Portraits().fingerprint() == Portraits(2000, 0).fingerprint()


def test_nothing_is_downloaded(monkeypatch):
    def refuse(*_args, **_kwargs):
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    Portraits().fetch([0])


@pytest.mark.parametrize("arguments", [{"count": 0}, {"count": -1}, {"seed": -1}])
def test_impossible_parameters_are_refused(arguments):
    (value,) = arguments.values()
    with pytest.raises(DataError, match=f"{value}:"):
        Portraits(**arguments)


@pytest.mark.parametrize("index", [-1, 10])
def test_there_is_no_portrait_outside(index):
    with pytest.raises(IndexError, match=rf"{index}\b.*\b9\b"):
        Portraits(count=10).fetch([index])


def test_the_face_is_where_celeba_puts_it():
    gray = cut_portrait(ALIGNED).mean(axis=2)
    # pupils: the darkest places in a window around (69, 111) and (108, 111), CelebA's landmarks
    for column in (69, 108):
        window = gray[104:119, column - 8 : column + 9]
        y, x = np.unravel_index(window.argmin(), window.shape)
        assert abs(y + 104 - 111) <= 2
        assert abs(x + column - 8 - column) <= 2


def test_photograph_covers_every_corner_at_the_jitters_limits():
    # where the photograph ends the warp leaves black; the backdrop never is
    drawn = [draw_jitter(0, index) for index in range(2000)]
    limits = np.abs([[*jitter.shift, np.log(jitter.scale), jitter.angle] for jitter in drawn]).max(axis=0)
    for right, down, scale, angle in itertools.product((-1, 1), repeat=4):
        jitter = ALIGNED._replace(
            shift=(right * limits[0], down * limits[1]),
            scale=float(np.exp(scale * limits[2])),
            angle=angle * limits[3],
        )
        portrait = cut_portrait(jitter)
        assert portrait[0].min() > 60
        assert portrait[:40, [0, -1]].min() > 60
        for subject in range(1, len(SUBJECTS)):
            edges = cut_portrait(jitter._replace(subject=subject))
            assert min(side.max() for side in (edges[0], edges[-1], edges[:, 0], edges[:, -1])) > 0


def test_shift_moves_and_scale_grows_and_turn_turns():
    plain = cut_portrait(ALIGNED).astype(int)
    moved = cut_portrait(ALIGNED._replace(shift=(4, -3))).astype(int)
    assert np.abs(moved[:-3, 4:] - plain[3:, :-4]).max() <= 1
    # the pupils: apart by the scale, tilted by the angle (y runs down, so a positive angle is clockwise)
    larger = _pupils(cut_portrait(ALIGNED._replace(scale=1.1)))
    turned = _pupils(cut_portrait(ALIGNED._replace(angle=np.deg2rad(7))))
    assert larger[1, 0] - larger[0, 0] == pytest.approx(1.1 * 39.5, abs=2)
    assert turned[1, 1] - turned[0, 1] == pytest.approx(39.5 * np.sin(np.deg2rad(7)), abs=2)


def test_light_changes_as_told():
    plain = cut_portrait(ALIGNED).astype(float)
    dim = cut_portrait(ALIGNED._replace(gain=(0.8, 0.8, 0.8)))
    np.testing.assert_allclose(dim, 0.8 * plain, atol=0.51)
    warm = cut_portrait(ALIGNED._replace(gain=(1, 1, 0.5)))
    np.testing.assert_array_equal(warm[..., :2], plain[..., :2])
    assert warm[..., 2].mean() < 0.51 * plain[..., 2].mean()
    side = cut_portrait(ALIGNED._replace(slope=(-0.2, 0))).astype(float)
    ratio = (side.sum(axis=(0, 2)) / plain.sum(axis=(0, 2)))[[0, WIDTH // 2, -1]]
    np.testing.assert_allclose(ratio[1:], [1.0, 0.8], atol=0.02)
    assert ratio[0] > 1.1  # less than 1.2 where it is cut at white
    lifted = cut_portrait(ALIGNED._replace(gamma=0.8)).astype(float)
    assert (lifted - plain).min() >= 0
    assert (lifted - plain).mean() > 5


def test_portraits_of_a_subject_differ_but_are_alike():
    shown = np.array([draw_jitter(0, index).subject for index in range(60)])
    sample = Portraits(count=60).fetch(range(60)).reshape(60, -1).astype(float) / 255
    means = []
    for subject in range(len(SUBJECTS)):
        alike = sample[shown == subject]
        assert len(alike) in (14, 15, 16)
        apart = np.sqrt(((alike[:-1] - alike[1:]) ** 2).mean(axis=1))
        assert apart.min() > 0.02
        assert apart.max() < 0.35
        assert np.corrcoef(alike)[0].min() > 0.5
        means.append(alike.mean(axis=0))
    assert np.corrcoef(means)[np.triu_indices(len(SUBJECTS), 1)].max() < 0.5


@pytest.mark.parametrize(("count", "n"), [(2000, 6), (60, 12), (60, 6), (40, 6), (24, 6)])
def test_examples_that_are_spread_over_them_show_several_subjects(count, n):
    shown = [draw_jitter(0, index).subject for index in spread_over(count, n)]
    assert len(set(shown)) >= 3
    assert max(map(shown.count, shown)) <= n / 2


def _pupils(portrait):
    """Both pupils (x, y) in rows 95..127: the centers of the darkest pixels left and right of the nose."""
    gray = portrait.mean(axis=2)
    found = []
    for start, stop in ((55, 84), (95, 122)):
        window = gray[98:124, start:stop]
        y, x = np.nonzero(window <= np.partition(window.ravel(), 8)[8])
        found.append([x.mean() + start, y.mean() + 98])
    return np.array(found)
