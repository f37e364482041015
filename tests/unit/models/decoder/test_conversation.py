"""Chat templates of many kinds: prompts, labels, and the tokens that end answers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from chat_tokenizers import CHAT, shown, tokenizer
from tokenizers import AddedToken, processors

from ratchet.errors import ModelError
from ratchet.models.decoder import decoder
from ratchet.models.decoder.conversation import Conversations


def test_a_tokenizer_without_template_gets_a_plain_one() -> None:
    talks = Conversations(tokenizer())
    assert (
        shown(talks, talks.tokenize_sample("Sys", ["Q", "R"], ["A", "B"]))
        == "Sys\n\nQ\n\n[A<end>]R\n\n[B<end>]"
    )
    assert talks.ends == {1}


def test_tokenizer_keeps_its_first_token() -> None:
    fast = tokenizer(bos_token="<s>")
    fast.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 2)]
    )
    talks = Conversations(fast)
    found = talks.tokenize_sample("Sys", ["Q", "R"], ["A", "B"])
    assert shown(talks, found) == "<s>Sys\n\nQ\n\n[A<end>]R\n\n[B<end>]"
    assert talks.tokenize_sample("Sys", ["Q"], []).ids == fast("Sys\n\nQ\n\n")["input_ids"]
    # A chat template writes the token itself, if the model wants it.
    fast.chat_template = CHAT
    again = Conversations(fast)
    assert (
        shown(again, again.tokenize_sample("", ["Q"], ["A"]))
        == "<s>user\nQ<e>\n<s>assistant\n[A<e>]\n"
    )


def test_a_tokenizer_without_template_keeps_no_last_token() -> None:
    fast = tokenizer(bos_token="<s>")
    fast.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A <end>", pair="<s> $A $B <end>", special_tokens=[("<s>", 2), ("<end>", 1)]
    )
    talks = Conversations(fast)
    assert shown(talks, talks.tokenize_sample("", ["Q"], ["A"])) == "<s>Q\n\n[A<end>]"


def test_template_without_end_gets_eos() -> None:
    fast = tokenizer()
    fast.chat_template = "{% for m in messages %}{{ m.content }}\n\n{% endfor %}"
    talks = Conversations(fast)
    talks.check_labels()
    found = talks.tokenize_sample("", ["Q", "R"], ["A", "B"])
    assert shown(talks, found) == "Q\n\n[A\n\n<end>]R\n\n[B\n\n<end>]"
    asked = talks.tokenize_sample("", ["Q", "R"], ["A"]).ids
    assert found.ids[: len(asked)] == asked
    assert talks.tokenizer.decode(asked) == "Q\n\nA\n\n<end>R\n\n"


USER, ASSISTANT, TURN = "<|user|>", "<|assistant|>", "<|end|>"
GEMMA = (
    "{{ bos_token }}{% for m in messages %}{{ '<start>' + ('model' if m.role == 'assistant' else m.role) + '\\n'"
    " + m.content | trim + '<|end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<start>model\\n' }}{% endif %}"
)
PHI = (
    "{% for m in messages %}{{ '<|' + m.role + '|>\\n' + m.content + '<|end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% else %}{{ eos_token }}{% endif %}"
)
GLM = (
    "[sop]{% for m in messages %}{{ '<|' + m.role + '|>\\n' + m.content }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"
)
LLAMA2 = (
    "{% for m in messages %}{% if m.role == 'user' %}{{ bos_token + '[INST] ' + m.content + ' [/INST]' }}"
    "{% else %}{{ ' ' + m.content + ' ' + eos_token }}{% endif %}{% endfor %}"
)
SEPARATED = (
    "{% for m in messages %}{{ m.role + ': ' + m.content }}{% if m.role == 'assistant' %}{{ '\\n<|end|>' }}{% endif %}"
    "{{ '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"
)
THINKING = (
    "{% for m in messages %}{{ '<|' + m.role + '|>' }}"
    "{% if m.role == 'assistant' and loop.last %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}"
    "{{ m.content + '<|end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}"
    "{% if enable_thinking is defined and not enable_thinking %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}"
    "{% endif %}"
)


def added(special: str, template: str | None) -> Any:
    """A tokenizer whose tokens of turns are special by name, special in tokenizer.json only, or not special."""
    names = ["<s>", "<e>", "<start>", USER, ASSISTANT, TURN, "<think>", "</think>"]
    fast = tokenizer(bos_token="<s>", extra_special_tokens=names if special == "named" else [])
    fast.backend_tokenizer.add_tokens(
        [AddedToken(name, special=special == "file", normalized=False) for name in names]
    )
    fast.chat_template = template
    return fast


@pytest.mark.parametrize("special", ["named", "file", "not"])
@pytest.mark.parametrize(
    ("template", "sample"),
    [
        (CHAT.replace("<e>", TURN), "<s>user\nQ<|end|>\n<s>assistant\n[A<|end|>]\n"),
        (GEMMA, "<s><start>user\nQ<|end|>\n<start>model\n[A<|end|>]\n"),
        (PHI, "<|user|>\nQ<|end|>\n<|assistant|>\n[A<|end|>]\n<end>"),
        (GLM, "[sop]<|user|>\nQ<|assistant|>\n[A<|user|>]"),
        (LLAMA2, "<s>[INST] Q [/INST][ A <end>]"),
        (SEPARATED, "user: Q\nassistant:[ A\n<|end|>]\n"),
        (None, "Q\n\n[A<end>]"),
    ],
    ids=["chatml", "gemma", "phi", "glm", "llama2", "separated", "none"],
)
def test_answer_ends_with_its_end_token(
    template: str | None, sample: str, special: str, tmp_path: Path
) -> None:
    added(special, template).save_pretrained(tmp_path)
    talks = decoder.load_conversations(tmp_path)
    talks.check_labels()
    found = talks.tokenize_sample("", ["Q"], ["A"])
    assert shown(talks, found) == sample
    asked = talks.tokenize_sample("", ["Q"], []).ids
    assert found.ids[: len(asked)] == asked
    last = [token for token, trained in zip(found.ids, found.trained, strict=True) if trained][-1]
    assert last in talks.ends
    assert (
        talks.decode([*talks.tokenizer("A b", add_special_tokens=False)["input_ids"], last, 70])
        == "A b"
    )


def test_the_next_turn_begins_with_the_end_of_an_answer() -> None:
    talks = Conversations(added("not", GLM))
    found = talks.tokenize_sample("", ["Q", "R"], ["A", "B"])
    assert (
        shown(talks, found)
        == "[sop]<|user|>\nQ<|assistant|>\n[A<|user|>]\nR<|assistant|>\n[B<|user|>]"
    )
    asked = talks.tokenize_sample("", ["Q", "R"], ["A"]).ids
    assert found.ids[: len(asked)] == asked
    assert (
        talks.tokenizer.decode(asked)
        == "[sop]<|user|>\nQ<|assistant|>\nA<|user|>\nR<|assistant|>\n"
    )


def test_tokens_that_end_the_models_generation_end_answers(tmp_path: Path) -> None:
    fast = added("not", CHAT)
    fast.save_pretrained(tmp_path)
    letter = fast.convert_tokens_to_ids("A")
    for given, more in (
        (fast.convert_tokens_to_ids(TURN), {TURN}),
        ([1, fast.convert_tokens_to_ids(USER)], {USER}),
    ):
        (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": given}))
        ends = fast.convert_ids_to_tokens(sorted(decoder.load_conversations(tmp_path).ends))
        assert set(ends) == {"<end>", "<e>", *more}
    # The default of a config may be a letter of this tokenizer.
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": letter}))
    assert letter not in decoder.load_conversations(tmp_path).ends


@pytest.mark.parametrize(
    ("template", "says"),
    [
        (
            CHAT[: CHAT.index("{% if add")],
            r"writes '<s>assistant\n' before an answer, and nothing for add_generation",
        ),
        (GLM[: GLM.index("{% if add")], r"writes '<|assistant|>\n' before an answer"),
        (
            CHAT.replace("<e>", "<|not_a_token|>"),
            r"closes answers with the text '<|not_a_token|>\n'",
        ),
        ("{% for m in messages %}{{ m.content }}|{% endfor %}", "closes answers with the text '|'"),
        ("{% for m in messages %}{{ m.role }}<e>{% endfor %}", "does not render the answer"),
        (
            CHAT.replace("assistant\n{% endif", "assistant\n<think>\n{% endif"),
            "rewrites earlier turns, or the prompt",
        ),
        ("{{ 'a }}", "cannot render"),
        ({"tool_use": CHAT}, "does not render the answer"),
    ],
)
def test_a_template_with_wrong_prompts_or_ends_is_refused(template: Any, says: str) -> None:
    with pytest.raises(ModelError, match=re.escape(says)):
        Conversations(added("named", template))


@pytest.mark.parametrize(
    "template",
    [
        THINKING,
        CHAT.replace("assistant\n{% endif", "{% endif"),
        CHAT.replace("{{ m.content }}", "{{ '<think>' if m.role == 'assistant' }}{{ m.content }}"),
    ],
    ids=["thinking", "half a prompt", "token before the answer"],
)
def test_labels_are_the_answer_and_its_end_or_refused(template: str) -> None:
    talks = Conversations(added("named", template))
    with pytest.raises(ModelError, match=r"makes the labels .* of the answer 'Answer 42\.'"):
        talks.check_labels()


def test_an_argument_can_give_the_template_the_whole_prompt() -> None:
    talks = Conversations(added("named", THINKING), {"enable_thinking": False})
    talks.check_labels()
    assert shown(talks, talks.tokenize_sample("", ["Q"], ["A"])).endswith(
        "</think>\n\n[A<|end|>]\n"
    )


def test_what_cannot_be_rendered_is_named() -> None:
    with pytest.raises(ModelError, match="no end-of-sequence token"):
        Conversations(tokenizer(eos_token=None))
    fast = tokenizer()
    fast.chat_template = "{{ messages[-1].content }}"
    with pytest.raises(ModelError, match="rewrites earlier turns"):
        Conversations(fast).tokenize_sample("", ["Q", "R"], ["A", "B"])
    fast.chat_template = "{{ raise_exception('no system') if messages[0].role == 'system' }}" + CHAT
    with pytest.raises(ModelError, match=r"cannot render roles \['system', 'user'\]"):
        Conversations(fast).tokenize_sample("Sys", ["Q"], [])


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (
            "{% if strftime_now is defined %}{{ strftime_now('%d %b %Y') }}{% else %}26 Jul 2024{% endif %}",
            "26 Jul 2024",
        ),
        ('{%- set today = strftime_now( "%Y-%m-%d" ) -%}{{ today }}', "2024-07-26"),
        ("{{ strftime_now('%A') + ' ' + strftime_now('%H:%M') }}", "Friday 00:00"),
    ],
)
def test_the_prompt_is_the_same_every_day(template: str, expected: str, tmp_path: Path) -> None:
    fast = tokenizer()
    fast.chat_template = template + CHAT
    message = [{"role": "user", "content": "a"}]
    assert not fast.apply_chat_template(message, tokenize=False).startswith(expected + "<s>")
    fast.save_pretrained(tmp_path)
    talks = decoder.load_conversations(tmp_path)
    assert fast.decode(talks.tokenize_sample("", ["a"], []).ids).startswith(expected + "<s>")
