"""What follows an export: the commands that serve the model, and its upload to the Hugging Face hub."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

from ratchet.errors import ModelError
from ratchet.models.roles import find_usage
from ratchet.orchestrator.job_interface.clean_output import print_clean
from ratchet.serving import list_commands


def deliver(paths: Mapping[str, Path], arguments: argparse.Namespace) -> None:
    """Print the commands that serve the exported folder, and upload it if `--push` is given."""
    shown = sys.stderr if arguments.json else None
    if not arguments.adapter:
        for line in list_commands(find_usage(paths["model"]), str(arguments.target)):
            print_clean(f"  {line}", shown)
    if arguments.push:
        print_clean(f"pushed: {push(paths['model'], arguments)}", shown)


def push(folder: Path, arguments: argparse.Namespace) -> str:
    """Upload the exported folder as one commit, and return its URL. A repository that does not exist is created; it is
    private unless `--public` is given. Raises ModelError if the hub refuses."""
    from httpx2 import HTTPError  # what the hub's client raises
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HFValidationError, OfflineModeIsEnabled

    api = HfApi()
    try:
        name = api.create_repo(arguments.push, private=not arguments.public, exist_ok=True).repo_id
        found = api.upload_folder(
            repo_id=name, folder_path=folder, commit_message="Export by Ratchet"
        )
    except (HTTPError, HFValidationError, OfflineModeIsEnabled) as error:
        said = " ".join(str(error).split())[:300]
        raise ModelError(
            f"export --push {arguments.push}: {said}; expected OWNER/NAME that the token (HF_TOKEN, or `hf auth login`)"
            f" may write; correct one of them; the model is in {arguments.target}"
        ) from None
    return str(found.commit_url)
