"""Checks of models at plan time: config and tokenizer are opened as the job is going to, but no weights are read.

transformers is imported when the first model is checked whose files do not show all by themselves (`USUAL`).
"""

from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ratchet.errors import InputError, ModelError
from ratchet.models.embedder.encoding_config import EncodingConfig, read_encoding_config
from ratchet.models.model_files import (
    check_folder,
    count_learned_positions,
    find_config_folder,
    find_weights,
    read_token_ids,
)
from ratchet.models.model_kind import (
    POSITIONS_AFTER_PADDING,
    check_decoder,
    check_embedder,
    describe_kind,
    read_config,
    read_optional,
)
from ratchet.models.reranker.reranker_config import (
    RerankerConfig,
    check_outputs,
    read_reranker_config,
)
from ratchet.models.roles import find_usage

if TYPE_CHECKING:  # it imports torch
    from ratchet.models.meta.meta_device import Kind

LARGE_HIDDEN_SIZE = 1024
USUAL = ("bert", "roberta", "xlm-roberta", "mpnet", "distilbert", "electra")
"""The `model_type` of encoders whose files can show by themselves that transformers opens them."""
SPECIAL = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
"""The tokens that transformers adds to the tokenizers of such encoders if their files do not name them."""


def check_as_used(folder: Path, adapter: Path | None = None) -> None:
    """Check a model folder, maybe with an adapter, as an embedder, a reranker or a decoder: what it is used as."""
    check_folder(folder)
    usage = find_usage(folder, adapter)
    if usage == "embedder":
        check_embedder_model(folder, read_encoding_config(folder, adapter), adapter)
    elif usage == "reranker":
        check_reranker_model(folder, read_reranker_config(find_config_folder(folder, adapter)))
    else:
        check_decoder_model(folder)


def check_embedder_model(
    folder: Path, encoding_config: EncodingConfig, adapter: Path | None = None
) -> None:
    """Raise ModelError for a whole folder that cannot be loaded as an embedder with this encoding config."""
    check_embedder(folder)
    own = encoding_config
    plain = not (own.projection or own.add_eos or own.examples or own.split_template("query")[1])
    if (
        plain
        and _is_usual(folder)
        and not read_optional(folder / "sentence_bert_config.json").get("do_lower_case")
    ):
        check_length("encoding_config.max_length", folder, own.max_length)
    else:
        _check_embedder(folder, _find_last_change(folder), own, find_config_folder(folder, adapter))


def check_reranker_model(folder: Path, reranker_config: RerankerConfig) -> None:
    """Raise ModelError for a whole folder that cannot be loaded as a reranker with this reranker config."""
    if reranker_config.kind == "cross_encoder":
        check_outputs(folder)
    if reranker_config.kind == "cross_encoder" and _is_usual(folder):
        check_length("reranker_config.max_length", folder, reranker_config.max_length)
    else:
        _check_reranker(folder, _find_last_change(folder), reranker_config)


def check_decoder_model(folder: Path) -> None:
    """Raise ModelError for a folder that cannot be loaded as a causal language model."""
    check_folder(folder)
    check_decoder(folder)
    from ratchet.models.decoder import decoder

    decoder.check(folder)
    _open(folder, _find_last_change(folder))


def check_target_modules(job: str, base: Path, kind: "Kind", config: Any) -> None:
    """Raise InputError for the name of a layer that the model does not have, and ModelError for layers of which an
    adapter could not be trained, or not be merged after its training. config: has `method` and `target_modules`."""
    names = config.target_modules
    if config.method == "full" or (names == "all-linear" and _is_usual(base)):
        return
    if names != "all-linear":
        known = set()
        for name in find_weights(base):
            known |= {part for part in name.split(".")[:-1] if not part.isdecimal()}
        for name in names.split(","):
            if known and name.strip().rpartition(".")[2] not in known:
                raise InputError(
                    f"{job}.target_modules: '{name.strip()}' given; expected all-linear, or names of {base}:"
                    f" {', '.join(sorted(known))}"
                )
    from ratchet.models.meta.adapter_trial import try_adapter

    try:
        try_adapter(base, kind, names, _find_last_change(base))
    except ModelError as error:
        raise ModelError(f"{job}.{error}") from None


def check_length(where: str, folder: Path, length: int) -> None:
    """Raise InputError, beginning with `where`, for more tokens than the model has learned positions for."""
    positions = count_learned_positions(folder)
    if positions is not None and length > positions:
        raise InputError(
            f"{where}: {length} tokens given; expected at most {positions}, the number of positions of {folder}; lower"
            " it, or give another model"
        )


def read_size(
    folder: Path, name: Literal["hidden_size", "num_hidden_layers", "num_attention_heads"]
) -> int:
    """Return a size of a model, such as the dimensions of its hidden states, by its own name for it, and by the default
    of its class where config.json says nothing."""
    given = read_config(folder).get(name)
    if given is None:
        given = getattr(_open(folder, _find_last_change(folder))[0].get_text_config(), name)
    return int(given)


def is_large(folder: Path) -> bool:
    """Return whether a model has the hidden size of models of 0.3B parameters and more. A folder that is no model is
    not large: the check of a step reports it."""
    with suppress(ModelError):
        size = read_config(folder).get("hidden_size")
        return isinstance(size, int) and size >= LARGE_HIDDEN_SIZE
    return False


def _is_usual(folder: Path) -> bool:
    """Whether the files of an encoder show by themselves what `_open` checks, which takes seconds for its imports."""
    config = read_config(folder)
    file = folder / "tokenizer.json"
    if config.get("model_type") not in USUAL or not file.is_file():
        return False
    for name in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"):
        if not isinstance(config.get(name), int):
            return False
    about = read_optional(folder / "tokenizer_config.json")
    about |= read_optional(folder / "special_tokens_map.json")
    if about.get("additional_special_tokens") or (folder / "added_tokens.json").is_file():
        return False
    tokens = {}
    for name, value in about.items():
        if isinstance(value, dict):
            value = value.get("content")
        if name.endswith("_token") and isinstance(value, str):
            tokens[name] = value
    ids = read_token_ids(file, file.stat().st_mtime_ns)
    if not (tokens.keys() >= set(SPECIAL) and ids.keys() >= set(tokens.values())):
        return False
    counts_from_padding = config["model_type"] in POSITIONS_AFTER_PADDING
    return not counts_from_padding or config.get("pad_token_id", 1) == ids[tokens["pad_token"]]


def _find_last_change(folder: Path) -> int:
    """Return the time of the last change of a folder's config and tokenizer, in nanoseconds: the key of the caches."""
    return max(
        path.stat().st_mtime_ns
        for path in (folder, *folder.glob("*.json"), *folder.glob("*.jinja"))
    )


@lru_cache(maxsize=32)
def _open(folder: Path, _: int) -> tuple[Any, Any]:
    """Return the config and the tokenizer of a model folder. Raises ModelError if transformers cannot open them, and
    for a tokenizer that does not belong to the model."""
    import transformers

    from ratchet.models.loading import silence_transformers

    try:
        with silence_transformers():
            config = transformers.AutoConfig.from_pretrained(folder)
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    except Exception as error:  # of many types, since each architecture checks its own files
        first = " ".join(str(error).split())[:200]
        raise ModelError(
            f"model {folder}: transformers cannot open its config or tokenizer ({first}); expected whole files; fetch"
            " or save the model again"
        ) from None
    text = config.get_text_config()
    rows = getattr(text, "vocab_size", None)
    name, largest = max(tokenizer.get_vocab().items(), key=lambda pair: pair[1], default=("", -1))
    if rows is not None and largest >= rows:
        raise ModelError(
            f"model {folder}: its tokenizer has ids up to {largest} ({name!r}) when it is loaded, and the model"
            f" vocab_size {rows}; expected a tokenizer of this model; save the two together again, with an embedding"
            " for each token"
        )
    if tokenizer.pad_token_id is None and tokenizer.eos_token_id is None:
        raise ModelError(
            f"model {folder}: no padding token and no end-of-sequence token; expected one of them; set pad_token in its"
            " tokenizer_config.json"
        )
    own = text.pad_token_id
    if config.model_type in POSITIONS_AFTER_PADDING and tokenizer.pad_token_id not in (None, own):
        raise ModelError(
            f"model {folder}: pad_token_id {own} in config.json, {tokenizer.pad_token_id} in the tokenizer; expected"
            f" the same, since {config.model_type} counts positions by it; correct one"
        )
    return config, tokenizer


@lru_cache(maxsize=32)
def _check_embedder(
    folder: Path, changed: int, encoding_config: EncodingConfig, config_folder: Path
) -> None:
    import transformers

    from ratchet.models.embedder import encoder, projection
    from ratchet.models.embedder.tokenization import TextTokenizer

    config, tokenizer = _open(folder, changed)
    if type(config).is_encoder_decoder or type(config) not in transformers.MODEL_MAPPING:
        raise ModelError(
            f"model {folder}: {config.model_type} is no embedder; expected an encoder or a decoder"
        )
    check_length("encoding_config.max_length", folder, encoding_config.max_length)
    if encoding_config.add_eos and tokenizer.eos_token_id is None:
        raise ModelError(
            f"model {folder}: no end-of-sequence token, and add_eos is set; expected one; set eos_token in its"
            " tokenizer_config.json, or add_eos=false"
        )
    TextTokenizer(encoder.load_tokenizer(folder, encoding_config), encoding_config)
    if encoding_config.projection:
        width = config.get_text_config().hidden_size
        projection.load_layers(encoding_config.projection, width, config_folder, folder)


def _check_padding(folder: Path, config: Any, tokenizer: Any) -> None:
    """Raise ModelError for a decoder as a classifier whose config names no padding token, and whose tokenizer pads with
    the token that ends a pair: the token before it would be scored."""
    if config.get_text_config().pad_token_id is not None:
        return
    if describe_kind({"model_type": config.model_type}) == "an encoder":
        return
    padding = tokenizer.pad_token_id
    if padding is None:
        padding = tokenizer.eos_token_id
    if tokenizer("a", "a")["input_ids"][-1:] == [padding]:
        raise ModelError(
            f"model {folder}: no pad_token_id in config.json, and its tokenizer pads with"
            f" {tokenizer.convert_ids_to_tokens(padding)!r}, which also ends its pairs; expected another token, since a"
            " decoder is scored at the last token that is not padding; set pad_token in tokenizer_config.json, and its"
            " id in config.json"
        )


@lru_cache(maxsize=32)
def _check_reranker(folder: Path, changed: int, reranker_config: RerankerConfig) -> None:
    import transformers

    from ratchet.models.decoder import decoder
    from ratchet.models.reranker.reranker_config import PairTokenizer

    config, tokenizer = _open(folder, changed)
    known = transformers.MODEL_FOR_CAUSAL_LM_MAPPING
    what = "causal language model"
    if reranker_config.kind == "yes_no":
        decoder.check_head(folder)
    else:
        known = transformers.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING
        what = "sequence classifier"
        _check_padding(folder, config, tokenizer)
    if type(config) not in known:
        raise ModelError(
            f"model {folder}: transformers has no {what} for {config.model_type}; give another model"
        )
    check_length("reranker_config.max_length", folder, reranker_config.max_length)
    PairTokenizer(transformers.AutoTokenizer.from_pretrained(folder), reranker_config)
