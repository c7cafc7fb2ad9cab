"""Topology-aware parallelism placement: which rank sits on which GPU, with a proof of how good that is.

Example::

    import placer

    scenario = placer.load_scenario("scenarios/quickstart.yaml")
    result = placer.solve(scenario, time_limit=10)
    print(result.summary())
    result.rank_map.save("rank_map.json")

Names are loaded on first use, so that importing the package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from placer._version import __version__

if TYPE_CHECKING:
    from placer.api import Prediction, check, evaluate, json_schema, load_scenario, predict, solve
    from placer.errors import (
        InfeasibleError,
        InvalidInputError,
        Issue,
        LimitReachedError,
        Location,
        PlacerError,
        UsageError,
    )
    from placer.formulate import Job
    from placer.launch.jax_mesh import make_jax_mesh
    from placer.launch.torch_job import group_ranks, make_device_mesh, new_groups, verify
    from placer.rank_map import RankMap
    from placer.result import Result
    from placer.scenario import Scenario

__all__ = [
    "InfeasibleError",
    "InvalidInputError",
    "Issue",
    "Job",
    "LimitReachedError",
    "Location",
    "PlacerError",
    "Prediction",
    "RankMap",
    "Result",
    "Scenario",
    "UsageError",
    "__version__",
    "check",
    "evaluate",
    "group_ranks",
    "json_schema",
    "load_scenario",
    "make_device_mesh",
    "make_jax_mesh",
    "new_groups",
    "predict",
    "solve",
    "verify",
]

_NAME2MODULE = {
    **dict.fromkeys(("Prediction", "check", "evaluate", "json_schema", "load_scenario", "predict", "solve"), "api"),
    **dict.fromkeys(
        (
            "InfeasibleError",
            "InvalidInputError",
            "Issue",
            "LimitReachedError",
            "Location",
            "PlacerError",
            "UsageError",
        ),
        "errors",
    ),
    **dict.fromkeys(("group_ranks", "make_device_mesh", "new_groups", "verify"), "launch.torch_job"),
    "Job": "formulate",
    "make_jax_mesh": "launch.jax_mesh",
    "RankMap": "rank_map",
    "Result": "result",
    "Scenario": "scenario",
}


def __getattr__(name: str) -> Any:
    if name in _NAME2MODULE:
        return getattr(import_module(f"{__name__}.{_NAME2MODULE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
