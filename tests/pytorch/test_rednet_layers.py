"""Figure 5.2 of Alakkari 2020 by arithmetic, without torch."""

from __future__ import annotations

import pytest

from dpca.torch.rednet_layers import CONVOLUTIONS, figure

#: Outputs as the figure states them, and parameters from the shapes of weights and biases there.
FIGURE = {
    "Conv_1": ((20, 20, 128), 6 * 6 * 3 * 128 + 128),
    "Grouped_Conv_2": ((9, 9, 256), 2 * (4 * 4 * 64 * 128 + 128)),
    "Conv_3": ((9, 9, 256), 2 * 2 * 256 * 256 + 256),
    "Conv_4": ((5, 5, 512), 3 * 3 * 256 * 512 + 512),
    "Conv_5": ((3, 3, 1024), 3 * 3 * 512 * 1024 + 1024),
    "Grouped_Conv_6": ((2, 2, 4096), 2 * (2 * 2 * 512 * 2048 + 2048)),
    "Conv_7": ((1, 1, 4096), 2 * 2 * 4096 * 4096 + 4096),
    "FC_1": ((1, 1, 1024), 1024 * 4096 + 1024),
    "FC_2": ((1, 1, 512), 512 * 1024 + 512),
    "FC_3": ((1, 1, 14), 14 * 512 + 14),
}


def test_the_table_is_that_of_the_figure() -> None:
    assert {row.name: (row.shape, row.n_parameters) for row in figure()} == FIGURE
    assert sum(row.n_parameters for row in figure()) == 86_671_502


def test_other_inputs() -> None:
    assert figure(10, 24)[0].n_parameters == 6 * 6 * 10 * 128 + 128
    assert figure(10, 24)[-1].shape == (1, 1, 24)
    assert figure(side=32)[6].shape == (1, 1, 4096)
    with pytest.raises(ValueError, match=r"\b2\b.*output"):
        figure(side=8)


def test_of_an_odd_number_one_more_zero_stands_behind() -> None:
    assert CONVOLUTIONS[2].padding(9) == (0, 1)
    assert CONVOLUTIONS[3].padding(9) == (1, 1)
    assert CONVOLUTIONS[0].padding(25) == (0, 0)
