"""The results file: what has been measured, where and with what. Saved after every measurement, so a run can go on.

Hidden here: the format, and what must be the same for earlier measurements to be kept: the machine, the versions of
everything involved, and placer's own source as far as `placer solve` uses it.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.measure import ROOT, Answer
from benchmarks.peers import PEERS

SCHEMA = "placer.benchmarks/1"
PLACER = "placer"
PACKAGES = ("ortools", "numba", "numpy")
NOT_MEASURED = ("launch", "run.py")
"""Of placer's source, what only a launched job uses: a change there leaves earlier measurements valid."""


@dataclass
class Run:
    """One cell with one seed. ``answers``: by peer's name, placer's under `PLACER`."""

    cell: str
    seed: int
    time_limit_s: float
    usable_gpus: int
    answers: dict[str, Answer] = field(default_factory=dict)


@dataclass
class Results:
    """All runs, on one machine with one set of versions. ``dates``: first and last day of measuring, ISO."""

    environment: dict[str, str]
    dates: list[str] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)

    def find(self, cell: str, seed: int, time_limit_s: float) -> Run | None:
        """The run of a cell, a seed and a time limit."""
        key = (cell, seed, time_limit_s)
        return next((run for run in self.runs if (run.cell, run.seed, run.time_limit_s) == key), None)

    def note_date(self, today: str) -> None:
        """Remember that something was measured today."""
        days = sorted({*self.dates, today})
        self.dates = days if len(days) < 2 else [days[0], days[-1]]


def describe_environment() -> dict[str, str]:
    """Machine and versions, as the README shows them."""
    found = {
        "processor": _processor(),
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.0f} GiB",
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "placer": metadata.version("topology-placer"),
        "source": _source_digest(),
    }
    found |= {package: metadata.version(package) for package in PACKAGES}
    return found | {peer.package: peer.version for peer in PEERS if peer.package and peer.is_installed}


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _source_digest() -> str:
    digest = hashlib.sha256()
    package = ROOT / "placer"
    for path in sorted(package.rglob("*.py")):
        if path.relative_to(package).parts[0] not in NOT_MEASURED:
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def save(results: Results, path: Path) -> None:
    """Write the file in one step."""
    data = {"schema": SCHEMA, **asdict(results)}
    temporary = path.with_name(path.name + ".part")
    temporary.write_text(json.dumps(data, indent=1) + "\n", "utf-8")
    temporary.replace(path)


def load(path: Path) -> Results:
    """Read the file. Raises ValueError when it is none of ours."""
    data: dict[str, Any] = json.loads(path.read_text("utf-8"))
    if data.pop("schema", None) != SCHEMA:
        raise ValueError(f"{path} is no results file of this benchmark ({SCHEMA})")
    runs = [
        Run(**{**run, "answers": {name: Answer(**answer) for name, answer in run["answers"].items()}})
        for run in data.pop("runs")
    ]
    return Results(**data, runs=runs)
