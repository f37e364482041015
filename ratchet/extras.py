"""Packages that only some settings need, and that are not installed with Ratchet: the extras of `setup.cfg`."""

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from ratchet.errors import InputError

MATH_LIBRARIES = ("latex2sympy2-extended", "math-verify", "sympy")
"""Distributions of the extra `math`, which decide what its verifier accepts."""


def require_extra(where: str, extra: str, *packages: str) -> None:
    """Raise InputError, beginning with `where`, if a package of an extra cannot be imported."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise InputError(
            f"{where}, without {', '.join(missing)}; expected the extra `{extra}`;"
            f" pip install 'ratchet-train[{extra}]', or in a checkout pip install -e '.[{extra}]'"
        )


@contextmanager
def hide_package(name: str) -> Iterator[None]:
    """Context manager in which a package that is not imported yet seems not to be installed, for libraries that import
    it unasked."""
    known = sys.modules.setdefault(name, None)  # type: ignore[arg-type]
    try:
        yield
    finally:
        if known is None:
            del sys.modules[name]
