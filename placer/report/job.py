"""The report of ``placer check``: what the job and the pool are, before anything is solved."""

from __future__ import annotations

import numpy as np

from placer.cluster.topology import Topology
from placer.formulate import Job
from placer.report.text import Block, Table, format_bytes

MAX_DOMAINS_SHOWN = 12


def describe_job(job: Job) -> list[Block]:
    """The blocks of the report: degrees, groups and bytes of every family, the pool and what is free in it."""
    mesh, traffic = job.mesh, job.traffic
    degrees = " ".join(f"{axis} {getattr(mesh, axis)}" for axis in ("tp", "cp", "pp", "dp", "ep", "etp"))
    experts = f", edp {mesh.edp}" if mesh.ep * mesh.etp > 1 else ""
    head = (
        f"{job.scenario.name}: valid\n"
        f"ranks     {mesh.world_size} = tp × cp × pp × dp ({degrees}{experts}), order {mesh.order}, {mesh.framework}"
    )
    blocks: list[Block] = [head + _describe_model(job)]
    blocks.append(
        Table(
            ("family", "collective", "formula", "groups", "of size", "bytes per GPU", "bytes in all", "exposure"),
            tuple(
                (
                    entry.family,
                    entry.collective,
                    entry.formula,
                    str(entry.num_groups),
                    str(entry.group_size),
                    format_bytes(entry.bytes_per_gpu),
                    format_bytes(family.total_bytes),
                    f"{entry.exposure:.3g}",
                )
                for entry, family in zip(traffic, job.problem.families, strict=True)
            ),
            num_labels=3,
        )
        if traffic
        else "no communication: every group has one rank"
    )
    blocks += [_describe_pool(job), _tier_table(job.topology)]
    if job.notes:
        blocks.append("\n".join(f"note: {note}" for note in job.notes))
    return blocks


def _describe_model(job: Job) -> str:
    training = job.scenario.training
    text = ""
    if job.model is not None:
        model = job.model
        size = f"{model.total_params / 1e9:.4g} billion parameters"
        text += f"\nmodel     {size}, {model.layers} layers, hidden {model.hidden}"
        if model.moe is not None:
            text += f", {model.moe.experts} experts (top {model.moe.top_k})"
    if training is not None:
        micro_batches = training.global_batch // (training.micro_batch * job.mesh.dp)
        text += (
            f"\nbatch     {training.global_batch} × {training.sequence_length} tokens, {micro_batches} micro-batches"
        )
    return text


def _describe_pool(job: Job) -> str:
    topology = job.topology
    capacities = np.bincount(topology.slot2host, minlength=len(topology.hosts))
    sizes, counts = np.unique(capacities, return_counts=True)
    hosts = ", ".join(
        f"{count} with {size} usable" for size, count in zip(sizes[::-1].tolist(), counts[::-1].tolist(), strict=True)
    )
    spare = topology.num_slots - job.mesh.world_size
    pool = f"{topology.num_slots} usable GPUs on {len(topology.hosts)} hosts ({hosts})"
    return f"pool      {pool}; {spare} more than the job needs"


def _tier_table(topology: Topology) -> Table:
    """Every tier, and how many usable GPUs its domains have."""
    rows = []
    for t, tier in enumerate(topology.tiers):
        free = topology.free_by_domain(t)
        rows.append(
            (
                tier.name,
                "  " + _describe_free(free),
                f"{tier.bandwidth_Bps / 1e9:.4g} GB/s",
                f"{tier.latency_s * 1e6:.3g} us",
                f"{tier.weight:.4g}",
                str(len(free)),
            )
        )
    header = ("tier", "  usable GPUs per domain", "bandwidth", "latency", "weight", "domains")
    return Table(header, tuple(rows), num_labels=2)


def _describe_free(free: dict[str, int]) -> str:
    if len(free) <= MAX_DOMAINS_SHOWN:
        return ", ".join(f"{name} {count}" for name, count in free.items())
    sizes, counts = np.unique(list(free.values()), return_counts=True)
    pairs = list(zip(sizes[::-1].tolist(), counts[::-1].tolist(), strict=True))
    if len(pairs) <= MAX_DOMAINS_SHOWN:
        return ", ".join(f"{count} × {size}" for size, count in pairs)
    return f"{sizes.min()} to {sizes.max()}, mean {sum(free.values()) / len(free):.1f}"
