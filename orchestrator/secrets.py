"""Detection of secrets. Settings with secrets are refused, since many people can read plans and reports. Jobs get their
secrets from the role of the machine or from a file on it."""

import re

_FORMS = (
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----",
    r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b",
    r"\bhf_[A-Za-z0-9]{30,}\b",
    r"\bgh[pousr]_[A-Za-z0-9]{36,}\b",
    r"\bgithub_pat_[A-Za-z0-9_]{22,}\b",
    r"\bgl(?:pat|dt|rt|ptt|agent)-[A-Za-z0-9_-]{20,}",
    r"\bsk-[A-Za-z0-9_-]{32,}\b",
    r"\bxox[abprs]-[A-Za-z0-9-]{10,}",
    r"hooks\.slack\.com/(?:services|workflows)/[\w/-]{20,}",
    r"\bAIza[A-Za-z0-9_-]{35}\b",
    r"\bGOCSPX-[A-Za-z0-9_-]{20,}",
    r"\bnvapi-[A-Za-z0-9_-]{32,}",
    r"\bjina_[A-Za-z0-9_-]{32,}",
    r"\bwandb_v1_[A-Za-z0-9_]{32,}",
    r"\bnpm_[A-Za-z0-9]{36}\b",
    r"\bpypi-[A-Za-z0-9_-]{50,}",
    # A JSON Web Token: two JSON objects and a signature, in base64.
    r"\beyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}",
    # Passwords, signatures and keys in addresses; `sig` is Azure's.
    r"//[^/\s:@]*:[^/\s:@${}<>]{3,}@[\w.-]+",
    r"[?&](?i:sig|signature|x-amz-signature|api_?key|key|token|access_token)=[^&\s${}<>]{8,}",
    # Keys without a form of their own (AWS, Cohere, W&B, databases) are told by the name before them.
    r"\b[A-Z][A-Z0-9_]*(?:KEY|SECRET|TOKEN|PASSWORD|PASSWD|PAT)[\"']?\s*[:=]\s*[\"']?[^\s\"'${}<>,]{6,}",
    r"(?i:secret_access_key|session_token|api[\w.-]{0,12}key|wandb[\w.-]{0,12}key|password|passwd)"
    r"[\"']?\s*[:=]\s*[\"']?[^\s\"'${}<>,]{6,}",
    r'"private_key_id"\s*:',
    r"client-key-data\s*:",
)
_TEXT = re.compile("|".join(f"(?:{form})" for form in _FORMS), re.ASCII)


def contains_secret(text: str) -> bool:
    """Return whether a text contains a key or token of a known form."""
    return bool(_TEXT.search(text))
