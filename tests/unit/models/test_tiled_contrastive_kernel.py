"""The Triton kernels against the PyTorch path: on a GPU, else in Triton's interpreter, where Triton is installed."""

from __future__ import annotations

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported
pytest.importorskip("triton", reason="Triton comes with torch for GPUs")

from ratchet.models.losses import tiled_contrastive_kernel, tiled_contrastive_loss

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HALF = torch.bfloat16 if DEVICE == "cuda" else torch.float16
"""The interpreter does not multiply bfloat16."""


@pytest.mark.parametrize("dtype", [torch.float32, HALF])
@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize(("rows", "keys", "offset", "dim"), [(70, 130, 20, 200), (1, 64, 63, 64), (64, 65, 1, 33)])
def test_kernels_are_the_plain_functions(
    rows: int, keys: int, offset: int, dim: int, grouped: bool, dtype: torch.dtype
) -> None:
    random = torch.Generator().manual_seed(0)
    key = torch.nn.functional.normalize(torch.randn(keys, dim, generator=random)).to(dtype).to(DEVICE)
    query = torch.nn.functional.normalize(torch.randn(rows, dim, generator=random)).to(dtype).to(DEVICE)
    group = torch.randint(0, 9, (keys,), generator=random).to(DEVICE) if grouped else None
    options = {"offset": offset, "group_P": group}
    plain = [side.float().cpu() for side in (query, key)]
    on_cpu = {"offset": offset, "group_P": None if group is None else group.cpu(), "chunk": 16}
    expected = tiled_contrastive_loss.normalisers(*plain, 0.07, **on_cpu)
    found = tiled_contrastive_kernel.normalisers(query, key, 0.07, **options)
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-5, atol=1e-5)
    other = torch.logsumexp(plain[1] @ plain[1].T / 0.07, 1)
    sums = tiled_contrastive_loss.soft_sums(*plain, expected, other, 0.07, **on_cpu)
    found = tiled_contrastive_kernel.soft_sums(query, key, expected.to(DEVICE), other.to(DEVICE), 0.07, **options)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-2
    assert torch.linalg.norm(found.cpu() - sums) <= tolerance * torch.linalg.norm(sums)
