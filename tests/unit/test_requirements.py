"""Versions of dependencies: ranges in setup.cfg, exact versions in requirements.lock."""

from __future__ import annotations

import configparser
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]


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
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    pairs = [line.split("==") for line in lines if not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in pairs}


@pytest.mark.parametrize("name", declared())
def test_ranges_hold_locked_versions(name: str) -> None:
    requirement = declared()[name]
    assert {part.operator for part in requirement.specifier} == {">=", "<"}
    assert requirement.specifier.contains(locked()[canonicalize_name(name)])


@pytest.mark.parametrize("name", BESIDE_VLLM)
def test_the_extra_vllm_can_be_installed(name: str) -> None:
    """Ranges that begin after these versions cannot be met together with vLLM's."""
    assert declared()[name].specifier.contains(BESIDE_VLLM[name])
