"""The size of forward passes on CPUs and on GPUs, and of a worker. Imports nothing heavy, since plans count with it."""

MULTIPLE = 8
"""Padded lengths on GPUs are multiples of this, for faster kernels and fewer distinct shapes."""
CPU_TOKENS = 2048
"""Padded tokens of a forward pass on CPUs. Larger ones leave the caches, and are not faster
(benchmarks/inference/embedding.py)."""
CPU_GRAPH = 2**15 * 6 * 384
"""On CPUs: maximum of tokens x layers x hidden size whose activations an embedder keeps at a time, about 8 GB."""
LIBRARIES = 0.62e9
"""Bytes of a worker without a model: Python, torch, transformers and Ray; in training also PEFT and DeepSpeed."""
GROUPS_PER_PASS = 8
"""Number of queries whose groups a reranker has in memory at once, if the resource micro_batch_size is None."""


def size_passes(device: str, batch_tokens: int, *, training: bool = False) -> tuple[int, int]:
    """Return (multiple of padded lengths, padded tokens) of a forward pass. device: `cpu` or another type.

    On CPUs nearly exact lengths save work. There `batch_tokens` matters in inference only, as an upper bound."""
    if device != "cpu":
        return MULTIPLE, batch_tokens
    if training:
        return (4, CPU_TOKENS)
    return (1, min(batch_tokens, CPU_TOKENS))
