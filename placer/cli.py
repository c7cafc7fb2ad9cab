"""The command line: ``placer solve | evaluate | check | export | predict | schema``.

stdout is the result, stderr the conversation. Hidden here: click, exit codes, and how errors and progress are shown.
Whatever is slow to import is imported in the command that needs it.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

import click

from placer._version import __version__
from placer.errors import InvalidInputError, LimitReachedError, PlacerError, UsageError
from placer.interrupt import EXIT_INTERRUPTED, StopRequest
from placer.rank_map import MAX_FILE_BYTES, RankMap, check_map_destination
from placer.standard_streams import drop_stdout, print_data, usable_streams

if TYPE_CHECKING:
    from placer.result import Result
    from placer.solver import Progress

EXIT_BUG = 1
_STDOUT = "-"
_EXIT_CODES = """\b
Exit codes:
  0    done: the map or the files were written, the figures printed
  1    a bug in placer
  2    wrong usage, or an output file that must not or can't be written
  3    invalid input: every mistake with file:line:column
  4    proven infeasible: names the constraint
  5    time limit reached before any map was found
  130  interrupted; solve has written its best map so far
"""


def _check_seconds(context: click.Context, parameter: click.Parameter, value: float) -> float:
    if not (math.isfinite(value) and value > 0):
        raise click.BadParameter(f"{value:g} is no positive number of seconds.")
    return value


def _check_share(context: click.Context, parameter: click.Parameter, value: float) -> float:
    if not 0 <= value <= 1:
        raise click.BadParameter(f"{value:g} is no share from 0 to 1 (0.02 is 2 %).")
    return value


_scenario_argument = click.argument("scenario", type=click.Path(), metavar="SCENARIO")
_json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on stdout.")
_quiet_option = click.option("--quiet", is_flag=True, help="No progress and no summary; errors are still shown.")


@click.group(context_settings={"help_option_names": ["-h", "--help"]}, epilog=_EXIT_CODES)
@click.version_option(__version__, prog_name="placer")
def commands() -> None:
    """Decide which rank of a training job runs on which GPU, with a proof of how good that is."""


@commands.command("solve", epilog=_EXIT_CODES)
@_scenario_argument
@click.option(
    "-o",
    "--output",
    default="rank_map.json",
    show_default=True,
    metavar="MAP",
    help="Where the rank map goes; - is stdout. An earlier map is replaced, another kind of file only with --force.",
)
@_json_option
@click.option(
    "--time-limit",
    type=float,
    default=60.0,
    show_default=True,
    callback=_check_seconds,
    metavar="SECONDS",
    help="Wall time for everything; at most one second more passes.",
)
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), default=0, show_default=True, help="Seed of the search.")
@click.option(
    "--target-gap",
    type=float,
    default=0.0,
    show_default=True,
    callback=_check_share,
    metavar="SHARE",
    help="Stop once (objective − bound) / objective is at most this.",
)
@click.option(
    "--deterministic",
    is_flag=True,
    help="The same scenario, seed and time limit give the same map: the limit counts work, not wall time.",
)
@click.option(
    "--objective",
    type=click.Choice(["bytes"]),
    default="bytes",
    show_default=True,
    help="What is minimised: weighted cross-tier bytes per step.",
)
@click.option("--force", is_flag=True, help="Replace MAP whatever kind of file it is.")
@_quiet_option
def solve_command(
    scenario: str,
    output: str,
    as_json: bool,
    time_limit: float,
    seed: int,
    target_gap: float,
    deterministic: bool,
    objective: str,
    force: bool,
    quiet: bool,
) -> int:
    """Find a rank map for SCENARIO, write it, and report what it costs and how good it is proven to be."""
    started = time.monotonic()
    if output == _STDOUT and as_json:
        raise UsageError("-o - and --json both want stdout", hint="leave one of them out: --json holds the map too")
    if output != _STDOUT:
        _check_output(output, scenario, force=force)

    def ask_again() -> None:
        click.echo("\nstopping: the best map so far will be written (once more to end at once)", err=True)

    with StopRequest(ask_again) as stop:
        from placer import api  # noqa: PLC0415
        from placer.formulate import read_job  # noqa: PLC0415

        job = read_job(scenario)
        progress = _ProgressLine(sys.stderr, is_shown=not quiet)
        try:
            result = api.solve(
                job,
                time_limit=time_limit - (0.0 if deterministic else time.monotonic() - started),
                seed=seed,
                target_gap=target_gap,
                deterministic=deterministic,
                on_progress=progress.show,
                should_stop=stop.is_made,
            )
        except LimitReachedError as error:
            progress.end()
            if not stop.is_made():
                raise
            _show_error(error)
            return EXIT_INTERRUPTED
        progress.end()
        if output == _STDOUT:
            print_data(result.rank_map.to_json())
        else:
            result.rank_map.save(output, force=force)
    if not quiet:
        place = "stdout" if output == _STDOUT else output
        click.echo(f"rank map: {place} ({result.rank_map.world_size} ranks, {result.rank_map.layout_class})", err=True)
    _print_result(result, as_json=as_json, stdout_is_free=output != _STDOUT and not as_json, quiet=quiet)
    return EXIT_INTERRUPTED if result.status == "interrupted" else 0


@commands.command("evaluate", epilog=_EXIT_CODES)
@_scenario_argument
@click.option("--rank-map", "map_file", required=True, type=click.Path(), metavar="MAP", help="The map to evaluate.")
@_json_option
@click.option(
    "--time-limit",
    type=float,
    default=60.0,
    show_default=True,
    callback=_check_seconds,
    metavar="SECONDS",
    help="Wall time for everything; the bound gets what is left of it.",
)
@_quiet_option
def evaluate_command(scenario: str, map_file: str, as_json: bool, time_limit: float, quiet: bool) -> int:
    """Report what a rank map, made by placer or by hand, costs for SCENARIO, and compare it with the bound."""
    started = time.monotonic()
    with StopRequest(None):
        from placer import api  # noqa: PLC0415
        from placer.formulate import read_job  # noqa: PLC0415
        from placer.json_document import read_json  # noqa: PLC0415

        job = read_job(scenario)
        document = read_json(map_file, max_bytes=MAX_FILE_BYTES, what="a rank map")
        rank_map = RankMap.from_document(document)
        try:
            result = api.evaluate(job, rank_map, time_limit=time_limit - (time.monotonic() - started))
        except InvalidInputError as error:
            raise InvalidInputError(document.place(list(error.issues))) from error
    _print_result(result, as_json=as_json, stdout_is_free=not as_json, quiet=quiet)
    return 0


@commands.command("check", epilog=_EXIT_CODES)
@_scenario_argument
def check_command(scenario: str) -> int:
    """Validate SCENARIO and print what the job is: ranks, groups, bytes per family, and the pool."""
    from placer.formulate import read_job  # noqa: PLC0415
    from placer.report.job import describe_job  # noqa: PLC0415
    from placer.report.text import write_report  # noqa: PLC0415

    blocks = describe_job(read_job(scenario))
    write_report(blocks, sys.stdout)
    return 0


@commands.command("export", epilog=_EXIT_CODES)
@click.argument("rank_map", type=click.Path(), metavar="MAP")
@click.option(
    "--to",
    required=True,
    metavar="FORMAT",
    help="torchrun, slurm, openmpi, deepspeed, kubernetes, jax, env or hostfile.",
)
@click.option("-o", "--output", metavar="DIR", help="Folder for the files; without it a single file goes to stdout.")
@click.option("--force", is_flag=True, help="Replace files of these names whatever they are.")
@_quiet_option
def export_command(rank_map: str, to: str, output: str | None, force: bool, quiet: bool) -> int:
    """Write the files with which a launcher realises a rank map. Says what the launcher can express, and what a map
    that isn't contiguous breaks.
    """
    from placer.launch.export import export  # noqa: PLC0415
    from placer.launch.export.files import write_files  # noqa: PLC0415

    found = export(RankMap.load(rank_map), to)
    if output is None and len(found.files) > 1:
        names = ", ".join(file.name for file in found.files)
        raise UsageError(f"{to} needs {len(found.files)} files: {names}", hint="name their folder with -o DIR")
    if output is None:
        print_data(found.files[0].text)
    else:
        for path in write_files(found.files, output, force=force):
            if not quiet:
                click.echo(f"wrote {path}", err=True)
    if not quiet:
        click.echo(f"{to} expresses: {found.expresses}\nstart: {found.usage}", err=True)
        for note in found.notes:
            click.echo(f"note: {note}", err=True)
    return 0


@commands.command("predict", epilog=_EXIT_CODES)
@_scenario_argument
@click.option(
    "--rank-map", "map_file", required=True, type=click.Path(), metavar="MAP", help="The map to compare with."
)
@click.option(
    "--domain", default="", metavar="NAME", help="Domain of the hosts' full names, where the map has short ones."
)
@_json_option
def predict_command(scenario: str, map_file: str, domain: str, as_json: bool) -> int:
    """Say in which order torchrun's c10d rendezvous would number the hosts of a map, what that would cost for SCENARIO,
    and how to avoid it.
    """
    from placer import api  # noqa: PLC0415
    from placer.formulate import read_job  # noqa: PLC0415
    from placer.json_document import read_json  # noqa: PLC0415
    from placer.report.prediction import describe_prediction  # noqa: PLC0415

    job = read_job(scenario)
    document = read_json(map_file, max_bytes=MAX_FILE_BYTES, what="a rank map")
    rank_map = RankMap.from_document(document)
    try:
        prediction = api.predict(job, rank_map, domain=domain)
    except InvalidInputError as error:
        raise InvalidInputError(document.place(list(error.issues))) from error
    if as_json:
        print_data(json.dumps(prediction.to_dict(), ensure_ascii=False, allow_nan=False, indent=1) + "\n")
    else:
        lines = describe_prediction(
            rank_map,
            prediction.rank_map,
            objective=prediction.objective,
            map_objective=prediction.map_objective,
        )
        for line in [*lines, *(f"- {advice}" for advice in prediction.advice)]:
            click.echo(line)
    return 0


@commands.command("schema", epilog=_EXIT_CODES)
def schema_command() -> int:
    """Print the JSON Schema of scenario files, for editors."""
    from placer.scenario import json_schema_text  # noqa: PLC0415

    print_data(json_schema_text())
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and answer its exit code. Shows every error; only a bug may show a traceback."""
    with usable_streams():
        return _run(list(sys.argv[1:] if arguments is None else arguments))


def _run(arguments: list[str]) -> int:
    try:
        # click's own main() would turn a broken pipe into exit code 1
        with commands.make_context("placer", arguments) as context:
            code = commands.invoke(context)
        sys.stdout.flush()
    except click.exceptions.Exit as done:  # --help, --version
        return done.exit_code
    except BrokenPipeError:
        drop_stdout()
        return 0
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted", err=True)
        return EXIT_INTERRUPTED
    except PlacerError as error:
        _show_error(error)
        return error.exit_code
    except Exception as error:
        if os.environ.get("PLACER_DEBUG") == "1":
            traceback.print_exc()
        hint = "this is a bug in placer: set PLACER_DEBUG=1, run again, and report what it prints with the scenario"
        click.echo(f"internal error: {type(error).__name__}: {error}\n  hint: {hint}", err=True)
        return EXIT_BUG
    return int(code or 0)


class _ProgressLine:
    """Progress on stderr: one live line on a terminal, else a line per phase and at most one every few seconds."""

    _EVERY_S = 5.0

    def __init__(self, stream: TextIO, *, is_shown: bool) -> None:
        self._stream = stream
        self._is_shown = is_shown
        self._is_live = is_shown and stream.isatty()
        self._phase = ""
        self._last_s = -math.inf
        self._width = 0

    def show(self, progress: Progress) -> None:
        """Show a report of the solver."""
        is_due = progress.phase != self._phase or progress.elapsed_s - self._last_s >= self._EVERY_S
        if not self._is_shown or not (self._is_live or is_due):
            return
        self._phase, self._last_s = progress.phase, progress.elapsed_s
        line = _describe_progress(progress)
        if self._is_live:
            self._stream.write("\r" + line.ljust(self._width))
            self._width = len(line)
            self._stream.flush()
        else:
            click.echo(line, err=True)

    def end(self) -> None:
        """Clear the live line."""
        if self._is_live and self._width:
            self._stream.write("\r" + " " * self._width + "\r")
            self._stream.flush()


def _describe_progress(progress: Progress) -> str:
    from placer.report.text import format_bytes  # noqa: PLC0415

    text = f"{progress.elapsed_s:6.1f} s  {progress.phase}"
    if progress.best is not None:
        text += f"  best {format_bytes(progress.best)}"
        if progress.bound is not None:
            gap = max(0.0, 1 - progress.bound / progress.best) if progress.best > 0 else 0.0
            text += f"  bound {format_bytes(progress.bound)}  gap {100 * gap:.2f} %"
    return text


def _check_output(output: str, scenario: str, *, force: bool) -> None:
    """Refuse an output that can't or must not be written, before any work."""
    check_map_destination(output, force=force)
    if os.path.exists(output) and os.path.exists(scenario) and os.path.samefile(output, scenario):
        raise UsageError(f"{output!r} is the scenario itself", hint="name another file for the map")


def _print_result(result: Result, *, as_json: bool, stdout_is_free: bool, quiet: bool) -> None:
    from placer.report.summary import summarise  # noqa: PLC0415
    from placer.report.text import write_report  # noqa: PLC0415

    if as_json:
        print_data(json.dumps(result.to_dict(), ensure_ascii=False, allow_nan=False, indent=1) + "\n")
    if not quiet:
        write_report(summarise(result), sys.stdout if stdout_is_free else sys.stderr)


def _show_error(error: PlacerError) -> None:
    for issue in error.issues:
        prefix = "" if issue.location else "error: "
        click.echo(prefix + issue.render(), err=True)
    total = len(error.issues) + error.num_left_out
    if total > 1:
        shown = f", the first {len(error.issues)} are shown" if error.num_left_out else ""
        click.echo(f"{total} mistakes{shown}", err=True)
