"""One job by itself, without plan, store or cache:

    python -m jobs embed --model MODEL --texts FOLDER --out FOLDER --set role=query

Killed and given again, it goes on where it was: what is finished is kept beside the output folder until all is done.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import importlib
import pkgutil
import shutil
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_type_hints

import jobs
from jobs.job import BadInput, Context, Job, Resources, Result
from jobs.machines import Machine, resolved
from jobs.progress import Reporter, start_board
from jobs.values import coerce, field_docs, nearest


def main(given: Sequence[str] | None = None) -> int:
    """Runs the job; returns the exit status: 0, 2 for what cannot work as it was given, 1 for another failure."""
    given = sys.argv[1:] if given is None else list(given)
    verbs = names()
    parser = argparse.ArgumentParser(
        "python -m jobs", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if not given or given[0] in ("-h", "--help"):
        parser.add_argument("verb", help=", ".join(verbs))
        parser.print_help()
        return 0 if given else 2
    try:
        if given[0] not in verbs:
            raise BadInput(f"verb: '{given[0]}' given; expected one of {', '.join(verbs)}{nearest(given[0], verbs)}")
        job: Job = importlib.import_module(f"jobs.{given[0]}").JOB
        config, inputs, options = _read(job, given[1:])
        if job.check:
            job.check(config, inputs)
        result = _ran(job, config, inputs, options)
    except KeyboardInterrupt:
        print(f"{given[0]}: stopped; give the same command again to go on", file=sys.stderr)
        return 130
    except Exception as error:
        if not isinstance(error, ValueError) and type(error).__module__.split(".")[0] not in ("jobs", "models", "data"):
            raise
        print(f"{given[0]}: {error}", file=sys.stderr)
        return 2
    width = max((len(name) for name in result.metrics), default=0)
    lines = (f"{name:{width}}  {value:{',' * isinstance(value, int)}}" for name, value in result.metrics.items())
    print("\n".join(lines))
    return 0


def names() -> list[str]:
    """The verbs: modules of this package that end in a `JOB` line."""
    files = {
        module.name: Path(jobs.__path__[0]) / f"{module.name}.py" for module in pkgutil.iter_modules(jobs.__path__)
    }
    return sorted(name for name, file in files.items() if "\nJOB = " in file.read_text())


def _read(job: Job, given: Sequence[str]) -> tuple[Any, Any, argparse.Namespace]:
    """The job's config and inputs, and what is about the run only."""
    parser = argparse.ArgumentParser(
        f"python -m jobs {job.name}", formatter_class=argparse.RawDescriptionHelpFormatter, epilog=_settings(job)
    )
    hints, docs = get_type_hints(job.inputs), field_docs(job.inputs)
    for field in dataclasses.fields(job.inputs):
        needed = field.default is dataclasses.MISSING
        several = {"nargs": "+"} if "tuple" in str(hints[field.name]) else {}
        flag = f"--{field.name.replace('_', '-')}"
        default = None if needed else field.default
        parser.add_argument(
            flag,
            dest=field.name,
            type=Path,
            required=needed,
            default=default,
            metavar="PATH",
            help=docs.get(field.name, "").replace("%", "%%"),
            **several,
        )
    parser.add_argument("--out", type=Path, required=True, help="a folder that is not there yet")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting; see below")
    parser.add_argument("--workers", type=int, help="processes; default: one per GPU, or one")
    parser.add_argument(
        "--batch-tokens", type=int, default=Resources.batch_tokens, help="padded tokens per forward pass"
    )
    options = parser.parse_args(given)
    settings = {}
    for text in options.set:
        name, equals, value = text.partition("=")
        if not equals:
            raise BadInput(f"--set: '{text}' given; expected NAME=VALUE")
        settings[name.strip()] = value.strip()
    paths = {field.name: getattr(options, field.name) for field in dataclasses.fields(job.inputs)}
    for name, path in paths.items():
        paths[name] = tuple(one.absolute() for one in path) if isinstance(path, list) else path and path.absolute()
        for one in paths[name] if isinstance(paths[name], tuple) else [paths[name]]:
            if one is not None and not one.exists():
                raise BadInput(f"--{name.replace('_', '-')}: {one} does not exist; expected a folder or file")
    if options.out.exists() and any(options.out.iterdir()):
        raise BadInput(f"--out: {options.out} is not empty; expected a new folder; remove it or give another")
    return coerce(job.config, settings), job.inputs(**paths), options


def _ran(job: Job, config: Any, inputs: Any, options: argparse.Namespace) -> Result:
    """Runs the job in a Ray task, as the orchestrator does: what libraries log goes to Ray's files."""
    import logging
    import os

    for name in ("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "RAY_USAGE_STATS_ENABLED"):
        os.environ.setdefault(name, "0")
    import ray

    # The same command finds what it has finished; another one, or changed inputs, does not.
    told = repr((job.name, job.version, config, [_state(path) for path in vars(inputs).values()]))
    key = hashlib.sha256(told.encode()).hexdigest()
    work = options.out.absolute().parent / f".work-{job.name}-{key[:12]}"
    out = work / "out"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    attempts = work / "attempts"
    with attempts.open("a") as file:
        file.write("|")
    # "local": not whatever cluster was last started here, which may be gone.
    address = os.environ.get("RAY_ADDRESS", "local")
    dashboard = False if address == "local" else None
    ray.init(address, include_dashboard=dashboard, log_to_driver=False, logging_level=logging.ERROR)
    try:
        total = ray.cluster_resources()
        asked = Resources(workers=options.workers, batch_tokens=options.batch_tokens)
        resources = resolved(asked, [Machine(total.get("CPU", 1.0), total.get("GPU", 0.0))])
        board = start_board()
        context = Context(job.name, key, attempts.stat().st_size, out, work, resources, Reporter(board, job.name))
        task: Any = ray.remote(num_cpus=0, max_retries=0)(job.run)
        result = _watched(task.remote(context, config, inputs), board, job.name)
    except ray.exceptions.RayTaskError as error:
        raise error.cause if isinstance(error.cause, BaseException) else error from None
    finally:
        ray.shutdown()
    if options.out.exists():
        options.out.rmdir()
    out.rename(options.out)
    shutil.rmtree(work)
    return result


def _watched(running: Any, board: Any, name: str) -> Result:
    """Waits for a task, with a bar on the standard error of a terminal."""
    import ray
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Bars(*columns, TextColumn("{task.fields[numbers]}"), console=console, disable=not console.is_terminal) as bars:
        bar = bars.add_task(name, total=None, numbers="")
        while not ray.wait([running], timeout=0.5)[0]:
            for news in ray.get(board.take.remote()).values():
                numbers = "  ".join(f"{key} {value:.4g}" for key, value in news.numbers.items())
                said = f"{name} {news.stage}".strip()
                bars.update(bar, description=said, completed=news.done, total=news.total, numbers=numbers)
    return ray.get(running)


def _state(path: Any) -> Any:
    """What tells a file or folder from a later state of it: names, sizes and times of what it holds."""
    if not isinstance(path, Path):
        return [_state(one) for one in path or ()]
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    return [str(path), *((str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files)]


def _settings(job: Job) -> str:
    hints = get_type_hints(job.config)
    docs = field_docs(job.config)
    lines = ["settings:"]
    for field in dataclasses.fields(job.config):
        default = "" if field.default is dataclasses.MISSING else f" = {field.default!r}"
        lines.append(f"  {field.name}{default}  ({_kind(hints[field.name])})")
        lines += textwrap.wrap(docs.get(field.name, ""), 100, initial_indent=" " * 6, subsequent_indent=" " * 6)
    return "\n".join(lines)


def _kind(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation).replace("typing.", "")


if __name__ == "__main__":
    sys.exit(main())
