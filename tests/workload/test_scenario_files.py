"""The scenarios that ship with the repository: jobs that fit their pools, with the degrees that their sources state."""

from math import prod
from pathlib import Path

import pytest

from placer.scenario.hostlist import expand_hostlist
from placer.scenario.reading import read_scenario
from placer.workload.model import resolve_model
from placer.workload.parallelism import check_parallelism, mesh_from
from placer.workload.traffic import derive_traffic

SCENARIOS = Path(__file__).parents[2] / "scenarios"
# world size, usable GPUs in the pool, active families
EXPECTED = {
    "quickstart": (16, 16, {"tp", "dp", "pp"}),
    "llama3-405b-16k": (16384, 16384, {"tp", "dp", "pp"}),
    "llama3-405b-128k-context": (16384, 24576, {"tp", "cp", "dp", "pp"}),
    "deepseek-v3-2048": (2048, 2048, {"dp", "ep", "edp", "pp"}),
    "mixtral-8x22b-fragmented": (128, 138, {"tp", "dp", "ep", "edp", "pp"}),
    "gb200-nvl72-partial": (512, 600, {"dp", "ep", "edp", "pp"}),
}


def pool_size(cluster):
    if cluster.shape:
        return prod(cluster.shape.values())
    return sum(len(expand_hostlist(row.hosts)) * (row.gpus - len(row.down)) for row in cluster.hosts)


def test_every_scenario_is_known_here():
    """A new scenario file comes with its expectations."""
    assert {path.stem for path in SCENARIOS.glob("*.yaml")} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_the_job_fits_its_pool_and_has_its_families(name):
    """Degrees pass the checks, the pool is large enough, and every family that the source implies has bytes."""
    world_size, num_gpus, families = EXPECTED[name]
    scenario = read_scenario(SCENARIOS / f"{name}.yaml")
    assert scenario.name == name
    assert check_parallelism(scenario.parallelism) == []
    mesh = mesh_from(scenario.parallelism)
    assert (mesh.world_size, pool_size(scenario.cluster)) == (world_size, num_gpus)
    found = derive_traffic(
        mesh=mesh,
        parallelism=scenario.parallelism,
        model=resolve_model(scenario.model, directory=scenario.directory),
        training=scenario.training,
        overrides=scenario.traffic,
        gpu_flops_per_s=scenario.cluster.gpu.flops_per_s,
        tier_bandwidths_Bps=[tier.bandwidth_Bps for tier in scenario.cluster.tiers],
    )
    assert {entry.family for entry in found} == families
    assert all(entry.bytes_per_gpu > 0 for entry in found)


@pytest.mark.parametrize("name", EXPECTED)
def test_the_first_line_tells_editors_the_schema(name):
    """An editor with a YAML language server checks the file while it is written."""
    first = (SCENARIOS / f"{name}.yaml").read_text(encoding="utf-8").splitlines()[0]
    assert first == "# yaml-language-server: $schema=./scenario.schema.json"
