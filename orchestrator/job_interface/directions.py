"""The direction of metrics: whether a higher or a lower value is better."""

import re

LOWER = re.compile(
    r"loss|error|perplexity|\bppl\b|latency|\brank\b|missing|\bm[as]e\b|\brmse\b|difference"
)
HIGHER = re.compile(
    r"(^|/)[rp]@\d|\bm?ap\b|\bmap@|\bmrr|\bndcg|recall|precision|accuracy|\bacc\b|\bem\b|\bf1\b|exact|\bhits?\b|pass@|\bauc\b"
    r"|bleu|rouge|lenient|success|solved|correct|per_s\b|/s\b"
)


def find_direction(metric: str) -> int:
    """Return 1 if higher is better, -1 if lower is better, and 0 for other numbers, such as counts."""
    name = metric.lower().replace("_", " ").replace(" per s", " per_s")
    if LOWER.search(name):
        return -1
    return int(bool(HIGHER.search(name)))
