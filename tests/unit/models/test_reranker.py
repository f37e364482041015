"""Rerankers against plain transformers and against sentence-transformers' CrossEncoder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tokenizers
import torch
import transformers
from architectures import make, save_causal
from tiny_models import save_chat_model

from ratchet.errors import ModelError
from ratchet.models.loading import save_weights
from ratchet.models.model_files import RERANKER_CONFIG_FILE
from ratchet.models.reranker import prefix_sharing, reranker
from ratchet.models.reranker.reranker_config import (
    YES_NO,
    PairTokenizer,
    RerankerConfig,
    read_reranker_config,
)

# They make models of real architectures.
pytestmark = pytest.mark.slow

ASK = RerankerConfig(
    "yes_no", 64, None, "w1{text}", "w2{text}", "w", "w3w3", answer="w", against="9"
)
"""For the tiny decoder, whose tokens are the characters w and 0 to 9."""

QUERIES = ["w1", "w22w3", "w4w5w6w7", "w30"]
PASSAGES = [["w8", "w9w10", "w11"], ["w9w10"], [], ["w12w13w14w15w16w17", "w8"]]


@pytest.fixture(scope="module")
def cross_encoder(minilm: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MiniLM with a random head, saved."""
    folder = tmp_path_factory.mktemp("cross-encoder")
    torch.manual_seed(1)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(minilm, num_labels=1)
    with torch.no_grad():
        model.classifier.weight.mul_(20)
    model.save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(minilm).save_pretrained(folder)
    return folder


def plain_yes_no(folder: Path, reranker_config: RerankerConfig, query: str, passage: str) -> float:
    """One pair by the whole model, without any of ours."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def ids(text: str) -> list[int]:
        return tokenizer(text, add_special_tokens=False)["input_ids"]

    row = [
        *ids(reranker_config.query_template.replace("{text}", query)),
        *ids(reranker_config.separator),
        *ids(reranker_config.passage_template.replace("{text}", passage)),
        *ids(reranker_config.separator),
        *ids(reranker_config.prompt),
    ]
    with torch.inference_mode():
        logits_V = model(input_ids=torch.tensor([row])).logits[0, -1]
    against = float(logits_V[ids(reranker_config.against)[0]]) if reranker_config.against else 0.0
    return float(logits_V[ids(reranker_config.answer)[0]]) - against


@pytest.mark.parametrize("reranker_config", [ASK, replace(ASK, against="")])
@pytest.mark.parametrize("batch_tokens", [1, 2048])
def test_a_decoder_answers_as_its_whole_head_does(
    tiny: dict[str, Path], reranker_config: RerankerConfig, batch_tokens: int
) -> None:
    ours = reranker.load(
        tiny["qwen2"], dtype="float32", device="cpu", reranker_config=reranker_config
    )
    scores = ours.score(QUERIES, PASSAGES, batch_tokens=batch_tokens)
    assert [len(own) for own in scores] == [3, 1, 0, 2]
    for query, own, found in zip(QUERIES, PASSAGES, scores, strict=True):
        expected = [plain_yes_no(tiny["qwen2"], reranker_config, query, passage) for passage in own]
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    assert len({round(float(score), 3) for own in scores for score in own}) == 6


def test_a_cross_encoder_scores_as_sentence_transformers_does(cross_encoder: Path) -> None:
    from sentence_transformers import CrossEncoder

    queries = ["What is 1/2 + 1/3? The student says 2/5.", "long " * 300, "x"]
    passages = [
        ["Adds numerators and denominators.", "Forgets to flip the inequality. " * 40, ""],
        ["y", "z"],
        ["x"],
    ]
    theirs = CrossEncoder(str(cross_encoder), device="cpu", max_length=512)
    ours = reranker.load(cross_encoder, dtype="float32", device="cpu")
    assert ours.reranker_config.kind == "cross_encoder"
    found = ours.score([queries[0], queries[2]], [passages[0], passages[2]])
    expected = theirs.predict(
        [(queries[0], passage) for passage in passages[0]] + [(queries[2], "x")],
        activation_fn=torch.nn.Identity(),
    )
    np.testing.assert_allclose(np.concatenate(found), expected, rtol=1e-4, atol=1e-4)
    # Longer than a pair may be: the passage is there still, and each score is a number.
    (long,) = ours.score([queries[1]], [passages[1]])
    assert abs(long[0] - long[1]) > 1e-4


def test_a_tokenizer_written_in_python_makes_its_own_pairs() -> None:
    """One for each character, with [CLS] and [SEP]: it does not say which token is of which text."""
    tokenizer = transformers.CanineTokenizer()
    tokens = PairTokenizer(tokenizer, RerankerConfig("cross_encoder"))
    (((first, second),),) = tokens.tokenize_pairs(["ab"], [["cde"]])
    assert [*first, *second] == tokenizer("ab", "cde")["input_ids"]
    assert tokens.types == (0, 0)


def test_a_tokenizer_without_letters_is_refused() -> None:
    kind = tokenizers.models.BPE({"<pad>": 0, "w": 1}, [])
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer(kind), pad_token="<pad>"
    )
    with pytest.raises(
        ModelError,
        match=r"token ids \[\] of the text 'a', and \[\] of a pair of it; expected .*; use",
    ):
        PairTokenizer(tokenizer, RerankerConfig("cross_encoder"))


@pytest.mark.parametrize("filler", [None, -1, 0, 2])
def test_classifier_scores_alone_as_in_a_batch(tmp_path: Path, filler: int | None) -> None:
    """Whatever its config says of padding, for which the tokenizer has a token of its own."""
    save_chat_model(tmp_path, ["w1 w2 w3"], max_position_embeddings=64)
    config = transformers.AutoConfig.from_pretrained(tmp_path, num_labels=1, pad_token_id=None)
    torch.manual_seed(0)
    model = transformers.Qwen2ForSequenceClassification(config).eval()
    model.config.pad_token_id = filler
    model.save_pretrained(tmp_path)
    ours = reranker.load(tmp_path, dtype="float32", device="cpu")
    together = np.concatenate(ours.score(QUERIES, PASSAGES))
    pairs = [
        (query, passage) for query, own in zip(QUERIES, PASSAGES, strict=True) for passage in own
    ]
    alone = [float(ours.score([query], [[passage]])[0][0]) for query, passage in pairs]
    np.testing.assert_allclose(together, alone, atol=1e-5)
    model.config.pad_token_id = None
    with torch.no_grad():
        theirs = [
            float(model(torch.tensor([row.ids])).logits) for row in ours.tokenize(QUERIES, PASSAGES)
        ]
    np.testing.assert_allclose(alone, theirs, atol=1e-5)
    assert np.ptp(theirs) > 1e-3


def test_bfloat16_is_near(cross_encoder: Path) -> None:
    texts = ["Adds the denominators.", "Squares each term.", "Reads the scale wrongly."]
    scores = [
        reranker.load(cross_encoder, dtype=dtype, device="cpu").score(
            ["What is 1/2 + 1/3?"], [texts]
        )[0]
        for dtype in ("float32", "bfloat16")
    ]
    np.testing.assert_allclose(scores[1], scores[0], atol=0.05 * np.abs(scores[0]).max() + 0.01)


def test_a_text_that_is_in_many_pairs_is_tokenised_once(tiny: dict[str, Path]) -> None:
    ours = reranker.load(tiny["qwen2"], dtype="float32", device="cpu", reranker_config=ASK)
    seen: list[str] = []
    tokenizer = ours.tokens.tokenizer

    class Counting:
        def __call__(self, texts: list[str], **options: object) -> object:
            seen.extend(texts)
            return tokenizer(texts, **options)

    ours.tokens.tokenizer = Counting()
    ours.tokenize(QUERIES, PASSAGES)
    assert sorted(seen) == sorted(
        ["w1" + query for query in QUERIES]
        + ["w2" + text for text in {t for own in PASSAGES for t in own}]
    )


def test_what_is_too_long_is_cut_and_the_prompt_stays(tiny: dict[str, Path]) -> None:
    tokens = reranker.load(tiny["qwen2"], dtype="float32", device="cpu", reranker_config=ASK).tokens
    (query,), (passage,) = (
        tokens.tokenize(["7" * 500], "query"),
        tokens.tokenize(["8" * 500], "passage"),
    )
    first, second = tokens.split_pair(query, passage)
    ids = [*first, *second]
    assert len(ids) == 64
    prompt = tokens.tokenizer("w" + "w3w3", add_special_tokens=False)["input_ids"]
    assert ids[-len(prompt) :] == prompt
    seven, eight = (
        tokens.tokenizer(digit, add_special_tokens=False)["input_ids"][0] for digit in "78"
    )
    assert ids.count(seven) == 32 - 2
    assert ids.count(eight) == 64 - 32 - 1 - 5 - 2
    assert sum(map(len, tokens.split_pair(query[:3], passage))) == 64, (
        "what the query leaves, the passage gets"
    )


@pytest.mark.parametrize("most", [1, 30, 10_000])
def test_shared_rows_have_the_same_gradients(
    tiny: dict[str, Path], most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefix_sharing, "ROW_TOKENS", most)
    ours = reranker.load(
        tiny["qwen2"], dtype="float32", device="cpu", reranker_config=ASK, training=True
    )
    assert ours.shares_prefixes
    rows = ours.tokenize(QUERIES, PASSAGES)
    assert len(rows) == {1: 6, 30: 5, 10_000: 3}[most]
    assert sum(len(row.ends) for row in rows) == 6
    together = ours.forward(rows, 4)
    weights = torch.arange(1.0, 7.0)
    (together * weights).sum().backward()
    found = {
        name: parameter.grad.clone()
        for name, parameter in ours.model.named_parameters()
        if "lm_h" not in name
    }
    ours.model.zero_grad()

    ours.shares_prefixes = False
    alone = torch.cat([ours.forward([row]) for row in ours.tokenize(QUERIES, PASSAGES)])
    (alone * weights).sum().backward()
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-5)
    for name, gradient in found.items():
        expected = ours.model.get_parameter(name).grad
        assert float((gradient - expected).norm() / expected.norm()) < 1e-4, name


@pytest.mark.parametrize("kind", prefix_sharing.ARCHITECTURES)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_shared_prefixes_change_no_score(
    tiny: dict[str, Path], tmp_path: Path, kind: str, attention: str
) -> None:
    save_causal(kind, tmp_path, 43)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny["qwen2"])
    if kind in ("gemma2", "gpt_oss") and attention == "sdpa":
        pytest.skip("has no SDPA")
    plain = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, attn_implementation=attention
    ).eval()
    ours = reranker.Reranker(plain, tokenizer, ASK)
    assert ours.shares_prefixes
    together = np.concatenate(ours.score(QUERIES, PASSAGES))
    ours.shares_prefixes = False
    alone = np.concatenate(ours.score(QUERIES, PASSAGES))
    np.testing.assert_allclose(together, alone, rtol=1e-4, atol=1e-4)
    assert np.ptp(alone) > 0.1


@pytest.mark.parametrize(("window", "shares"), [(4, False), (64, True)])
def test_short_windows_do_not_share(
    tiny: dict[str, Path], tmp_path: Path, window: int, shares: bool
) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny["qwen2"])
    model.config.use_sliding_window, model.config.sliding_window, model.config.max_window_layers = (
        True,
        window,
        0,
    )
    model.config.layer_types = ["sliding_attention"] * 2
    model.save_pretrained(tmp_path)
    transformers.AutoTokenizer.from_pretrained(tiny["qwen2"]).save_pretrained(tmp_path)
    ours = reranker.load(tmp_path, dtype="float32", device="cpu", reranker_config=ASK)
    assert ours.shares_prefixes == shares
    assert ours.with_config(replace(ASK, max_length=65)).shares_prefixes is False
    assert ours.with_config(replace(ASK, max_length=65)).with_config(ASK).shares_prefixes == shares
    expected = [plain_yes_no(tmp_path, ASK, QUERIES[0], passage) for passage in PASSAGES[0]]
    np.testing.assert_allclose(ours.score(QUERIES, PASSAGES)[0], expected, rtol=1e-4, atol=1e-4)


def test_fresh_head_depends_on_its_seed(minilm: Path) -> None:
    with pytest.raises(ModelError, match="classifier"):
        reranker.load(minilm, device="cpu")
    reranker_config = RerankerConfig("cross_encoder", 128)
    weights = [
        reranker.load(
            minilm, device="cpu", reranker_config=reranker_config, training=True, seed=seed
        ).model.classifier.weight
        for seed in (1, 1, 2)
    ]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"answer": "w1"}, "the answer 'w1' is 2 tokens"),
        ({"prompt": "w" * 70}, "expected room for both"),
        ({"max_length": 4}, "expected room for both"),
        ({"query_max_length": 64}, "query_max_length: 64 given; expected 1 up to below"),
        ({"query_template": "A"}, r"with no {text} in it"),
    ],
)
def test_reranker_configs_that_cannot_work_are_named(
    tiny: dict[str, Path], change: dict[str, object], said: str
) -> None:
    with pytest.raises(ModelError, match=said):
        reranker.load(tiny["qwen2"], device="cpu", reranker_config=replace(ASK, **change))  # type: ignore[arg-type]


def test_a_head_that_does_more_than_multiply_is_refused(
    tiny: dict[str, Path], tmp_path: Path
) -> None:
    config = transformers.Gemma2Config(
        vocab_size=43,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        final_logit_softcapping=0.5,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    model = transformers.Gemma2ForCausalLM(config)
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(20)
    model.save_pretrained(tmp_path)
    transformers.AutoTokenizer.from_pretrained(tiny["qwen2"]).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="plain linear head"):
        reranker.load(tmp_path, device="cpu", dtype="float32", reranker_config=ASK)


def test_a_score_that_is_no_number_is_refused(cross_encoder: Path) -> None:
    ours = reranker.load(cross_encoder, dtype="float32", device="cpu")
    with torch.no_grad():
        ours.model.classifier.bias.fill_(torch.nan)
    with pytest.raises(ModelError, match="not finite"):
        ours.score(["x"], [["y"]])


def test_a_reranker_config_travels_with_its_folder(
    tmp_path: Path, tiny: dict[str, Path], minilm: Path
) -> None:
    ASK.write(tmp_path)
    assert read_reranker_config(tmp_path) == ASK
    assert read_reranker_config(tiny["qwen2"]) == YES_NO
    assert read_reranker_config(minilm) == RerankerConfig("cross_encoder", 512)
    (tmp_path / RERANKER_CONFIG_FILE).write_text('{"kind": "yes_no", "prompts": ""}')
    with pytest.raises(
        ModelError, match=r"reranker_config\.json: prompts: .*; expected a RerankerConfig"
    ):
        read_reranker_config(tmp_path)


@pytest.mark.parametrize("labels", [1, 2, 3])
def test_a_classifier_of_several_classes_is_no_reranker(
    tiny: dict[str, Path], tmp_path: Path, labels: int
) -> None:
    make(
        "bert",
        transformers.AutoModelForSequenceClassification,
        tmp_path,
        tiny["bert"],
        num_labels=labels,
    )
    if labels == 1:
        assert read_reranker_config(tmp_path).kind == "cross_encoder"
        return
    with pytest.raises(ModelError, match=f"a classifier of {labels} classes; expected one output"):
        read_reranker_config(tmp_path)


@pytest.mark.parametrize("tied", [False, True])
def test_a_decoder_that_is_trained_whole_is_saved_as_it_scores(
    tiny: dict[str, Path], tmp_path: Path, tied: bool
) -> None:
    base, target = tmp_path / "base", tmp_path / "trained"
    config = transformers.AutoConfig.from_pretrained(tiny["qwen2"], tie_word_embeddings=tied)
    torch.manual_seed(0)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(base)
    transformers.AutoTokenizer.from_pretrained(tiny["qwen2"]).save_pretrained(base)
    ours = reranker.load(base, dtype="float32", device="cpu", reranker_config=ASK, training=True)
    before = np.concatenate(ours.score(QUERIES, PASSAGES))
    optimizer = torch.optim.AdamW(ours.model.parameters(), lr=1e-2)
    for _ in range(3):
        optimizer.zero_grad()
        ours.forward(ours.tokenize(QUERIES, PASSAGES)).square().sum().backward()
        optimizer.step()
    scores = np.concatenate(ours.score(QUERIES, PASSAGES))
    save_weights(ours.model, base, target)
    again = reranker.load(target, dtype="float32", device="cpu", reranker_config=ASK)
    np.testing.assert_allclose(np.concatenate(again.score(QUERIES, PASSAGES)), scores, atol=1e-5)
    assert np.abs(scores - before).max() > 1e-3


def test_bfloat16_scores_are_not_rounded(tiny: dict[str, Path], tmp_path: Path) -> None:
    """Logits of language models are about 20, where bfloat16 has steps of 0.125."""
    ours = reranker.load(tiny["qwen2"], dtype="float32", device="cpu", reranker_config=ASK)
    pairs = [[f"w{i} {i * 7}" for i in range(200)]]
    with torch.no_grad():
        row = ours.tokenize(["w1"], [["2"]])[0]
        hidden_D = ours.backbone(input_ids=torch.tensor([row.ids])).last_hidden_state[0, -1]
        shift = 20 * hidden_D / (hidden_D @ hidden_D)
        ours.model.set_output_embeddings(torch.nn.Linear(32, 43, bias=False))
        ours.model.lm_head.weight.copy_(ours.model.get_input_embeddings().weight * 0.2 + shift)
    ours.model.config.tie_word_embeddings = False
    ours.model.save_pretrained(tmp_path)
    transformers.AutoTokenizer.from_pretrained(tiny["qwen2"]).save_pretrained(tmp_path)
    exact, rounded = (
        reranker.load(tmp_path, dtype=dtype, device="cpu", reranker_config=ASK).score(
            ["w1"], pairs
        )[0]
        for dtype in ("float32", "bfloat16")
    )
    assert len(np.unique(rounded)) > 0.9 * len(np.unique(exact))
    assert np.corrcoef(exact, rounded)[0, 1] > 0.95
