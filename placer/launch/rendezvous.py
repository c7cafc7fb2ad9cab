"""A rendezvous for torchrun that numbers nodes as the rank map does: ``--rdzv-backend=placer --rdzv-conf=rank_map=M``.

Hidden here: c10d's rendezvous, which does all the work; only the order of nodes is another. The agents' own numbers are
then the map's, in their logs too, and stay so over elastic restarts on the same hosts.

Light: torchrun loads the module whatever its backend is. torch is imported when the rendezvous is made.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from placer.errors import InvalidInputError, PlacerError, UsageError
from placer.launch.failure_report import render, report_failure
from placer.launch.host_names import find_host
from placer.rank_map import RankMap


def get_handler() -> Callable[[Any], Any]:
    """What the entry point ``torchrun.handlers`` wants: the function that makes a handler of RendezvousParameters."""
    return create_handler


def create_handler(parameters: Any) -> MappedRendezvous:
    """Make the rendezvous. A map that can't be used ends the agent, on all hosts, with the reason and its exit code."""
    from torch.distributed.elastic.rendezvous import c10d_rendezvous_backend, dynamic_rendezvous  # noqa: PLC0415

    try:
        rank_map = load_map(parameters.config)
    except PlacerError as error:
        report_failure(render(error))
        raise SystemExit(error.exit_code) from error
    backend, store = c10d_rendezvous_backend.create_backend(parameters)
    given = dynamic_rendezvous.create_handler(store, backend, parameters)
    return MappedRendezvous(given, rank_map, local_addr=parameters.local_addr)


def load_map(config: Mapping[str, Any]) -> RankMap:
    """The map of ``--rdzv-conf``. Raises `UsageError` when none is named or node order isn't enough for it."""
    path = config.get("rank_map")
    if not path:
        raise UsageError("no rank map is given", hint="torchrun --rdzv-backend=placer --rdzv-conf=rank_map=MAP …")
    rank_map = RankMap.load(str(path))
    if not rank_map.follows_nodes:
        message = f"the placer rendezvous can't express this {rank_map.layout_class} map: it orders nodes alone"
        raise UsageError(message, hint="use torchrun … -m placer.run --rank-map MAP train.py, with any rendezvous")
    return rank_map


class MappedRendezvous:
    """c10d's rendezvous handler with the node ranks of a map. All that isn't named here is the given handler's."""

    def __init__(self, given: Any, rank_map: RankMap, *, local_addr: str | None) -> None:
        self._given = given
        self._rank_map = rank_map
        self._local_addr = local_addr

    def __getattr__(self, name: str) -> Any:
        return getattr(self._given, name)

    def get_backend(self) -> str:
        """The name by which torchrun knows this rendezvous."""
        return "placer"

    def next_rendezvous(self) -> Any:
        """Join the next round, and number its nodes as the map does.

        All agents of the round tell each other what they are, so that all of them go on or all of them end, with exit
        code 3 and the reason: a host that the map hasn't, one that is missing, or GPUs in another order.
        """
        from torch.distributed.elastic.rendezvous.api import RendezvousInfo, RendezvousStoreInfo  # noqa: PLC0415

        distributed: Any = import_module("torch.distributed")
        info = self._given.next_rendezvous()
        try:
            node_rank = self._agree(info)
        except PlacerError as error:
            report_failure(render(error))
            raise SystemExit(error.exit_code) from error
        bootstrap = info.bootstrap_store_info
        if not self._given.use_agent_store:  # the workers' rank 0 serves the store, so its host must be found anew
            bootstrap = RendezvousStoreInfo.build(
                node_rank, distributed.PrefixStore("placer", info.store), self._local_addr
            )
        return RendezvousInfo(info.store, node_rank, info.world_size, bootstrap)

    def _agree(self, info: Any) -> int:
        """This node's rank, once every agent of the round has said which host it is. Raises `InvalidInputError`."""
        own: dict[str, Any] = {"host": None, "mistake": None}
        try:
            own["host"] = find_own_host(self._rank_map, os.environ)
        except InvalidInputError as error:
            own["mistake"] = render(error)
        info.store.set(f"placer/{info.rank}", json.dumps(own))
        reports = [json.loads(info.store.get(f"placer/{rank}")) for rank in range(info.world_size)]
        check_reports(self._rank_map, reports)
        return self._rank_map.host_ranks(own["host"]).node_rank


def find_own_host(rank_map: RankMap, environment: Mapping[str, str]) -> str:
    """This agent's host in the map. Raises `InvalidInputError`, also when GPUs are in another order."""
    host = find_host([entry.host for entry in rank_map.hosts], environment=environment)
    wanted = ",".join(map(str, rank_map.local_gpus(host)))
    given = environment.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(len(rank_map.local_gpus(host)))))
    if given.replace(" ", "") != wanted:
        message = f"workers of host {host!r} would use GPUs {given}, the map says {wanted}, in this order"
        raise InvalidInputError(message, hint=f"set CUDA_VISIBLE_DEVICES={wanted} on this host before torchrun")
    return host


def check_reports(rank_map: RankMap, reports: list[dict[str, Any]]) -> None:
    """Whether the agents of a round are the hosts of the map. Raises `InvalidInputError`, in all of them alike."""
    mistake = next((report["mistake"] for report in reports if report["mistake"]), None)
    if mistake is not None:
        raise InvalidInputError(mistake)
    hosts = [report["host"] for report in reports]
    missing = [entry.host for entry in rank_map.hosts if entry.host not in hosts]
    if missing or len(hosts) > len(rank_map.hosts):
        absent = f", without {', '.join(missing[:8])}{', …' if len(missing) > 8 else ''}" if missing else ""
        message = f"the job has {len(hosts)} nodes, the map {len(rank_map.hosts)} hosts{absent}"
        hint = "a map belongs to a set of hosts: start one agent on each, or make a map for those there are"
        raise InvalidInputError(message, hint=hint)
