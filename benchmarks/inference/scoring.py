"""Reranking throughput on one machine, in pairs per second: models/reranker/reranker.py compared with other libraries.

    python -m benchmarks.inference.scoring                               # generated questions
    python -m benchmarks.inference.scoring --data EEDI    # Eedi's questions, each with misconceptions

Two models are compared. MiniLM as a cross-encoder with a random head runs in Ratchet and in `CrossEncoder` of
sentence-transformers. A Qwen2 decoder that answers Yes or No (`--hidden`, `--layers`; random weights, byte-level BPE
trained on the texts) runs in Ratchet and by the method of FlagEmbedding's `FlagLLMReranker`: pairs sorted by length,
left padding, logits of all positions. This method is reimplemented with transformers, since the package needs other
versions. Both sides use the same pairs, dtype and number of threads in one process, in alternating rounds; the scores
are compared.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
import transformers
from tokenizers import Tokenizer

from benchmarks.inference.embedding import load_texts
from benchmarks.misconceptions import RULES
from ratchet.data.formats.detection import load_retrieval
from ratchet.models.loading import silence_transformers
from ratchet.models.model_files import MINILM, resolve
from ratchet.models.presets import PROMPT
from ratchet.models.reranker import reranker
from ratchet.models.reranker.reranker_config import PairTokenizer

Lists = tuple[list[str], list[list[str]]]
VOCABULARY = 32_768
"""Rows of the decoder's head; the tokenizer uses fewer."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", type=Path, help="Eedi's folder, a FlagEmbedding .jsonl or a BEIR folder"
    )
    parser.add_argument("--queries", type=int, default=16)
    parser.add_argument("--passages", type=int, default=25, help="of each query")
    parser.add_argument("--hidden", type=int, default=512, help="of the decoder")
    parser.add_argument("--layers", type=int, default=8, help="of the decoder")
    parser.add_argument("--batch", type=int, default=32, help="pairs per batch of the peers")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtype", choices=["both", "float32", "bfloat16"], default="both")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    lists = load_lists(given.data, given.queries, given.passages)
    count = sum(map(len, lists[1]))
    print(
        f"{given.queries} queries, {count} pairs, {given.threads} threads, {given.rounds} rounds; medians"
    )
    print(
        f"{'':24} {'pairs/s':>8} {'peer':>7} {'ratio':>7} {'least..most':>12} {'|diff|/spread':>14}"
    )
    with tempfile.TemporaryDirectory() as folder:
        for dtype in ["float32", "bfloat16"] if given.dtype == "both" else [given.dtype]:
            ways = cross_encoder(Path(folder) / f"cross-{dtype}", lists, dtype, given.batch)
            report(f"cross-encoder {dtype}", ways, count, given.rounds)
            shape = (given.hidden, given.layers)
            for shares in (False, True):
                ways = decoder(
                    Path(folder) / f"decoder-{dtype}-{shares}",
                    shape,
                    lists,
                    dtype,
                    given.batch,
                    shares,
                )
                report(f"decoder {dtype}{', shared' if shares else ''}", ways, count, given.rounds)
    print(
        "peer: CrossEncoder, and for the decoder whole pairs by plain transformers; shared: a query's tokens once"
    )


def report(name: str, ways: list[Callable[[], np.ndarray]], count: int, rounds: int) -> None:
    scores = [way() for way in ways]  # the round that warms up
    seconds_R2 = np.empty((rounds, 2))
    for turn in range(rounds):
        for number in (0, 1) if turn % 2 == 0 else (1, 0):
            start = time.perf_counter()
            ways[number]()
            seconds_R2[turn, number] = time.perf_counter() - start
    ours, theirs = count / np.median(seconds_R2, axis=0)
    ratio_R = seconds_R2[:, 1] / seconds_R2[:, 0]
    difference = np.abs(scores[0] - scores[1]).max() / scores[1].std()
    span = f"{ratio_R.min():.2f}..{ratio_R.max():.2f}"
    print(
        f"{name:24} {ours:8.1f} {theirs:7.1f} {np.median(ratio_R):6.2f}x {span:>12} {difference:14.1e}",
        flush=True,
    )


def cross_encoder(
    folder: Path, lists: Lists, dtype: str, batch: int
) -> list[Callable[[], np.ndarray]]:
    from sentence_transformers import CrossEncoder

    base = resolve(MINILM)
    torch.manual_seed(0)
    with silence_transformers():
        model = transformers.AutoModelForSequenceClassification.from_pretrained(base, num_labels=1)
    model.save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(base).save_pretrained(folder)
    ours = reranker.load(folder, dtype=dtype, device="cpu")
    theirs = CrossEncoder(
        str(folder), device="cpu", max_length=512, model_kwargs={"dtype": getattr(torch, dtype)}
    )
    flat = [(query, passage) for query, own in zip(*lists, strict=True) for passage in own]
    raw = torch.nn.Identity()

    def peer() -> np.ndarray:
        found = theirs.predict(flat, batch_size=batch, activation_fn=raw, convert_to_tensor=True)
        return found.float().cpu().numpy()

    return [lambda: np.concatenate(ours.score(*lists)), peer]


def decoder(
    folder: Path, shape: tuple[int, int], lists: Lists, dtype: str, batch: int, shares: bool
) -> list[Callable[[], np.ndarray]]:
    save_tokenizer(folder, [*lists[0], *(text for own in lists[1] for text in own), PROMPT])
    hidden, layers = shape
    config = transformers.Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=hidden * 16 // 3,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=max(1, hidden // 256),
        pad_token_id=0,
        initializer_range=0.05,
    )
    torch.manual_seed(0)
    transformers.Qwen2ForCausalLM(config).save_pretrained(folder)
    ours = reranker.load(folder, dtype=dtype, device="cpu")
    ours.shares_prefixes = shares
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=getattr(torch, dtype)
    ).eval()
    return [
        lambda: np.concatenate(ours.score(*lists)),
        lambda: whole_pairs(theirs, ours.tokens, lists, batch),
    ]


def save_tokenizer(folder: Path, texts: list[str]) -> None:
    tokenizer = Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=8192,
        special_tokens=["<pad>", "<end>", "Yes"],
        initial_alphabet=alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<end>"
    )
    fast.save_pretrained(folder)


@torch.inference_mode()
def whole_pairs(model: Any, tokens: PairTokenizer, lists: Lists, batch: int) -> np.ndarray:
    """Score whole pairs, `batch` at a time, longest first. Returns float32 [pairs]."""
    rows = [
        [token for part in tokens.split_pair(query, passage) for token in part]
        for query, own in zip(tokens.tokenize(lists[0], "query"), lists[1], strict=True)
        for passage in tokens.tokenize(own, "passage")
    ]
    scores = np.zeros(len(rows), np.float32)
    order = np.argsort([-len(row) for row in rows], kind="stable")
    for start in range(0, len(order), batch):
        chosen = order[start : start + batch]
        length = max(len(rows[i]) for i in chosen)
        ids_BL = torch.tensor([[0] * (length - len(rows[i])) + rows[i] for i in chosen])
        mask_BL = torch.tensor([[0] * (length - len(rows[i])) + [1] * len(rows[i]) for i in chosen])
        positions_BL = (mask_BL.cumsum(1) - 1).clamp(min=0)
        logits_BLV = model(
            input_ids=ids_BL, attention_mask=mask_BL, position_ids=positions_BL, use_cache=False
        ).logits
        scores[chosen] = logits_BLV[:, -1, tokens.answers[0]].float().numpy()
    return scores


def load_lists(path: Path | None, queries: int, passages: int) -> Lists:
    """Return queries, and for each of them random passages."""
    random = np.random.default_rng(0)
    if path is None:
        documents = [rule.sentence for rule in RULES]
        texts = load_texts(None)[: -len(RULES)]
    else:
        data = load_retrieval(path)
        documents, texts = (
            [document.text for document in data.corpus],
            [query.text for query in data.queries],
        )
    chosen = random.choice(len(texts), queries, replace=False)
    return [texts[i] for i in chosen], [
        [documents[i] for i in random.choice(len(documents), passages, replace=False)]
        for _ in range(queries)
    ]


if __name__ == "__main__":
    main()
