"""Dropout masks: they depend on the seed, training step, layer and token, but not on the batch of a token."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers
from torch import Tensor, nn

from ratchet.errors import ModelError
from ratchet.models.adapters import lora
from ratchet.models.dropout import DropoutMasks
from ratchet.models.loading import turn_off_dropout

ROWS = torch.arange(4)[:, None] + 17
PLACES = torch.arange(6)[None]


def two_layers(p: float = 0.25, seed: int = 0) -> tuple[nn.Module, DropoutMasks]:
    masks = DropoutMasks(seed)
    model = nn.Sequential(nn.Dropout(p), nn.Linear(1, 1), nn.Sequential(nn.Dropout(p)))
    masks.install(model)
    masks.start_step(0, 0)
    return model, masks


def drop(model: nn.Module, masks: DropoutMasks, layer: int, rows: Tensor = ROWS, features: int = 512) -> Tensor:
    layers = [module for module in model.modules() if type(module).__name__ == "Dropout"]
    with masks.tokens(rows, PLACES):
        return layers[layer](torch.ones(len(rows), 6, features))


def test_masks_drop_the_right_share_and_keep_the_mean() -> None:
    out = drop(*two_layers(), layer=0)
    assert sorted(out.unique().tolist()) == [0.0, pytest.approx(4 / 3)]
    assert float((out == 0).float().mean()) == pytest.approx(0.25, abs=0.02)
    assert float(out.mean()) == pytest.approx(1.0, abs=0.03)
    assert float((out == 0).float().mean((0, 1)).std()) < 0.15, "every feature is dropped about as often"


def test_a_mask_depends_on_seed_step_layer_row_and_position() -> None:
    model, masks = two_layers()
    first = drop(model, masks, 0)
    assert len(first.reshape(-1, 512).unique(dim=0)) == 4 * 6, "each token has its own"
    others = [drop(model, masks, 1), drop(*two_layers(seed=1), layer=0)]
    masks.start_step(0, 1)
    others.append(drop(model, masks, 0))
    masks.start_step(1, 0)
    others.append(drop(model, masks, 0))
    for other in others:
        same = (first == 0) & (other == 0)
        assert float(same.float().mean()) == pytest.approx(0.25**2, abs=0.02), "drawn independently"
    masks.start_step(0, 0)
    assert torch.equal(drop(model, masks, 0), first)


def test_a_mask_does_not_depend_on_the_batch() -> None:
    model, masks = two_layers()
    torch.manual_seed(1)
    whole = drop(model, masks, 0)
    torch.rand(3)
    assert torch.equal(drop(model, masks, 0, ROWS[2:]), whole[2:])
    assert torch.equal(drop(model, masks, 0, ROWS.flip(0)).flip(0), whole)
    layer = model[0]
    with masks.tokens(ROWS, PLACES):
        assert torch.equal(layer(torch.ones(24, 512)).reshape(4, 6, 512), whole), "flattened tokens"
        assert torch.equal(layer(torch.ones(4, 512)), whole[:, 0]), "pooled rows"


def test_gradients_pass_through_the_same_mask_and_evaluation_has_none() -> None:
    model, masks = two_layers()
    x = torch.rand(4, 6, 512, requires_grad=True)
    with masks.tokens(ROWS, PLACES):
        out = model[0](x)
    out.backward(torch.ones_like(out))
    assert x.grad is not None
    torch.testing.assert_close(x.grad * x.detach(), out.detach())
    model.eval()
    assert torch.equal(model[0](x), x)


def test_what_has_no_rows_is_refused() -> None:
    model, masks = two_layers()
    with pytest.raises(ModelError, match=r"without `DropoutMasks\.tokens`"):
        model[0](torch.ones(4, 6, 8))
    with masks.tokens(ROWS, PLACES), pytest.raises(ModelError, match=r"lora_dropout: .*\(5, 8\).*\(4, 6\)"):
        model[0](torch.ones(5, 8))


def lora_model(folder: Path, kind: str, recompute: bool) -> tuple[nn.Module, DropoutMasks]:
    loader = transformers.AutoModel if kind == "bert" else transformers.AutoModelForCausalLM
    config = transformers.AutoConfig.from_pretrained(folder)
    turn_off_dropout(config)
    more = {"add_pooling_layer": False} if kind == "bert" else {}
    base = loader.from_pretrained(folder, config=config, attn_implementation="eager", **more)
    options = {"lora_r": 4, "lora_alpha": 8, "lora_dropout": 0.3, "target_modules": "all-linear", "seed": 0}
    model = lora.attach(base, **options)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                torch.manual_seed(len(name))
                nn.init.normal_(weight, std=0.1)
    masks = DropoutMasks(3)
    masks.install(model)
    if recompute:
        kwargs = {"use_reentrant": False, "context_fn": masks.checkpoint_contexts}
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=kwargs)
    return model.train(), masks


@pytest.mark.parametrize("kind", ["bert", "qwen2"])
def test_gradients_are_the_same_for_any_division_and_when_recomputed(tiny: dict[str, Path], kind: str) -> None:
    """Forward passes of all parts come before the first backward pass, as in a contrastive loss."""
    ids = torch.randint(3, 13, (6, 10), generator=torch.Generator().manual_seed(0))
    found = []
    for recompute in (False, True):
        for parts in ([range(6)], [range(2), range(2, 3), range(3, 6)], [[5, 0, 3], [1, 4, 2]]):
            model, masks = lora_model(tiny[kind], kind, recompute)
            masks.start_step(2, 5)
            losses = []
            for rows in (torch.tensor(list(part)) for part in parts):
                with masks.tokens(rows[:, None], torch.arange(10)[None]):
                    out = model(input_ids=ids[rows], attention_mask=torch.ones_like(ids[rows]))[0]
                direction = torch.linspace(-1, 1, out.shape[-1])
                losses.append((out.float() * direction).sum(-1).square().mean(-1).sum())
            for loss in losses:
                loss.backward()
            found.append([weight.grad for weight in model.parameters() if weight.requires_grad])
    assert any(float(gradient.abs().max()) > 1e-3 for gradient in found[0])
    for other in found[1:]:
        for one, two in zip(found[0], other, strict=True):
            torch.testing.assert_close(two, one, rtol=1e-4, atol=1e-5 * float(one.abs().max() + 1e-6))


def test_every_dropout_rate_of_a_config_is_turned_off() -> None:
    kinds = (transformers.BertConfig, transformers.GPT2Config, transformers.DistilBertConfig, transformers.T5Config)
    for config in (kind() for kind in kinds):
        turn_off_dropout(config)
        rates = {name: value for name, value in config.to_dict().items() if "drop" in name}
        assert rates
        assert not any(rates.values()), rates
    nested = transformers.LlavaConfig(text_config=transformers.Qwen2Config(attention_dropout=0.5))
    turn_off_dropout(nested)
    assert nested.text_config.attention_dropout == 0
