"""Bytes that one GPU sends in a training step, per group family: the formulas.

Hidden here: what every collective carries, how often it runs and how frameworks differ. Symbols, as in the literature:
b micro-batch, s sequence, h hidden, L layers, l = L/pp, m micro-batches, v virtual stages, t = tp, c = cp, d = ranks
that share dense parameters, e = ep; ew, eg, ea bytes per weight, gradient, activation; X = b·(s/c)·h·ea.

What is counted of stages that differ: every GPU is taken to hold the mean over stages (l = L/pp layers, a fraction if
pp does not divide L; embedding and head spread over all stages), so that sums over the job are right.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from placer.workload.mesh import Mesh

if TYPE_CHECKING:
    from placer.scenario.schema import ParallelismSpec, TrainingSpec
    from placer.workload.model import Model


@dataclass(frozen=True)
class Volume:
    """What one GPU sends in a step: bytes, in how many passes of a collective, and by which formula.

    A pass is one trip round the ring (an all-gather or reduce-scatter; an all-reduce is two), one all-to-all, or one
    message to a neighbouring stage.
    """

    bytes_per_gpu: float
    num_passes: float
    formula: str


@dataclass(frozen=True)
class Job:
    """A job whose model and batch are known: what the formulas read."""

    mesh: Mesh
    parallelism: ParallelismSpec
    model: Model
    training: TrainingSpec

    @property
    def num_micro_batches(self) -> float:
        """m: micro-batches that a pipeline runs in one step."""
        return self.training.global_batch / (self.training.micro_batch * self.mesh.dp)

    @property
    def layers_per_stage(self) -> float:
        """l: mean number of layers of a stage."""
        return self.model.layers / self.mesh.pp

    @property
    def moe_layers_per_stage(self) -> float:
        """Mean number of mixture-of-experts layers of a stage."""
        return self.model.moe_layers / self.mesh.pp

    @property
    def tokens_per_cp_rank(self) -> float:
        """b·s/c: tokens of a micro-batch on one context-parallel rank."""
        return self.training.micro_batch * self.training.sequence_length / self.mesh.cp

    @property
    def activation_bytes(self) -> float:
        """X: one activation of a micro-batch, not split by tp."""
        return self.tokens_per_cp_rank * self.model.hidden * self.training.dtype.activations

    @property
    def is_sequence_parallel(self) -> bool:
        """Whether activations between layers are split over tp."""
        return self.parallelism.sequence_parallel and self.mesh.tp > 1

    @property
    def tokens_per_rank(self) -> float:
        """Tokens that one rank routes: b·s/(c·t), or b·s/c without sequence parallelism."""
        return self.tokens_per_cp_rank / (self.mesh.tp if self.is_sequence_parallel else 1)

    @property
    def is_recomputed(self) -> bool:
        """Whether every layer's forward pass runs twice."""
        return self.training.recompute == "full"

    @cached_property
    def dense_params(self) -> float:
        """W: dense parameters held by a GPU, mean over stages; a tied embedding is held by first and last stage."""
        model, mesh = self.model, self.mesh
        copies = 1 if model.tied_embeddings and mesh.pp == 1 else 2
        return (model.dense_body_params + copies * model.embedding_params) / (mesh.tp * mesh.pp)

    @property
    def expert_params(self) -> float:
        """We: routed-expert parameters held by a GPU, mean over stages."""
        return self.model.routed_expert_params / (self.mesh.etp * self.mesh.ep * self.mesh.pp)


def tensor_parallel(job: Job) -> Volume:
    """tp: (8 + 2 + 4)·(t−1)/t·X per layer and micro-batch.

    8: forward and backward all-reduce of attention and MLP, or as many all-gathers and reduce-scatters (Narayanan
    2021, arXiv 2104.04473 §3.2). +2: Megatron with sequence parallelism gathers the inputs of both column-parallel
    layers again in the backward pass (6 all-gathers + 4 reduce-scatters; torchtitan's plan runs 4 + 4, as does GSPMD).
    +4: full recomputation. A layer with routed experts counts its attention, and its shared experts as an MLP: the
    routed ones are split by ep and etp, not by tp.
    """
    regathers = job.is_sequence_parallel and job.parallelism.framework not in ("torchtitan", "jax")
    passes_per_layer = 8 + (2 if regathers else 0) + (4 if job.is_recomputed else 0)
    moe = job.model.moe
    share = 1.0 if moe is None or moe.shared_experts else 0.5
    layers = job.layers_per_stage - job.moe_layers_per_stage + share * job.moe_layers_per_stage
    num_passes = passes_per_layer * layers * job.num_micro_batches
    tp = job.mesh.tp
    name = f"{passes_per_layer}·(t−1)/t·X·l·m" + ("" if share == 1.0 else ", expert layers half")
    return Volume(num_passes * (tp - 1) / tp * job.activation_bytes, num_passes, name)


def context_parallel(job: Job) -> Volume:
    """cp, per layer and micro-batch, with K = b·(s/c)·(kv width/t)·ea, the keys and values of a rank's tokens.

    ring: 3·(c−1)·K (KV forward; KV and their gradients backward). all_gather: 2·(c−1)·K, and 3 where KV are gathered
    again in the backward pass (Transformer Engine's AttnFuncWithCPAndKVAllGather, so Megatron). ulysses: 2·(c−1)/c of
    the queries, keys, values and outputs. Full recomputation adds one more forward pass. More tp ranks than KV heads:
    a rank still holds one.
    """
    mesh, model, training = job.mesh, job.model, job.training
    c, method = mesh.cp, job.parallelism.cp_method
    times = job.layers_per_stage * job.num_micro_batches
    kv_split = mesh.tp if model.mla else min(mesh.tp, model.kv_heads)
    element_bytes = job.tokens_per_cp_rank * training.dtype.activations
    if method == "ulysses":
        passes = 2 + (1 if job.is_recomputed else 0)
        width = (model.query_width + model.attention_output_width) / mesh.tp + model.kv_width / kv_split
        bytes_per_gpu = passes * (c - 1) / c * element_bytes * width * times
        return Volume(bytes_per_gpu, 4 * passes * times, f"{passes}·(c−1)/c·b·(s/c)·(q+o+kv)/t·ea·l·m")
    regathers = method == "all_gather" and job.parallelism.framework == "megatron"
    passes = (3 if method == "ring" or regathers else 2) + (1 if job.is_recomputed else 0)
    kv_bytes = element_bytes * model.kv_width / kv_split
    return Volume(passes * (c - 1) * kv_bytes * times, passes * times, f"{passes}·(c−1)·K·l·m")


def gradient_sync(job: Job, *, params: float, num_ranks: int, symbol: str, num_layers: float) -> Volume:
    """dp and edp: synchronising ``params`` parameters over n = ``num_ranks`` ranks.

    zero 0: 2·(n−1)/n·W·eg. zero 1: (n−1)/n·W·(eg+ew). zero 2: (n−1)/n·W·(m·eg+ew). zero 3 (FSDP): (n−1)/n·W·m·(2ew+eg);
    torchtitan with a pipeline keeps the gathered weights over a step's micro-batches and reduces after the last:
    (n−1)/n·W·(ew+eg). One pass per layer and collective.
    """
    dtype, m = job.training.dtype, job.num_micro_batches
    zero = job.parallelism.zero
    if zero == 3 and job.parallelism.framework == "torchtitan" and job.mesh.pp > 1:
        per_param, passes, name = dtype.weights + dtype.gradients, 2.0, "(ew+eg)"
    else:
        per_param, passes, name = {
            0: (2 * dtype.gradients, 2.0, "2·eg"),
            1: (dtype.gradients + dtype.weights, 2.0, "(eg+ew)"),
            2: (m * dtype.gradients + dtype.weights, m + 1, "(m·eg+ew)"),
            3: (m * (2 * dtype.weights + dtype.gradients), 3 * m, "m·(2ew+eg)"),
        }[zero]
    bytes_per_gpu = (num_ranks - 1) / num_ranks * params * per_param
    return Volume(bytes_per_gpu, passes * max(1.0, num_layers), f"zero {zero}: (n−1)/n·{symbol}·{name}")


def dense_sync(job: Job) -> Volume:
    """dp: gradients and weights of the dense parameters over the shard group, dp_shard × cp ranks (dp × cp)."""
    num_ranks = job.mesh.num_shards * job.mesh.cp
    return gradient_sync(job, params=job.dense_params, num_ranks=num_ranks, symbol="W", num_layers=job.layers_per_stage)


def replica_sync(job: Job) -> Volume:
    """dp_replicate (HSDP): all-reduce of the shard over R replicas, 2·(R−1)/R·(W/F)·eg, F = dp_shard × cp."""
    num_shards = job.mesh.num_shards * job.mesh.cp
    replicas = job.mesh.dp // job.mesh.num_shards
    shard_bytes = job.dense_params / num_shards * job.training.dtype.gradients
    num_passes = 2 * max(1.0, job.layers_per_stage)
    return Volume(2 * (replicas - 1) / replicas * shard_bytes, num_passes, "2·(R−1)/R·(W/F)·eg")


def expert_sync(job: Job) -> Volume:
    """edp: as dp, on routed-expert parameters; with HSDP the experts are taken as sharded over all of edp."""
    return gradient_sync(
        job, params=job.expert_params, num_ranks=job.mesh.edp, symbol="We", num_layers=job.moe_layers_per_stage
    )


def expert_parallel(job: Job) -> Volume:
    """ep: 2·Tr·k·h·(e_dispatch+e_combine)·(e−1)/e per expert layer and micro-batch, Tr tokens a rank, top-k routing.

    Dispatch and combine, forward and backward; full recomputation runs the forward pair again. Uniform routing, one
    copy per expert: node-limited routing and de-duplication (DeepEP) send less, see ``traffic.bytes``.
    """
    assert job.model.moe is not None
    dtype, e = job.training.dtype, job.mesh.ep
    times = job.moe_layers_per_stage * job.num_micro_batches
    passes = 3 if job.is_recomputed else 2
    routed = job.tokens_per_rank * job.model.moe.top_k * job.model.hidden
    bytes_per_gpu = passes * routed * (dtype.dispatch + dtype.combine) * (e - 1) / e * times
    return Volume(bytes_per_gpu, 2 * passes * times, f"{passes}·Tr·k·h·(ed+ec)·(e−1)/e·l_moe·m")


def expert_tensor_parallel(job: Job) -> Volume:
    """etp: all-gather and reduce-scatter of the dispatched tokens, forward and backward.

    A rank receives Tr·k routed tokens and shares them with the other etp − 1: 4·(etp−1)·Tr·k·h·ea per expert layer and
    micro-batch (Megatron-core MoEAlltoAllTokenDispatcher), 6 with full recomputation.
    """
    assert job.model.moe is not None
    times = job.moe_layers_per_stage * job.num_micro_batches
    passes = 6 if job.is_recomputed else 4
    routed = job.tokens_per_rank * job.model.moe.top_k * job.model.hidden * job.training.dtype.activations
    bytes_per_gpu = passes * (job.mesh.etp - 1) * routed * times
    return Volume(bytes_per_gpu, passes * times, f"{passes}·(etp−1)·Tr·k·h·ea·l_moe·m")


def pipeline(job: Job) -> Volume:
    """pp: what an inner stage's GPU sends, v·m activations forward and v·m gradients backward, X/t' each.

    t' = t with sequence parallelism, else 1. It is also what one edge between two stages carries, both directions.
    """
    v, m = job.parallelism.vpp, job.num_micro_batches
    split = job.mesh.tp if job.is_sequence_parallel else 1
    return Volume(2 * v * m * job.activation_bytes / split, 2 * v * m, "2·v·m·X/t'")


def embedding_sync(job: Job) -> Volume:
    """embedding: all-reduce of the tied embedding's gradient between first and last stage, V·h/t·eg."""
    shard_bytes = job.model.embedding_params / job.mesh.tp * job.training.dtype.gradients
    return Volume(shard_bytes, 2.0, "V·h/t·eg")


VOLUMES = {
    "tp": tensor_parallel,
    "cp": context_parallel,
    "dp": dense_sync,
    "dp_replicate": replica_sync,
    "ep": expert_parallel,
    "etp": expert_tensor_parallel,
    "edp": expert_sync,
    "pp": pipeline,
    "embedding": embedding_sync,
}
"""The formula of every group family."""
