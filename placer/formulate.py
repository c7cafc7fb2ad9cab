"""From a scenario to the arrays that a solver sees: the pool, the rank grids, the traffic, and the `Problem` of them.

Hidden here: in which order the parts are checked, so that the mistakes of all parts are reported at once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path as FilePath
from typing import Protocol, TypeVar

import numpy as np

from placer.cluster.build import survey_topology
from placer.cluster.tiers import resolve_gpu
from placer.cluster.topology import Topology
from placer.constraints import ConstraintCheck, resolve_constraints
from placer.errors import InfeasibleError, InvalidInputError, Issue
from placer.feasibility import prove_infeasible
from placer.problem import Constraints, Family, Labels, Problem
from placer.scenario.reading import Draft, read_draft
from placer.scenario.schema import (
    ClusterSpec,
    ConstraintsSpec,
    ModelSpec,
    ParallelismSpec,
    Scenario,
    TrafficSpec,
    TrainingSpec,
)
from placer.workload.mesh import Mesh
from placer.workload.model import Model, resolve_model
from placer.workload.parallelism import check_fit, check_parallelism, mesh_from
from placer.workload.traffic import FamilyTraffic, derive_traffic

MAX_DOMAINS_SHOWN = 8
_T = TypeVar("_T")


@dataclass(frozen=True)
class Job:
    """A scenario, worked out: everything that a solver, a report or a launcher asks for.

    ``model`` is None when the scenario gives its traffic in bytes. ``notes``: what the reader should know, such as
    settings without effect.
    """

    scenario: Scenario
    topology: Topology
    mesh: Mesh
    model: Model | None
    traffic: tuple[FamilyTraffic, ...]
    problem: Problem
    notes: tuple[str, ...] = ()


def read_job(path: str | os.PathLike[str]) -> Job:
    """Read a scenario file and work it out.

    Raises `InvalidInputError` with the mistakes of all sections, each with file:line:column, and `InfeasibleError` when
    a constraint is proven impossible.
    """
    return work_out_draft(read_draft(path))


def work_out_draft(draft: Draft) -> Job:
    """Work out a scenario that may have mistakes. Raises as `read_job` does."""
    parts = _work_out(draft, directory=draft.document.directory, faulty=draft.faulty, knows_pool=draft.knows_pool)
    return _finish(draft.finish(parts.issues), parts)


def formulate(scenario: Scenario) -> Job:
    """Work out a scenario that has been read. Raises as `read_job` does."""
    parts = _work_out(scenario, directory=scenario.directory, faulty=frozenset())
    if parts.issues:
        raise InvalidInputError(_place(scenario, parts.issues))
    return _finish(scenario, parts)


class _Sections(Protocol):
    """What `Scenario` and `Draft` share; a section is None when it is absent, or nothing of it can be checked."""

    @property
    def cluster(self) -> ClusterSpec | None: ...
    @property
    def model(self) -> ModelSpec | None: ...
    @property
    def parallelism(self) -> ParallelismSpec | None: ...
    @property
    def training(self) -> TrainingSpec | None: ...
    @property
    def traffic(self) -> TrafficSpec | None: ...
    @property
    def constraints(self) -> ConstraintsSpec | None: ...


class _Parts:
    """The parts of a job as far as they could be worked out, and the issues of all."""

    def __init__(self) -> None:
        self.issues: list[Issue] = []
        self.topology: Topology | None = None
        self.mesh: Mesh | None = None
        self.model: Model | None = None
        self.traffic: tuple[FamilyTraffic, ...] | None = None
        self.check: ConstraintCheck | None = None

    def attempt(self, build: Callable[[], _T]) -> _T | None:
        """What ``build`` returns; None, and its issues kept, when it refuses its input."""
        try:
            return build()
        except InvalidInputError as error:
            self.issues += error.issues
            return None


def _work_out(sections: _Sections, *, directory: FilePath, faulty: frozenset[str], knows_pool: bool = True) -> _Parts:
    """Every part that can be had; with ``faulty`` sections none of them may be used but for finding mistakes."""
    parts = _Parts()
    cluster, parallelism = sections.cluster, sections.parallelism
    if cluster is not None:
        topology, issues = survey_topology(cluster)
        parts.issues += issues
        parts.topology = topology if knows_pool else None
    spec = sections.model
    if spec is not None:
        parts.model = parts.attempt(lambda: resolve_model(spec, directory=directory))
    if parallelism is None:
        return parts
    if parts.topology is not None:
        parts.issues += _check_pool(parts.topology, parallelism)
    issues = check_parallelism(parallelism)
    parts.issues += issues
    if not issues:
        _add_traffic(parts, parallelism, sections, faulty=faulty)
    if sections.constraints is not None:
        parts.check = resolve_constraints(
            sections.constraints,
            topology=parts.topology,
            world_size=_world_size(parallelism),
            traffic=parts.traffic or (),
        )
        parts.issues += parts.check.issues
    return parts


def _add_traffic(parts: _Parts, parallelism: ParallelismSpec, sections: _Sections, *, faulty: frozenset[str]) -> None:
    """Add the rank grids and what runs on them, of degrees that fit together."""
    mesh = parts.mesh = mesh_from(parallelism)
    cluster, training, overrides = sections.cluster, sections.training, sections.traffic
    knows_model = "model" not in faulty and (sections.model is None or parts.model is not None)
    if overrides is not None and knows_model and not faulty & {"parallelism", "training", "traffic"}:
        parts.traffic = parts.attempt(
            lambda: derive_traffic(
                mesh=mesh,
                parallelism=parallelism,
                model=parts.model,
                training=training,
                overrides=overrides,
                gpu_flops_per_s=None if cluster is None else resolve_gpu(cluster).flops_per_s,
                tier_bandwidths_Bps=[tier.bandwidth_Bps for tier in parts.topology.tiers] if parts.topology else [],
            )
        )
    else:
        parts.issues += check_fit(parallelism, parts.model, training)


def _world_size(parallelism: ParallelismSpec) -> int:
    return parallelism.tp * parallelism.cp * parallelism.dp * parallelism.pp


def _check_pool(topology: Topology, parallelism: ParallelismSpec) -> list[Issue]:
    world_size = _world_size(parallelism)
    lacking = world_size - topology.num_slots
    if lacking <= 0:
        return []
    product = f"tp {parallelism.tp} × cp {parallelism.cp} × dp {parallelism.dp} × pp {parallelism.pp}"
    message = (
        f"the pool is {lacking} GPUs too small: the job needs {world_size} ({product}), "
        f"{topology.num_slots} are usable. {describe_free(topology)}"
    )
    return [Issue(message, "add hosts, or write smaller degrees", ("cluster",))]


def describe_free(topology: Topology) -> str:
    """Usable GPUs per domain of the outermost tier that has several: ``Per leaf: l1 40, l2 31, l3 22``."""
    for tier in reversed(range(len(topology.tiers))):
        room = list(topology.free_by_domain(tier).items())
        if len(room) > 1:
            shown = ", ".join(f"{name} {n}" for name, n in room[:MAX_DOMAINS_SHOWN])
            left_out = room[MAX_DOMAINS_SHOWN:]
            more = f", and {len(left_out)} more with {sum(n for _, n in left_out)}" if left_out else ""
            return f"Per {topology.tiers[tier].name}: {shown}{more}"
    return f"{topology.domain_names[-1][0]}: {topology.num_slots}"


def _finish(scenario: Scenario, parts: _Parts) -> Job:
    topology, mesh, traffic, check = parts.topology, parts.mesh, parts.traffic, parts.check
    assert topology is not None, "a sound scenario has all parts"
    assert mesh is not None
    assert traffic is not None
    assert check is not None
    problem = _make_problem(topology, mesh, traffic, check.constraints)
    try:
        prove_infeasible(problem)
    except InfeasibleError as error:
        raise InfeasibleError(_place(scenario, error.issues)) from None
    return Job(scenario, topology, mesh, parts.model, traffic, problem, (*topology.notes, *check.notes))


def _make_problem(
    topology: Topology, mesh: Mesh, traffic: tuple[FamilyTraffic, ...], constraints: Constraints
) -> Problem:
    families = tuple(
        Family(
            name=entry.family,
            law=entry.law,
            groups=entry.groups(mesh),
            unit_bytes=entry.unit_bytes,
            exposure=entry.exposure,
            wrap_bytes=entry.wrap_bytes,
        )
        for entry in traffic
    )
    return Problem(
        mesh=mesh,
        families=families,
        weights=np.array([tier.weight for tier in topology.tiers]),
        slot2domain=topology.slot2domain,
        slot2host=topology.slot2host,
        sorted_hosts=tuple(topology.sorted_hosts()),
        constraints=constraints,
        labels=Labels(
            tiers=tuple(tier.name for tier in topology.tiers), domains=topology.domain_names, hosts=topology.hosts
        ),
    )


def _place(scenario: Scenario, issues: Sequence[Issue]) -> list[Issue]:
    return [issue if issue.location else replace(issue, location=scenario.locate(issue.path)) for issue in issues]
