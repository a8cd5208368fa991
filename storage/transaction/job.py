"""The skeleton of every job, from stores to a store: recognize what is done, claim, run the steps, publish."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from dpca.storage.transaction.inherited import Inherited
from dpca.storage.transaction.outputs import check_output
from dpca.storage.transaction.workspace import Workspace

T = TypeVar("T")
PathLike = str | os.PathLike[str]


def publish(work: Workspace, result: Any) -> None:
    """Publish a store, the last step of most jobs."""
    work.publish()


@dataclass(frozen=True)
class Job:
    """A store to make: where, from what, and how a finished or interrupted run of it is recognized.

    A job states its steps: a function that writes the missing parts of the store in a `Workspace`. Everything else
    that jobs have in common is here.

    Parameters
    ----------
    target : path-like or URL
        Path of the store. It appears there when it is complete.
    kind : str
        Kind of the store.
    fingerprint : str
        Hash of everything that determines the content, see `fingerprint_of`.
    inputs : tuple
        Inputs of the job, see `check_output`. The output may not overlap them.
    overwrite, inherited
        As for `Workspace`.
    report : path-like, optional
        Folder of the report, which is checked with the output.
    discard_on : tuple of exception types
        Errors after which no run can resume, since it needs other settings. They leave no files.

    Raises
    ------
    StoreError
        If the output overlaps an input.

    Examples
    --------
    >>> from dpca.storage.arrays.arrays import create_root
    >>> from dpca.storage.transaction.job import Job
    >>> def steps(work):
    ...     create_root(work.store, kind="stack", fingerprint=work.fingerprint)
    ...     return "made"
    >>> job = Job("made.zarr", "stack", "4f2a")
    >>> job.run(steps), job.run(steps)
    ('made', None)
    """

    target: PathLike
    kind: str
    fingerprint: str
    inputs: tuple[Any, ...] = ()
    overwrite: bool = False
    inherited: Inherited | None = None
    report: PathLike | None = None
    discard_on: tuple[type[Exception], ...] = ()

    def __post_init__(self) -> None:
        check_output(self.target, *self.inputs, report=self.report)

    def is_done(self) -> bool:
        """Return whether the store is complete; raise the error of a real run if it may not be made."""
        with self._workspace(look_only=True) as work:
            return work.state == "complete"

    def run(self, steps: Callable[[Workspace], T], publish: Callable[[Workspace, T], None] = publish) -> T | None:
        """Run the steps in a workspace, and publish the store.

        Parameters
        ----------
        steps : callable
            Writes the parts of the store that are missing. Its return value is the result of the job.
        publish : callable, optional
            Publishes the store; receives the workspace and the result. If it does not publish, the same job resumes.

        Returns
        -------
        object or None
            The result; None if the store was complete.

        Raises
        ------
        StoreError
            As `Workspace`.
        """
        with self._workspace() as work:
            if work.state == "complete":
                return None
            try:
                result = steps(work)
            except self.discard_on:
                work.forget()
                raise
            publish(work, result)
            return result

    def _workspace(self, *, look_only: bool = False) -> Workspace:
        return Workspace(
            self.target,
            kind=self.kind,
            fingerprint=self.fingerprint,
            overwrite=self.overwrite,
            inherited=self.inherited,
            look_only=look_only,
        )
