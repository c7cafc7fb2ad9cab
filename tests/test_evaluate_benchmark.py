"""How long the evaluator takes on large jobs: `pytest tests/test_evaluate_benchmark.py --benchmark-only` prints it."""

from __future__ import annotations

import numpy as np
import pytest

from placer.problem import Family, Problem, evaluate
from placer.workload.mesh import Mesh

LAWS = {"pp": "chain", "ep": "pair"}
AXES = {
    "tp": ("tp",),
    "cp": ("cp",),
    "dp": ("dp_shard", "cp"),
    "dp_replicate": ("dp_replicate",),
    "pp": ("pp",),
    "ep": ("ep",),
    "etp": ("etp",),
    "edp": ("edp",),
}


def with_all_families(world_size: int) -> Problem:
    mesh = Mesh(tp=4, cp=2, dp=world_size // 128, pp=16, ep=32, etp=2, dp_shard=world_size // 256)
    families = [Family(name, LAWS.get(name, "ring"), mesh.groups(*axes), 1e9) for name, axes in AXES.items()]
    slots = np.arange(world_size, dtype=np.int32)
    tree = np.stack([slots // 8, slots // 128, slots // 3072, slots // world_size])
    return Problem(
        mesh=mesh,
        families=tuple(families),
        weights=np.array([0.0, 16.0, 32.0, 112.0]),
        slot2domain=tree,
        slot2host=slots // 8,
        sorted_hosts=tuple(range(world_size // 8)),
    )


@pytest.mark.parametrize("world_size", [24_576, 98_304])
def test_evaluate_counts_every_byte_of_a_large_job(benchmark, world_size):
    problem = with_all_families(world_size)
    shuffled = np.random.default_rng(0).permutation(world_size).astype(np.int32)
    evaluation = benchmark.pedantic(evaluate, args=(problem, shuffled), rounds=3)
    sent = [family.total_bytes for family in problem.families]
    assert evaluation.bytes_by_tier.sum(axis=1) == pytest.approx(sent)
