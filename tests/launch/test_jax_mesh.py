"""A JAX mesh in the order of a map: flat position r is the device of rank r, and its collectives are right."""

import os
import subprocess
import sys
import types
from pathlib import Path

import pytest
from launch_maps import GENERAL, MAPS, make_map

import placer
from placer.errors import InvalidInputError
from placer.launch.jax_mesh import device_order, mesh_shape

PROGRAM = """
import jax, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
import placer

rank_map = placer.RankMap.load("map.json")
mesh = placer.make_jax_mesh(rank_map)
assert mesh.shape == {"pp": 1, "dp": 4, "cp": 1, "tp": 2}, mesh.shape
assert [device.id for device in mesh.devices.ravel()] == [3, 0, 7, 1, 5, 2, 6, 4], mesh.devices
values = jax.device_put(np.arange(8.0).reshape(4, 2), NamedSharding(mesh, P("dp", "tp")))
by_device = {shard.device.id: float(shard.data[0, 0]) for shard in values.addressable_shards}
assert by_device == {3: 0, 0: 1, 7: 2, 1: 3, 5: 4, 2: 5, 6: 6, 4: 7}, by_device
total = jax.jit(lambda x: x.sum(axis=0), out_shardings=NamedSharding(mesh, P("tp")))(values)
assert total.tolist() == [12.0, 16.0], total
"""


@pytest.mark.launch
def test_forced_host_devices(tmp_path):
    """Eight devices of one process in a permuted order: shards sit on their rank's device, sums are right."""
    pytest.importorskip("jax", reason="jax isn't installed: pip install '.[launch-tests]'")
    gpu2rank = {gpu: rank for rank, gpu in enumerate([3, 0, 7, 1, 5, 2, 6, 4])}
    hosts = {f"h{k}": {0: gpu2rank[k]} for k in range(8)}
    make_map(hosts, tp=2, cp=1, dp=4, pp=1, ep=1, etp=1).save(tmp_path / "map.json")
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
    environment["PYTHONPATH"] = str(Path(placer.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", MAPS)
def test_order_is_a_permutation(name):
    """Every rank has one device: that of its GPU among those of its host's process."""
    rank_map = MAPS[name]
    flat = [(entry.host, gpu) for entry in rank_map.hosts for gpu in rank_map.local_gpus(entry.host)]
    assert [flat[k] for k in device_order(rank_map)] == [rank_map.place_of(r) for r in range(rank_map.world_size)]


def test_shape_has_the_slowest_axis_first():
    """As numpy and Mesh count; ep is no axis of the dense grid."""
    rank_map = make_map({"a": {k: k for k in range(16)}}, tp=2, cp=1, dp=4, pp=2, ep=4, etp=1)
    assert mesh_shape(rank_map) == {"pp": 2, "dp": 4, "cp": 1, "tp": 2}
    assert list(mesh_shape(rank_map)) == ["pp", "dp", "cp", "tp"]


def test_wrong_number_of_devices(monkeypatch):
    """A job without all hosts is refused."""
    monkeypatch.setitem(sys.modules, "jax", types.SimpleNamespace(devices=lambda: [1, 2]))
    with pytest.raises(InvalidInputError, match="JAX has 2 devices, the map 6 ranks"):
        placer.make_jax_mesh(GENERAL)
