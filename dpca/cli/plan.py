"""``dpca plan``: estimates time, memory and bytes of a job for any number of workers."""

from __future__ import annotations

import argparse
import json
from typing import Any

from dpca.cli.jobs import given_input, settings_of
from dpca.cli.model_arguments import partitioned_model
from dpca.cli.running import say


def plan(options: argparse.Namespace) -> int:
    """``dpca plan``."""
    given = given_input(options, None)
    from dpca.engine.clusters.cluster import memory_limit  # imported here, because it takes seconds
    from dpca.jobs.plans.plan import plan_job
    from dpca.jobs.plans.plan_words import as_facts, in_words
    from dpca.storage.remote.memory import room_within, thread_count

    settings = settings_of(options, _model(options))
    settings.model.check_parameters_for(0)
    budget = room_within(memory_limit(options.memory, thread_count()))
    plans = plan_job(given, settings, workers=options.workers, budget=budget)
    for line in map(json.dumps, map(as_facts, plans)) if options.json else in_words(plans):
        say(line)
    return 0


def _model(options: argparse.Namespace) -> Any:
    if options.method is None:
        return partitioned_model(options)
    from dpca.models import StreamingPCA

    count = 50 if options.components is None else options.components
    return StreamingPCA(count, method=options.method, random_state=options.seed)
