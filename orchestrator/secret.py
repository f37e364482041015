"""What looks like a secret. None is written into plans, results, reports, uploads or runtime environments, which many
may see: what a job needs lies where its machines find it (a role of theirs, or a file), and is at most named."""

from __future__ import annotations

import re

_FILE = re.compile(
    r"^\.env(\..*)?$|^\.netrc$|^\.pgpass$|^id_(rsa|dsa|ecdsa|ed25519)$|\.(pem|key|p12|pfx|jks|keystore)$"
    r"|^(credentials|secrets?|auth_token)(\.(json|ya?ml|toml|ini|txt))?$",
    re.IGNORECASE,
)
_TEXT = re.compile(
    rb"-----BEGIN [A-Z ]*PRIVATE KEY-----|\b(?:AKIA|ASIA)[0-9A-Z]{16}\b|\bhf_[A-Za-z0-9]{30,}\b"
    rb"|\bgh[pousr]_[A-Za-z0-9]{36,}\b|\bsk-[A-Za-z0-9_-]{32,}\b|\bxox[abprs]-[A-Za-z0-9-]{10,}"
    rb'|"private_key_id"\s*:'
)
_VARIABLE = re.compile(
    r"(^|_)(TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|(ACCESS|PRIVATE|ACCOUNT)_KEY)(?!\w*_(PATH|FILE|DIR)$)(_|$)"
)


def is_secret_file(name: str) -> bool:
    """By a file's name."""
    return bool(_FILE.search(name))


def is_secret_variable(name: str) -> bool:
    """By the name of an environment variable; one that names a file (HF_TOKEN_PATH) is no secret."""
    return bool(_VARIABLE.search(name))


def holds_secret(text: bytes | str) -> bool:
    """Whether a key or token of a known form is in it."""
    return bool(_TEXT.search(text.encode() if isinstance(text, str) else text))
