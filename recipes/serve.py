"""Serve models over HTTP."""

from __future__ import annotations

from typing import Annotated

from annotated_types import MinLen

from ratchet.errors import InputError
from ratchet.orchestrator.step import Row, Summary
from ratchet.recipes.parts.models import make_export


def serve(*, models: Annotated[tuple[str, ...], MinLen(1)]) -> Summary:
    """Export embedders and rerankers for `ratchet serve`, and check them with the installed libraries.

    models      embedders and rerankers: folders, hub ids, or models of runs (`ratchet models` lists them)"""
    if len(set(models)) < len(models):
        raise InputError(f"models: {','.join(models)} given; expected each once; leave one out")
    found = {name: make_export(f"export{number or ''}", name) for number, name in enumerate(models)}
    columns = ("difference", "megabytes")
    rows = [Row(name, {title: made.metric(title) for title in columns}, [made]) for name, made in found.items()]
    return Summary(rows, results={name: made["model"] for name, made in found.items()})
