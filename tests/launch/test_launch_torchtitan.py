"""torchtitan's own device meshes, made on a fake process group, are those that a map's ranks give.

Made by ParallelDims of torchtitan 0.2.2, the last that needs torch alone for it: from slowest to fastest axis pp,
dp_replicate, fsdp = dp_shard × cp, tp, and for experts pp, dp_replicate, efsdp, ep, etp. 0.3.0 (read) has these orders
without etp, and a mesh with dp_shard and cp instead of fsdp: that one is made here.
"""

import importlib.util
import json
import subprocess
import sys

import pytest
from launch_maps import make_map

from placer.launch.torch_job import group_ranks
from placer.scenario.schema import ParallelismSpec
from placer.workload.parallelism import check_parallelism, mesh_from

pytest.importorskip("torch", reason="torch isn't installed: pip install '.[launch-tests]'")
pytestmark = [
    pytest.mark.launch,
    pytest.mark.skipif(
        importlib.util.find_spec("torchtitan") is None,
        reason="torchtitan isn't installed: pip install --no-deps torchtitan==0.2.2",
    ),
]

# dp_replicate, dp_shard, cp, tp, pp, ep, etp
CONFIGURATIONS = [
    (1, 8, 1, 1, 1, 1, 1), (1, 4, 1, 2, 2, 1, 1), (1, 2, 2, 2, 2, 1, 1), (2, 2, 2, 2, 2, 1, 1), (4, 2, 1, 2, 3, 1, 1),
    (3, 2, 2, 1, 2, 1, 1), (8, 1, 1, 2, 1, 1, 1), (1, 8, 1, 1, 2, 4, 1), (1, 4, 1, 2, 2, 2, 2), (1, 4, 2, 2, 1, 4, 2),
    (1, 4, 2, 2, 2, 8, 1), (2, 4, 1, 1, 2, 2, 1), (2, 4, 2, 2, 2, 4, 2), (3, 2, 2, 2, 2, 8, 1), (2, 2, 1, 4, 1, 8, 1),
]  # fmt: skip
PROGRAM = """
import importlib.util, json, sys, types
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore
package = types.ModuleType("torchtitan")  # without its __init__, which imports models, tokenizers and datasets
package.__path__ = list(importlib.util.find_spec("torchtitan").submodule_search_locations)
sys.modules["torchtitan"] = package
from torchtitan.distributed import parallel_dims

parallel_dims.device_type = "cpu"  # "cuda" where there is no accelerator
EXPERT_DATA = ("dp_replicate", "efsdp")
found = []
for configuration in json.load(sys.stdin):
    dp_replicate, dp_shard, cp, tp, pp, ep, etp = configuration
    size = dp_replicate * dp_shard * cp * tp * pp
    for rank in sorted({0, size // 2 + 1, size - 2, size - 1}):
        dist.init_process_group("fake", rank=rank, world_size=size, store=FakeStore())
        dims = parallel_dims.ParallelDims(dp_replicate, dp_shard, cp, tp, pp, ep, etp, size)
        dims.build_mesh()
        meshes = {**dims._meshes, "edp": dims._global_meshes["sparse"][EXPERT_DATA]._flatten("edp")}
        dense = init_device_mesh(
            "cpu", (pp, dp_replicate, dp_shard, cp, tp), mesh_dim_names=("pp", "dp_replicate", "dp_shard", "cp", "tp")
        )
        meshes["dp_shard"] = dense["dp_shard"]
        groups = {name: dist.get_process_group_ranks(mesh.get_group()) for name, mesh in meshes.items()}
        found.append([configuration, rank, groups])
        dist.destroy_process_group()
json.dump(found, sys.stdout)
"""
# torchtitan's name to axes of a map, and to axes of its scenario that a map doesn't have
MAP_AXES = {
    "pp": ["pp"], "batch": ["dp"], "loss": ["dp", "cp"], "cp": ["cp"], "tp": ["tp"],
    "ep": ["ep"], "etp": ["etp"], "edp": ["edp"],
}  # fmt: skip
HSDP_AXES = {"dp_replicate": ["dp_replicate"], "dp_shard": ["dp_shard"], "fsdp": ["dp_shard", "cp"]}


def own_group(groups, rank):
    return next(group for group in groups if rank in group)


def test_groups_are_torchtitans():
    """Every axis for several ranks in 15 configurations, with and without HSDP and experts, in the default order."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM],
        input=json.dumps(CONFIGURATIONS), capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout[done.stdout.index("[[[") :])
    assert len(found) > 2 * len(CONFIGURATIONS)
    for (dp_replicate, dp_shard, cp, tp, pp, ep, etp), rank, groups in found:
        degrees = {"tp": tp, "cp": cp, "dp": dp_replicate * dp_shard, "pp": pp, "ep": ep, "etp": etp}
        scenario = ParallelismSpec(framework="torchtitan", dp_shard=dp_shard, zero=3, **degrees)
        assert not check_parallelism(scenario), degrees
        mesh = mesh_from(scenario)
        rank_map = make_map({"a": {k: k for k in range(mesh.world_size)}}, order=mesh.order, **degrees)
        own = {name: own_group(group_ranks(rank_map, *axes), rank) for name, axes in MAP_AXES.items()}
        own |= {name: own_group(mesh.groups(*axes).tolist(), rank) for name, axes in HSDP_AXES.items()}
        num_shards = mesh.edp // dp_replicate
        own["efsdp"] = own_group([own["edp"][k : k + num_shards] for k in range(0, mesh.edp, num_shards)], rank)
        assert own == groups, (degrees, dp_shard, rank)
