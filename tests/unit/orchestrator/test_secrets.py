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
    f"AKIA{DIGITS[:16].upper()}",
    "aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    "AWS_SESSION_TOKEN=FwoGZXIvYXdzEJr//////////wEaD",
    "https://hooks.slack.com/services/T00000000/B00000000/XXXXXXXXXXXXXXXXXXXXXXXX",
    "https://example.org/v1/rerank?api_key=0123456789abcdef",
    "https://account.blob.core.windows.net/a?sv=2022&sig=abcdefgh%2Fijklmnop%3D",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dBjftJeZ4CVP",
    f"jina_{DIGITS[:40]}",
    "COHERE_API_KEY=abcdefghijklmnopqrstuvwxyz0123456789ABCD",
    f"GITHUB_PAT={DIGITS[:40]}",
    "PGPASSWORD=correct-horse",
    "DATABASE_URL=postgres://me:correct-horse@db/prod",
    "redis://:correct-horse@cache:6379/0",
]

PLAIN = [
    f"commit {DIGITS[:40]}",
    f"sha256:{DIGITS}",
    "https://example.org:8080/a@b",
    "https://user@example.org/x.git",
    "https://user:${TOKEN}@example.org/x.git",
    "s3://bucket/prefix",
    "rerank_api.key_variable=COHERE_API_KEY",
    "sft.max_new_tokens=100000",
    "https://example.org/search?q=keys&page=2",
    "https://example.org/x?token=${TOKEN}",
    "PASSWORD=$FROM_FILE",
    "sft.target_modules=q_proj,k_proj",
    "ratchet run retriever --set data=/data/x:y@z",
]


@pytest.mark.parametrize("text", SECRETS)
def test_keys_and_passwords_are_found(text: str) -> None:
    assert contains_secret(text)
    assert contains_secret(f"# before\n{text}\n# after")


@pytest.mark.parametrize("text", PLAIN)
def test_other_texts_are_not(text: str) -> None:
    assert not contains_secret(text)
