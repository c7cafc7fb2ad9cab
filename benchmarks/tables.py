"""The tables, as Markdown, and their place in the README.

Hidden here: medians and ranges over seeds, and what counts as the best peer: the least objective of all peers but the
references, seed by seed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

from benchmarks.peers import PEERS
from benchmarks.pools import CELLS, Cell
from benchmarks.results import PLACER, Results, Run

BEGIN, END = "<!-- benchmarks: begin -->", "<!-- benchmarks: end -->"
TITLES = {peer.name: peer.title for peer in PEERS}
NOTHING = "–"


def put_into_readme(path: Path, tables: str) -> None:
    """Replace what stands between the markers. Raises ValueError when they are missing."""
    text = path.read_text("utf-8")
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise ValueError(f"{path} must have the lines {BEGIN} and {END} once each")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    path.write_text(f"{before}{BEGIN}\n{tables.strip()}\n{END}{after}", "utf-8")


def render(results: Results) -> str:
    """All tables and where they were measured; a run that was cut short, before placer's turn, isn't counted."""
    complete = [run for run in results.runs if PLACER in run.answers]
    rows = [(cell, runs) for cell in CELLS if (runs := [r for r in complete if r.cell == cell.name])]
    parts = [_environment(results), _main_table(rows), _peer_table(rows), _scaling_table(rows)]
    return "\n\n".join(part for part in parts if part)


def _environment(results: Results) -> str:
    have = results.environment
    shown = {"processor", "cores", "memory", "system", "python", "placer", "source"}
    versions = ", ".join(f"{name} {version}" for name, version in have.items() if name not in shown)
    days = " to ".join(results.dates) or "never"
    return (
        f"placer {have['placer']} (source {have['source']}), measured {days} on {have['processor']}, "
        f"{have['cores']} cores, {have['memory']}, {have['system']}, Python {have['python']}; {versions}."
    )


def _main_table(rows: Sequence[tuple[Cell, list[Run]]]) -> str:
    head = ["pool", "GPUs", "job", "seeds", "J / default", "J / best peer", "best peer", "bound / default", "gap"]
    body = [
        [
            _pool(cell),
            f"{cell.num_gpus:,}",
            cell.job,
            str(len(runs)),
            _range([_share(run, PLACER) for run in runs]),
            _range([_against_best_peer(run) for run in runs]),
            _join([best_peer(run) for run in runs]),
            _range([_bound_share(run) for run in runs]),
            _range([_gap(run) for run in runs], lambda gap: f"{gap:.2%}".replace("%", " %")),
            _range([_answer(run, "seconds") for run in runs], lambda s: f"{s:.1f}"),
            _range([_answer(run, "peak_bytes") for run in runs], lambda b: f"{b / 1e6:,.0f}"),
        ]
        for cell, runs in rows
    ]
    return _table([*head, "s", "MB"], body)


def _peer_table(rows: Sequence[tuple[Cell, list[Run]]]) -> str:
    names = [peer.name for peer in PEERS if peer.name != "default"]
    names = [name for name in names if any(name in run.answers for _, runs in rows for run in runs)]
    if not names:
        return ""
    body = []
    for cell, runs in rows:
        row = [_pool(cell), f"{cell.num_gpus:,}", cell.job]
        for name in [*names, PLACER]:
            shares = [share for run in runs if (share := _share(run, name)) is not None]
            seconds = [run.answers[name].seconds for run in runs if name in run.answers]
            times = [s for s in seconds if s is not None]
            row.append(f"{median(shares):.3f} ({median(times):.1f} s)" if shares and times else NOTHING)
        body.append(row)
    titles = [TITLES.get(name, name) for name in [*names, PLACER]]
    return "J / default and seconds, medians:\n\n" + _table(["pool", "GPUs", "job", *titles], body)


def _scaling_table(rows: Sequence[tuple[Cell, list[Run]]]) -> str:
    kept = [(c, runs) for c, runs in rows if c.kind in ("clean", "fragmented") and c.ranks_per_host == "uniform"]
    sizes = sorted({cell.num_gpus for cell, _ in kept})
    columns = list(dict.fromkeys((cell.kind, cell.job) for cell, _ in kept))
    body = []
    for size in sizes:
        row = [f"{size:,}"]
        for column in columns:
            runs = next((runs for c, runs in kept if c.num_gpus == size and (c.kind, c.job) == column), [])
            values = [(_answer(run, "seconds"), _answer(run, "peak_bytes"), _gap(run)) for run in runs]
            sound = [(s, b, g) for s, b, g in values if s is not None and b is not None and g is not None]
            if sound:
                seconds, memory, gap = (median(column) for column in zip(*sound, strict=True))
                row.append(f"{seconds:.1f} s, {memory / 1e6:,.0f} MB, {gap:.2%}".replace("%", " %"))
            else:
                row.append(NOTHING)
        body.append(row)
    head = ["GPUs", *(f"{kind} {job}" for kind, job in columns)]
    return "How placer scales (seconds, peak memory, gap; medians):\n\n" + _table(head, body) if body else ""


def best_peer(run: Run) -> str | None:
    """The peer with the least objective, references apart; the default when none is better."""
    names = ["default", *(peer.name for peer in PEERS if not peer.is_reference)]
    found = [(a.objective, n) for n in names if (a := run.answers.get(n)) is not None and a.objective is not None]
    if not found:
        return None
    least = min(objective for objective, _ in found)
    return next(name for objective, name in found if objective <= least * (1 + 1e-12))


def _share(run: Run, name: str) -> float | None:
    """Objective relative to the default's."""
    answer, default = run.answers.get(name), run.answers.get("default")
    if answer is None or default is None or answer.objective is None or default.objective is None:
        return None
    return _ratio(answer.objective, default.objective)


def _against_best_peer(run: Run) -> float | None:
    name = best_peer(run)
    answer = run.answers.get(PLACER)
    if name is None or answer is None or answer.objective is None:
        return None
    objective = run.answers[name].objective
    assert objective is not None, "the best peer has a placement"
    return _ratio(answer.objective, objective)


def _bound_share(run: Run) -> float | None:
    answer, default = run.answers.get(PLACER), run.answers.get("default")
    if answer is None or default is None or answer.lower_bound is None or default.objective is None:
        return None
    return _ratio(answer.lower_bound, default.objective)


def _gap(run: Run) -> float | None:
    answer = run.answers.get(PLACER)
    if answer is None or answer.objective is None or answer.lower_bound is None:
        return None
    return max(0.0, 1 - _ratio(answer.lower_bound, answer.objective))


def _ratio(one: float, other: float) -> float:
    """One divided by the other; two zeros are equal."""
    if other == 0:
        return 1.0 if one == 0 else float("inf")
    return one / other


def _answer(run: Run, key: str) -> float | None:
    answer = run.answers.get(PLACER)
    return None if answer is None else getattr(answer, key)


def _pool(cell: Cell) -> str:
    return cell.kind + (", any" if cell.ranks_per_host == "any" else "")


def _range(values: Sequence[float | None], show: Callable[[float], str] = lambda x: f"{x:.3f}") -> str:
    """Median and, where they differ from it as shown, least and most."""
    known = [value for value in values if value is not None]
    if not known:
        return NOTHING
    low, middle, high = show(min(known)), show(median(known)), show(max(known))
    return middle if low == high else f"{middle} ({low}–{high})"


def _join(names: Sequence[str | None]) -> str:
    return ", ".join(sorted({name for name in names if name})) or NOTHING


def _table(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
