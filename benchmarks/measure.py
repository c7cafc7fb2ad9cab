"""What one run measures: placer as the real command, peers in processes of their own, all judged alike.

placer's seconds are the whole command: start-up, imports, reading, compiling, solving, writing. A peer's seconds are
those of its function alone. Every placement is judged here by `placer.problem.evaluate` and `violations`, from the rank
map that placer wrote and from the array that the peer returned.
"""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.measured_process import run_measured
from benchmarks.peers import Peer
from benchmarks.run_peer import EXIT_NOT_APPLICABLE
from placer.api import check, load_scenario
from placer.formulate import Job
from placer.placement import to_rank2slot
from placer.problem import IntArray, evaluate, violations
from placer.rank_map import RankMap

ROOT = Path(__file__).resolve().parents[1]
PATIENCE = 2.0
"""A process that takes this many time limits, and a minute, is ended."""


@dataclass(frozen=True)
class Answer:
    """What placer or a peer gave. ``objective`` is None when there is no valid placement; ``note`` then says why.

    ``seconds``: see the module; ``peak_bytes``: of all its processes. ``lower_bound``, ``status``: placer only.
    """

    objective: float | None
    seconds: float | None = None
    peak_bytes: int | None = None
    note: str = ""
    lower_bound: float | None = None
    status: str = ""


def load_job(text: str) -> Job:
    """A scenario's job, from the text of its file."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "scenario.yaml"
        path.write_text(text, "utf-8")
        return check(load_scenario(path))


def run_placer(text: str, job: Job, *, seed: int, time_limit_s: float) -> Answer:
    """``placer solve`` on a scenario, given as the text of its file."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        scenario, output = directory / "scenario.yaml", directory / "rank_map.json"
        scenario.write_text(text, "utf-8")
        options = ["--json", "--quiet", "--seed", str(seed), "--time-limit", str(time_limit_s)]
        command = [sys.executable, "-m", "placer", "solve", str(scenario), "-o", str(output), *options]
        measured = run_measured(command, timeout_s=PATIENCE * time_limit_s + 60, directory=ROOT)
        if measured.returncode != 0:
            note = _why(measured.returncode, measured.stderr)
            return Answer(None, measured.seconds, measured.peak_bytes, note)
        result = json.loads(measured.stdout)
        rank2slot = to_rank2slot(job, RankMap.load(output))
    objective, note = judge(job, rank2slot)
    if objective is not None and abs(objective - result["objective"]) > 1e-9 * max(1.0, objective):
        note = f"reports {result['objective']:.9g}, judged {objective:.9g}"
    return Answer(
        objective, measured.seconds, measured.peak_bytes, note, float(result["lower_bound"]), result["status"]
    )


def run_peer(peer: Peer, text: str, job: Job, *, seed: int, time_limit_s: float) -> Answer:
    """A peer on a scenario, given as the text of its file."""
    if not peer.is_installed:
        return Answer(None, note=f"{peer.package} isn't installed")
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        scenario, output = directory / "scenario.yaml", directory / "placement.npy"
        scenario.write_text(text, "utf-8")
        arguments = [peer.name, str(scenario), str(seed), str(time_limit_s), str(output)]
        command = [sys.executable, "-m", "benchmarks.run_peer", *arguments]
        measured = run_measured(command, timeout_s=PATIENCE * time_limit_s + 60, directory=ROOT)
        if measured.returncode == EXIT_NOT_APPLICABLE:
            return Answer(None, note=measured.stderr.strip())
        if measured.returncode != 0:
            return Answer(None, measured.seconds, measured.peak_bytes, _why(measured.returncode, measured.stderr))
        rank2slot = np.load(output)
        seconds = float(json.loads(output.with_suffix(".json").read_text())["seconds"])
    objective, note = judge(job, rank2slot)
    return Answer(objective, seconds, measured.peak_bytes, note)


def judge(job: Job, rank2slot: IntArray) -> tuple[float | None, str]:
    """The objective of a placement, or None and what is wrong with it."""
    broken = violations(job.problem, rank2slot)
    return (None, "; ".join(broken)) if broken else (evaluate(job.problem, rank2slot).objective, "")


def _why(returncode: int | None, stderr: str) -> str:
    if returncode is None:
        return "took too long and was ended"
    last = stderr.strip().splitlines()[-1:] or [""]
    return f"exit code {returncode}: {last[0]}"
