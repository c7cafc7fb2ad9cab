"""Reads a Hugging Face ``config.json`` into the keys of a model.

Hidden here: the names that model families give to the same number, and what an absent key means in each.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from placer.errors import InvalidInputError, Issue
from placer.json_document import read_json

_NAMES: dict[str, tuple[str, ...]] = {
    "layers": ("num_hidden_layers", "n_layer", "num_layers"),
    "hidden": ("hidden_size", "n_embd", "d_model"),
    "heads": ("num_attention_heads", "n_head", "num_heads"),
    "vocab": ("vocab_size",),
}
# transformers' classes whose MLP has two matrices; every other one in use today is gated
_UNGATED = {
    "bloom",
    "falcon",
    "gpt2",
    "gpt_bigcode",
    "gpt_neo",
    "gpt_neox",
    "gptj",
    "mpt",
    "nemotron",
    "opt",
    "phi",
    "starcoder2",
}
# transformers leaves a value out of the file when it equals the class's default; these classes tie by default
_TIED = {"bloom", "falcon", "gemma", "gemma2", "gemma3", "gemma3_text", "gpt2", "gpt_bigcode", "gpt_neo", "mpt", "opt"}
_MAX_BYTES = 10_000_000
_MAX_COUNT = 10_000_000


def read_hf_config(path: Path) -> dict[str, Any]:
    """The model keys that a Hugging Face config states; keys that it doesn't state are left out.

    The traps: no ``num_key_value_heads`` is multi-head attention (falcon: ``multi_query``); no ``head_dim`` is
    hidden / heads; Mixtral keeps the experts' width in ``intermediate_size``, Qwen and DeepSeek in
    ``moe_intermediate_size``, and Llama 4 its dense layers' in ``intermediate_size_mlp``; experts are counted by
    ``num_local_experts``, ``n_routed_experts`` or ``num_experts``; a multi-modal config nests the language model under
    ``text_config``. Other layers than attention and MLP (Mamba, convolutions) are not known.

    Raises `InvalidInputError` when the file can't be read, isn't a JSON object or holds a number that makes no sense.
    """
    config = _load(path)
    nested = config.get("text_config")
    if isinstance(nested, dict) and not any(name in config for name in _NAMES["hidden"]):
        config = nested
    reader = _Reader(config, path)
    kind = str(config.get("model_type", ""))
    shape: dict[str, Any] = {}
    for key, names in _NAMES.items():
        if (value := reader.count(*names)) is not None:
            shape[key] = value
    kv_heads = reader.count("num_key_value_heads", "num_kv_heads")
    if config.get("multi_query") is True and not config.get("new_decoder_architecture"):
        kv_heads = 1
    if kv_heads is not None:
        shape["kv_heads"] = kv_heads
    if (head_dim := reader.count("head_dim")) is not None:
        shape["head_dim"] = head_dim
    ffn_hidden = reader.count("intermediate_size_mlp", "intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size")
    if ffn_hidden is None and kind in _UNGATED and "hidden" in shape:
        ffn_hidden = 4 * shape["hidden"]  # the classes' own default
    if ffn_hidden is not None:
        shape["ffn_hidden"] = ffn_hidden
    shape["gated_mlp"] = kind not in _UNGATED
    tied = config.get("tie_word_embeddings")
    shape["tied_embeddings"] = tied if isinstance(tied, bool) else kind in _TIED
    if moe := _read_moe(reader, shape):
        shape["moe"] = moe
    if "kv_lora_rank" in config:
        mla = {
            name: reader.count(name) for name in ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
        }
        shape["mla"] = {"q_lora_rank": reader.count("q_lora_rank") or 0, **mla}
        if None not in mla.values():
            shape.setdefault("head_dim", mla["v_head_dim"])
        else:
            reader.refuse("kv_lora_rank", "multi-head latent attention needs all of " + ", ".join(mla))
    if reader.issues:
        raise InvalidInputError(reader.issues)
    return shape


def _read_moe(reader: _Reader, shape: dict[str, Any]) -> dict[str, Any] | None:
    config = reader.config
    experts = reader.count("num_local_experts", "n_routed_experts", "num_experts", least=0)
    if not experts or experts == 1:
        return None
    moe: dict[str, Any] = {"experts": experts}
    top_k = reader.count("num_experts_per_tok", "num_experts_per_token", "moe_topk", "experts_per_token")
    if top_k is not None:
        moe["top_k"] = top_k
    ffn_hidden = reader.count("moe_intermediate_size", "intermediate_size")
    if ffn_hidden is not None:
        moe["ffn_hidden"] = ffn_hidden
    shared = reader.count("n_shared_experts", "num_shared_experts", least=0) or 0
    moe["shared_experts"] = 1 if config.get("model_type") == "llama4_text" else shared  # it has one, unsaid
    shared_width = reader.count("shared_expert_intermediate_size", least=0)
    if shared_width and ffn_hidden:
        if shared_width % ffn_hidden:
            reader.refuse("shared_expert_intermediate_size", f"{shared_width} is not a multiple of {ffn_hidden}")
        moe["shared_experts"] = shared_width // ffn_hidden
    if "layers" in shape:
        moe["dense_layers"] = _count_dense_layers(reader, shape["layers"], config)
    return moe


def _count_dense_layers(reader: _Reader, layers: int, config: dict[str, Any]) -> int:
    """Layers without experts: a prefix (DeepSeek), every so many (Qwen, Llama 4), or listed (Qwen)."""
    prefix = reader.count("first_k_dense_replace", least=0) or 0
    step = reader.count("decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_freq") or 1
    listed = config.get("mlp_only_layers")
    listed = set(listed) if isinstance(listed, list) and all(isinstance(k, int) for k in listed) else set()
    offset = 0 if "moe_layer_freq" in config else 1  # DeepSeek counts from the first layer, the others from the step-th
    sparse = [k for k in range(prefix, layers) if k not in listed and (k + offset) % step == 0]
    return layers - len(sparse)


class _Reader:
    """Reads numbers out of a config and collects what is wrong with them."""

    def __init__(self, config: dict[str, Any], path: Path) -> None:
        self.config = config
        self.path = path
        self.issues: list[Issue] = []

    def count(self, *names: str, least: int = 1) -> int | None:
        """The first of ``names`` that is present and not null, a whole number from ``least``."""
        for name in names:
            value = self.config.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _MAX_COUNT:
                self.refuse(name, f"{value!r:.40} is not a whole number from {least} to {_MAX_COUNT:,}")
                return None
            return value
        return None

    def refuse(self, name: str, reason: str) -> None:
        """Note that ``name`` can't be used."""
        self.issues.append(
            Issue(f"{self.path}: {name}: {reason}", "write the model's keys instead", ("model", "hf_config"))
        )


def _load(path: Path) -> dict[str, Any]:
    where = ("model", "hf_config")
    try:
        config = read_json(path, max_bytes=_MAX_BYTES, what="a model's config.json").data
    except InvalidInputError as error:
        raise InvalidInputError([_point_at_path(issue, where) for issue in error.issues]) from error
    if not isinstance(config, dict):
        raise InvalidInputError(Issue(f"{path} holds no JSON object", "give a model's config.json", where))
    return config


def _point_at_path(issue: Issue, where: tuple[str, ...]) -> Issue:
    """An issue of the config as one of the scenario that names it; the place in the config goes into the message."""
    place = f"{issue.location}: " if issue.location else ""
    return Issue(place + issue.message, issue.hint or "the path is relative to the scenario", where)
