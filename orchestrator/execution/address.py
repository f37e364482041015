"""Checks of cluster addresses before Ray uses them. With a wrong address, Ray waits for minutes or ends the process."""

from __future__ import annotations

import os
import re
import socket
import threading
from contextlib import suppress
from urllib.parse import urlsplit

from ratchet.errors import InputError

TIMEOUT = 5.0
"""Timeout in seconds, once for looking up a host and connecting to it, and again for its first bytes."""

_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"
"""The first bytes of an HTTP/2 (gRPC) connection, with empty settings. A gRPC server answers with its settings."""


def check_cluster_address(address: str | None) -> None:
    """Raise InputError if no Ray cluster answers at the address that `run` or `sweep` is given.

    address: host:port of Ray's head node. None, `local` and `auto` are not checked.
    """
    if address is None or address in ("local", "auto"):
        return
    expected = "expected host:port of the head of a running Ray cluster, such as 10.0.0.1:6379"
    if "://" in address:
        scheme = address.partition("://")[0]
    else:
        scheme = ""
    if scheme in ("http", "https"):
        raise InputError(
            f"address {address}: the address of a dashboard, which takes jobs; {expected}; use `ratchet submit` with it"
        )
    if scheme == "ray":
        raise InputError(f"address {address}: an address of Ray Client, which is not used; {expected}; give that")
    host, port = _split(address, expected)
    answer = b""
    with _connect(address, host, port, expected) as connection, suppress(OSError):
        connection.sendall(_GREETING)
        answer = connection.recv(16)
    if answer.startswith((b"HTTP/", b"<")):
        raise InputError(
            f"address {address}: a web server answers there, perhaps the dashboard; {expected}; give that, or use"
            f" `ratchet submit --address http://{address}`"
        )
    if answer[3:4] != b"\4" and not os.environ.get("RAY_USE_TLS"):
        raise InputError(f"address {address}: what answers there is not Ray; {expected}; check the port")


def check_dashboard_address(address: str | None) -> None:
    """Raise InputError if nothing answers at the address that `submit` is given. None and `auto` are not checked."""
    if address is None or address == "auto":
        return
    expected = "expected the address of a cluster's dashboard, such as http://127.0.0.1:8265"
    if not address.startswith(("http://", "https://")):
        if address.startswith("ray://"):
            kind = "an address of Ray Client"
        else:
            kind = "not a URL"
        if re.fullmatch(r"\S+:\d+", address) and kind == "not a URL":
            hint = "; `ratchet run` takes host:port"
        else:
            hint = ""
        raise InputError(
            f"submit --address {address}: {kind}; {expected}; open one with `ray dashboard cluster.yaml`{hint}"
        )
    parts = urlsplit(address)
    if parts.scheme == "https":
        standard = 443
    else:
        standard = 80
    netloc = parts.netloc.rpartition("@")[2]
    host, port = _split(netloc if re.search(r":\d+$", netloc) else f"{netloc}:{standard}", expected, address)
    _connect(address, host, port, expected).close()


def _split(text: str, expected: str, address: str = "") -> tuple[str, int]:
    match = re.fullmatch(r"\[?([^\s/\[\]]+?)\]?:(\d{1,5})", text)
    if match is None or not 0 < int(match[2]) < 65536:
        raise InputError(f"address {address or text}: no host and port; {expected}; correct it")
    return match[1], int(match[2])


def _connect(address: str, host: str, port: int, expected: str) -> socket.socket:
    """Connect to a server, in a thread, since looking up a host has no timeout."""
    found: list[socket.socket | OSError | UnicodeError] = []

    def connect() -> None:
        try:
            found.append(socket.create_connection((host, port), TIMEOUT))
        except (OSError, UnicodeError) as error:
            found.append(error)

    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(TIMEOUT)
    if found and isinstance(found[0], socket.socket):
        return found[0]
    if found:
        reason = getattr(found[0], "strerror", None) or str(found[0])
    else:
        reason = f"no answer in {TIMEOUT:.0f} s"
    raise InputError(f"address {address}: {reason}; {expected}; check that it is running and can be reached")
