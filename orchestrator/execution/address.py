"""Checks of cluster addresses before Ray uses them. With a wrong address, Ray waits for minutes or ends the process."""

from __future__ import annotations

import re
import socket
from urllib.parse import SplitResult, urlsplit

from ratchet.errors import InputError

TIMEOUT = 5.0
"""Timeout of a connection in seconds."""

PORTS = {"http": 80, "https": 443}
"""Scheme -> default port of a dashboard."""


def check_cluster_address(address: str | None) -> None:
    """Raise InputError if no Ray cluster answers at the address that `run` or `sweep` is given.

    address: host:port of Ray's head node. None, `local` and `auto` are not checked.
    """
    if address is None or address in ("local", "auto"):
        return
    expected = "expected host:port of the head of a running Ray cluster, such as 10.0.0.1:6379"
    scheme = address.partition("://")[0]
    if scheme in PORTS:
        raise InputError(
            f"address {address}: the address of a dashboard, which takes jobs; {expected}; use `ratchet submit` with it"
        )
    if scheme == "ray":
        raise InputError(
            f"address {address}: an address of Ray Client, which is not used; {expected}; give that"
        )
    _connect(address, urlsplit(f"//{address}"), expected)


def check_dashboard_address(address: str | None) -> None:
    """Raise InputError if nothing answers at the address that `submit` is given. None and `auto` are not checked."""
    if address is None or address == "auto":
        return
    expected = "expected the address of a cluster's dashboard, such as http://127.0.0.1:8265"
    parts = urlsplit(address)
    if parts.scheme not in PORTS:
        kind = "an address of Ray Client" if parts.scheme == "ray" else "not a URL"
        hint = "; `ratchet run` takes host:port" if re.fullmatch(r"\S+:\d+", address) else ""
        raise InputError(
            f"submit --address {address}: {kind}; {expected}; open one with `ray dashboard cluster.yaml`{hint}"
        )
    _connect(address, parts, expected)


def _connect(address: str, parts: SplitResult, expected: str) -> None:
    """Connect to a server once. Raises InputError if it does not answer, or if the address has no host or port."""
    try:
        host = parts.hostname
        port = parts.port or PORTS.get(parts.scheme)
    except ValueError:  # not a number, or too large
        port = None
    if not host or not port or " " in host:
        raise InputError(f"address {address}: no host and port; {expected}; correct it")
    try:
        socket.create_connection((host, port), TIMEOUT).close()
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(
            f"address {address}: {reason}; {expected}; check that it is running and can be reached"
        ) from None
