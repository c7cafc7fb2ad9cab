"""A JAX mesh in the order of a map: flat position r is the device of rank r, and its collectives are right."""

import os
import socket
import subprocess
import sys
import types
from pathlib import Path

import pytest
from launch_maps import GENERAL, MAPS, make_map

import placer
from placer.errors import InvalidInputError
from placer.launch.export import jax as jax_export
from placer.launch.jax_mesh import device_order, mesh_shape

PROGRAM = """
import jax, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
import placer

rank_map = placer.RankMap.load("map.json")
mesh = placer.make_jax_mesh(rank_map, jax.devices())
assert mesh.shape == {"pp": 1, "dp": 4, "cp": 1, "tp": 2}, mesh.shape
assert [device.id for device in mesh.devices.ravel()] == [3, 0, 7, 1, 5, 2, 6, 4], mesh.devices
values = jax.device_put(np.arange(8.0).reshape(4, 2), NamedSharding(mesh, P("dp", "tp")))
by_device = {shard.device.id: float(shard.data[0, 0]) for shard in values.addressable_shards}
assert by_device == {3: 0, 0: 1, 7: 2, 1: 3, 5: 4, 2: 5, 6: 6, 4: 7}, by_device
total = jax.jit(lambda x: x.sum(axis=0), out_shardings=NamedSharding(mesh, P("tp")))(values)
assert total.tolist() == [12.0, 16.0], total
"""

# one process per host; argument: its host. Makes the mesh by the library and by the exported module
PROCESS = """
import os, sys
import jax, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
import placer, placer_mesh

host, port = sys.argv[1:]
jax.config.update("jax_cpu_collectives_implementation", "gloo")
address = f"127.0.0.1:{port}"
jax.distributed.initialize(address, placer_mesh.NUM_PROCESSES, placer_mesh.PROCESSES[host])
rank_map = placer.RankMap.load("map.json")
mesh = placer.make_jax_mesh(rank_map)
assert mesh == placer_mesh.make_mesh()
assert placer_mesh.GPUS[host] == ",".join(map(str, rank_map.local_gpus(host)))

ranks = np.arange(12.0).reshape(2, 3, 1, 2)  # pp, dp, cp, tp: flat position is the rank
sharding = NamedSharding(mesh, P(*mesh.axis_names))
values = jax.make_array_from_callback(ranks.shape, sharding, lambda index: ranks[index])
local = sorted(jax.local_devices(), key=lambda device: device.id)
for shard in values.addressable_shards:
    gpu = rank_map.local_gpus(host)[local.index(shard.device)]
    assert rank_map.rank_of(host, gpu) == float(np.asarray(shard.data).item()), (host, gpu)


def step(rank):
    summed = jax.lax.psum(rank, "dp")
    following = jax.lax.ppermute(rank, "pp", [(0, 1), (1, 0)])
    gathered = jax.lax.all_gather(rank, "tp").reshape(-1)
    return summed * 10000 + following * 100 + gathered[0] * 10 + gathered[1] / 10


found = jax.jit(jax.shard_map(step, mesh=mesh, in_specs=sharding.spec, out_specs=sharding.spec))(values)
tp0, tp1 = ranks[..., :1], ranks[..., 1:]
expected = ranks.sum(axis=1, keepdims=True) * 10000 + ranks[::-1] * 100 + tp0 * 10 + tp1 / 10
for shard in found.addressable_shards:
    np.testing.assert_allclose(np.asarray(shard.data), np.broadcast_to(expected, ranks.shape)[shard.index], rtol=1e-6)
print("right on", host)
"""


@pytest.mark.launch
def test_processes_on_hosts(tmp_path):
    """Three processes with 2, 4 and 6 devices: shards sit where the map says, collectives give the default's values."""
    pytest.importorskip("jax", reason="jax isn't installed: pip install '.[launch-tests]'")
    hosts = {"gpu-1": {3: 7, 1: 0}, "gpu-2": {0: 11, 1: 4, 2: 2, 3: 9}, "gpu-10": {0: 1, 2: 10, 4: 3, 5: 8, 6: 5, 7: 6}}
    rank_map = make_map(hosts, tp=2, cp=1, dp=3, pp=2, ep=1, etp=1)
    rank_map.save(tmp_path / "map.json")
    for file in jax_export.write(rank_map):
        (tmp_path / file.name).write_text(file.text)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": f"{Path(placer.__file__).parents[1]}:{tmp_path}"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROCESS, host, str(port)], cwd=tmp_path, text=True,
            env=environment | {"XLA_FLAGS": f"--xla_force_host_platform_device_count={len(gpus)}"},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )
        for host, gpus in hosts.items()
    ]  # fmt: skip
    try:
        outputs = [process.communicate(timeout=180)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0, 0], outputs
    assert all(f"right on {host}" in output for host, output in zip(hosts, outputs, strict=True))


@pytest.mark.launch
def test_forced_host_devices(tmp_path):
    """Eight devices of one process, for eight hosts in a permuted order: shards sit on their rank's, sums are right."""
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


def give_devices(monkeypatch, counts):
    """Let `jax.devices()` be of processes 0, 1, … with so many devices each."""
    devices = [types.SimpleNamespace(process_index=k, id=k) for k, count in enumerate(counts) for _ in range(count)]
    monkeypatch.setitem(sys.modules, "jax", types.SimpleNamespace(devices=lambda: devices))


def test_wrong_number_of_devices(monkeypatch):
    """A job without all hosts is refused."""
    give_devices(monkeypatch, [2])
    with pytest.raises(InvalidInputError, match="JAX has 2 devices, the map 6 ranks"):
        placer.make_jax_mesh(GENERAL)


def test_wrong_devices_of_a_process(monkeypatch):
    """As many devices as ranks, but a host has too few: its ranks would be on another host."""
    counts = [len(entry.gpus) for entry in GENERAL.hosts]
    give_devices(monkeypatch, [counts[0] - 1, counts[1] + 1, *counts[2:]])
    with pytest.raises(
        InvalidInputError, match=f"process 0 has {counts[0] - 1} devices, .* of the map {counts[0]} ranks"
    ):
        placer.make_jax_mesh(GENERAL)
