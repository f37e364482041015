"""The job interface: the classes and functions that jobs and the orchestrator share."""

from ratchet.orchestrator.atomic_file import sync, write_atomically
from ratchet.orchestrator.job_interface.job import (
    MAP_RESOURCES,
    Context,
    Job,
    Needs,
    Parents,
    Progress,
    Resources,
    Result,
    Source,
    WarmStart,
)
from ratchet.orchestrator.job_interface.settings import Seed, Unit

__all__ = [
    "MAP_RESOURCES",
    "Context",
    "Job",
    "Needs",
    "Parents",
    "Progress",
    "Resources",
    "Result",
    "Seed",
    "Source",
    "Unit",
    "WarmStart",
    "sync",
    "write_atomically",
]
