"""DeepSpeed's own groups are those that a map's ranks give, and its launcher puts ranks where the map says.

Groups are asked of deepspeed itself (runtime/pipe/topology.py, utils/groups.py), which computes them without a process
group: the grid of pipe, data, model, and expert groups.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from launch_maps import make_map
from simulated_hosts import SimulatedHosts, why_unavailable

from placer.launch.export import export
from placer.launch.export.files import write_files
from placer.launch.torch_job import group_ranks
from placer.scenario.schema import ParallelismSpec
from placer.workload.parallelism import check_parallelism, mesh_from

pytest.importorskip("torch", reason="torch isn't installed: pip install '.[launch-tests]'")
deepspeed = importlib.util.find_spec("deepspeed")
pytestmark = [
    pytest.mark.launch,
    pytest.mark.skipif(deepspeed is None, reason="deepspeed isn't installed: pip install '.[launch-tests]'"),
]

HERE = Path(__file__).parent
MAPS = {
    "contiguous": make_map({"gpu-2": {0: 0, 1: 1}, "gpu-10": {0: 2, 3: 3}, "gpu-1": {2: 4, 4: 5}}),
    "uneven": make_map({"gpu-2": {0: 0, 1: 1, 4: 2, 5: 3}, "gpu-10": {2: 4}, "gpu-1": {0: 5}}),
}

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


@pytest.mark.skipif(why_unavailable() is not None, reason=why_unavailable() or "hosts can be simulated")
@pytest.mark.parametrize("name", MAPS)
def test_launcher(tmp_path, name):
    """deepspeed.sh on every host (without ssh): nodes, ranks and GPUs are the map's."""
    rank_map = MAPS[name]
    (tmp_path / "results").mkdir()
    write_files(export(rank_map, "deepspeed").files, str(tmp_path))
    program = f"GROUP_RANK=$CROSS_RANK exec {sys.executable} {HERE / 'launched_program.py'} results light"
    environment = {
        "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE),
        "PATH": f"{Path(sys.executable).parent}:/usr/sbin:/usr/bin:/bin",
    }  # fmt: skip
    with SimulatedHosts([entry.host for entry in rank_map.hosts], tmp_path) as hosts:
        commands = {
            entry.host: [
                "bash", "deepspeed.sh", "--no_ssh", f"--node_rank={entry.node_rank}",
                "--no_python", "--no_local_rank", "sh", "-c", program,
            ]
            for entry in rank_map.hosts
        }  # fmt: skip
        outcome = hosts.run_on_all(commands, environment=environment, timeout=150, folder=tmp_path)
    for host, (code, output) in outcome.items():
        assert code == 0, f"{host} ended with {code}:\n{output[-4000:]}"
    results = {int(file.stem): json.loads(file.read_text()) for file in (tmp_path / "results").glob("*.json")}
    assert sorted(results) == list(range(rank_map.world_size))
    for rank, found in results.items():
        assert found["identities"] == [[r, *rank_map.place_of(r)] for r in range(rank_map.world_size)]
        assert found["group_rank"] == rank_map.host_ranks(rank_map.place_of(rank)[0]).node_rank
