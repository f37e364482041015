"""Random draws of training on a model's own answers, which depend only on the seed."""

import numpy as np


def draw_order(samples: int, draws: int, seed: int) -> np.ndarray:
    """Return indices of samples, int64 [draws]: random permutations of all samples, one after the other."""
    rounds = []
    for number in range(-(-draws // samples)):
        rounds.append(np.random.default_rng([seed, number]).permutation(samples))
    return np.concatenate(rounds)[:draws]


def draw_on_policy(steps: int, lmbda: float, seed: int) -> np.ndarray:
    """Return whether each training step is on-policy, bool [steps], with probability `lmbda`."""
    return np.random.default_rng([seed, steps]).random(steps) < lmbda
