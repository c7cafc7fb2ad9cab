"""The traffic of a job: every active group family with its law, its bytes and its exposure.

Hidden here: which families a job has, how bytes of a GPU become the unit of a law, and how a scenario's own figures
replace the formulas of `collectives` and the defaults of `exposure`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from placer.errors import InvalidInputError, Issue, did_you_mean
from placer.workload.collectives import VOLUMES, Job, Volume
from placer.workload.exposure import default_exposures
from placer.workload.mesh import IntArray, Mesh
from placer.workload.parallelism import check_fit

if TYPE_CHECKING:
    from placer.scenario.schema import ParallelismSpec, TrafficSpec, TrainingSpec
    from placer.workload.model import Model

Law = Literal["ring", "pair", "chain"]

FAMILY_AXES: dict[str, tuple[str, ...]] = {
    "tp": ("tp",),
    "cp": ("cp",),
    "dp": ("cp", "dp_shard"),
    "dp_replicate": ("dp_replicate",),
    "ep": ("ep",),
    "etp": ("etp",),
    "edp": ("edp",),
    "pp": ("pp",),
    "embedding": ("pp",),
}
"""The axes in which the ranks of one group of a family differ; of an embedding group: its first and last stage."""


@dataclass(frozen=True)
class FamilyTraffic:
    """What all groups of one family move in a training step.

    - ``bytes_per_gpu``: bytes sent by one GPU (pp: of an inner stage)
    - ``unit_bytes``: what the law multiplies: ring, bytes on one ring edge; pair, bytes of one ordered pair; chain,
      bytes between two neighbouring stages' GPUs, both directions. ``wrap_bytes``: that of the wrap edge
    - ``exposure``: share of the time that isn't hidden behind compute, 0..1
    - ``formula``: what gave the bytes, for a reader; ``axes``: the axes in which ranks of a group differ
    - ``num_passes``: how many passes of the collective carry the bytes (see `collectives.Volume`), for latency
    """

    family: str
    collective: str
    law: Law
    group_size: int
    num_groups: int
    bytes_per_gpu: float
    unit_bytes: float
    wrap_bytes: float
    exposure: float
    formula: str
    axes: tuple[str, ...]
    num_passes: float = 1.0

    def groups(self, mesh: Mesh) -> IntArray:
        """Ranks of every group, shape (``num_groups``, ``group_size``), in the order of the communicator."""
        groups = mesh.groups(*self.axes)
        return np.ascontiguousarray(groups[:, [0, -1]]) if self.family == "embedding" else groups


def derive_traffic(
    *,
    mesh: Mesh,
    parallelism: ParallelismSpec,
    model: Model | None,
    training: TrainingSpec | None,
    overrides: TrafficSpec,
    gpu_flops_per_s: float | None,
    tier_bandwidths_Bps: Sequence[float],  # noqa: N803  unit suffix
) -> tuple[FamilyTraffic, ...]:
    """The traffic of every active family (a group of more than one rank), in the order of `FAMILY_AXES`.

    ``overrides`` replaces bytes (of pp: an inner stage's, and the wrap edge keeps its proportion (v−1)/v) and
    exposures. Without ``model`` or ``training`` it must name every active family; whether embeddings are tied and,
    with ep = etp = 1, whether there are experts is then read off it too.
    ``tier_bandwidths_Bps``: bytes per second and GPU, innermost tier first; ``gpu_flops_per_s``: peak.

    Raises `InvalidInputError` with one issue per degree that doesn't fit the model or the batch, per override of an
    unknown or inactive family or with an impossible value, and per family without a figure.
    """
    issues = check_fit(parallelism, model, training)
    sizes = _active_sizes(mesh, model, overrides)
    issues += _check_overrides(overrides, sizes, mesh, model)
    if model is None or training is None:
        issues += _check_complete(overrides, sizes, model, training)
    if issues:
        raise InvalidInputError(issues)

    job = Job(mesh, parallelism, model, training) if model is not None and training is not None else None
    volumes = {name: _volume(name, job, overrides) for name in sizes}
    exposures = default_exposures(
        parallelism,
        job,
        bytes_per_gpu={name: volume.bytes_per_gpu for name, volume in volumes.items()},
        gpu_flops_per_s=gpu_flops_per_s,
        tier_bandwidths_Bps=tier_bandwidths_Bps,
    )
    exposures.update(overrides.exposure)
    return tuple(
        _family(name, size, volumes[name], exposure=exposures[name], mesh=mesh, parallelism=parallelism)
        for name, size in sizes.items()
    )


def _volume(name: str, job: Job | None, overrides: TrafficSpec) -> Volume:
    computed = VOLUMES[name](job) if job is not None else Volume(0.0, 1.0, "")
    if name not in overrides.bytes_per_gpu:
        return computed
    return Volume(overrides.bytes_per_gpu[name], computed.num_passes, "given in traffic.bytes")


def _family(
    name: str, size: int, volume: Volume, *, exposure: float, mesh: Mesh, parallelism: ParallelismSpec
) -> FamilyTraffic:
    law: Law = "chain" if name == "pp" else "ring"
    if name == "ep" or (name == "cp" and parallelism.cp_method == "ulysses"):
        law = "pair"
    vpp = parallelism.vpp
    return FamilyTraffic(
        family=name,
        collective=_collective(name, parallelism),
        law=law,
        group_size=size,
        num_groups=mesh.world_size // (mesh.pp if name == "embedding" else size),
        bytes_per_gpu=volume.bytes_per_gpu,
        unit_bytes=volume.bytes_per_gpu / (size - 1) if law == "pair" else volume.bytes_per_gpu,
        wrap_bytes=volume.bytes_per_gpu * (vpp - 1) / vpp if name == "pp" else 0.0,
        exposure=exposure,
        formula=volume.formula,
        axes=FAMILY_AXES[name],
        num_passes=volume.num_passes,
    )


def _collective(name: str, parallelism: ParallelismSpec) -> str:
    if name == "tp":
        return "all_gather+reduce_scatter" if parallelism.sequence_parallel else "all_reduce"
    if name == "cp":
        return {"all_gather": "all_gather+reduce_scatter", "ring": "send_recv", "ulysses": "all_to_all"}[
            parallelism.cp_method
        ]
    if name in ("dp", "edp"):
        return "reduce_scatter+all_gather" if parallelism.zero else "all_reduce"
    return {
        "dp_replicate": "all_reduce",
        "ep": "all_to_all",
        "etp": "all_gather+reduce_scatter",
        "pp": "send_recv",
        "embedding": "all_reduce",
    }[name]


def _active_sizes(mesh: Mesh, model: Model | None, overrides: TrafficSpec) -> dict[str, int]:
    """Group size of every active family."""
    named = overrides.bytes_per_gpu
    if model is not None:
        has_experts, is_tied = model.moe is not None, model.tied_embeddings
    else:
        has_experts = mesh.ep > 1 or mesh.etp > 1 or "edp" in named
        is_tied = "embedding" in named
    sizes = {
        "tp": mesh.tp,
        "cp": mesh.cp,
        "dp": mesh.cp * mesh.num_shards,
        "dp_replicate": mesh.dp // mesh.num_shards,
        "ep": mesh.ep if has_experts else 1,
        "etp": mesh.etp if has_experts else 1,
        "edp": mesh.edp if has_experts else 1,
        "pp": mesh.pp,
        "embedding": 2 if is_tied and mesh.pp > 1 else 1,
    }
    return {name: size for name, size in sizes.items() if size > 1}


def _check_overrides(overrides: TrafficSpec, sizes: dict[str, int], mesh: Mesh, model: Model | None) -> list[Issue]:
    issues: list[Issue] = []
    for key, values in (("bytes", overrides.bytes_per_gpu), ("exposure", overrides.exposure)):
        for name, value in values.items():
            path = ("traffic", key, name)
            if name not in FAMILY_AXES:
                issues.append(Issue(f"unknown group family {name!r}", did_you_mean(name, list(FAMILY_AXES)), path))
            elif name not in sizes:
                reason = _why_inactive(name, mesh, model)
                issues.append(Issue(f"{name} is not active: {reason}", f"leave {name} out", path))
            elif not math.isfinite(value) or value < 0 or (key == "exposure" and value > 1):
                rule = "0 to 1" if key == "exposure" else "a finite size from 0"
                issues.append(Issue(f"{key} of {name} is {value}: must be {rule}", path=path))
    return issues


def _why_inactive(name: str, mesh: Mesh, model: Model | None) -> str:
    if name in ("ep", "etp", "edp") and model is not None and model.moe is None:
        return "the model has no experts"
    if name == "embedding":
        return "there is no pipeline (pp 1)" if mesh.pp == 1 else "the model's embeddings are not tied"
    if name == "dp_replicate":
        return f"dp_shard is all of dp ({mesh.dp})"
    if name == "edp":
        return f"edp = tp × cp × dp / (etp × ep) = {mesh.num_stage_ranks} / {mesh.etp * mesh.ep} = 1"
    if name == "dp":
        return f"its groups hold one rank (dp_shard {mesh.num_shards}, cp {mesh.cp})"
    return f"{name} is 1"


def _check_complete(
    overrides: TrafficSpec, sizes: dict[str, int], model: Model | None, training: TrainingSpec | None
) -> list[Issue]:
    absent = " and ".join(part for part, value in (("model", model), ("training", training)) if value is None)
    return [
        Issue(
            f"no bytes for {name} (groups of {size}): the scenario has no {absent} and traffic.bytes does not name it",
            f"write traffic.bytes.{name}, the bytes that one GPU sends per step, or add {absent}",
            ("traffic", "bytes"),
        )
        for name, size in sizes.items()
        if name not in overrides.bytes_per_gpu
    ]
