"""The execution of a streaming rule: as a chain, in averaged rounds, or data-parallel."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dpca.engine.folds.rounds import Averaging, DataParallel, RoundScheme
from dpca.rules.base.minibatch import InBatches
from dpca.rules.base.rule import Wrapper
from dpca.rules.covariance.streaming_covariance import StreamingCovariance
from dpca.storage.errors import DataError, PlanError
from dpca.storage.run import Run

# Defaults of Amid & Warmuth (2020), section "Distributed Setting".
_STREAMS, _ROUND = 10, 1000
# Default batch of data-parallel execution: computing its parts should take long compared with sending a basis.
_LARGE_BATCH = 1000


def executed(rule: InBatches, model: Any, run: Run) -> tuple[Any, RoundScheme | None]:
    """Return the rule to fold, and the scheme of its rounds, None for a plain fold.

    Parameters
    ----------
    rule : InBatches
        The rule, with the batches of a chain.
    model : StreamingPCA
        Its parameters ``execution``, ``n_streams``, ``round_size`` and ``batch_size`` apply.
    run : Run
        How the fold will run. A batch is divided into one part for each thread of the workers.

    Raises
    ------
    DataError
        If the rule does not support the execution, or a number is invalid.
    """
    execution, n_streams, round_size = model.execution, model.n_streams, model.round_size
    if round_size is not None and execution != "averaged":
        raise DataError(f"round_size is {round_size!r} but only execution='averaged' has rounds: remove it")
    if n_streams is not None and execution not in ("averaged", "data-parallel"):
        raise DataError(f"n_streams is {n_streams!r} but execution={execution!r} has a single stream: remove it")
    if execution == "averaged":
        return rule, _averaging(rule, n_streams, round_size)
    if execution == "data-parallel":
        return rule.rule, _data_parallel(rule, n_streams, model.batch_size, run)
    return replace(rule, chain=execution == "chain"), None


def spread_rule(rule: Any, model: Any, n_parallel: int, refusal: PlanError) -> Any:
    """Return the rule to fold with its state spread over blocks of attributes, after another fold was refused.

    Parameters
    ----------
    rule : Wrapper
        The rule of the refused fold.
    model : StreamingPCA
    n_parallel : int
        Number of parallel tasks, each with a block.
    refusal : PlanError

    Raises
    ------
    PlanError
        The refusal, with further ways out, if the rule or the parameters do not support it.
    """
    if not rule.spreadable:
        raise (
            refusal if _name(rule) == StreamingCovariance.__name__ else PlanError(f"{refusal}, or a smaller batch_size")
        )
    if model.execution not in ("auto", "chain"):
        raise PlanError(
            f"{refusal}, or a smaller batch_size, or leave out execution, so that the basis is spread over workers"
        )
    if n_parallel < 2:
        raise PlanError(f"{refusal}, or a smaller batch_size, or more workers or threads")
    return replace(rule, chain=True)


def _averaging(rule: InBatches, n_streams: int | None, round_size: int | None) -> Averaging:
    if not rule.averageable:
        raise DataError(f"{_name(rule)} does not support averaging: use execution='auto', or another rule")
    whole = -(-_ROUND // rule.size) * rule.size
    try:
        return Averaging(int(n_streams or _STREAMS), int(round_size or whole), rule.size)
    except ValueError as error:
        raise DataError(str(error)) from error


def _data_parallel(rule: InBatches, n_streams: int | None, batch_size: int | None, run: Run) -> DataParallel:
    if not rule.rule.summable:
        raise DataError(
            f"{_name(rule)} does not support data-parallel execution: use execution='auto', or a rule with an update "
            f"that is a sum over the batch"
        )
    return DataParallel(_LARGE_BATCH if batch_size is None else rule.size, int(n_streams or max(1, run.n_parallel())))


def _name(rule: InBatches) -> str:
    inner = rule.rule
    while isinstance(inner, Wrapper):
        inner = inner.rule
    return type(inner).__name__
