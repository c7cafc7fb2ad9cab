"""The report of a solve or an evaluation: what crosses which tier, how good that is, and what was gained."""

from __future__ import annotations

from typing import TYPE_CHECKING

from placer.report.text import Block, Table, format_bytes

if TYPE_CHECKING:
    from placer.result import Comparison, Result

_SAME = 1e-9  # relative difference of objectives that counts as none


def summarise(result: Result) -> list[Block]:
    """The blocks of the report, in reading order."""
    blocks: list[Block] = [_headline(result), _bytes_table(result), _figures(result), _conclusion(result)]
    notes = result.job.notes
    if notes:
        blocks.append("\n".join(f"note: {note}" for note in notes))
    return blocks


def _headline(result: Result) -> str:
    rank_map = result.rank_map
    num_hosts = len(result.job.topology.hosts)
    return (
        f"{result.job.scenario.name}: {rank_map.world_size} ranks on {len(rank_map.hosts)} of {num_hosts} hosts, "
        f"layout {rank_map.layout_class}, {'breaks constraints' if result.violations else f'status {result.status}'}"
    )


def _bytes_table(result: Result) -> Table:
    """Bytes per step of every family at every tier, for the placements compared, and their weighted sums."""
    tiers = result.job.topology.tiers
    compared = [
        ("default order", result.default_sorted.bytes_by_tier, result.default_sorted.objective),
        ("best baseline", result.best_baseline.bytes_by_tier, result.best_baseline.objective),
        ("this map", result.bytes_by_tier, result.objective),
    ]
    if result.best_baseline == result.default_sorted:
        del compared[0]
    rows: list[tuple[str, ...]] = [("weight", "", "", *(f"{tier.weight:.4g}" for tier in tiers), "")]
    for entry in result.job.traffic:
        names = (entry.family, f"{entry.exposure:.3g}")
        for label, bytes_by_tier, _ in compared:
            by_tier = bytes_by_tier[entry.family]
            cost = entry.exposure * sum(tier.weight * moved for tier, moved in zip(tiers, by_tier, strict=True))
            rows.append((names[0], label, names[1], *map(format_bytes, by_tier), format_bytes(cost)))
            names = ("", "")
    name = "objective"
    for label, _, objective in compared:
        rows.append((name, label, "", *("",) * len(tiers), format_bytes(objective)))
        name = ""
    header = ("bytes per step", "", "exposure", *(tier.name for tier in tiers), "weighted")
    return Table(header, tuple(rows), num_labels=2)


def _figures(result: Result) -> Table:
    who = "no map, constraints aside, has less" if result.violations else "no map has less"
    rows = [
        ("objective", _exactly(result.objective), "Σ exposure × weight × bytes, per step"),
        ("lower bound", _exactly(result.lower_bound), f"{who}; proven by: {result.bound_method}"),
        ("gap", f"{100 * result.gap:.2f} %", "at most this share of the objective can still be gained"),
        ("best baseline", _exactly(result.best_baseline.objective), result.best_baseline.name),
    ]
    for label, baseline in (("default order", result.default_sorted), ("best axis order", result.best_axis_order)):
        rows.append((label, _exactly(baseline.objective), f"{baseline.name}: {_compare(result, baseline)}"))
    times = ", ".join(f"{name} {seconds:.3g}" for name, seconds in result.step_time.by_family_s.items())
    rows.append(("communication", f"{result.step_time.communication_s:.4g} s", f"exposed seconds of a step: {times}"))
    return Table(("", "value", ""), tuple((label, value, text) for label, value, text in rows), num_labels=3)


def _exactly(value: float) -> str:
    """Enough digits to see small gaps."""
    return format_bytes(value, digits=5)


def _compare(result: Result, baseline: Comparison) -> str:
    flaw = "" if baseline.is_valid else "; that order breaks a constraint"
    if abs(baseline.objective - result.objective) <= _SAME * baseline.objective:
        return f"this map costs the same{flaw}"
    share = 100 * abs(1 - result.objective / baseline.objective) if baseline.objective > 0 else float("inf")
    direction = "less" if result.objective < baseline.objective else "more"
    return f"this map costs {share:.1f} % {direction}{flaw}"


def _conclusion(result: Result) -> str:
    if result.violations:
        broken = "\n".join(f"  {sentence}" for sentence in result.violations)
        return f"This map breaks constraints of the scenario, so it is no answer to it:\n{broken}"
    default = result.default_sorted
    gains = result.objective < default.objective * (1 - _SAME)
    is_optimal = result.status == "optimal"
    if gains or not default.is_valid:
        share = 100 * (1 - result.objective / default.objective) if default.objective > 0 else 0.0
        gained = (
            f"{share:.1f} % less than the default order on topology-sorted hosts" if gains else "Constraints are met"
        )
        if is_optimal:
            return f"{gained}. Proven optimal: the lower bound equals the objective ({result.bound_method})."
        return f"{gained}. The best possible map is at most {100 * result.gap:.2f} % cheaper."
    if default.objective <= result.lower_bound * (1 + 2 * _SAME):
        return (
            "Nothing can be gained: the default order on topology-sorted hosts is already optimal. Its objective, "
            f"{format_bytes(default.objective)}, equals the lower bound, proven by: {result.bound_method}."
        )
    if result.objective > default.objective * (1 + _SAME):
        return "The default order on topology-sorted hosts is better than this map."
    return (
        "Nothing was gained: no map better than the default order on topology-sorted hosts was found. "
        f"The best possible map is at most {100 * result.gap:.2f} % cheaper."
    )
