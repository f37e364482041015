"""Requests to a server: many at once, with answers that are stored as they arrive, so that a killed run repeats none.

A process sends them all, since the server does the work."""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ratchet.errors import InputError, ModelError
from ratchet.extras import require_extra
from ratchet.orchestrator.job_interface import append_json, read_json_lines

RETRIES = 6
"""Number of retries of the client, with exponential backoff or after the server's `Retry-After`."""
CHARACTERS_PER_TOKEN = 4
"""For the estimate of the cost."""


def check_url(where: str, url: str) -> None:
    """Raise InputError for an address that requests cannot be sent to."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InputError(
            f"{where}: '{url}' given; expected an address such as http://localhost:8000/v1"
        )


def read_key(job: str, url: str, key_variable: str) -> str:
    """Return the API key in an environment variable; empty if there is none. Raises InputError for another variable,
    and for a key that would be sent without encryption to another machine."""
    if not key_variable.endswith("_API_KEY"):
        raise InputError(
            f"{job}.key_variable: {key_variable} given; expected a name that ends with _API_KEY, since its value is"
            " sent to the server; rename the variable"
        )
    key = os.environ.get(key_variable, "")
    address = urlsplit(url)
    is_here = address.hostname in ("localhost", "127.0.0.1", "::1")
    if key and address.scheme != "https" and not is_here:
        raise InputError(
            f"{job}.url: {url} given, with a key in {key_variable}; expected https, which hides the key on its way;"
            " change the address, or unset the variable"
        )
    return key


def check_openai(job: str, config: Any) -> None:
    """Check what an `OpenAIServer` needs: an address, a key for it, and the package of the client."""
    check_url(f"{job}.url", config.url)
    require_extra(f"{job}.url: {config.url} given", "openai", "openai")
    read_key(job, config.url, config.key_variable)


class OpenAIServer:
    """An OpenAI-compatible API. config: of a job, with `url`, `model`, `key_variable` and `timeout`."""

    def __init__(self, job: str, config: Any) -> None:
        from openai import OpenAI

        self.job = job
        self.config = config
        key = read_key(job, config.url, config.key_variable) or "none"
        self.client = OpenAI(
            base_url=config.url, api_key=key, max_retries=RETRIES, timeout=config.timeout
        )

    @cached_property
    def model(self) -> str:
        """The name of the model in requests: the first that the server lists, if none is given."""
        return self.config.model or self.client.models.list().data[0].id

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Raise ModelError for a server that refuses, or does not answer after `RETRIES`."""
        import openai

        try:
            yield
        except (openai.OpenAIError, IndexError) as error:
            said = " ".join(str(error).split())[:300]
            raise ModelError(
                f"{self.config.url}: {said or type(error).__name__}; expected an OpenAI-compatible API; start it, or"
                f" correct the address, {self.job}.model or the key"
            ) from None


def ask_all(
    path: Path, requests: Sequence[Any], ask: Callable[[Any], Any], concurrency: int
) -> Iterator[Any]:
    """Yield the answer to each request, in order. path: JSON Lines with the answers so far; a line that a killed
    process left unfinished is ignored. ask: sends a request and returns an answer that JSON can hold."""
    known = {line["row"]: line["answer"] for line in read_json_lines(path)}

    def ask_once(row: int) -> Any:
        if row not in known:
            known[row] = ask(requests[row])
            append_json(path, {"row": row, "answer": known[row]})
        return known[row]

    pool = ThreadPoolExecutor(concurrency)
    try:
        yield from pool.map(ask_once, range(len(requests)))
    finally:
        pool.shutdown(cancel_futures=True)
