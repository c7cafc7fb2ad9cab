"""The command ``python -m benchmarks``, run from the repository's root."""

from __future__ import annotations

import datetime
import sys
from pathlib import Path

import click

from benchmarks import results as results_file
from benchmarks.measure import ROOT, load_job, run_peer, run_placer
from benchmarks.peers import PEERS
from benchmarks.pools import CELLS, Cell, find_cell, select_cells, write_scenario
from benchmarks.results import PLACER, Results, Run, describe_environment
from benchmarks.tables import put_into_readme, render

DEFAULT_OUTPUT = "benchmarks/results.json"
README = ROOT / "README.md"


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--cells", "patterns", default="*", metavar="PATTERNS", help="Cells to run: names, parts, or wildcards.")
@click.option("--seeds", default=3, show_default=True, type=click.IntRange(1), help="Seeds a cell: 0 to SEEDS - 1.")
@click.option("--time-limit", type=click.FloatRange(1), help="Seconds for placer. [default: 60; 120 at 98,304 GPUs]")
@click.option("--peers", "peer_names", help="Comma-separated peers. [default: all]")
@click.option("-o", "--output", help=f"Results, or the scenario. [default: {DEFAULT_OUTPUT}; - for a scenario]")
@click.option("--restart", is_flag=True, help="Forget earlier results instead of going on from them.")
@click.option("--render", "is_rendering", is_flag=True, help="Run nothing: write the tables of OUTPUT into README.md.")
@click.option("--write-scenario", nargs=2, type=(str, int), metavar="CELL SEED", help="Run nothing: write a scenario.")
@click.option("--list", "is_listing", is_flag=True, help="Run nothing: list cells and peers.")
def main(
    patterns: str,
    seeds: int,
    time_limit: float | None,
    peer_names: str | None,
    output: str | None,
    restart: bool,
    is_rendering: bool,
    write_scenario: tuple[str, int] | None,
    is_listing: bool,
) -> None:
    """Run placer and its peers on generated pools; print the table and save all figures."""
    if is_listing:
        _list()
    elif write_scenario is not None:
        _write_scenario(*write_scenario, output or "-")
    elif is_rendering:
        path = Path(output or DEFAULT_OUTPUT)
        put_into_readme(README, render(_load(path)))
    else:
        cells = select_cells(patterns)
        if not cells:
            raise click.UsageError(f"no cell matches {patterns!r}; --list shows them")
        names = _peer_names(peer_names)
        path = Path(output or DEFAULT_OUTPUT)
        results = _begin(path, restart=restart)
        for cell in cells:
            for seed in range(seeds):
                _run_cell(results, path, cell, seed, time_limit or cell.time_limit_s, names)
        click.echo(render(results))


def _list() -> None:
    for cell in CELLS:
        click.echo(f"{cell.name}  ({cell.time_limit_s:.0f} s)")
    for peer in PEERS:
        state = "" if peer.is_installed else f", not installed: pip install {peer.package}"
        click.echo(f"{peer.name}: {peer.title}{state}")


def _write_scenario(name: str, seed: int, output: str) -> None:
    cell = find_cell(name)
    if cell is None:
        raise click.UsageError(f"no cell is called {name!r}; --list shows them")
    with click.open_file(output, "w", encoding="utf-8", atomic=output != "-") as stream:
        stream.write(write_scenario(cell, seed))


def _peer_names(text: str | None) -> list[str]:
    known = [peer.name for peer in PEERS]
    wanted = known if text is None else [name.strip() for name in text.split(",") if name.strip()]
    if unknown := sorted(set(wanted) - set(known)):
        raise click.UsageError(f"unknown peers: {', '.join(unknown)}; there are {', '.join(known)}")
    return ["default", *(name for name in known if name in wanted and name != "default")]


def _load(path: Path) -> Results:
    try:
        return results_file.load(path)
    except (OSError, ValueError) as error:
        raise click.ClickException(str(error)) from error


def _begin(path: Path, *, restart: bool) -> Results:
    """Earlier results when they may be kept, else new ones."""
    environment = describe_environment()
    if restart or not path.exists():
        return Results(environment)
    results = _load(path)
    changed = [key for key in environment if results.environment.get(key) != environment[key]]
    if changed:
        raise click.ClickException(
            f"{path} was measured with another {', '.join(changed)}: give another --output, or --restart"
        )
    return results


def _run_cell(results: Results, path: Path, cell: Cell, seed: int, time_limit_s: float, peer_names: list[str]) -> None:
    run = results.find(cell.name, seed, time_limit_s)
    missing = [name for name in [*peer_names, PLACER] if run is None or name not in run.answers]
    if not missing:
        return
    text = write_scenario(cell, seed)
    job = load_job(text)
    if run is None:
        run = Run(cell.name, seed, time_limit_s, job.problem.num_slots)
        results.runs.append(run)
    click.echo(f"{cell.name}, seed {seed}: {cell.num_gpus} of {run.usable_gpus} GPUs", err=True)
    for name in missing:
        if name == PLACER:
            answer = run_placer(text, job, seed=seed, time_limit_s=time_limit_s)
        else:
            peer = next(peer for peer in PEERS if peer.name == name)
            answer = run_peer(peer, text, job, seed=seed, time_limit_s=time_limit_s)
        run.answers[name] = answer
        results.note_date(datetime.datetime.now(datetime.UTC).date().isoformat())
        results_file.save(results, path)
        click.echo(f"  {name:12} {_describe(run, name)}", err=True)


def _describe(run: Run, name: str) -> str:
    answer, unit = run.answers[name], run.answers["default"].objective
    if answer.objective is None:
        return f"skipped: {answer.note}"
    what, unit = ("J / default", unit) if unit else ("J", 1.0)
    gap = "" if answer.lower_bound is None else f", bound {answer.lower_bound / unit:.4f}, {answer.status}"
    note = f"  {answer.note}" if answer.note else ""
    return f"{what} {answer.objective / unit:.4f}{gap}, {answer.seconds:.2f} s{note}"


if __name__ == "__main__":
    sys.exit(main())
