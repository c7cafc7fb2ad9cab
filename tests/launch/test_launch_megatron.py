"""Megatron-core's own groups, made on a fake process group, are those that a map's mesh gives."""

import json
import subprocess
import sys

import pytest
from launch_maps import make_map

from placer.launch.torch_job import group_ranks

pytest.importorskip("torch", reason="torch isn't installed: pip install '.[launch-tests]'")
pytest.importorskip("megatron.core", reason="megatron-core isn't installed: pip install '.[launch-tests]'")
pytestmark = pytest.mark.launch

# tp, cp, dp, pp, ep, etp and the order
DENSE = [(2, 1, 2, 2), (2, 2, 2, 2), (1, 1, 8, 1), (4, 1, 2, 2), (1, 2, 2, 4), (2, 1, 4, 2), (8, 1, 1, 2), (1, 4, 2, 1)]
EXPERTS = [
    (2, 2, 2, 2, 4, 1), (2, 1, 4, 2, 4, 1), (1, 1, 8, 2, 4, 1), (2, 1, 4, 1, 2, 2), (4, 1, 2, 2, 2, 2),
    (1, 2, 4, 2, 8, 1), (2, 1, 8, 1, 8, 2), (1, 1, 4, 4, 2, 1), (2, 2, 4, 1, 4, 2), (4, 1, 4, 1, 4, 1),
]  # fmt: skip
CONFIGURATIONS = [
    *((*degrees, 1, degrees[0], "tp-cp-ep-dp-pp") for degrees in DENSE),
    *((*degrees, "tp-cp-ep-dp-pp") for degrees in EXPERTS),
    # Megatron takes pp before dp only where attention and experts have equally many replicas
    *((*degrees, 1, degrees[0], "tp-cp-ep-pp-dp") for degrees in DENSE if degrees[1] == 1),
    (2, 2, 4, 2, 4, 1, "tp-cp-ep-pp-dp"),
    (4, 1, 2, 2, 2, 2, "tp-cp-ep-pp-dp"),
    (2, 2, 2, 2, 2, 2, "tp-cp-ep-pp-dp"),
]
PROGRAM = """
import json, sys
import torch.distributed as dist
from megatron.core import parallel_state as state
from torch.testing._internal.distributed.fake_pg import FakeStore

GROUPS = {
    "tp": state.get_tensor_model_parallel_group, "pp": state.get_pipeline_model_parallel_group,
    "cp": state.get_context_parallel_group, "dp": state.get_data_parallel_group,
    "dp-cp": lambda: state.get_data_parallel_group(with_context_parallel=True),
    "ep": state.get_expert_model_parallel_group, "etp": state.get_expert_tensor_parallel_group,
    "edp": state.get_expert_data_parallel_group,
}
found = []
for tp, cp, dp, pp, ep, etp, order in json.load(sys.stdin):
    size = tp * cp * dp * pp
    for rank in sorted({0, size // 2 + 1, size - 1}):
        dist.init_process_group("fake", rank=rank, world_size=size, store=FakeStore())
        state.initialize_model_parallel(
            tp, pp, context_parallel_size=cp, expert_model_parallel_size=ep, expert_tensor_parallel_size=etp,
            order=order, create_gloo_process_groups=False,
        )
        groups = {name: dist.get_process_group_ranks(get()) for name, get in GROUPS.items()}
        found.append([[tp, cp, dp, pp, ep, etp, order], rank, groups])
        state.destroy_model_parallel()
        dist.destroy_process_group()
json.dump(found, sys.stdout)
"""


def test_groups_are_megatrons():
    """Dense and expert groups of several ranks in 26 configurations, two orders, with and without experts."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM],
        input=json.dumps(CONFIGURATIONS), capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout[done.stdout.index("[[[") :])
    assert len(found) > 2 * len(CONFIGURATIONS)
    for (tp, cp, dp, pp, ep, etp, order), rank, groups in found:
        size = tp * cp * dp * pp
        degrees = {"tp": tp, "cp": cp, "dp": dp, "pp": pp, "ep": ep, "etp": etp}
        rank_map = make_map({"a": {k: k for k in range(size)}}, order=order, **degrees)
        for name, ranks in groups.items():
            own = next(group for group in group_ranks(rank_map, *name.split("-")) if rank in group)
            assert own == ranks, (degrees, order, rank, name)
