"""The job interface: the classes and functions that jobs and the orchestrator share."""

from annotated_types import Unit

from ratchet.orchestrator.atomic_file import (
    append_json,
    link,
    make_folder,
    read_json_lines,
    sync,
    write_atomically,
)
from ratchet.orchestrator.job_interface.job import (
    MAP_RESOURCES,
    Context,
    Division,
    Job,
    Needs,
    Parents,
    Progress,
    Resources,
    Result,
    Source,
)
from ratchet.orchestrator.job_interface.settings import (
    Fraction,
    FractionBelowOne,
    Neutral,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveFraction,
    PositiveInt,
    Seed,
    Tokens,
    Uses,
)

__all__ = [
    "MAP_RESOURCES",
    "Context",
    "Division",
    "Fraction",
    "FractionBelowOne",
    "Job",
    "Needs",
    "Neutral",
    "NonNegativeFloat",
    "NonNegativeInt",
    "Parents",
    "PositiveFloat",
    "PositiveFraction",
    "PositiveInt",
    "Progress",
    "Resources",
    "Result",
    "Seed",
    "Source",
    "Tokens",
    "Unit",
    "Uses",
    "append_json",
    "link",
    "make_folder",
    "read_json_lines",
    "sync",
    "write_atomically",
]
