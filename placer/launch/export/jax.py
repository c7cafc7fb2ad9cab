"""JAX: a module with the process numbers, the order of devices, and a Mesh in that order.

JAX honours any order of devices in a Mesh, so every layout can be expressed.
"""

from __future__ import annotations

import json

from placer.launch.export.files import ExportFile, mark
from placer.launch.jax_mesh import device_order, mesh_shape
from placer.rank_map import RankMap


def write(rank_map: RankMap) -> list[ExportFile]:
    """The module, which needs jax and numpy alone."""
    shape = mesh_shape(rank_map)
    text = mark(rank_map, "jax") + _MODULE.format(
        num_processes=len(rank_map.hosts),
        coordinator=json.dumps(rank_map.hosts[0].host),
        processes=_to_lines({entry.host: entry.node_rank for entry in rank_map.hosts}),
        gpus=_to_lines({entry.host: rank_map.local_gpus(entry.host) for entry in rank_map.hosts}),
        counts=[len(entry.gpus) for entry in rank_map.hosts],
        order=device_order(rank_map),
        axes=tuple(shape),
        shape=tuple(shape.values()),
    )
    return [ExportFile("placer_mesh.py", text)]


def _to_lines(values: dict[str, object] | dict[str, int] | dict[str, tuple[int, ...]]) -> str:
    lines = "".join(
        f"    {json.dumps(key)}: {json.dumps(','.join(map(str, value)) if isinstance(value, tuple) else value)},\n"
        for key, value in values.items()
    )
    return "{\n" + lines + "}"


_MODULE = '''\
"""The rank map for JAX, one process per host. Before anything asks for devices:

    os.environ["CUDA_VISIBLE_DEVICES"] = placer_mesh.GPUS[host]
    address = f"{{placer_mesh.COORDINATOR}}:29500"
    jax.distributed.initialize(address, placer_mesh.NUM_PROCESSES, placer_mesh.PROCESSES[host])
    mesh = placer_mesh.make_mesh()
"""

import numpy

COORDINATOR = {coordinator}
NUM_PROCESSES = {num_processes}
PROCESSES = {processes}
GPUS = {gpus}
# number of devices of every process
COUNTS = {counts}
# ORDER[rank]: which device runs the rank, counted by process and then by device
ORDER = {order}
AXES = {axes}
SHAPE = {shape}


def make_mesh(devices=None):
    """The mesh whose flat position r is rank r's device. Refuses a job that isn't the map's."""
    import jax

    found = sorted(jax.devices() if devices is None else devices, key=lambda device: (device.process_index, device.id))
    counts = [sum(device.process_index == process for device in found) for process in range(NUM_PROCESSES)]
    if devices is None and counts != COUNTS:
        raise ValueError(f"devices by process are {{counts}}, the rank map has {{COUNTS}}")
    if len(found) != len(ORDER):
        raise ValueError(f"there are {{len(found)}} devices, the rank map has {{len(ORDER)}} ranks")
    return jax.sharding.Mesh(numpy.array([found[k] for k in ORDER]).reshape(SHAPE), AXES)
'''
