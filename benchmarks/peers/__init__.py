"""The peers: what each is given, and that all answer in the same form.

A peer is a function from a problem and a seed to a placement. It gets its best honest shot: tp groups contracted first
(placements that split them are far worse), the exact graph of the traffic, every choice of GPUs of `benchmarks.site`,
16 starts on each where it has seeds, exact balance by `benchmarks.exact_balance`, and the best of all of that by the
very objective that placer is judged by. No start begins after placer's time limit; one that has begun may finish. What
a peer can't do at all it says with `NotApplicableError`. Each module says precisely what its peer runs and where its
limits are.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module, metadata

import numpy as np

from placer.problem import IntArray, Problem, evaluate

Place = Callable[[Problem, int, float], IntArray]
"""(problem, seed, time limit in seconds, placer's own) → rank2slot (W,)."""


class NotApplicableError(Exception):
    """The peer has no answer for this kind of pool or job; says why."""


@dataclass(frozen=True)
class Peer:
    """``module`` in this package has ``place``; ``package``: what must be installed, a name on PyPI, "" for nothing."""

    name: str
    title: str
    module: str
    package: str = ""
    is_reference: bool = False

    @property
    def is_installed(self) -> bool:
        """Whether its package can be imported."""
        return not self.package or importlib.util.find_spec(self.package) is not None

    @property
    def version(self) -> str:
        """Version of its package, "" without one."""
        return metadata.version(self.package) if self.package else ""

    @property
    def place(self) -> Place:
        """The function; imports the module."""
        found: Place = import_module(f"benchmarks.peers.{self.module}").place
        return found


PEERS = (
    Peer("default", "default order, topology-sorted hosts, tp groups whole", "default_order", is_reference=True),
    Peer("packed", "default order, topology-sorted hosts, GPUs packed", "packed_order"),
    Peer("shuffled", "default order, hosts shuffled", "shuffled_order", is_reference=True),
    Peer("axis-orders", "best of all axis orders, sorted domains", "axis_orders"),
    Peer("p2", "P² factor matrices", "factor_matrices"),
    Peer("metis", "METIS multisection", "metis", "pymetis"),
    Peer("scotch", "Scotch", "scotch", "pyscotch"),
    Peer("sharedmap", "SharedMap strong", "sharedmap", "chszlablib"),
)
"""Every peer. References are what the others are measured against, and never the best peer."""


def find_peer(name: str) -> Peer:
    """The peer of that name. Raises KeyError."""
    return {peer.name: peer for peer in PEERS}[name]


def best_of(problem: Problem, placements: Iterable[IntArray], time_limit_s: float) -> IntArray:
    """The placement of the least objective among those that are made within the time, at least the first.

    Raises ValueError when there is none.
    """
    best: tuple[float, IntArray] | None = None
    started = time.monotonic()
    for rank2slot in placements:
        objective = evaluate(problem, rank2slot).objective
        if best is None or objective < best[0]:
            best = (objective, np.asarray(rank2slot, dtype=np.int32))
        if time.monotonic() - started >= time_limit_s:
            break
    if best is None:
        raise ValueError("no placement to choose from")
    return best[1]
