"""Rerankers behind an HTTP API: Cohere's, which Jina and vLLM have too, or text-embeddings-inference's."""

import math
from collections.abc import Sequence
from typing import Any, Literal

from ratchet.errors import ModelError

Api = Literal["cohere", "tei"]
RETRIED = (429, 500, 502, 503, 504)
RETRIES = 6
CONNECTIONS = 3


class RemoteReranker:
    """Client of a reranker's HTTP API. Requests are retried up to `RETRIES` times after the statuses `RETRIED` and
    interrupted answers, with exponential backoff or after the server's `Retry-After`. Connections that fail are retried
    `CONNECTIONS` times, within seconds.

    url: address to which requests are posted. model: name of the model, for servers with several; may be empty. key:
    sent as a bearer token. timeout: seconds that the server may be silent.
    """

    def __init__(
        self, url: str, model: str, api: Api, key: str = "", timeout: float = 60.0
    ) -> None:
        import requests
        from requests.adapters import HTTPAdapter
        from urllib3 import Retry

        self.url = url
        self.model = model
        self.api = api
        self.timeout = timeout
        self.session = requests.Session()
        policy = Retry(
            RETRIES,
            connect=CONNECTIONS,
            status_forcelist=RETRIED,
            backoff_factor=1,
            allowed_methods=None,
        )
        for scheme in ("http://", "https://"):
            self.session.mount(scheme, HTTPAdapter(pool_maxsize=64, max_retries=policy))
        if key:
            self.session.headers["Authorization"] = f"Bearer {key}"

    def score(self, query: str, passages: Sequence[str]) -> list[float]:
        """Return the server's scores of the passages, in their order. Raises ModelError if the server cannot be
        reached, refuses the request, or does not answer with one finite number per passage."""
        import requests

        if not passages:
            return []
        request: dict[str, Any] = {"query": query, "documents": list(passages)}
        if self.api == "tei":
            request = {"query": query, "texts": list(passages), "raw_scores": True}
        if self.model:
            request |= {"model": self.model}
        try:
            answer = self.session.post(self.url, json=request, timeout=self.timeout)
        except requests.RequestException as error:
            raise ModelError(
                f"{self.url}: cannot be reached ({error}); expected a reranker's API; start it"
            ) from None
        if answer.status_code != 200:
            raise ModelError(
                f"{self.url}: status {answer.status_code}: {answer.text[:300]}; expected 200; correct the address, the"
                " model's name or the key"
            )
        return self._read(answer, len(passages))

    def _read(self, answer: Any, count: int) -> list[float]:
        scores = [math.nan] * count
        try:
            found = answer.json()
            for one in found if self.api == "tei" else found["results"]:
                scores[int(one["index"])] = float(
                    one["score" if self.api == "tei" else "relevance_score"]
                )
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise ModelError(
                f"{self.url}: answered {answer.text[:200]} ({type(error).__name__}); expected the scores of {count}"
                f" passages in the format of api={self.api}; choose the other one"
            ) from None
        missing = next((at for at, score in enumerate(scores) if not math.isfinite(score)), None)
        if missing is not None:
            raise ModelError(
                f"{self.url}: no finite score of passage {missing} of {count}; expected one for each; does the server"
                " cut the list off?"
            )
        return scores
