"""Conversations, the loss on answers, and generated answers; against transformers' own loss and `generate`."""

from __future__ import annotations

import dataclasses
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from chat_tokenizers import CHAT, shown, tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from ratchet.errors import ModelError
from ratchet.models.batching import batch_by_tokens
from ratchet.models.decoder import decoder
from ratchet.models.decoder.conversation import Tokens
from ratchet.models.decoder.multi_turn import ConversationState, converse, tokenize_prompts
from ratchet.models.decoder.sampling import (
    InverseTransformSampler,
    Sampling,
    draw_uniforms,
    generate,
)
from ratchet.models.losses import causal_lm_loss

# They generate.
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("chat")
    fast = tokenizer()
    fast.chat_template = CHAT
    fast.save_pretrained(made)
    size = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    heads = {"num_key_value_heads": 2, "max_position_embeddings": 512, "initializer_range": 0.3}
    torch.manual_seed(0)
    Qwen2ForCausalLM(Qwen2Config(vocab_size=264, **size, **heads)).save_pretrained(made)
    return made


@pytest.fixture(scope="module")
def tiny(folder: Path) -> decoder.Decoder:
    return decoder.load(folder, dtype="float32", device="cpu")


def test_labels_are_the_answers_and_what_ends_them(tiny: decoder.Decoder) -> None:
    talks = tiny.conversations
    found = talks.tokenize_sample("Be brief.", ["1+1?", "and 2+2?"], ["2", "It is 4"])
    assert shown(talks, found) == (
        "<s>system\nBe brief.<e>\n<s>user\n1+1?<e>\n<s>assistant\n[2<e>]\n"
        "<s>user\nand 2+2?<e>\n<s>assistant\n[It is 4<e>]\n"
    )
    assert found.labels == 2 + 8
    # What stands before an answer in generation stands there in training.
    for turn in (1, 2):
        asked = talks.tokenize_sample(
            "Be brief.", ["1+1?", "and 2+2?"][:turn], ["2", "It is 4"][: turn - 1]
        ).ids
        assert found.ids[: len(asked)] == asked
        assert found.trained[len(asked)]
    assert talks.decode([*talks.tokenizer("4")["input_ids"], 3, 5, 6]) == "4"


class Counting:
    """A tokenizer that counts its calls."""

    def __init__(self, own: Any) -> None:
        self.own, self.calls = own, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.own, name)

    def __call__(self, *given: Any, **options: Any) -> Any:
        self.calls += 1
        return self.own(*given, **options)


def test_conversations_tokenized_together(folder: Path, tiny: decoder.Decoder) -> None:
    talks, alone = decoder.load_conversations(folder), tiny.conversations
    questions, systems = ["1+1?", "and 2+2?"], ["Be brief.", ""] * 3
    samples = [(system, questions, [f"{n}", "It is 4"]) for n, system in enumerate(systems)]
    states = [
        ConversationState("a", system, questions, [f"{n}"] * (n % 2))
        for n, system in enumerate(systems)
    ]
    asked = [(one.system, questions[: len(one.answers) + 1], one.answers) for one in states]
    counting = talks.tokenizer = Counting(talks.tokenizer)
    assert talks.tokenize_samples(samples) == [alone.tokenize_sample(*one) for one in samples]
    assert tokenize_prompts(states, talks) == [alone.tokenize_sample(*one).ids for one in asked]
    assert counting.calls == 2
    assert talks.tokenize_samples([]) == tokenize_prompts([], talks) == []


TEXTS = [
    ("2+2?", "4"),
    ("Name three of them, please.", "a, b and c"),
    ("x", "y" * 40),
    ("Why?", "Because it is so."),
]


def examples(tiny: decoder.Decoder) -> list[Tokens]:
    return [
        tiny.conversations.tokenize_sample("", [question], [answer]) for question, answer in TEXTS
    ]


def plain_loss(model: Any, chosen: list[Tokens]) -> torch.Tensor:
    """transformers' own, one conversation at a time, summed over labels."""
    total = torch.zeros(())
    for one in chosen:
        labels = torch.tensor(
            [[token if own else -100 for token, own in zip(one.ids, one.trained, strict=True)]]
        )
        total = total + model(input_ids=torch.tensor([one.ids]), labels=labels).loss * one.labels
    return total


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("chunk", [5, 1024])
def test_the_loss_is_transformers_own(
    tiny: decoder.Decoder, monkeypatch: pytest.MonkeyPatch, attention: str, chunk: int
) -> None:
    monkeypatch.setattr(causal_lm_loss, "CHUNK", chunk)
    tiny.model.set_attn_implementation(attention)
    chosen = examples(tiny)
    tiny.model.zero_grad()
    expected = plain_loss(tiny.model, chosen)
    expected.backward()
    wanted = {name: p.grad.clone() for name, p in tiny.model.named_parameters()}
    tiny.model.zero_grad()
    found = causal_lm_loss.compute_loss(tiny, chosen)
    found.backward()
    assert float(found.detach()) == pytest.approx(float(expected.detach()), rel=1e-5)
    for name, parameter in tiny.model.named_parameters():
        torch.testing.assert_close(parameter.grad, wanted[name], rtol=1e-3, atol=2e-5, msg=name)


def test_a_teachers_loss_is_the_formula(
    tiny: decoder.Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(causal_lm_loss, "CHUNK", 7)
    chosen = examples(tiny)
    torch.manual_seed(3)
    teachers = []
    for one in chosen:
        logits = torch.randn(one.labels, 264)
        best = torch.log_softmax(logits, -1).topk(4)
        teachers.append(
            causal_lm_loss.TeacherLogprobs(best.indices.int().numpy(), best.values.numpy())
        )
    warmth, share = 2.0, 0.3
    soft = torch.zeros(())
    for one, teacher in zip(chosen, teachers, strict=True):
        logits = tiny.model(input_ids=torch.tensor([one.ids])).logits[0]
        at = [i - 1 for i, own in enumerate(one.trained) if own]
        model_log = torch.log_softmax(logits[at] / warmth, -1)
        wanted = torch.softmax(torch.from_numpy(teacher.logprob_TK) / warmth, -1)
        picked = model_log.gather(1, torch.from_numpy(teacher.ids_TK).long())
        soft = soft + (wanted * (wanted.log() - picked)).sum() * warmth**2
    expected = share * plain_loss(tiny.model, chosen) + (1 - share) * soft
    found = causal_lm_loss.compute_loss(tiny, chosen, teachers, ce_weight=share, temperature=warmth)
    assert float(found.detach()) == pytest.approx(float(expected.detach()), rel=1e-5)


def test_a_model_that_teaches_itself_has_nothing_to_learn(tiny: decoder.Decoder) -> None:
    chosen = examples(tiny)
    own = causal_lm_loss.top_logprobs(tiny, chosen, 10_000, 10_000)  # all there are
    assert [len(teacher.ids_TK) for teacher in own] == [one.labels for one in chosen]
    found = causal_lm_loss.compute_loss(tiny, chosen, own, ce_weight=0.0)
    assert float(found.detach()) == pytest.approx(0, abs=1e-4)


def test_teacher_tokens_are_in_the_student(tiny: decoder.Decoder) -> None:
    chosen = examples(tiny)
    all_of_it, limited = (
        causal_lm_loss.top_logprobs(tiny, chosen, 10_000, rows) for rows in (10_000, 40)
    )
    for every, own in zip(all_of_it, limited, strict=True):
        assert own.ids_TK.shape[1] == own.ids_TK.max() + 1 == 40 < every.ids_TK.shape[1]
        kept = {
            (t, i): p
            for t, ids in enumerate(every.ids_TK)
            for i, p in zip(ids, every.logprob_TK[t], strict=True)
        }
        for t, ids in enumerate(own.ids_TK):
            assert own.logprob_TK[t].tolist() == [kept[t, i] for i in ids]


@settings(deadline=None)
@given(st.integers(0, 5), st.floats(0.2, 3.0), st.sampled_from([(0, 1.0), (3, 1.0), (0, 0.6)]))
def test_even_numbers_draw_tokens_as_often_as_they_are_likely(
    seed: int, temperature: float, cut: tuple[int, float]
) -> None:
    """A grid of uniform numbers must find each token in proportion to its probability."""
    top_k, top_p = cut
    logits = torch.randn(1, 6, generator=torch.Generator().manual_seed(seed))
    grid = (np.arange(4000) + 0.5) / 4000
    how = Sampling(temperature=temperature, top_k=top_k, top_p=top_p)
    drawn = InverseTransformSampler(grid[:, None], how, start=2)(
        torch.zeros(4000, 2, dtype=torch.long), logits.expand(4000, -1)
    )
    assert bool((torch.isfinite(drawn).sum(1) == 1).all())
    share = torch.bincount(drawn.argmax(1), minlength=6) / 4000
    likely = torch.softmax(logits[0] / temperature, 0)
    order = likely.argsort(descending=True)
    if top_k:
        likely[order[top_k:]] = 0
    before = likely[order].cumsum(0) - likely[order]
    likely[order[before >= top_p]] = 0
    torch.testing.assert_close(share, likely / likely.sum(), atol=1e-3, rtol=0)


def test_uniform_numbers_follow_from_their_name() -> None:
    assert np.array_equal(draw_uniforms(1, "a/0/0", 8)[:5], draw_uniforms(1, "a/0/0", 5))
    assert not np.array_equal(draw_uniforms(1, "a/0/0", 5), draw_uniforms(1, "a/1/0", 5))
    assert not np.array_equal(draw_uniforms(1, "a/0/0", 5), draw_uniforms(2, "a/0/0", 5))


def prompts(tiny: decoder.Decoder, count: int = 7) -> list[list[int]]:
    return [
        tiny.conversations.tokenize_sample("", ["q" * (1 + 5 * i % 17)], []).ids
        for i in range(count)
    ]


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_answers_do_not_depend_on_who_shares_the_batch(
    tiny: decoder.Decoder, temperature: float
) -> None:
    tiny.model.set_attn_implementation("sdpa")
    how = Sampling(temperature=temperature, max_new_tokens=12, seed=4)
    given_, names = prompts(tiny), [f"{i}" for i in range(7)]
    together = generate(tiny, given_, names, how, batch_tokens=10_000)
    assert together == [
        generate(tiny, [p], [n], how)[0] for p, n in zip(given_, names, strict=True)
    ]
    backwards = generate(tiny, given_[::-1], names[::-1], how, batch_tokens=100)
    assert together == backwards[::-1]
    if temperature:
        assert together != generate(tiny, given_, names, dataclasses.replace(how, seed=5))
    else:
        for prompt, answer in zip(given_, together, strict=True):
            plain = tiny.model.generate(
                torch.tensor([prompt]),
                max_new_tokens=12,
                do_sample=False,
                eos_token_id=[1, 3],
                pad_token_id=0,
            )
            assert answer == plain[0, len(prompt) :].tolist()


@pytest.mark.parametrize("pad", ["<pad>", "<end>", None])
def test_a_stopped_answer_gets_no_end_token_from_the_batch(
    folder: Path, tmp_path: Path, pad: str | None
) -> None:
    """Where the end of a sequence pads, too, as for Llama and Qwen2.5."""
    shutil.copytree(folder, tmp_path / "model")
    fast = tokenizer(pad_token=pad)
    fast.chat_template = CHAT
    fast.save_pretrained(tmp_path / "model")
    own = decoder.load(tmp_path / "model", dtype="float32", device="cpu")
    how = Sampling(temperature=1.5, max_new_tokens=60, seed=1)
    free = generate(own, prompts(own), list("abcdefg"), how)
    stop = next(
        text[10]
        for text in map(own.conversations.decode, free)
        if len(text) > 12 and text[10].isascii()
    )
    how = dataclasses.replace(how, stop=(stop,))
    together = generate(own, prompts(own), list("abcdefg"), how)
    assert together == [
        generate(own, [p], [n], how)[0] for p, n in zip(prompts(own), "abcdefg", strict=True)
    ]
    assert len({len(ids) for ids in together}) > 2
    assert any(ids[-1] not in own.conversations.ends for ids in together)


def test_an_answer_ends_where_its_stop_stands(tiny: decoder.Decoder) -> None:
    how = Sampling(temperature=1.5, max_new_tokens=60, seed=1)
    free = [
        tiny.conversations.decode(ids)
        for ids in generate(tiny, prompts(tiny), list("abcdefg"), how)
    ]
    stop = next(text[10] for text in free if len(text) > 12 and text[10].isascii())
    held = [
        tiny.conversations.decode(ids)
        for ids in generate(
            tiny, prompts(tiny), list("abcdefg"), dataclasses.replace(how, stop=(stop,))
        )
    ]
    assert held == [text[: text.index(stop) + 1] if stop in text else text for text in free]
    assert held != free


def test_batches_keep_to_their_budget() -> None:
    made = batch_by_tokens([15, 100, 17, 18], 40, 1)
    assert [batch.tolist() for batch in made] == [[1], [3, 2], [0]]


def test_conversation_turns_and_token_counts(tiny: decoder.Decoder) -> None:
    talks = [
        ConversationState("a", "Be brief.", ["one?", "two?"]),
        ConversationState("b", "", ["three?"]),
    ]
    converse(tiny, talks, Sampling(temperature=1.0, max_new_tokens=5, seed=2))
    assert [len(talk.answers) for talk in talks] == [2, 1]
    prompts_ = [
        tiny.conversations.tokenize_sample(
            "Be brief.", ["one?", "two?"][:n], talks[0].answers[: n - 1]
        ).ids
        for n in (1, 2)
    ]
    assert talks[0].prompt_tokens == sum(map(len, prompts_))
    assert talks[0].new_prompt_tokens < talks[0].prompt_tokens
    assert talks[1].new_prompt_tokens == talks[1].prompt_tokens
    with pytest.raises(ModelError, match=r"prompt of b: .* expected at most 3"):
        converse(tiny, [ConversationState("b", "", ["three?"])], Sampling(), max_prompt_length=3)


def test_other_tokens_cannot_teach(folder: Path, tmp_path: Path) -> None:
    decoder.check(folder)
    decoder.check_same_tokens(folder, folder)
    other = tokenizer()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet(), reverse=True)
    words = Tokenizer(
        models.BPE(
            {name: i for i, name in enumerate(["<pad>", "<end>", "<s>", "<e>", *alphabet])}, []
        )
    )
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    other = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<end>")
    other.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    with pytest.raises(ModelError, match="their tokens of a conversation differ"):
        decoder.check_same_tokens(folder, tmp_path)


@pytest.mark.parametrize(
    ("template", "eos", "says"),
    [
        (None, "<e>", "their tokens of a conversation differ"),
        (None, "<end>", ""),
        (CHAT, "<end>", "their tokens of a conversation differ"),
    ],
)
def test_student_with_other_ends_is_refused(
    tmp_path: Path, template: str | None, eos: str, says: str
) -> None:
    """The two tokenizers have the same vocabulary and split every text alike."""
    for name, own_template, own_eos in (("teacher", None, "<end>"), ("student", template, eos)):
        fast = tokenizer(eos_token=own_eos)
        fast.chat_template = own_template
        fast.save_pretrained(tmp_path / name)
    if not says:
        return decoder.check_same_tokens(tmp_path / "teacher", tmp_path / "student")
    with pytest.raises(ModelError, match=re.escape(says)):
        decoder.check_same_tokens(tmp_path / "teacher", tmp_path / "student")


def test_end_tokens_of_templates(folder: Path, tmp_path: Path) -> None:
    for name, template, eos in (
        ("instruct", CHAT, "<e>"),
        ("other", CHAT.replace("<e>\n{% endfor", "<s>\n{% endfor"), "<end>"),
    ):
        fast = tokenizer(eos_token=eos)
        fast.chat_template = template
        fast.save_pretrained(tmp_path / name)
    # Both train on <e>, with which the template closes answers.
    decoder.check_same_tokens(folder, tmp_path / "instruct")
    with pytest.raises(ModelError, match=r"expected the same, .* chat template and eos_token"):
        decoder.check_same_tokens(folder, tmp_path / "other")
