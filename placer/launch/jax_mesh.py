"""A rank map as the order of devices of a JAX Mesh. jax is imported when a mesh is made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from placer.errors import InvalidInputError
from placer.rank_map import RankMap


def mesh_shape(rank_map: RankMap) -> dict[str, int]:
    """Axis names and degrees of the map's dense grid, slowest axis first, as a Mesh has them."""
    axes = [axis for axis in rank_map.mesh.order.split("-") if axis != "ep"]
    return {axis: int(getattr(rank_map.mesh, axis)) for axis in reversed(axes)}


def device_order(rank_map: RankMap) -> list[int]:
    """``order[rank]``: index of the rank's device among all, counted by process and then by local device.

    One process per host, numbered as nodes are; CUDA_VISIBLE_DEVICES lists `RankMap.local_gpus`.
    """
    order = [0] * rank_map.world_size
    first = 0
    for entry in rank_map.hosts:
        for k, gpu in enumerate(rank_map.local_gpus(entry.host)):
            order[rank_map.rank_of(entry.host, gpu)] = first + k
        first += len(entry.gpus)
    return order


def make_jax_mesh(rank_map: RankMap, devices: Sequence[Any] | None = None) -> Any:
    """A `jax.sharding.Mesh` whose flat position r is the device of rank r; axes as in `mesh_shape`.

    ``devices``: all of the job, `jax.devices()` by default. Raises `InvalidInputError` when their number isn't the
    map's world size, or when the processes of the job don't have as many devices each as the map's hosts. Example::

        mesh = placer.make_jax_mesh(placer.RankMap.load("rank_map.json"))
    """
    import jax  # noqa: PLC0415  only those who use it have it
    import numpy as np  # noqa: PLC0415  launch processes don't need it

    given = jax.devices() if devices is None else devices
    if len(given) != rank_map.world_size:
        message = f"JAX has {len(given)} devices, the map {rank_map.world_size} ranks"
        raise InvalidInputError(message, hint="call jax.distributed.initialize first, with all of the map's hosts")
    counts = [sum(device.process_index == node for device in given) for node in range(len(rank_map.hosts))]
    if devices is None and counts != (wanted := [len(entry.gpus) for entry in rank_map.hosts]):
        node = next(node for node, count in enumerate(counts) if count != wanted[node])
        message = (
            f"process {node} has {counts[node]} devices, {rank_map.hosts[node].host} of the map {wanted[node]} ranks"
        )
        raise InvalidInputError(message, hint="run one process per host, numbered by node_rank, on the map's GPUs")
    ordered = sorted(given, key=lambda device: (device.process_index, device.id))
    shape = mesh_shape(rank_map)
    grid = np.array([ordered[k] for k in device_order(rank_map)], dtype=object).reshape(tuple(shape.values()))
    return jax.sharding.Mesh(grid, tuple(shape))
