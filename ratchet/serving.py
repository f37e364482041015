"""Commands of the servers that load an exported folder."""

from collections.abc import Mapping

ENCODERS = {
    "vLLM": "vllm serve {folder} --runner pooling",
    "text-embeddings-inference": "text-embeddings-router --model-id {folder}",
    "Infinity": "infinity_emb v2 --model-id {folder}",
}
SERVERS: Mapping[str, Mapping[str, str]] = {
    "embedder": ENCODERS,
    "reranker": ENCODERS,
    "decoder": {"vLLM": "vllm serve {folder}"},
}
"""Kind of model -> server -> the command that serves a folder. Which architectures a server knows is its own matter."""


def list_commands(kind: str, folder: str) -> list[str]:
    """Return the lines `command  # server` for a kind of model; none for an adapter."""
    commands = {}
    for server, text in SERVERS.get(kind, {}).items():
        commands[server] = text.format(folder=folder)
    width = max(map(len, commands.values()), default=0)
    found: list[str] = []
    for server, text in commands.items():
        found.append(f"{text:<{width}}  # {server}")
    return found
