"""What a scenario.yaml may say: its keys, their types and defaults, and what each means.

The descriptions are the editor's hover text (`json_schema`). YAML keys are the aliases; attributes carry the unit in
their name. Whether the parts fit together (degrees that multiply, domains that nest) is checked where it is needed.
"""

from __future__ import annotations

from pathlib import Path as FilePath
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, model_validator

from placer.errors import Location, Path
from placer.scenario import quantity
from placer.scenario.fields import (
    MAX_PATH_LENGTH,
    Choice,
    DomainOfRow,
    Fraction,
    HostNames,
    Integer,
    Number,
    Quantity,
    Text,
    Truth,
)
from placer.scenario.source import Document

FAMILIES = ("tp", "cp", "dp", "dp_replicate", "ep", "etp", "edp", "pp", "embedding")
"""Names of the group families that ``traffic`` and ``constraints.together`` may speak of."""

Name = Annotated[str, Text()]
FamilyName = Annotated[str, Choice(FAMILIES)]
Hosts = Annotated[str, HostNames()]
Exclusion = Annotated[str, HostNames(allows_gpu=True)]
Bandwidth = Annotated[float, Quantity(quantity.BANDWIDTH)]
Size = Annotated[float, Quantity(quantity.SIZE)]
Memory = Annotated[float, Quantity(quantity.SIZE, is_positive=True)]
Time = Annotated[float, Quantity(quantity.TIME)]
ComputeRate = Annotated[float, Quantity(quantity.COMPUTE_RATE)]
Weight = Annotated[float, Number(0, 1e12)]
Share = Annotated[float, Fraction()]
Tolerance = Annotated[float, Fraction(refuses_bare_one=True)]
ElementSize = Annotated[float, Number(0, 64, includes_low=False)]
Count = Annotated[int, Integer(1, 10**9)]
CountOrNone = Annotated[int, Integer(0, 10**9)]
Degree = Annotated[int, Integer(1, 10**7)]
Index = Annotated[int, Integer(0, 10**9)]
TrueOrFalse = Annotated[bool, Truth()]
Framework = Literal["megatron", "torchtitan", "deepspeed", "jax", "custom"]
RankLayout = Literal["contiguous", "prefer_contiguous", "any"]


class Section(BaseModel):
    """A mapping of the scenario."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class GpuSpec(Section):
    """The GPU. Both values come from the preset unless they are given."""

    memory_bytes: Memory | None = Field(None, alias="memory", description="Memory of one GPU, e.g. 80 GiB")
    flops_per_s: ComputeRate | None = Field(None, alias="flops", description="Dense 16-bit rate, e.g. 989 TFLOP/s")


class TierSpec(Section):
    """One level of the tree of domains."""

    name: Name = Field(description="Name of the tier; host rows use it as a key", examples=["leaf"])
    bandwidth_Bps: Bandwidth | None = Field(  # noqa: N815  unit suffix
        None, alias="bandwidth", description="Bandwidth of one GPU in one direction at this tier, e.g. 50 GB/s"
    )
    latency_s: Time | None = Field(None, alias="latency", description="Latency of one hop, e.g. 14 us")
    weight: Weight | None = Field(
        None,
        description="Cost of a byte that crosses at this tier. Default: bandwidth of tier 0 / of this tier; tier 0: 0",
    )


class HostRow(Section):
    """Hosts that are alike: a hostlist, their GPUs, and the name of their domain at each tier."""

    hosts: Hosts = Field(description="Hostlist, e.g. gpu[0001-0016]", examples=["gpu[0001-0016]"])
    gpus: Annotated[int, Integer(1, 10**6)] = Field(
        description="Physical GPUs of each host, the unusable ones included", examples=[8]
    )
    down: tuple[Index, ...] = Field((), description="Indices of GPUs that can't be used, on each of these hosts")
    domains: dict[str, Annotated[str | tuple[tuple[int, ...], ...], DomainOfRow()]] = Field(
        {}, description="Domain at each tier (keys are tier names)"
    )

    @model_validator(mode="before")
    @classmethod
    def _gather_domains(cls, row: Any) -> Any:
        if not isinstance(row, dict):
            return row
        known = {key: value for key, value in row.items() if key in ROW_KEYS}
        return known | {"domains": {key: value for key, value in row.items() if key not in ROW_KEYS}}


ROW_KEYS = ("hosts", "gpus", "down")
"""Keys of a host row that are no tier names."""


class TopologySource(Section):
    """A topology that is imported from another program's file."""

    format: Name = Field(description="Format of the file, e.g. slurm", examples=["slurm"])
    path: Annotated[str, Text("a path", MAX_PATH_LENGTH)] = Field(
        description="The file, relative to the scenario", examples=["topology.conf"]
    )


class ClusterSpec(Section):
    """The pool: exactly one of ``shape``, ``hosts`` and ``topology`` lists its GPUs."""

    preset: Name | None = Field(None, description="Known kind of cluster, e.g. h100: fills values that aren't given")
    gpu: GpuSpec | None = Field(None, description="Memory and speed of one GPU")
    tiers: tuple[TierSpec, ...] | None = Field(
        None,
        description="Levels of the tree, innermost first; the last is the whole cluster",
        json_schema_extra={"minItems": 1},
    )
    shape: dict[str, Annotated[int, Integer(1, 10**7)]] | None = Field(
        None,
        description="Regular pool, outermost first: how many lie in one of the previous, as {leaf: 4, host: 8, gpu: 8}",
    )
    hosts: tuple[HostRow, ...] | None = Field(None, description="The hosts, row by row")
    topology: TopologySource | None = Field(None, description="File to import the hosts from")
    exclude: tuple[Exclusion, ...] = Field((), description="Hosts (hostlists) or host:gpu never to be used")


class MoeSpec(Section):
    """Mixture-of-experts layers."""

    experts: Count | None = Field(None, description="Routed experts of one layer")
    top_k: Count | None = Field(None, description="Experts that each token is sent to")
    ffn_hidden: Count | None = Field(None, description="FFN width of one expert")
    shared_experts: CountOrNone | None = Field(None, description="Experts that every token passes, default 0")
    dense_layers: CountOrNone | None = Field(None, description="Layers with a dense FFN instead of experts, default 0")


class ModelSpec(Section):
    """The model: a preset or a Hugging Face config, each key of which can be overridden, or all keys."""

    preset: Name | None = Field(None, description="Known model, e.g. llama3-405b")
    hf_config: Annotated[str, Text("a path", MAX_PATH_LENGTH)] | None = Field(
        None, description="Hugging Face config.json, relative to the scenario"
    )
    layers: Count | None = Field(None, description="Transformer layers")
    hidden: Count | None = Field(None, description="Width of the residual stream")
    ffn_hidden: Count | None = Field(None, description="Width of the dense FFN")
    gated_mlp: TrueOrFalse | None = Field(None, description="Whether the FFN has a gate (SwiGLU: three matrices)")
    heads: Count | None = Field(None, description="Attention heads")
    kv_heads: Count | None = Field(None, description="Key and value heads; fewer than heads with GQA")
    head_dim: Count | None = Field(None, description="Width of one head, default hidden / heads")
    vocab: Count | None = Field(None, description="Vocabulary size")
    tied_embeddings: TrueOrFalse | None = Field(None, description="Whether input and output embeddings share weights")
    moe: MoeSpec | None = Field(None, description="Mixture of experts; absent for a dense model")


class ParallelismSpec(Section):
    """Degrees and order of the parallel axes, and what the framework does with them."""

    tp: Degree = Field(1, description="Tensor parallel degree")
    cp: Degree = Field(1, description="Context parallel degree")
    pp: Degree = Field(1, description="Pipeline parallel degree")
    dp: Degree = Field(1, description="Data parallel degree")
    ep: Degree = Field(1, description="Expert parallel degree; etp·ep divides tp·cp·dp")
    etp: Degree = Field(1, description="Tensor parallel degree of the experts")
    order: Name = Field("tp-cp-ep-dp-pp", description="Axes, fastest first: which rank has which coordinates")
    framework: Annotated[Framework, Choice(("megatron", "torchtitan", "deepspeed", "jax", "custom"))] = Field(
        "megatron", description="Default and legal orders, and the bytes of TP and FSDP"
    )
    vpp: Degree = Field(1, description="Virtual pipeline stages of one rank (interleaved schedule)")
    sequence_parallel: TrueOrFalse = Field(True, description="Sequence parallelism along the TP group")
    zero: Annotated[int, Integer(0, 3)] = Field(
        1, description="0: plain data parallel, 1: distributed optimizer, 2: and gradients, 3: and weights (FSDP)"
    )
    dp_shard: Degree | None = Field(
        None, description="HSDP: ranks that share one copy; dp_replicate = dp / dp_shard. Default dp"
    )
    cp_method: Annotated[Literal["all_gather", "ring", "ulysses"], Choice(("all_gather", "ring", "ulysses"))] = Field(
        "all_gather", description="How context parallelism exchanges keys and values"
    )


class DtypeSpec(Section):
    """Bytes of one element."""

    weights: ElementSize = Field(2.0, description="Bytes of one weight when it is gathered")
    gradients: ElementSize = Field(4.0, description="Bytes of one gradient when it is reduced")
    activations: ElementSize = Field(2.0, description="Bytes of one activation")
    dispatch: ElementSize = Field(
        2.0, description="Bytes of one element sent to experts, e.g. 1.03125 for blockwise fp8"
    )
    combine: ElementSize = Field(2.0, description="Bytes of one element sent back from experts")


class TrainingSpec(Section):
    """Batch sizes and what is recomputed."""

    sequence_length: Count = Field(description="Tokens of one sequence", examples=[8192])
    micro_batch: Count = Field(1, description="Sequences of one micro-batch on one data-parallel rank")
    global_batch: Count = Field(description="Sequences of one step, all ranks together", examples=[2048])
    recompute: Annotated[Literal["none", "selective", "full"], Choice(("none", "selective", "full"))] = Field(
        "none", description="Activations that are computed again in the backward pass"
    )
    dtype: DtypeSpec = Field(DtypeSpec(), description="Bytes of one element")


class TrafficSpec(Section):
    """Measured or known figures that replace the model's."""

    bytes_per_gpu: dict[FamilyName, Size] = Field(
        {}, alias="bytes", description="Bytes sent by one GPU per step, per group family (pp: by an inner stage)"
    )
    exposure: dict[FamilyName, Share] = Field(
        {}, description="Share of the traffic's time not hidden behind compute, 0..1, per group family"
    )


class PinSpec(Section):
    """A rank that must run on a given host."""

    rank: Index = Field(description="Global rank", examples=[0])
    host: Name = Field(description="Name of the host", examples=["gpu0001"])


class ConstraintsSpec(Section):
    """What a placement must honour."""

    ranks_per_host: Annotated[Literal["uniform", "any"] | int, Integer(1, 10**6, words=("uniform", "any"))] = Field(
        "uniform", description="uniform: every used host runs equally many ranks | any | that number"
    )
    pin: tuple[PinSpec, ...] = Field((), description="Ranks that must run on given hosts")
    rank_layout: Annotated[RankLayout, Choice(("contiguous", "prefer_contiguous", "any"))] = Field(
        "prefer_contiguous", description="Whether every host holds consecutive ranks"
    )
    tolerance: Tolerance = Field(0.01, description="How much objective prefer_contiguous may give up, e.g. 1%")
    together: dict[FamilyName, Name] = Field(
        {}, description="Each group of the family lies inside one domain of that tier, e.g. {ep: nvlink}"
    )
    spare_hosts: CountOrNone = Field(0, description="Hosts kept free, each able to replace a used one")


class Scenario(Section):
    """A placement problem as its user wrote it: the pool, the job, and what a placement must honour."""

    version: Annotated[Literal[1], Integer(1, 1)] = Field(description="Version of this format: 1", examples=[1])
    name: Name = Field("scenario", description="Name of the scenario; default: the file's name")
    cluster: ClusterSpec = Field(description="The pool of GPUs")
    model: ModelSpec | None = Field(None, description="The model that is trained")
    parallelism: ParallelismSpec = Field(description="Degrees and order of the parallel axes")
    training: TrainingSpec | None = Field(None, description="Batch sizes and precision")
    traffic: TrafficSpec = Field(TrafficSpec(), description="Known traffic that replaces the model's")
    constraints: ConstraintsSpec = Field(ConstraintsSpec(), description="What a placement must honour")

    _document: Document | None = PrivateAttr(None)

    def locate(self, path: Path) -> Location | None:
        """Where the value at ``path`` stands in the file; None for a scenario that was made without one."""
        return self._document.locate(path) if self._document else None

    @property
    def directory(self) -> FilePath:
        """Directory that relative paths in the scenario start from."""
        return self._document.directory if self._document else FilePath.cwd()

    @property
    def sha256(self) -> str:
        """SHA-256 of the file's bytes, hexadecimal; "" without a file."""
        return self._document.sha256 if self._document else ""
