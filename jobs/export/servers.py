"""What follows an export: the commands that serve the model."""

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

from ratchet.models.roles import find_usage
from ratchet.orchestrator.job_interface.clean_output import print_clean
from ratchet.serving import list_commands


def print_servers(paths: Mapping[str, Path], arguments: argparse.Namespace) -> None:
    """Print the commands that serve the exported folder; none for an adapter."""
    if arguments.adapter:
        return
    shown = sys.stderr if arguments.json else None
    for line in list_commands(find_usage(paths["model"]), str(arguments.target)):
        print_clean(f"  {line}", shown)
