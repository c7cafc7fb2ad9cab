"""Which share of a family's communication time isn't hidden behind compute: the defaults that a scenario may replace.

tp, etp, ep, embedding 1: the next operation waits for them. cp 1, or 0.5 as a ring, whose sends overlap with
attention blocks. pp 1, or (pp−1)/m with virtual stages, where only filling and draining the pipeline waits. Gradient
families (dp, dp_replicate, edp) overlap with the passes that produce or use their parameters:

    exposure = min(1, max(1 / l, 1 − T_hide / T_sync))

l layers of a stage (the last layer's bucket has nothing left to hide behind); T_sync = bytes of these families / NIC
bandwidth (the tier above NVLink); T_hide = the compute of the passes that overlap: one backward for zero 0, and one
forward for zero 1 (weights gathered for the next step), m backwards and one forward for zero 2, all of them for zero 3.
A forward takes flops / (peak × 0.4), a backward twice that. Without peak flops, model or batch: 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from placer.workload.collectives import Job

if TYPE_CHECKING:
    from placer.scenario.schema import ParallelismSpec

GRADIENT_FAMILIES = ("dp", "dp_replicate", "edp")
_FLOPS_UTILISATION = 0.4  # The Llama 3 Herd of Models, arXiv 2407.21783, table 4: 38–43 % in bf16 on H100


def default_exposures(
    parallelism: ParallelismSpec,
    job: Job | None,
    *,
    bytes_per_gpu: Mapping[str, float],
    gpu_flops_per_s: float | None,
    tier_bandwidths_Bps: Sequence[float],  # noqa: N803  unit suffix
) -> dict[str, float]:
    """Exposure 0..1 of every family in ``bytes_per_gpu``, see the module.

    ``job`` is None when model or batch are not known; ``tier_bandwidths_Bps``: innermost tier first.
    """
    exposures = dict.fromkeys(bytes_per_gpu, 1.0)
    if "cp" in exposures and parallelism.cp_method == "ring":
        exposures["cp"] = 0.5
    if job is None:
        return exposures
    if "pp" in exposures and parallelism.vpp > 1:
        exposures["pp"] = min(1.0, (parallelism.pp - 1) / job.num_micro_batches)
    synced = [name for name in GRADIENT_FAMILIES if name in exposures]
    if synced and gpu_flops_per_s and tier_bandwidths_Bps:
        bandwidth = tier_bandwidths_Bps[min(1, len(tier_bandwidths_Bps) - 1)]
        sync_s = sum(bytes_per_gpu[name] for name in synced) / bandwidth
        exposed = 1.0 - _hiding_compute_s(job, gpu_flops_per_s) / sync_s if sync_s > 0 else 0.0
        share = min(1.0, max(1.0 / max(1.0, job.layers_per_stage), exposed))
        exposures.update(dict.fromkeys(synced, share))
    return exposures


def _hiding_compute_s(job: Job, gpu_flops_per_s: float) -> float:
    tokens = job.tokens_per_cp_rank / (job.mesh.tp * job.mesh.pp)
    flops = job.model.forward_flops_per_token(job.training.sequence_length) * tokens
    forward_s = flops / (gpu_flops_per_s * _FLOPS_UTILISATION)
    m = job.num_micro_batches
    num_forward, num_backward = {0: (0.0, 1.0), 1: (1.0, 1.0), 2: (1.0, m), 3: (m, m)}[job.parallelism.zero]
    return (num_forward + 2 * num_backward) * forward_s
