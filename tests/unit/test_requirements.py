"""Versions of dependencies: ranges in setup.cfg, exact versions in requirements.lock."""

from __future__ import annotations

import configparser
import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
LOCK = (ROOT / "requirements.lock").read_text()


BESIDE_VLLM = {"numpy": "2.3.5", "torch": "2.13.0", "transformers": "5.19.0"}
"""What vLLM 0.32 is installed with: it, or a library that it needs, allows no newer ones."""


def declared() -> dict[str, Requirement]:
    """Name -> what setup.cfg asks for; without vLLM, which the lock leaves out."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    lines = config["options"]["install_requires"].splitlines()
    for extra, text in config["options.extras_require"].items():
        lines += text.splitlines() if extra != "vllm" else []
    found = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {requirement.name: requirement for requirement in found}


def locked() -> dict[str, str]:
    """Canonical name -> version."""
    pairs = re.findall(r"^([\w.-]+)==(\S+) \\$", LOCK, re.MULTILINE)
    return {canonicalize_name(name): version for name, version in pairs}


@pytest.mark.parametrize("name", declared())
def test_ranges_hold_locked_versions(name: str) -> None:
    requirement = declared()[name]
    assert {part.operator for part in requirement.specifier} == {">=", "<"}
    assert requirement.specifier.contains(locked()[canonicalize_name(name)])


def test_every_package_is_locked_with_hashes() -> None:
    """A line that is neither a comment, a package with hashes after it, nor a hash, is an error."""
    package = r"[a-z0-9.-]+==\S+( \\\n    --hash=sha256:[0-9a-f]{64})+"
    entries = re.sub("^#.*\n", "", LOCK)
    assert re.fullmatch(rf"({package}\n)+", entries)
    assert len(locked()) == len(re.findall("==", entries)) > 200


@pytest.mark.parametrize("name", BESIDE_VLLM)
def test_the_extra_vllm_can_be_installed(name: str) -> None:
    """Ranges that begin after these versions cannot be met together with vLLM's."""
    assert declared()[name].specifier.contains(BESIDE_VLLM[name])
