"""The library: what the commands do, as calls. ``import placer`` gives these names.

Hidden here: how the parts are joined, and how one time limit is kept by all of them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from placer._version import __version__
from placer.formulate import Job, formulate, read_job
from placer.launch.c10d_order import advise, predict_c10d
from placer.placement import to_rank2slot, to_rank_map
from placer.problem import Constraints, violations
from placer.problem import evaluate as evaluate_placement
from placer.rank_map import Provenance, RankMap
from placer.result import Comparison, Result, name_bytes, time_step
from placer.scenario.schema import Scenario

if TYPE_CHECKING:
    from placer.solver import Baseline, Progress

Objective = Literal["bytes"]
_REPORTING_S_PER_RANK = 2.5e-5  # map, step time and report after the search; measured at 24,576 ranks, times four


def load_scenario(path: str | os.PathLike[str]) -> Scenario:
    """Read a scenario file and check all of it, up to constraints that are provably impossible.

    Raises `InvalidInputError` with every mistake and its file:line:column, or `InfeasibleError`. Example::

        scenario = placer.load_scenario("scenarios/quickstart.yaml")
    """
    return read_job(path).scenario


def check(scenario: Scenario) -> Job:
    """Work out what a scenario means: pool, rank grids, traffic. Solves nothing and doesn't import a solver.

    Raises as `load_scenario`. Example::

        job = placer.check(scenario)
        print(job.mesh.world_size, [entry.family for entry in job.traffic])
    """
    return formulate(scenario)


def solve(
    scenario: Scenario | Job,
    *,
    time_limit: float = 60.0,
    seed: int = 0,
    target_gap: float = 0.0,
    objective: Objective = "bytes",
    deterministic: bool = False,
    on_progress: Callable[[Progress], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> Result:
    """Find a rank map with few weighted cross-tier bytes, and prove how good it is.

    - ``time_limit``: seconds for everything; at most one more passes
    - ``target_gap``: stop once (objective − bound) / objective is at most this
    - ``deterministic``: the time limit counts work instead of wall time, as much as a free 2-core machine does in that
      time: the same scenario, seed and limit give the same rank map, whatever else the machine does meanwhile
    - ``on_progress`` is called with the phase, the best objective and the bound; ``should_stop`` is polled: once it
      answers True the best map so far is returned with status ``interrupted``

    Raises `InvalidInputError`, `InfeasibleError`, or `LimitReachedError` when the time ends before any map is found.
    Example::

        result = placer.solve(scenario, time_limit=10)
        print(result.status, result.objective, result.gap)
        result.rank_map.save("rank_map.json")
    """
    if objective != "bytes":
        raise ValueError(f"objective {objective!r} isn't known: write 'bytes'")
    started = time.monotonic()
    job = scenario if isinstance(scenario, Job) else formulate(scenario)
    from placer import solver  # noqa: PLC0415  ortools is slow to import

    reserve_s = _REPORTING_S_PER_RANK * job.mesh.world_size
    before_s = time.monotonic() - started
    solution = solver.solve(
        job.problem,
        time_limit_s=max(0.0, time_limit - reserve_s - (0.0 if deterministic else before_s)),
        seed=seed,
        target_gap=target_gap,
        deterministic=deterministic,
        on_progress=on_progress,
        should_stop=should_stop,
    )
    provenance = Provenance(
        placer=__version__,
        scenario=job.scenario.name,
        scenario_sha256=job.scenario.sha256,
        seed=seed,
        objective=solution.evaluation.objective,
        lower_bound=solution.lower_bound,
    )
    return Result(
        job=job,
        rank_map=to_rank_map(job, solution.rank2slot, provenance=provenance),
        status=solution.status,
        objective=solution.evaluation.objective,
        lower_bound=solution.lower_bound,
        bound_method=solution.bound_method,
        bytes_by_tier=name_bytes(job.problem, solution.evaluation),
        baselines=tuple(_compare(job, baseline) for baseline in solution.baselines),
        default_sorted=_compare(job, solution.default_sorted),
        best_axis_order=_compare(job, solution.best_axis_order),
        step_time=time_step(job, solution.rank2slot),
        runtime_s=time.monotonic() - started,
        seed=seed,
        trace=tuple(replace(point, time_s=before_s + point.time_s) for point in solution.trace),
    )


def evaluate(scenario: Scenario | Job, rank_map: RankMap, *, time_limit: float = 60.0) -> Result:
    """The figures of any rank map for a scenario, compared with the baselines and with a proven bound.

    ``time_limit``: seconds that the bound may take. A map may break the scenario's constraints: `Result.violations`;
    its bound then holds for all placements, constraints aside.

    Raises `InvalidInputError` when the map names hosts or GPUs that the pool hasn't, or was made for another mesh.
    Example::

        result = placer.evaluate(scenario, placer.RankMap.load("rank_map.json"))
        print(result.objective, result.gap)
    """
    started = time.monotonic()
    job = scenario if isinstance(scenario, Job) else formulate(scenario)
    rank2slot = to_rank2slot(job, rank_map)
    from placer import solver  # noqa: PLC0415  ortools is slow to import

    deadline = solver.Deadline(max(0.0, time_limit - (time.monotonic() - started)))
    evaluation = evaluate_placement(job.problem, rank2slot)
    baselines = solver.compute_baselines(job.problem, deadline=deadline.within(0.5 * time_limit))
    broken = tuple(violations(job.problem, rank2slot))
    problem = job.problem
    if broken:  # a bound for placements that honour the constraints says nothing about this one
        problem = replace(problem, constraints=Constraints(ranks_per_host="any", rank_layout="any"))
    bound, method = solver.prove_bound(problem, time_limit_s=deadline.remaining_s, target=evaluation.objective)
    bound = min(bound, evaluation.objective)
    is_optimal = not broken and solver.relative_gap(evaluation.objective, bound) <= solver.PROVEN
    compared = tuple(_compare(job, baseline) for baseline in baselines)
    return Result(
        job=job,
        rank_map=rank_map,
        status="optimal" if is_optimal else "feasible",
        objective=evaluation.objective,
        lower_bound=bound,
        bound_method=method,
        bytes_by_tier=name_bytes(job.problem, evaluation),
        baselines=compared,
        default_sorted=compared[1],
        best_axis_order=compared[2],
        step_time=time_step(job, rank2slot),
        runtime_s=time.monotonic() - started,
        seed=rank_map.provenance.seed or 0,
        violations=broken,
    )


@dataclass(frozen=True)
class Prediction:
    """What torchrun's c10d would do with the hosts of a map.

    ``rank_map``: the ranks that it would give; ``objective`` and ``map_objective``: weighted cross-tier bytes per step
    of those and of the given map.
    """

    rank_map: RankMap
    objective: float
    map_objective: float
    advice: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """The figures for programs, schema ``placer.prediction/1``."""
        return {
            "schema": "placer.prediction/1",
            "hosts": [entry.host for entry in self.rank_map.hosts],
            "objective": self.objective,
            "map_objective": self.map_objective,
            "rank_map": self.rank_map.to_dict(),
        }


def predict(scenario: Scenario | Job, rank_map: RankMap, *, domain: str = "") -> Prediction:
    """The order that torchrun's c10d rendezvous would give the map's hosts, and what it costs against the map.

    ``domain``: of the machines' full names, where the map has short ones. Raises as `evaluate`. Example::

        prediction = placer.predict(scenario, rank_map)
        print(prediction.objective / prediction.map_objective)
    """
    job = scenario if isinstance(scenario, Job) else formulate(scenario)
    predicted = predict_c10d(rank_map, domain=domain)
    map_objective = evaluate_placement(job.problem, to_rank2slot(job, rank_map)).objective
    objective = evaluate_placement(job.problem, to_rank2slot(job, predicted)).objective
    provenance = replace(rank_map.provenance, objective=objective, lower_bound=None)
    return Prediction(
        rank_map=replace(predicted, provenance=provenance),
        objective=objective,
        map_objective=map_objective,
        advice=tuple(advise(rank_map, predicted)),
    )


def json_schema() -> dict[str, Any]:
    """JSON Schema of scenario files, for editors. Example: ``json.dumps(placer.json_schema())``."""
    from placer.scenario.editor_schema import json_schema as make_schema  # noqa: PLC0415

    return make_schema()


def _compare(job: Job, baseline: Baseline) -> Comparison:
    return Comparison(
        baseline.name, baseline.objective, name_bytes(job.problem, baseline.evaluation), baseline.is_valid
    )
