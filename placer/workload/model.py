"""The model's shape: parameter counts and widths that the traffic formulas need.

Hidden here: where the shape comes from (a preset, a Hugging Face config, explicit keys) and how these are merged.
Counts leave out norms, biases and positional tables: under 0.5 % of any model listed here, and never sharded alone.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from placer.errors import InvalidInputError, Issue, did_you_mean
from placer.workload.hf_config import read_hf_config
from placer.workload.model_presets import PRESETS

if TYPE_CHECKING:
    from placer.scenario.schema import ModelSpec


@dataclass(frozen=True)
class Mla:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434 §2.1): low-rank queries, keys and values.

    ``q_lora_rank`` 0 means full-rank queries.
    """

    q_lora_rank: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int


@dataclass(frozen=True)
class Moe:
    """Mixture of experts: ``experts`` routed ones of width ``ffn_hidden``, ``top_k`` of them per token.

    ``shared_experts`` of the same width see every token; the first ``dense_layers`` layers have a dense MLP.
    """

    experts: int
    top_k: int
    ffn_hidden: int
    shared_experts: int = 0
    dense_layers: int = 0


@dataclass(frozen=True)
class Model:
    """A decoder-only transformer, every field resolved. Counts are parameters, widths are elements."""

    layers: int
    hidden: int
    ffn_hidden: int
    gated_mlp: bool
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied_embeddings: bool
    moe: Moe | None = None
    mla: Mla | None = None

    @property
    def attention_params(self) -> int:
        """Projections of one attention layer: q, k, v and output; with MLA its down and up projections."""
        if self.mla is None:
            return self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        mla = self.mla
        query_width = self.heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim)
        rank = mla.q_lora_rank
        query = rank * (self.hidden + query_width) if rank else self.hidden * query_width
        kv_down = self.hidden * (mla.kv_lora_rank + mla.qk_rope_head_dim)
        kv_up = mla.kv_lora_rank * self.heads * (mla.qk_nope_head_dim + mla.v_head_dim)
        return query + kv_down + kv_up + self.heads * mla.v_head_dim * self.hidden

    def mlp_params(self, width: int) -> int:
        """One MLP of inner width ``width``: two matrices, three when gated (SwiGLU)."""
        return (3 if self.gated_mlp else 2) * self.hidden * width

    @property
    def expert_params(self) -> int:
        """One routed expert; 0 in a dense model."""
        return self.mlp_params(self.moe.ffn_hidden) if self.moe else 0

    @property
    def shared_expert_params(self) -> int:
        """All shared experts of one MoE layer."""
        return self.moe.shared_experts * self.expert_params if self.moe else 0

    @property
    def router_params(self) -> int:
        """The router of one MoE layer."""
        return self.hidden * self.moe.experts if self.moe else 0

    @property
    def embedding_params(self) -> int:
        """The input embedding, as large as the output head."""
        return self.vocab * self.hidden

    @property
    def moe_layers(self) -> int:
        """Number of layers whose MLP is a mixture of experts."""
        return self.layers - self.moe.dense_layers if self.moe else 0

    @property
    def dense_layer_params(self) -> int:
        """One layer with a dense MLP."""
        return self.attention_params + self.mlp_params(self.ffn_hidden)

    @property
    def moe_layer_dense_params(self) -> int:
        """What one MoE layer holds besides its routed experts: attention, router, shared experts."""
        return self.attention_params + self.router_params + self.shared_expert_params

    @property
    def dense_body_params(self) -> int:
        """All layers without embeddings and routed experts."""
        dense_layers = self.layers - self.moe_layers
        return dense_layers * self.dense_layer_params + self.moe_layers * self.moe_layer_dense_params

    @property
    def routed_expert_params(self) -> int:
        """All routed experts of all layers."""
        return self.moe_layers * (self.moe.experts if self.moe else 0) * self.expert_params

    @property
    def total_params(self) -> int:
        """The whole model, multi-token prediction modules left out."""
        embeddings = self.embedding_params * (1 if self.tied_embeddings else 2)
        return self.dense_body_params + self.routed_expert_params + embeddings

    @property
    def query_width(self) -> int:
        """Width of all query heads together, which is also that of the attention output (MLA: the queries)."""
        if self.mla:
            return self.heads * (self.mla.qk_nope_head_dim + self.mla.qk_rope_head_dim)
        return self.heads * self.head_dim

    @property
    def attention_output_width(self) -> int:
        """Width of all heads' outputs before the output projection."""
        return self.heads * (self.mla.v_head_dim if self.mla else self.head_dim)

    @property
    def kv_width(self) -> int:
        """Keys and values of one token together. MLA trains on decompressed ones, one pair a head."""
        if self.mla:
            return self.query_width + self.attention_output_width
        return 2 * self.kv_heads * self.head_dim

    def forward_flops_per_token(self, sequence_length: int) -> float:
        """Floating-point operations of a forward pass per token, causal attention.

        2 per active parameter, and 2·(s/2)·(query width + output width) per layer for scores and values (Narayanan
        2021, appendix, halved for the causal mask).
        """
        top_k = self.moe.top_k if self.moe else 0
        active = self.dense_body_params + self.moe_layers * top_k * self.expert_params + self.embedding_params
        attention = self.layers * sequence_length * (self.query_width + self.attention_output_width)
        return float(2 * active + attention)


_REQUIRED = ("layers", "hidden", "ffn_hidden", "heads", "vocab")
_MOE_REQUIRED = ("experts", "top_k", "ffn_hidden")


def resolve_model(spec: ModelSpec, *, directory: Path) -> Model:
    """The model that a scenario describes: a preset or a Hugging Face config, overridden key by key, or keys alone.

    ``directory`` is where a relative ``hf_config`` starts. Not given: ``kv_heads`` = heads (multi-head attention),
    ``head_dim`` = hidden / heads, ``gated_mlp`` true, ``tied_embeddings`` false, ``ffn_hidden`` = the experts' when
    every layer has experts. An override of ``heads`` or ``kv_heads`` keeps a preset's MLA ranks.

    Raises `InvalidInputError` with one issue per missing or contradictory key.
    """
    shape = _base_shape(spec, directory)
    explicit = {name: getattr(spec, name) for name in _given(spec)}
    given_moe = explicit.pop("moe", None)
    shape.update(explicit)
    moe = shape.pop("moe", None)
    mla = shape.pop("mla", None)
    if given_moe is not None:
        moe = {**(moe or {}), **{name: getattr(given_moe, name) for name in _given(given_moe)}}

    issues = [_missing("model", name) for name in _REQUIRED if name not in shape and not _is_implied(name, moe)]
    if moe is not None:
        issues += [_missing("moe", name) for name in _MOE_REQUIRED if name not in moe]
    if issues:
        raise InvalidInputError(issues)
    if moe is not None:
        shape.setdefault("ffn_hidden", moe["ffn_hidden"])
    shape.setdefault("kv_heads", shape["heads"])
    if "head_dim" not in shape:
        if shape["hidden"] % shape["heads"]:
            message = f"hidden {shape['hidden']} is not a multiple of heads {shape['heads']}"
            raise InvalidInputError(Issue(message, "write head_dim", ("model", "hidden")))
        shape["head_dim"] = shape["hidden"] // shape["heads"]
    shape.setdefault("gated_mlp", True)
    shape.setdefault("tied_embeddings", False)
    model = Model(**shape, moe=Moe(**moe) if moe else None, mla=Mla(**mla) if mla else None)
    if issues := _contradictions(model):
        raise InvalidInputError(issues)
    return model


def _base_shape(spec: ModelSpec, directory: Path) -> dict[str, Any]:
    """What the preset or the Hugging Face config says, with explicit keys left out."""
    if spec.preset is not None and spec.hf_config is not None:
        hint = "keep one; explicit keys may override it"
        raise InvalidInputError(Issue("model has both preset and hf_config", hint, ("model", "hf_config")))
    if spec.preset is not None:
        if spec.preset not in PRESETS:
            hint = did_you_mean(spec.preset, sorted(PRESETS))
            raise InvalidInputError(Issue(f"unknown model preset {spec.preset!r}", hint, ("model", "preset")))
        return dict(PRESETS[spec.preset])
    if spec.hf_config is not None:
        return read_hf_config(directory / spec.hf_config)
    return {}


def _given(spec: Any) -> list[str]:
    """Names of the shape keys that a spec sets itself: a default must not override a preset."""
    known = {field.name for cls in (Model, Moe) for field in fields(cls)} - {"mla"}
    return [name for name in spec.model_fields_set if name in known and getattr(spec, name) is not None]


def _is_implied(name: str, moe: dict[str, Any] | None) -> bool:
    return name == "ffn_hidden" and moe is not None and "ffn_hidden" in moe and not moe.get("dense_layers")


def _missing(section: str, name: str) -> Issue:
    path = ("model",) if section == "model" else ("model", "moe")
    return Issue(f"{section} has no {name}", f"write {name}, or name a preset or an hf_config", path)


def _contradictions(model: Model) -> list[Issue]:
    issues = []
    if model.heads % model.kv_heads:
        message = f"heads {model.heads} is not a multiple of kv_heads {model.kv_heads}"
        issues.append(Issue(message, "every key/value head serves equally many query heads", ("model", "kv_heads")))
    moe = model.moe
    if moe is None:
        return issues
    if moe.top_k > moe.experts:
        message = f"moe.top_k {moe.top_k} is above moe.experts {moe.experts}"
        issues.append(Issue(message, "a token visits top_k different experts", ("model", "moe", "top_k")))
    if moe.dense_layers > model.layers:
        message = f"moe.dense_layers {moe.dense_layers} is above layers {model.layers}"
        issues.append(Issue(message, "dense_layers counts layers without experts", ("model", "moe", "dense_layers")))
    return issues
