"""``python -m placer.run``: become the process that the rank map says, then run the user's program.

Started by torchrun for every GPU: it rewrites the environment before anything reads it and hands over to the program
with exec, so that the program finds everything as if torchrun had started it. Light, since every process pays for it.
"""

from __future__ import annotations

import argparse
import gc
import os
import socket
import sys
import zlib
from collections.abc import Sequence
from typing import NoReturn

from placer._version import __version__
from placer.errors import InvalidInputError, Issue, PlacerError, UsageError
from placer.json_document import read_json
from placer.launch.agreement import Report, agree
from placer.launch.environment import (
    DEVICE_VARIABLES,
    LauncherProcess,
    check_host,
    check_job,
    describe_changes,
    plan_changes,
    read_launcher,
)
from placer.launch.failure_report import render, report_failure
from placer.launch.host_names import find_host
from placer.rank_map import MAX_FILE_BYTES, RankMap

_DESCRIPTION = "Give this process the rank that the rank map has for its GPU, then run a program. For torchrun."
_EPILOG = """\
examples:
  torchrun ... -m placer.run --rank-map rank_map.json train.py --lr 1
  torchrun ... -m placer.run --rank-map rank_map.json -m my.module --lr 1
  torchrun ... --no-python placer-run --rank-map rank_map.json --exec ./program

exit codes:
  2    wrong usage, or a program that can't be started
  3    refused: the map is invalid or made for another job, with the reason
  else the program's own
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns only when the program can't be run."""
    options = _parse(sys.argv[1:] if arguments is None else arguments)
    gc.disable()  # a large map is many small objects, and this process is about to become another program
    try:
        changes = _plan(options)
        return _hand_over(options, changes)
    except PlacerError as error:
        report_failure(render(error))
        return error.exit_code


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "placer.run", description=_DESCRIPTION, epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action="version", version=f"placer {__version__}")
    parser.add_argument("--rank-map", required=True, metavar="MAP", help="the map, the same file on every host")
    parser.add_argument(
        "--host", help="this machine's name in the map (default: PLACER_HOST, SLURMD_NODENAME, hostname)"
    )
    parser.add_argument("--master-addr", metavar="ADDR", help="address of rank 0's host, where its name isn't one")
    parser.add_argument(
        "--verify", action="store_true", help="check every rank once init_process_group has been called"
    )
    parser.add_argument("--quiet", action="store_true", help="don't print which rank became which")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("-m", "--module", action="store_true", help="the program is a Python module, as in python -m")
    kind.add_argument("--no-python", "--exec", action="store_true", help="the program is any command")
    parser.add_argument("program", help="a Python script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")
    options = parser.parse_args(arguments)
    if options.verify and options.no_python:
        parser.error("--verify needs a Python program: it calls placer.verify() in it")
    return options


def _plan(options: argparse.Namespace) -> dict[str, str]:
    """Check the map and the job, agree with all other processes, and say which variables change."""
    known = {name: value for name, value in os.environ.items() if name not in DEVICE_VARIABLES}
    process = read_launcher(known)  # what all hosts have alike; a mistake in the rest must be told to the others
    checksum, changes, mistake = "", {}, None
    try:
        process = read_launcher(os.environ)
        document = read_json(options.rank_map, max_bytes=MAX_FILE_BYTES, what="a rank map")
        checksum = f"{zlib.crc32(document.text.encode()):08x}"
        changes = _fit(options, RankMap.from_document(document), process)
    except PlacerError as error:
        mistake = error
    said = None if mistake is None else f"{render(mistake)}\n  said on {socket.gethostname()}"
    verdict = agree(os.environ, process, Report(said, checksum))
    if mistake is not None:
        raise mistake
    if verdict is not None:
        raise InvalidInputError([Issue(line) for line in verdict.splitlines()])
    return changes


def _fit(options: argparse.Namespace, rank_map: RankMap, process: LauncherProcess) -> dict[str, str]:
    """Find this process in the map. Raises `InvalidInputError` when the job or this host isn't the map's."""
    check_job(rank_map, process)
    host = find_host([entry.host for entry in rank_map.hosts], given=options.host, environment=os.environ)
    entry = rank_map.host_ranks(host)
    check_host(entry, process)
    line = None if options.quiet else describe_changes(entry, process)
    if line is not None:
        sys.stderr.write(line + "\n")
    changes = plan_changes(rank_map, entry, process, os.environ, master_addr=options.master_addr)
    return changes | {"PLACER_RANK_MAP": os.path.abspath(options.rank_map), "PLACER_HOST": host}


def _hand_over(options: argparse.Namespace, changes: dict[str, str]) -> NoReturn:
    if options.no_python:
        command = [options.program, *options.arguments]
    else:
        command = [sys.executable, *_interpreter_options()]
        command += ["-m", "placer.launch.verified_run"] if options.verify else []
        command += [*(["-m"] if options.module else []), options.program, *options.arguments]
    sys.stderr.flush()
    try:
        os.execvpe(command[0], command, os.environ | changes)
    except OSError as error:
        raise UsageError(f"can't run {command[0]!r}: {error.strerror}") from error


def _interpreter_options() -> list[str]:
    """Options of the interpreter that runs this module, such as -u, for the one that runs the program."""
    given = sys.orig_argv[1:]
    return given[: given.index("-m")] if "-m" in given and given[given.index("-m") + 1] == __spec__.name else []


if __name__ == "__main__":
    sys.exit(main())
