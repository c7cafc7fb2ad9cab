"""DeepSpeed's own groups are those that a map's ranks give: the grid of pipe, data, model, and expert groups.

Asked of deepspeed itself (runtime/pipe/topology.py, utils/groups.py), which computes them without a process group.
"""

import json
import os
import subprocess
import sys

import pytest
from launch_maps import make_map

from placer.launch.torch_job import group_ranks
from placer.scenario.schema import ParallelismSpec
from placer.workload.parallelism import check_parallelism, mesh_from

pytestmark = pytest.mark.launch

# tp, dp, pp, ep
CONFIGURATIONS = [
    (2, 2, 2, 1), (1, 8, 1, 1), (4, 2, 3, 1), (2, 6, 2, 1), (1, 1, 4, 1), (8, 1, 2, 1),
    (1, 8, 1, 4), (2, 8, 1, 4), (2, 4, 2, 4), (4, 4, 2, 2), (1, 6, 2, 3), (2, 8, 3, 2), (1, 8, 4, 8),
]  # fmt: skip
PROGRAM = """
import json, sys
from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology
from deepspeed.utils.groups import _get_expert_parallel_ranks

found = []
for tp, dp, pp, ep in json.load(sys.stdin):
    topology = PipeModelDataParallelTopology(num_pp=pp, num_mp=tp, num_dp=dp)
    axes = {"tp": "model", "dp": "data", "pp": "pipe"}
    groups = {axis: topology.get_axis_comm_lists(name) for axis, name in axes.items()}
    groups["ep"], groups["edp"] = _get_expert_parallel_ranks(tp * dp * pp, tp, ep, pp)
    found.append(groups)
json.dump(found, sys.stdout)
"""


def test_groups_are_deepspeeds():
    """All groups of 13 configurations, with and without experts, in the default order."""
    pytest.importorskip("torch", reason="torch isn't installed: pip install '.[launch-tests]'")
    pytest.importorskip("deepspeed", reason="deepspeed isn't installed: DS_BUILD_OPS=0 pip install deepspeed")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM], env=os.environ | {"DS_ACCELERATOR": "cpu"},
        input=json.dumps(CONFIGURATIONS), capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout[done.stdout.index("[{") :])
    for (tp, dp, pp, ep), groups in zip(CONFIGURATIONS, found, strict=True):
        scenario = ParallelismSpec(framework="deepspeed", tp=tp, dp=dp, pp=pp, ep=ep, etp=tp)
        assert not check_parallelism(scenario), scenario
        mesh = mesh_from(scenario)
        rank_map = make_map(
            {"a": {k: k for k in range(mesh.world_size)}},
            order=mesh.order, tp=tp, cp=1, dp=dp, pp=pp, ep=ep, etp=tp,
        )  # fmt: skip
        for axis, ranks in groups.items():
            assert sorted(group_ranks(rank_map, axis)) == sorted(ranks), (tp, dp, pp, ep, axis)
