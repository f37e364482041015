"""Detection of secrets. Settings with secrets are refused, since many people can read plans and reports. Jobs get their
secrets from the role of the machine or from a file on it."""

import re

_TEXT = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----|\b(?:AKIA|ASIA)[0-9A-Z]{16}\b|\bhf_[A-Za-z0-9]{30,}\b"
    r"|\bgh[pousr]_[A-Za-z0-9]{36,}\b|\bgithub_pat_[A-Za-z0-9_]{22,}\b|\bgl(?:pat|dt|rt|ptt|agent)-[A-Za-z0-9_-]{20,}"
    r"|\bsk-[A-Za-z0-9_-]{32,}\b|\bxox[abprs]-[A-Za-z0-9-]{10,}|\bAIza[A-Za-z0-9_-]{35}\b|\bGOCSPX-[A-Za-z0-9_-]{20,}"
    r"|\bnvapi-[A-Za-z0-9_-]{32,}|\bwandb_v1_[A-Za-z0-9_]{32,}|\bnpm_[A-Za-z0-9]{36}\b|\bpypi-[A-Za-z0-9_-]{50,}"
    # A W&B key has 40 hexadecimal digits, like a git commit; only the name before it tells them apart.
    r"|(?i:(?:wandb|api)[\w.-]{0,12}key[\"']?\s*[:=]\s*[\"']?[0-9a-f]{40}\b)|//[^/\s:@]+:[^/\s:@${}<>]{3,}@[\w.-]+"
    r'|"private_key_id"\s*:|client-key-data\s*:',
    re.ASCII,
)


def contains_secret(text: str) -> bool:
    """Return whether a text contains a key or token of a known form."""
    return bool(_TEXT.search(text))
