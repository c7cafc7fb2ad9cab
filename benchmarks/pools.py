"""The cells of the benchmark: which job runs on which pool, and the scenario files that say so.

Hidden here: the seeded generators. Every scenario is a pure function of (cell, seed), down to the byte, and
``python -m benchmarks --write-scenario CELL SEED -o FILE`` gives it to anyone who wants to run a cell by hand.

Pools, all with weights 0 inside an NVLink domain, 16 inside a leaf, 32 inside a pod and 112 across pods:

- **clean**: hosts of 8 GPUs, leaves of 16 hosts, pods of 24 leaves (3,072 GPUs, as in arXiv 2407.21783, §3.3.1);
  exactly as many hosts as the job needs. The seed changes nothing but the seed of the solvers.
- **fragmented**: what a busy cluster has left. A leaf has 4–16 free hosts, 10 % of the hosts have 7 and 5 % have 6
  usable GPUs; leaves are added until the full hosts hold 1.05 × the job, and the last leaf is cut to what that needs.
  Pods of 24 leaves. ``uniform`` cells (the default) run equally many ranks on every used host, ``any`` cells may use
  partly usable hosts.
- **racks**: NVLink domains of 18 trays of 4 GPUs, of which 10–18 are present; racks are added until they hold 1.05 ×
  the job, and the last is cut alike. Units of 8 racks; weights 0 inside a rack, 16 inside a unit, 112 across units.

Jobs: a dense one (tp, cp, dp, pp) and one with experts (ep as well, etp 1), with bytes that one GPU sends in a step, of
the order of what `placer check` derives for large models. ``rank_layout: any`` lets placer compete for the objective
alone; by default it gives up to 1 % of it for hosts that hold consecutive ranks.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

import numpy as np

Kind = Literal["clean", "fragmented", "racks"]
JobKind = Literal["dense", "moe"]
RanksPerHost = Literal["uniform", "any"]

MEGABYTES = {
    "dense": {"tp": 240_000, "cp": 16_000, "dp": 19_000, "pp": 4_300},
    "moe": {"tp": 60_000, "dp": 12_000, "pp": 4_300, "ep": 120_000, "edp": 9_000},
}
"""Sent by one GPU in a step, per family."""
DEGREES: dict[tuple[JobKind, int], dict[str, int]] = {
    ("dense", 64): {"tp": 8, "dp": 4, "pp": 2},
    ("dense", 512): {"tp": 8, "cp": 2, "dp": 4, "pp": 8},
    ("dense", 4_096): {"tp": 8, "cp": 2, "dp": 16, "pp": 16},
    ("dense", 24_576): {"tp": 8, "cp": 2, "dp": 96, "pp": 16},
    ("dense", 98_304): {"tp": 8, "cp": 2, "dp": 384, "pp": 16},
    ("moe", 64): {"tp": 2, "dp": 8, "pp": 4, "ep": 8},
    ("moe", 512): {"tp": 2, "dp": 32, "pp": 8, "ep": 16},
    ("moe", 4_096): {"tp": 2, "dp": 128, "pp": 16, "ep": 64},
    ("moe", 24_576): {"tp": 4, "dp": 384, "pp": 16, "ep": 64},
    ("moe", 98_304): {"tp": 4, "dp": 1_536, "pp": 16, "ep": 64},
}
SIZES = (64, 512, 4_096, 24_576, 98_304)
LARGE = 98_304
TIME_LIMIT_S = 60.0
LARGE_TIME_LIMIT_S = 120.0
HOSTS_PER_LEAF, FEWEST_HOSTS, LEAVES_PER_POD = 16, 4, 24
TRAYS_PER_RACK, FEWEST_TRAYS, RACKS_PER_UNIT = 18, 10, 8
SLACK = 1.05
USABLE, USABLE_SHARE = (8, 7, 6), (0.85, 0.1, 0.05)
FABRIC = """\
  tiers: # bandwidths as the weights want them: 448/28 = 16, 448/14 = 32, 448/4 = 112
    - {name: nvlink, bandwidth: 448 GB/s, latency: 3.4 us}
    - {name: leaf, bandwidth: 28 GB/s, latency: 14 us}
    - {name: pod, bandwidth: 14 GB/s, latency: 16 us}
    - {name: core, bandwidth: 4 GB/s, latency: 18 us}
"""
RACK_FABRIC = """\
  tiers: # bandwidths as the weights want them: 448/28 = 16, 448/4 = 112
    - {name: nvlink, bandwidth: 448 GB/s, latency: 3.4 us}
    - {name: unit, bandwidth: 28 GB/s, latency: 14 us}
    - {name: core, bandwidth: 4 GB/s, latency: 18 us}
"""


@dataclass(frozen=True)
class Cell:
    """One row of the table: a job of ``num_gpus`` ranks on a kind of pool."""

    kind: Kind
    num_gpus: int
    job: JobKind
    ranks_per_host: RanksPerHost = "uniform"

    @property
    def name(self) -> str:
        """As written on the command line, e.g. ``fragmented-512-moe-any``."""
        return f"{self.kind}-{self.num_gpus}-{self.job}" + ("-any" if self.ranks_per_host == "any" else "")

    @property
    def time_limit_s(self) -> float:
        """What placer gets when the command line says nothing."""
        return LARGE_TIME_LIMIT_S if self.num_gpus >= LARGE else TIME_LIMIT_S


def _all_cells() -> Iterator[Cell]:
    jobs: tuple[JobKind, ...] = ("dense", "moe")
    for num_gpus in SIZES:
        for job in jobs:
            yield Cell("clean", num_gpus, job)
        for job in jobs:
            yield Cell("fragmented", num_gpus, job)
            if num_gpus < LARGE:
                yield Cell("fragmented", num_gpus, job, "any")
        if num_gpus <= 4_096:
            for job in jobs:
                yield Cell("racks", num_gpus, job)


CELLS = tuple(_all_cells())


def select_cells(patterns: str) -> tuple[Cell, ...]:
    """Cells whose name matches one of the comma-separated shell patterns; without wildcards a part of it will do."""
    wanted = [p.strip() for p in patterns.split(",") if p.strip()]
    wanted = [p if any(c in p for c in "*?[") else f"*{p}*" for p in wanted]
    return tuple(cell for cell in CELLS if any(fnmatch.fnmatchcase(cell.name, p) for p in wanted))


def find_cell(name: str) -> Cell | None:
    """The cell of that very name."""
    return next((cell for cell in CELLS if cell.name == name), None)


def write_scenario(cell: Cell, seed: int) -> str:
    """The scenario of a cell, as YAML."""
    degrees = DEGREES[cell.job, cell.num_gpus]
    has_groups = {name for name, degree in degrees.items() if degree > 1} | {"edp"}
    traffic = {family: mb for family, mb in MEGABYTES[cell.job].items() if family in has_groups}
    if cell.job == "moe" and degrees["ep"] == degrees["tp"] * degrees["dp"]:
        del traffic["edp"]
    fabric = RACK_FABRIC if cell.kind == "racks" else FABRIC
    rows = "".join(f"    - {{{row}}}\n" for row in _rows(cell, seed))
    return (
        f"# Benchmark cell {cell.name}, seed {seed}: python -m benchmarks --write-scenario {cell.name} {seed}\n"
        f"version: 1\nname: {cell.name}-seed{seed}\n\n"
        f"cluster:\n{fabric}  hosts:\n{rows}\n"
        f"parallelism: {{{', '.join(f'{axis}: {degree}' for axis, degree in degrees.items())}}}\n\n"
        f"traffic:\n  bytes: {{{', '.join(f'{family}: {mb / 1000:g} GB' for family, mb in traffic.items())}}}\n\n"
        f"constraints: {{ranks_per_host: {cell.ranks_per_host}, rank_layout: any}}\n"
    )


def _rows(cell: Cell, seed: int) -> Iterator[str]:
    """Host rows, domain by domain; hosts are numbered in topology order."""
    if cell.kind == "racks":
        for rack, num_trays in enumerate(rack_sizes(cell.num_gpus, seed)):
            unit = rack // RACKS_PER_UNIT
            yield f'hosts: "r{rack + 1:04}t[01-{num_trays:02}]", gpus: 4, nvlink: r{rack + 1:04}, unit: u{unit + 1:03}'
        return
    first = 1
    for leaf, usable in enumerate(leaf_hosts(cell, seed)):
        where = f"leaf: l{leaf + 1:04}, pod: p{leaf // LEAVES_PER_POD + 1:03}"
        for num_usable in sorted(set(usable), reverse=True):
            hosts = _hostlist([first + k for k, n in enumerate(usable) if n == num_usable])
            down = f", down: {list(range(num_usable, 8))}" if num_usable < 8 else ""
            yield f'hosts: "{hosts}", gpus: 8{down}, {where}'
        first += len(usable)


def leaf_hosts(cell: Cell, seed: int) -> list[list[int]]:
    """Usable GPUs of every host, leaf by leaf, of a clean or a fragmented pool."""
    if cell.kind == "clean":
        hosts = [8] * (cell.num_gpus // 8)
        return [hosts[k : k + HOSTS_PER_LEAF] for k in range(0, len(hosts), HOSTS_PER_LEAF)]
    rng = np.random.default_rng([seed, cell.num_gpus])
    leaves: list[list[int]] = []
    needed = math.ceil(SLACK * cell.num_gpus / 8)  # full hosts
    while needed > 0:
        num_hosts = int(rng.integers(FEWEST_HOSTS, HOSTS_PER_LEAF + 1))
        hosts = rng.choice(USABLE, p=USABLE_SHARE, size=num_hosts).tolist()
        while len(hosts) > FEWEST_HOSTS and hosts[:-1].count(8) >= needed:
            hosts.pop()
        needed -= hosts.count(8)
        leaves.append(hosts)
    return leaves


def rack_sizes(num_gpus: int, seed: int) -> list[int]:
    """Trays of 4 GPUs present in every rack."""
    rng = np.random.default_rng([seed, num_gpus])
    trays: list[int] = []
    needed = math.ceil(SLACK * num_gpus / 4)
    while needed > 0:
        present = int(rng.integers(FEWEST_TRAYS, TRAYS_PER_RACK + 1))
        trays.append(min(present, max(FEWEST_TRAYS, needed)))
        needed -= trays[-1]
    return trays


def _hostlist(numbers: list[int]) -> str:
    runs = [[n for _, n in run] for _, run in groupby(enumerate(numbers), key=lambda item: item[1] - item[0])]
    return "h[" + ",".join(f"{run[0]:05}-{run[-1]:05}" if len(run) > 1 else f"{run[0]:05}" for run in runs) + "]"
