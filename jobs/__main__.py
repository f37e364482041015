"""Runs a job by itself, without a plan, a store or a cache:

    python -m jobs embed --model MODEL --texts FOLDER --out FOLDER --set role=query
    python -m jobs embed --model MODEL --texts FILE.jsonl --out FOLDER      or FILE.txt: a document per line
    python -m jobs embed --json-schema      the JSON Schema of its settings
    python -m jobs ./drop_hubs.py --mined FOLDER --out FOLDER       an own job in the working folder

If a run is killed, the same command resumes it: finished work is kept beside the output folder until the job is done.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import importlib
import json
import logging
import os
import shutil
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_type_hints

from ratchet import jobs
from ratchet.data.formats.plain_texts import SUFFIXES, write_text_shards
from ratchet.errors import InputError, RatchetError
from ratchet.models.model_files import resolve
from ratchet.orchestrator.job_interface import Context, Job, Resources, Result, Source
from ratchet.orchestrator.job_interface.code import read_code
from ratchet.orchestrator.job_interface.job import RequiredCode
from ratchet.orchestrator.job_interface.placement import Machine, resolve_resources
from ratchet.orchestrator.job_interface.progress import ProgressReporter, start_progress_actor
from ratchet.orchestrator.job_interface.settings import (
    convert,
    describe_settings,
    field_docs,
    json_schema,
    suggest,
    validate,
)
from ratchet.orchestrator.job_interface.snapshot import freeze_code
from ratchet.orchestrator.job_interface.source_digest import get_stamp, list_files
from ratchet.orchestrator.job_interface.terminal import CleanConsole, print_clean
from ratchet.orchestrator.job_interface.worker import run_job

MODELS = {"model", "base", "student"}
"""Inputs that are models: a folder or a hub id."""
TEXTS = {"texts", "corpus"}
"""Inputs of documents: shards, or a JSON Lines or text file with a document per line."""


def main(given: Sequence[str] | None = None) -> int:
    """Run a job. Return the exit status: 0, 2 for wrong input, 1 for another failure, 130 for Ctrl-C."""
    given = sys.argv[1:] if given is None else list(given)
    verbs = find_declarations()
    parser = argparse.ArgumentParser(
        "python -m jobs", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if not given or given[0] in ("-h", "--help"):
        parser.add_argument("verb", help=", ".join(verbs))
        parser.print_help()
        return 0 if given else 2
    try:
        if own := _find_own_declaration(given[0]):
            verbs[own] = own
            given = [own, *given[1:]]
        if given[0] not in verbs:
            raise InputError(f"verb: '{given[0]}' given; expected one of {', '.join(verbs)}{suggest(given[0], verbs)}")
        job = load_declaration(verbs[given[0]])
        if "--json-schema" in given[1:]:
            print(json.dumps(json_schema(job.config), indent=2))
            return 0
        config, inputs, options = _read_arguments(job, given[1:])
        if job.check:
            job.check(config, inputs)
        if job.predict:
            job.predict(config, inputs, {})
        result = _run(job, config, inputs, options)
    except KeyboardInterrupt:
        print_clean(f"{given[0]}: stopped; give the same command again to resume", sys.stderr)
        return 130
    except (RatchetError, ValueError) as error:
        print_clean(f"{given[0]}: {error}", sys.stderr)
        return 2
    width = max((len(name) for name in result.metrics), default=0)
    lines = (f"{name:{width}}  {value:{',' * isinstance(value, int)}}" for name, value in result.metrics.items())
    print_clean("\n".join(lines))
    return 0


def find_declarations() -> dict[str, str]:
    """Return verb -> the dotted name of the module that declares it: the modules of this package with a `JOB`."""
    root = Path(jobs.__path__[0])
    found = {path.stem: path for path in sorted(root.glob("*/*.py")) if "\nJOB = " in path.read_text()}
    return {name: f"ratchet.jobs.{path.parent.name}.{name}" for name, path in found.items()}


def _find_own_declaration(verb: str) -> str:
    """Return the module of a user's job, `VERB.py` with a `JOB` in the working folder; empty if there is none."""
    path = Path(f"{verb.removesuffix('.py')}.py").absolute()
    if not path.stem.isidentifier() or not path.is_file() or "\nJOB = " not in path.read_text():
        return ""
    sys.path.insert(0, str(path.parent))
    return path.stem


def load_declaration(module: str) -> Job:
    job: Job = importlib.import_module(module).JOB
    return job


def _read_arguments(job: Job, given: Sequence[str]) -> tuple[Any, Any, argparse.Namespace]:
    """Return the job's config and inputs, and the options of the run."""
    parser = argparse.ArgumentParser(
        f"python -m jobs {job.name}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=_describe_settings(job),
    )
    hints, docs = get_type_hints(job.inputs), field_docs(job.inputs)
    for field in dataclasses.fields(job.inputs):
        required = field.default is dataclasses.MISSING
        several = {"nargs": "+"} if "tuple" in str(hints[field.name]) else {}
        options: dict[str, Any] = {"required": required, "default": None if required else field.default, **several}
        text = docs.get(field.name, "").replace("%", "%%")
        name = f"--{field.name.replace('_', '-')}"
        parser.add_argument(name, dest=field.name, type=Path, metavar="PATH", help=text, **options)
    parser.add_argument("--out", type=Path, required=True, help="a new folder for the result")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting; see below")
    parser.add_argument("--json-schema", action="store_true", help="print the JSON Schema of the settings and exit")
    parser.add_argument("--workers", type=int, help="number of processes; default: one per GPU, or one")
    tokens = Resources.batch_tokens
    parser.add_argument("--batch-tokens", type=int, default=tokens, help="padded tokens per forward pass")
    given_options = parser.parse_args(given)
    settings = {}
    for text in given_options.set:
        name, equals, value = text.partition("=")
        if not equals:
            raise InputError(f"--set: '{text}' given; expected NAME=VALUE")
        settings[name.strip()] = value.strip()
    paths = {field.name: getattr(given_options, field.name) for field in dataclasses.fields(job.inputs)}
    for name in MODELS & paths.keys():
        if paths[name] is not None:
            paths[name] = resolve(str(paths[name]))
    for name, path in paths.items():
        paths[name] = tuple(one.absolute() for one in path) if isinstance(path, list) else path and path.absolute()
        for one in paths[name] if isinstance(paths[name], tuple) else [paths[name]]:
            if one is not None and not one.exists():
                raise InputError(f"--{name.replace('_', '-')}: {one} does not exist; expected a folder or file")
    if given_options.out.exists() and any(given_options.out.iterdir()):
        raise InputError(f"--out: {given_options.out} is not empty; expected a new folder; remove it or give another")
    hints = get_type_hints(job.config, include_extras=True)
    values = {n: convert(t, hints[n], f"--set {n}") if n in hints else t for n, t in settings.items()}
    return validate(job.config, values, job.name), job.inputs(**paths), given_options


def _run(job: Job, config: Any, inputs: Any, options: argparse.Namespace) -> Result:
    """Run the job in a Ray task, as the orchestrator does, so that the logs of libraries go to Ray's files."""
    for name in ("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "RAY_USAGE_STATS_ENABLED"):
        os.environ.setdefault(name, "0")
    # After the environment is set, which Ray reads when it is imported.
    import ray

    # The same command finds its finished work; another command, or one with changed inputs, does not.
    code = read_code(job)
    made_of = (job.name, job.version, config, code.definitions, code.libraries)
    described = repr((*made_of, [_file_state(path) for path in vars(inputs).values()]))
    key = hashlib.sha256(described.encode()).hexdigest()
    work = options.out.absolute().parent / f".work-{job.name}-{key[:12]}"
    out = work / "out"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    inputs = _write_shards_of(inputs, work)
    attempts = work / "attempts"
    with attempts.open("a") as file:
        file.write("|")
    # "local": not the cluster that was last started on this machine, which may be gone.
    address = os.environ.get("RAY_ADDRESS", "local")
    dashboard = False if address == "local" else None
    of_ray: Any = {"include_dashboard": dashboard, "log_to_driver": False, "logging_level": logging.ERROR}
    with freeze_code(job.modules) as (snapshot, runtime_env):
        ray.init(address, runtime_env=runtime_env, **of_ray)
    try:
        total = ray.cluster_resources()
        asked = Resources(workers=options.workers, batch_tokens=options.batch_tokens)
        resources = resolve_resources(asked, [Machine(total.get("CPU", 1.0), total.get("GPU", 0.0))])
        actor = start_progress_actor()
        context = Context(
            step=job.name,
            step_id=key,
            attempt=attempts.stat().st_size,
            out=out,
            work=work,
            resources=resources,
            progress=ProgressReporter(actor, job.name),
            code=RequiredCode(snapshot, code.libraries),
        )
        task: Any = ray.remote(num_cpus=0, max_retries=0)(run_job)
        result = _show_progress(task.remote(job, context, config, inputs, ()), actor, job.name)
    except ray.exceptions.RayTaskError as error:
        raise error.cause if isinstance(error.cause, BaseException) else error from None
    finally:
        ray.shutdown()
    if options.out.exists():
        options.out.rmdir()
    out.rename(options.out)
    shutil.rmtree(work)
    return result


def _write_shards_of(inputs: Any, work: Path) -> Any:
    """Return the inputs with shards instead of a file of texts."""
    given = {name: getattr(inputs, name, None) for name in TEXTS}
    files = {name: path for name, path in given.items() if isinstance(path, Path) and path.is_file()}
    for name, path in files.items():
        if path.suffix not in SUFFIXES:
            raise InputError(f"--{name}: {path} given; expected a folder of shards, or a file {' or '.join(SUFFIXES)}")
        shutil.rmtree(work / name, ignore_errors=True)
        write_text_shards(path, work / name)
    return dataclasses.replace(inputs, **{name: work / name for name in files})


def _show_progress(running: Any, actor: Any, name: str) -> Result:
    """Wait for a task, with a progress bar on the standard error of a terminal."""
    import ray
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = CleanConsole(stderr=True)
    with Bars(*columns, TextColumn("{task.fields[numbers]}"), console=console, disable=not console.is_terminal) as bars:
        bar = bars.add_task(name, total=None, numbers="")
        while not ray.wait([running], timeout=0.5)[0]:
            for progress in ray.get(actor.take.remote()).values():
                numbers = "  ".join(f"{key} {value:.4g}" for key, value in progress.numbers.items())
                description = f"{name} {progress.stage}".strip()
                bars.update(
                    bar, description=description, completed=progress.done, total=progress.total, numbers=numbers
                )
    return ray.get(running)


def _file_state(path: Any) -> Any:
    """Return the names, sizes, times and inodes of the files below a path, which change when the input changes."""
    if not isinstance(path, Path):
        return [_file_state(one) for one in path or ()]
    return [str(path), *((str(file), get_stamp(file.stat())) for _, file in list_files(Source(path)))]


def _describe_settings(job: Job) -> str:
    lines = ["settings:"]
    for setting in describe_settings(job.config):
        lines.append(f"  {setting.name}{f' = {setting.default}' if setting.default else ''}  ({setting.type})")
        lines += textwrap.wrap(setting.help, 100, initial_indent=" " * 6, subsequent_indent=" " * 6)
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
