"""Speed of verification (answers per second on one core) and of generation (tokens per second, prompts of mixed
lengths).

    python -m benchmarks.inference.answers [--prompts 48] [--new-tokens 48]

Verification: Countdown's labels of 40,000 correct and broken answers, and SQuAD's scores compared with a plain port of
the official script. Generation: Ratchet's batches by length, compared with transformers' `generate` in the order of the
file, and with vLLM if it is installed. All use the same model (Qwen2's architecture, 8 layers of 512 dimensions, random
weights), the same dtype, and greedy decoding. One prompt in four is eight times as long as the others. `--rows` is the
batch size of `generate`; vLLM chooses its own.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import string
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompts", type=int, default=48)
    parser.add_argument("--new-tokens", type=int, default=48)
    parser.add_argument("--rows", type=int, default=8, help="of a batch, of the plain way")
    parser.add_argument("--rounds", type=int, default=2)
    given = parser.parse_args()
    verifying()
    generating(given)


def verifying() -> None:
    from ratchet.data.tasks import countdown, squad
    from ratchet.data.tasks.solver import generate_tasks

    tasks = generate_tasks(10_000, (3, 4), 99, (10, 99), 0)
    forms = (
        "<answer>{0} = {1}</answer>",
        "<answer>{0} = {1} = {1}</answer>",
        "{0} = {1}",
        "<answer>{0} + 1</answer>",
    )
    texts = [
        (n, t, "<think>so</think>\n" + form.format(x, t)) for n, t, x in tasks for form in forms
    ]
    start = time.perf_counter()
    counts = Counter(countdown.classify(n, t, text) for n, t, text in texts)
    seconds = time.perf_counter() - start
    print(
        f"countdown: {len(texts):,} answers in {seconds:.2f} s, {len(texts) / seconds:,.0f} a second ({counts})"
    )
    words = [
        "the",
        "a",
        "Denver",
        "Broncos",
        "of",
        "1999,",
        "in",
        "New-York!",
        "won",
        "an",
        "title",
    ]
    chance = np.random.default_rng(0)
    pairs = [
        (" ".join(chance.choice(words, 5)), [" ".join(chance.choice(words, 3)) for _ in range(3)])
        for _ in range(20_000)
    ]
    start = time.perf_counter()
    ours = [squad.score(answer, golds) for answer, golds in pairs]
    middle = time.perf_counter()
    plain = [
        (max(_em(answer, g) for g in golds), max(_f1(answer, g) for g in golds))
        for answer, golds in pairs
    ]
    end = time.perf_counter()
    assert all((one["em"], one["f1"]) == other for one, other in zip(ours, plain, strict=True))
    print(
        f"squad: {len(pairs) / (middle - start):,.0f} answers a second, three golds each; the script's way (without"
        f" lenient) {len(pairs) / (end - middle):,.0f}"
    )


def _normal(text: str) -> str:
    exclude = set(string.punctuation)
    return " ".join(
        re.sub(r"\b(a|an|the)\b", " ", "".join(c for c in text.lower() if c not in exclude)).split()
    )


def _em(answer: str, gold: str) -> float:
    return float(_normal(answer) == _normal(gold))


def _f1(answer: str, gold: str) -> float:
    found, wanted = _normal(answer).split(), _normal(gold).split()
    same = sum((Counter(found) & Counter(wanted)).values())
    if not same:
        return 0.0
    precision, recall = same / len(found), same / len(wanted)
    return 2 * precision * recall / (precision + recall)


def generating(given: argparse.Namespace) -> None:
    import torch

    from ratchet.models.batching import pad
    from ratchet.models.decoder import decoder
    from ratchet.models.decoder.sampling import Sampling, generate
    from ratchet.models.decoder.tiny_decoder import save_decoder

    chance = np.random.default_rng(1)
    spare = tempfile.TemporaryDirectory()
    folder = Path(spare.name)
    save_decoder(
        folder,
        ["12 + 3"],
        vocab_size=400,
        hidden_size=512,
        num_hidden_layers=8,
        num_attention_heads=8,
        max_position_embeddings=2048,
        seed=0,
    )
    one = decoder.load(folder)
    lengths = [
        int(chance.integers(20, 60)) * (8 if i % 4 == 0 else 1) for i in range(given.prompts)
    ]
    prompts = [chance.integers(3, 250, length).tolist() for length in lengths]
    names, how = (
        [str(i) for i in range(len(prompts))],
        Sampling(temperature=0, max_new_tokens=given.new_tokens),
    )

    def in_file_order() -> int:
        tokens = 0
        for start in range(0, len(prompts), given.rows):
            ids, mask = pad(
                prompts[start : start + given.rows], one.tokenizer.pad_token_id, "left", 1
            )
            with torch.no_grad():
                out = one.model.generate(
                    input_ids=ids,
                    attention_mask=mask,
                    do_sample=False,
                    max_new_tokens=given.new_tokens,
                    pad_token_id=one.tokenizer.pad_token_id,
                )
            tokens += int(out[:, ids.shape[1] :].numel())
        return tokens

    budget = given.rows * (int(np.mean(lengths)) + given.new_tokens)
    ways = {
        "ratchet": lambda: sum(map(len, generate(one, prompts, names, how, batch_tokens=budget))),
        "generate, file order": in_file_order,
    }
    if importlib.util.find_spec("vllm"):
        dtype = str(one.model.dtype).removeprefix("torch.")
        ways["vllm"] = start_vllm(
            folder, prompts, max(lengths) + given.new_tokens, dtype, given.new_tokens
        )
    best: dict[str, float] = {}
    for _ in range(given.rounds):
        for way, run in ways.items():
            start = time.perf_counter()
            tokens = run()
            best[way] = max(best.get(way, 0.0), tokens / (time.perf_counter() - start))
    for way, speed in best.items():
        print(f"{way:24}{speed:10,.0f} tokens/s{speed / best['generate, file order']:8.2f}")


def start_vllm(
    folder: Path, prompts: list[list[int]], longest: int, dtype: str, new_tokens: int
) -> Callable[[], int]:
    """Start an engine with the arguments of the job `generate`. Return a function that answers the prompts."""
    from vllm import LLM, SamplingParams

    from ratchet.models.vllm import make_engine_args

    engine = LLM(str(folder), **make_engine_args(folder, dtype=dtype, longest=longest, gpus=None))
    asked = [{"prompt_token_ids": prompt} for prompt in prompts]
    how = SamplingParams(temperature=0, max_tokens=new_tokens)
    return lambda: sum(
        len(one.outputs[0].token_ids) for one in engine.generate(asked, how, use_tqdm=False)
    )


if __name__ == "__main__":
    main()
