"""Job files for schedulers: inputs, output and goal of a compression.

::

    inputs = ["incoming/*.tar"]             paths, patterns, URLs
    output = "small/{name}.zarr"            one for each input; without {name} one for all
    retries = 2                             number of further tries, after errors that may be temporary
    record = "nightly.record.json"          record of the outputs, with checksums

    [target]                                one goal of dpca encode; or target = "high", a word of --quality
    psnr = 36                               or max-error = {u = 0.001, p = 5} for variables, each with its own bound

    cell = 16, workers = 2, ...             any option of dpca compress

Paths are relative to the folder of the job file.
"""

from __future__ import annotations

import argparse
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from dpca.choices import COMPRESSED, GOALS, QUALITIES
from dpca.cli.arguments import add_job_options, add_storage_option
from dpca.cli.goals import add_quality, options_by_variable
from dpca.cli.model_arguments import add_compression_options
from dpca.cli.served import stated
from dpca.storage.errors import DataError, one_line
from dpca.storage.readers.opening import is_pattern, paths_of, real_pattern
from dpca.storage.remote.network import is_url
from dpca.storage.remote.objects import place_of
from dpca.storage.transaction.outputs import is_work_folder, matched, work_folder

_NAME = "{name}"
_KEYS = ("inputs", "output", "target", "retries", "record")
# Options of dpca compress with a path as their value.
_PATHS = ("cluster", "mask", "tls-ca-file", "tls-cert", "tls-key", "metrics")


@dataclass(frozen=True)
class JobFile:
    """A job, as its file describes it.

    Parameters
    ----------
    path : str
        The job file.
    options : Namespace
        Options of ``dpca compress``, without source and output.
    outputs : dict of str to list of str
        Each output, and its inputs. Variables with their own goals have an output each.
    variables : dict of str to Namespace
        The options of such outputs.
    retries : int
        Number of further tries for an output.
    record : str
        Path of the record.
    """

    path: str
    options: argparse.Namespace
    outputs: dict[str, list[str]]
    variables: dict[str, argparse.Namespace]
    retries: int
    record: str

    def options_of(self, output: str) -> argparse.Namespace:
        """Return the options of ``dpca compress`` that make an output."""
        options = self.variables.get(output, self.options)
        return argparse.Namespace(**vars(options), source=self.outputs[output], output=output)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise DataError(message.removeprefix("argument ").replace("--", ""))


def read_job_file(path: str) -> JobFile:
    """Read a job file and look up its inputs. Nothing is written.

    Raises
    ------
    DataError
        If the file cannot be read, or a key is missing, unknown or invalid. The error names the key.
    """
    try:
        with open(path, "rb") as file:
            keys = tomllib.load(file)
    except OSError as error:
        raise DataError(f"'{path}' cannot be read ({error.strerror}): give a job file") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"'{path}' is not valid TOML ({one_line(error)}): see docs/guides/operators.md") from error
    try:
        return _parsed_job(path, keys)
    except DataError as error:
        raise DataError(f"'{path}': {error}") from error


def _parsed_job(path: str, keys: Mapping[str, Any]) -> JobFile:
    folder, parser = os.path.dirname(os.path.abspath(path)), _options_parser()
    # A misspelled key is named before the one that is missing because of it.
    for key in keys:
        if key not in _KEYS and not _is_option(parser, key):
            raise DataError(f"unknown key: {key}: give {', '.join(_KEYS)}, or an option of dpca compress (--help)")
    for key in ("inputs", "output", "target"):
        if key not in keys:
            raise DataError(f"missing key: {key}: give inputs, output and [target]")
    own = {key: keys[key] for key in _KEYS if key in keys}
    patterns = [own["inputs"]] if isinstance(own["inputs"], str) else own["inputs"]
    if not isinstance(patterns, list) or not patterns or not all(isinstance(one, str) for one in patterns):
        raise DataError(f"inputs is {patterns!r}: give a path, a pattern or a list of them")
    for key in ("output", "record"):
        if not isinstance(own.get(key, ""), str):
            raise DataError(f"{key} is {own[key]!r}: give a path in quotes")
    retries = own.get("retries", 0)
    if type(retries) is not int or retries < 0:
        raise DataError(f"retries is {retries!r}: give a whole number of at least 0")
    options = _options(parser, folder, {key: value for key, value in keys.items() if key not in _KEYS}, own["target"])
    record = _absolute(folder, own.get("record", f"{os.path.basename(path).removesuffix('.toml')}.record.json"))
    output, patterns = _absolute(folder, own["output"]), [_absolute(folder, one) for one in patterns]
    wanted = options_by_variable(options, output) or {output: options}
    outputs, variables = dict[str, list[str]](), dict[str, argparse.Namespace]()
    try:
        inputs = _inputs(patterns, list(wanted), record)
        for each, own_options in wanted.items():
            found = _outputs(each, inputs)
            outputs |= found
            variables |= {} if own_options is options else dict.fromkeys(found, own_options)
    except DataError as error:
        raise DataError(f"inputs: {error}") from error
    _check_next_run(patterns, outputs)
    return JobFile(path, options, outputs, variables, retries, record)


def _options_parser() -> argparse.ArgumentParser:
    parser = _Parser(add_help=False, allow_abbrev=False)
    add_storage_option(parser)
    add_quality(parser, by_variable=True)
    add_compression_options(parser)
    add_job_options(parser)
    return parser


def _is_option(parser: argparse.ArgumentParser, key: str) -> bool:
    try:
        return not parser.parse_known_args([f"--{key}"])[1]
    except DataError:  # its value is missing
        return True


def _options(parser: argparse.ArgumentParser, folder: str, keys: Mapping[str, Any], target: Any) -> argparse.Namespace:
    """Parse keys as options of the same names on the command line."""
    if isinstance(target, str) and target in QUALITIES:
        given = [f"--quality={target}"]
    elif isinstance(target, dict) and len(target) == 1 and next(iter(target)).replace("-", "_") in GOALS:
        ((goal, value),) = target.items()
        if isinstance(value, dict):
            value = ",".join(f"{variable}:{of_one}" for variable, of_one in value.items())
        given = [f"--quality={goal}={value}"]
    else:
        words = ", ".join(QUALITIES)
        raise DataError(
            f"target is {target!r}: give one of {words}, or exactly one of {', '.join(GOALS)}, such as psnr = 36"
        )
    for key, value in keys.items():
        arguments = _arguments(folder, key, value)
        if key == "quality":
            raise DataError(f'quality is {value!r}: give it as the target, such as target = "high"')
        parser.parse_known_args(arguments)  # an option with a value may not be false
        given += arguments if value is not False else []
    return parser.parse_args(given)


def _arguments(folder: str, key: str, value: Any) -> list[str]:
    if isinstance(value, bool):
        return [f"--{key}"]
    if isinstance(value, dict):
        raise DataError(f"{key} is a table: give one value")
    if key == "storage-option":
        texts = [str(one) for one in (value if isinstance(value, list) else [value])]
        return [f"--{key}={'@' + _absolute(folder, text[1:]) if text.startswith('@') else text}" for text in texts]
    text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
    return [f"--{key}={_absolute(folder, text) if key in _PATHS else text}"]


def _absolute(folder: str, path: str) -> str:
    return path if is_url(path) else os.path.join(folder, path)


def _inputs(patterns: list[str], outputs: list[str], record: str) -> list[str]:
    """Return the paths that match the patterns, without those that this job wrote."""
    # {name} is the file name of an input up to its first dot.
    names = [re.escape(_real(output)).replace(re.escape(_NAME), "[^./]+") for output in outputs]
    own, found = re.compile(f"({'|'.join(names)})(/.*)?", re.DOTALL), list[str]()
    for pattern in patterns:
        matches = paths_of(pattern)
        if not is_pattern(pattern):
            found += matches
            continue
        kept = [one for one in matches if _real(one) != _real(record) and not _is_made(own.fullmatch(_real(one)))]
        if not kept:
            raise DataError(f"'{pattern}' matches only files that this job wrote: check the pattern")
        found += kept
    return found


def _is_made(place: re.Match[str] | None) -> bool:
    """Return whether a path is, or lies in, an output that the job has made or started."""
    if place is None:
        return False
    if stated(place[1]).get("kind") == COMPRESSED or is_work_folder(work_folder(place_of(place[1]))):
        return True
    if place[2]:
        return False
    raise DataError(
        f"'{place[0]}' matches the output and is not a compressed store: give another output or another pattern"
    )


def _real(path: str) -> str:
    folder, name = os.path.split(path.rstrip("/"))
    return path.rstrip("/") if is_url(path) else os.path.join(os.path.realpath(folder), name)


def _check_next_run(patterns: list[str], outputs: Mapping[str, list[str]]) -> None:
    """Refuse an output in a folder that a pattern matches, because the next run would read it."""
    resolved = [(pattern, real_pattern(pattern)) for pattern in patterns if is_pattern(pattern)]
    for output in outputs:
        above = place_of(_real(output)).parent
        for pattern, real in resolved:
            if matched(real, above):
                raise DataError(
                    f"output '{output}' lies in a folder that the pattern '{pattern}' matches, and the next run would "
                    f"read it: give another output or another pattern"
                )


def _outputs(pattern: str, inputs: list[str]) -> dict[str, list[str]]:
    if _NAME not in pattern:
        return {pattern: inputs}
    outputs: dict[str, list[str]] = {}
    for path in inputs:
        name = os.path.basename(path.rstrip("/")).partition(".")[0]
        output = pattern.replace(_NAME, name)
        if output in outputs:
            raise DataError(
                f"output is '{output}' for both '{outputs[output][0]}' and '{path}': rename one, or leave out {{name}}"
            )
        outputs[output] = [path]
    return outputs
