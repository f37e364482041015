"""A server with an OpenAI-compatible API that answers a prompt with sentences of its last document."""

from __future__ import annotations

import re
import threading
from typing import Any

from json_server import JsonHandler, JsonServer

DOCUMENT = re.compile(r"Document: (.*)\n(?:Query|Question):", re.DOTALL)


def write_query(prompt: str, number: int) -> str:
    """Return a query of words of the document, another one for each number."""
    text = DOCUMENT.findall(prompt)[-1]
    words = re.findall(r"\w{4,}", text)
    return " ".join(words[number::2][:8])


class LanguageServer(JsonServer):
    path = "/v1"

    def __init__(self, most: int = 8) -> None:
        """most: completions per request."""
        super().__init__(Handler)
        self.most = most
        self.asked: list[dict[str, Any]] = []
        self.keys: set[str | None] = set()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        prompt = request["messages"][-1]["content"]
        count = min(self.most, request["n"])
        choices = []
        for number in range(count):
            text = "4" if "Score:" in prompt else write_query(prompt, request["seed"] % 42 + number)
            message = {"role": "assistant", "content": text}
            choices.append({"index": number, "finish_reason": "stop", "message": message})
        usage = {"prompt_tokens": 10, "completion_tokens": 2 * count, "total_tokens": 10}
        made = {"id": "0", "object": "chat.completion", "created": 0, "model": request["model"]}
        return {**made, "choices": choices, "usage": usage}


class Handler(JsonHandler):
    server: LanguageServer

    def do_GET(self) -> None:
        self.answer(200, {"object": "list", "data": [{"id": "people", "object": "model"}]})

    def do_POST(self) -> None:
        request = self.read_json()
        with self.server.lock:
            number = len(self.server.asked)
            self.server.asked.append(request)
            self.server.keys.add(self.headers.get("Authorization"))
        status = self.server.refuse.get(number, 200)
        if status != 200:
            self.answer(status, {"error": {"message": "not now"}})
        else:
            self.answer(200, self.server.answer(request))
