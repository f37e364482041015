"""Texts that count as secrets, and others that do not."""

from __future__ import annotations

import pytest

from ratchet.orchestrator.secrets import contains_secret

DIGITS = "0123456789abcdef" * 4

SECRETS = [
    f"glpat-{DIGITS[:20]}",
    f"github_pat_{DIGITS[:22]}_{DIGITS[:59]}",
    f"ghp_{DIGITS[:36]}",
    f"hf_{DIGITS[:34]}",
    f"AIza{DIGITS[:35]}",
    f"nvapi-{DIGITS[:64]}",
    f"WANDB_API_KEY={DIGITS[:40]}",
    f'{{"wandb_key": "{DIGITS[:40]}"}}',
    f"npm_{DIGITS[:36]}",
    f"pypi-{DIGITS[:60]}",
    "https://somebody:correct-horse@example.org/x.git",
    "postgresql://tracker:s3cret@db:5432/mlflow",
    "users:\n- name: me\n  user:\n    client-key-data: LS0t",
    "-----BEGIN OPENSSH PRIVATE KEY-----",
]

PLAIN = [
    f"commit {DIGITS[:40]}",
    f"sha256:{DIGITS}",
    "https://example.org:8080/a@b",
    "https://user@example.org/x.git",
    "https://user:${TOKEN}@example.org/x.git",
    "s3://bucket/prefix",
    "ratchet run retriever --set data=/data/x:y@z",
]


@pytest.mark.parametrize("text", SECRETS)
def test_keys_and_passwords_are_found(text: str) -> None:
    assert contains_secret(text)
    assert contains_secret(f"# before\n{text}\n# after")


@pytest.mark.parametrize("text", PLAIN)
def test_other_texts_are_not(text: str) -> None:
    assert not contains_secret(text)
