"""Detection of secrets. Settings, uploads and variables with secrets are refused, since many people can read plans,
reports and Ray jobs. Jobs get their secrets from the role of the machine or from a file on it."""

from __future__ import annotations

import re

_FILE = re.compile(
    r"^\.env(\..*)?$|^\.netrc$|^_netrc$|^\.pgpass$|^\.git-credentials$|^\.npmrc$|^\.pypirc$|^\.dockercfg$|^\.htpasswd$"
    r"|^id_(rsa|dsa|ecdsa|ed25519)$|\.(pem|key|p12|pfx|jks|keystore)$|^(.*[._-])?kubeconfig([._-].*)?$"
    r"|^(credentials|secrets?|auth_token)(\.(json|ya?ml|toml|ini|txt))?$",
    re.IGNORECASE,
)
_TEXT = re.compile(
    rb"-----BEGIN [A-Z ]*PRIVATE KEY-----|\b(?:AKIA|ASIA)[0-9A-Z]{16}\b|\bhf_[A-Za-z0-9]{30,}\b"
    rb"|\bgh[pousr]_[A-Za-z0-9]{36,}\b|\bgithub_pat_[A-Za-z0-9_]{22,}\b|\bgl(?:pat|dt|rt|ptt|agent)-[A-Za-z0-9_-]{20,}"
    rb"|\bsk-[A-Za-z0-9_-]{32,}\b|\bxox[abprs]-[A-Za-z0-9-]{10,}|\bAIza[A-Za-z0-9_-]{35}\b|\bGOCSPX-[A-Za-z0-9_-]{20,}"
    rb"|\bnvapi-[A-Za-z0-9_-]{32,}|\bwandb_v1_[A-Za-z0-9_]{32,}|\bnpm_[A-Za-z0-9]{36}\b|\bpypi-[A-Za-z0-9_-]{50,}"
    # A W&B key has 40 hexadecimal digits, like a git commit; only the name before it tells them apart.
    rb"|(?i:(?:wandb|api)[\w.-]{0,12}key[\"']?\s*[:=]\s*[\"']?[0-9a-f]{40}\b)|//[^/\s:@]+:[^/\s:@${}<>]{3,}@[\w.-]+"
    rb'|"private_key_id"\s*:|client-key-data\s*:'
)
_VARIABLE = re.compile(
    r"(^|_)(TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|(ACCESS|PRIVATE|ACCOUNT)_KEY)(?!\w*_(PATH|FILE|DIR)$)(_|$)"
)


def is_secret_file(name: str) -> bool:
    """Return whether a file name is typical of files with secrets."""
    return bool(_FILE.search(name))


def is_secret_variable(name: str) -> bool:
    """Return whether the name of an environment variable is typical of secrets. HF_TOKEN_PATH, a path, is not."""
    return bool(_VARIABLE.search(name))


def contains_secret(text: bytes | str) -> bool:
    """Return whether a text contains a key or token of a known form."""
    return bool(_TEXT.search(text.encode("utf-8", "replace") if isinstance(text, str) else text))
