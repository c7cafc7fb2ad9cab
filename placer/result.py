"""What a solve or an evaluation answers: the map, its figures, the proof, and what it is compared with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from placer.formulate import Job
from placer.problem import Evaluation, IntArray, Problem
from placer.rank_map import RankMap
from placer.step_time import StepTime, communication_time

if TYPE_CHECKING:
    from placer.solver import TracePoint

SCHEMA = "placer.result/1"
Status = Literal["optimal", "feasible", "interrupted"]
BytesByTier = dict[str, list[float]]


@dataclass(frozen=True)
class Comparison:
    """A placement that the answer is compared with. ``is_valid``: it honours the constraints.

    ``bytes_by_tier``: bytes per step of every family at every tier, innermost first.
    """

    name: str
    objective: float
    bytes_by_tier: BytesByTier
    is_valid: bool = True


@dataclass(frozen=True)
class Result:
    """The answer to a scenario. Sizes are bytes per training step.

    - ``objective``: weighted cross-tier bytes of the map; ``lower_bound``: no map has less; ``bound_method``: its proof
    - ``bytes_by_tier``: as in `Comparison`; ``baselines``: placements that need no optimiser
    - ``default_sorted``: the framework's default order on topology-sorted hosts; ``best_axis_order``: the best of all
      axis orders
    - ``trace``: every improvement of the map or of the bound on the way (none for an evaluated map): ``time_s`` since
      the start, ``objective`` of the best map so far (None before the first), ``bound`` and ``phase``. ``rank_layout``
      may prefer a map that costs more than the best one, within the tolerance
    - ``violations``: constraints that an evaluated map breaks, one sentence each; empty for a solved one
    """

    job: Job
    rank_map: RankMap
    status: Status
    objective: float
    lower_bound: float
    bound_method: str
    bytes_by_tier: BytesByTier
    baselines: tuple[Comparison, ...]
    default_sorted: Comparison
    best_axis_order: Comparison
    step_time: StepTime
    runtime_s: float
    seed: int
    trace: tuple[TracePoint, ...] = ()
    violations: tuple[str, ...] = ()

    @property
    def gap(self) -> float:
        """(objective − lower bound) / objective, 0 when both are 0."""
        return max(0.0, (self.objective - self.lower_bound) / self.objective) if self.objective > 0 else 0.0

    @property
    def best_baseline(self) -> Comparison:
        """The cheapest baseline that honours the constraints; the cheapest of all when none does."""
        return min(self.baselines, key=lambda baseline: (not baseline.is_valid, baseline.objective))

    def to_dict(self) -> dict[str, Any]:
        """The result as programs read it, format ``placer.result/1``.

        ``violations`` is there only for an evaluated map that breaks constraints.
        """
        found: dict[str, Any] = {
            "schema": SCHEMA,
            "status": self.status,
            "objective": self.objective,
            "lower_bound": self.lower_bound,
            "gap": self.gap,
            "tiers": [
                {"name": tier.name, "weight": tier.weight, "bandwidth_Bps": tier.bandwidth_Bps}
                for tier in self.job.topology.tiers
            ],
            "traffic": [
                {
                    "family": entry.family,
                    "collective": entry.collective,
                    "law": entry.law,
                    "group_size": entry.group_size,
                    "groups": entry.num_groups,
                    "bytes_per_gpu": entry.bytes_per_gpu,
                    "unit_bytes": entry.unit_bytes,
                    "wrap_bytes": entry.wrap_bytes,
                    "exposure": entry.exposure,
                }
                for entry in self.job.traffic
            ],
            "bytes": self.bytes_by_tier,
            "baselines": [
                {"name": baseline.name, "objective": baseline.objective, "bytes": baseline.bytes_by_tier}
                for baseline in self.baselines
            ],
            "step_time": {
                "communication_s": self.step_time.communication_s,
                "by_family_s": self.step_time.by_family_s,
            },
            "rank_map": self.rank_map.to_dict(),
            "runtime_s": self.runtime_s,
            "seed": self.seed,
            "trace": [
                {"time_s": point.time_s, "objective": point.objective, "bound": point.bound, "phase": point.phase}
                for point in self.trace
            ],
        }
        if self.violations:
            found["violations"] = list(self.violations)
        return found

    def summary(self) -> str:
        """The report as plain text: bytes by tier, objective, bound, gap, and what was gained."""
        from placer.report.summary import summarise  # noqa: PLC0415  text is made only when it is asked for
        from placer.report.text import to_text  # noqa: PLC0415

        return to_text(summarise(self))


def name_bytes(problem: Problem, evaluation: Evaluation) -> BytesByTier:
    """Bytes of every family by tier, under the family's name."""
    rows = evaluation.bytes_by_tier.tolist()
    return {family.name: row for family, row in zip(problem.families, rows, strict=True)}


def time_step(job: Job, rank2slot: IntArray) -> StepTime:
    """Exposed communication time of one step under a placement."""
    return communication_time(job.problem, rank2slot, tiers=job.topology.tiers, traffic=job.traffic)
