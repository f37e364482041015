"""The files with which `SentenceTransformer(folder)` computes the same embeddings as Ratchet."""

import json
from pathlib import Path
from typing import Any

import transformers

from ratchet.models.embedder.encoding_config import EncodingConfig, Role
from ratchet.models.embedder.tokenization import TextTokenizer

ROLES: dict[Role, str] = {"query": "query", "passage": "document"}
"""Role -> its name in sentence-transformers."""


def write_layout(encoding_config: EncodingConfig, dim: int, folder: Path) -> str:
    """Write the layout beside the weights and the tokenizer. The tokenizer is changed: it pads at the right, and
    appends the end-of-sequence token if the encoding config does. Return an empty string, or why sentence-transformers
    cannot embed the same: then the folder stays as it was. dim: the model's hidden size."""
    if any(encoding_config.split_template(role)[1] for role in ROLES):
        return "sentence-transformers has no templates with text behind {text}"
    for name in ("query_max_length", "passage_max_length"):
        if getattr(encoding_config, name) is not None:
            return f"sentence-transformers truncates texts with their prompt, not as {name} does"
    files = [folder / "tokenizer.json", folder / "tokenizer_config.json"]
    before = {path: path.read_bytes() for path in files if path.is_file()}
    _adapt_tokenizer(encoding_config, *files)
    if not _gives_same_tokens(encoding_config, folder):
        for path in files:
            path.write_bytes(before[path]) if path in before else path.unlink(missing_ok=True)
        return "its tokenizer gives other tokens in sentence-transformers"
    _write_files(encoding_config, dim, folder)
    return ""


def _adapt_tokenizer(encoding_config: EncodingConfig, file: Path, config_file: Path) -> None:
    """Give the tokenizer of a folder what sentence-transformers does not set: right padding (positions then start at
    the text), a padding token, and the end-of-sequence token."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(file.parent)
    config: dict[str, Any]
    config = json.loads(config_file.read_text()) if config_file.is_file() else {}
    changes: dict[str, Any] = {"padding_side": "right", "truncation_side": "right"}
    if tokenizer.pad_token_id is None:
        changes["pad_token"] = tokenizer.eos_token
    if TextTokenizer(tokenizer, encoding_config).end is not None and file.is_file():
        # transformers rebuilds the post-processor if one of the two settings is there.
        if {"add_bos_token", "add_eos_token"} & config.keys():
            changes["add_eos_token"] = True
        _append_eos(file, tokenizer.eos_token, tokenizer.eos_token_id)
    config_file.write_text(json.dumps(config | changes, indent=2, ensure_ascii=False) + "\n")


def _append_eos(file: Path, token: str, token_id: int) -> None:
    """Append a post-processor to a tokenizer.json that ends every text with a token."""
    about = json.loads(file.read_text(encoding="utf-8"))
    text = {"Sequence": {"id": "A", "type_id": 0}}
    end = {"SpecialToken": {"id": token, "type_id": 0}}
    template = {
        "type": "TemplateProcessing",
        "single": [text, end],
        "pair": [text, {"Sequence": {"id": "B", "type_id": 0}}, end],
        "special_tokens": {token: {"id": token, "ids": [token_id], "tokens": [token]}},
    }
    own = about.get("post_processor")
    if own:
        about["post_processor"] = {"type": "Sequence", "processors": [own, template]}
    else:
        about["post_processor"] = template
    file.write_text(json.dumps(about, ensure_ascii=False), encoding="utf-8")


def _gives_same_tokens(encoding_config: EncodingConfig, folder: Path) -> bool:
    """Whether the tokenizer alone, as sentence-transformers calls it, gives the tokens of the encoding config, for a
    short and for a truncated text."""
    limit = encoding_config.max_length
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokens = TextTokenizer(transformers.AutoTokenizer.from_pretrained(folder), encoding_config)
    texts = ["A text, 1 + 1 = 2.", "a b c " * limit]
    for role in ROLES:
        whole = [encoding_config.format_prompt(role) + text for text in texts]
        if tokens(texts, role) != tokenizer(whole, truncation=True, max_length=limit).input_ids:
            return False
    return True


def _write_files(encoding_config: EncodingConfig, dim: int, folder: Path) -> None:
    layers = [("Transformer", ""), ("Pooling", "1_Pooling")]
    layers += [("Dense", encoding_config.projection)] * bool(encoding_config.projection)
    layers += [("Normalize", f"{len(layers)}_Normalize")] * encoding_config.normalize
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{name}"}
        for i, (name, path) in enumerate(layers)
    ]
    modes = {"cls": "cls_token", "mean": "mean_tokens", "last_token": "lasttoken"}
    documents = {
        "modules.json": modules,
        "sentence_bert_config.json": {
            "max_seq_length": encoding_config.max_length,
            "do_lower_case": False,
        },
        "config_sentence_transformers.json": {
            "prompts": {name: encoding_config.format_prompt(role) for role, name in ROLES.items()},
            "similarity_fn_name": "cosine" if encoding_config.normalize else "dot",
        },
        "1_Pooling/config.json": {
            "word_embedding_dimension": dim,
            **{
                f"pooling_mode_{mode}": ours == encoding_config.pooling
                for ours, mode in modes.items()
            },
            "include_prompt": True,
        },
    }
    for name, document in documents.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(document, indent=2) + "\n")
