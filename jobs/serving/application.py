"""The HTTP application of `ratchet serve`: embeddings in the format of OpenAI's API, and reranking in Cohere's."""

# Ray Serve makes the routes from copies of the methods, which see only names defined before the class. So this module
# has no `from __future__ import annotations`, and its functions stand before the class.
import asyncio
import base64
import secrets
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from fastapi import FastAPI, Header, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from ray import serve

from ratchet.models.embedder import encoder
from ratchet.models.embedder.encoding_config import Role
from ratchet.models.reranker import reranker
from ratchet.models.usage import find_usage

MOST_TEXTS = 2048
"""Maximum number of texts per request, as OpenAI's."""

Texts = Annotated[list[str], Field(min_length=1, max_length=MOST_TEXTS)]
application = FastAPI(title="ratchet serve")


class EmbeddingRequest(BaseModel):
    """https://platform.openai.com/docs/api-reference/embeddings/create"""

    model: str
    input: str | Texts
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int, Field(ge=1)] | None = None
    """Number of leading dimensions to return, normalised again; for models trained with `matryoshka_dims`."""
    input_type: Literal["passage", "document", "query"] = "passage"
    """Prompt template to apply; `document` is the same as `passage`. OpenAI has no such field; the name is Cohere's."""


class RerankRequest(BaseModel):
    """https://docs.cohere.com/reference/rerank"""

    model: str = ""
    """Name of the reranker. Empty: the first one."""
    query: str
    documents: Texts
    top_n: Annotated[int, Field(ge=1)] | None = None
    return_documents: bool = False


@application.exception_handler(RequestValidationError)
async def refuse(request: Request, error: RequestValidationError) -> JSONResponse:
    found = error.errors()[-1]  # for a union: the error for its last type, the most general one
    where = ".".join(str(part) for part in found["loc"][1:] if part == found["loc"][1] or isinstance(part, int))
    return _answer_error(400, f"{where or 'request'}: {found['msg']}")


@application.exception_handler(HTTPException)
async def explain(request: Request, error: HTTPException) -> JSONResponse:
    return _answer_error(error.status_code, str(error.detail))


def _answer_error(status: int, message: str) -> JSONResponse:
    return JSONResponse({"error": {"message": message, "type": "invalid_request_error", "code": None}}, status)


@serve.ingress(application)
class ModelServer:
    """A replica with all models and the routes."""

    def __init__(self, folders: Mapping[str, str], token: str, threads: int) -> None:
        """folders: name of a model in requests -> its folder. token: the bearer token that requests must have. threads:
        torch threads per replica."""
        torch.set_num_threads(threads)
        self.token = token
        device = "cuda" if torch.cuda.is_available() else "cpu"
        usages = {name: find_usage(Path(folder)) for name, folder in folders.items()}
        self.embedders, self.rerankers = (
            {name: load(Path(folders[name]), device=device) for name, usage in usages.items() if usage == wanted}
            for wanted, load in (("embedder", encoder.load), ("reranker", reranker.load))
        )
        # One request at a time: concurrent requests would share the same processor, and all hold their activations.
        # The thread also finishes the request of a disconnected client before it begins the next one.
        self.thread = ThreadPoolExecutor(1)

    @application.get("/health")
    async def health(self) -> dict[str, str]:
        return {"status": "ok"}

    @application.get("/v1/models")
    async def list_models(self, authorization: Annotated[str, Header()] = "") -> dict[str, Any]:
        self._check_token(authorization)
        names = [*self.embedders, *self.rerankers]
        return {"object": "list", "data": [{"id": name, "object": "model", "owned_by": "ratchet"} for name in names]}

    @application.post("/v1/embeddings")
    async def embed(self, request: EmbeddingRequest, authorization: Annotated[str, Header()] = "") -> dict[str, Any]:
        self._check_token(authorization)
        model = self._find(self.embedders, request.model, "embedder")
        if (request.dimensions or 1) > model.dim:
            raise HTTPException(400, f"dimensions: {request.dimensions} given; expected at most {model.dim}")
        texts = [request.input] if isinstance(request.input, str) else request.input
        role: Role = "query" if request.input_type == "query" else "passage"
        tokens = 0

        def count(tokens_B: np.ndarray) -> None:
            nonlocal tokens
            tokens += int(tokens_B.sum())

        encode = partial(model.encode, texts, role, progress=count)
        vectors_ND = await asyncio.get_running_loop().run_in_executor(self.thread, encode)
        if request.dimensions:
            vectors_ND = vectors_ND[:, : request.dimensions]
            vectors_ND = vectors_ND / np.maximum(np.linalg.norm(vectors_ND, axis=1, keepdims=True), 1e-12)
        values = vectors_ND.tolist()
        if request.encoding_format == "base64":  # float32, little-endian
            values = [base64.b64encode(vector_D.astype("<f4").tobytes()).decode() for vector_D in vectors_ND]
        rows = [{"object": "embedding", "index": index, "embedding": value} for index, value in enumerate(values)]
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return {"object": "list", "data": rows, "model": request.model, "usage": usage}

    @application.post("/rerank")
    @application.post("/v1/rerank")
    async def rerank(self, request: RerankRequest, authorization: Annotated[str, Header()] = "") -> dict[str, Any]:
        self._check_token(authorization)
        name = request.model or next(iter(self.rerankers), "")
        model = self._find(self.rerankers, name, "reranker")
        score = partial(model.score, [request.query], [request.documents])
        (scores,) = await asyncio.get_running_loop().run_in_executor(self.thread, score)
        probabilities = 1 / (1 + np.exp(-scores.astype(np.float64)))
        order = np.argsort(-scores, kind="stable")[: request.top_n].tolist()
        results = [
            {"index": index, "relevance_score": float(probabilities[index])}
            | ({"document": {"text": request.documents[index]}} if request.return_documents else {})
            for index in order
        ]
        return {"model": name, "results": results}

    def _check_token(self, authorization: str) -> None:
        if not secrets.compare_digest(authorization.encode(), f"Bearer {self.token}".encode()):
            raise HTTPException(401, "wrong or missing token; expected the header `Authorization: Bearer TOKEN`")

    def _find(self, models: Mapping[str, Any], name: str, usage: str) -> Any:
        if name not in models:
            known = ", ".join(models) or f"none, since no {usage} is served"
            raise HTTPException(404, f"model: '{name}' given; expected one of: {known}")
        return models[name]
