"""The image that clusters run: `Dockerfile`, what it copies and what it installs."""

from __future__ import annotations

import re
import subprocess
from fnmatch import fnmatch
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
LOCK = (ROOT / "requirements.lock").read_text()
MAKEFILE = (ROOT / "Makefile").read_text()


def read_instructions() -> list[tuple[str, str]]:
    """Return (instruction, arguments) of each line that is no comment, with continued lines joined."""
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", "")
    found = []
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, _, arguments = line.partition(" ")
            found.append((name, " ".join(arguments.split())))
    return found


def find(wanted: str) -> list[str]:
    return [arguments for name, arguments in read_instructions() if name == wanted]


def test_instructions_are_docker_s() -> None:
    names = [name for name, _ in read_instructions()]
    assert names[0] == "FROM"
    assert set(names) == {"FROM", "RUN", "WORKDIR", "COPY", "ENV"}


def test_the_base_is_the_locked_ray_on_an_allowed_python() -> None:
    (image,) = find("FROM")
    match = re.fullmatch(r"rayproject/ray:(\d+\.\d+\.\d+)-py3(\d+)-cu\d+", image)
    assert match
    assert f"\nray=={match[1]} \\\n" in LOCK
    allowed = re.search(r"python_requires = >=3\.(\d+),<3\.(\d+)", (ROOT / "setup.cfg").read_text())
    assert allowed
    assert int(allowed[1]) <= int(match[2]) < int(allowed[2])


def test_everything_that_the_set_up_reads_is_copied() -> None:
    (copied,) = find("COPY")
    assert copied == "--chown=ray:users . ."
    ignored = (ROOT / ".dockerignore").read_text().split()
    assert {".git", ".venv*", ".ratchet"} <= set(ignored)  # gigabytes
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert {"Makefile", "setup.cfg", "pyproject.toml", "requirements.lock"} <= set(tracked)
    for name in tracked:
        top = name.split("/")[0]
        assert not any(fnmatch(top, pattern) for pattern in ignored), name


def test_it_installs_the_extra_for_clusters_with_locked_versions() -> None:
    assert "$(INSTALL) -e '.[cluster,dev]'" in MAKEFILE  # the set-up
    commands = " && ".join(find("RUN")).split(" && ")
    assert "make setup" in commands
    (install,) = (command for command in commands if "pip install" in command)
    assert "-c requirements.lock" in install
    _, _, packages = install.partition("-c requirements.lock ")
    locked = dict(re.findall(r"^([\w.-]+)==(\S+) \\$", LOCK, re.MULTILINE))
    for package in map(Requirement, packages.split()):
        if package.name == "faiss-gpu":  # in the place of faiss-cpu
            assert str(package.specifier) == f"=={locked['faiss-cpu']}"
        else:
            assert package.name in locked
    (uninstall,) = (command for command in commands if "pip uninstall" in command)
    assert uninstall.endswith(" faiss-cpu")


def test_the_path_has_the_commands_of_the_set_up() -> None:
    (folder,) = find("WORKDIR")
    (variables,) = find("ENV")
    assert f"PATH={folder}/.venv/bin:$PATH" in variables.split()
    cluster = (ROOT / "cluster.yaml").read_text()
    assert f"{folder.replace('/home/ray', '$HOME')}/.venv/bin" in cluster
