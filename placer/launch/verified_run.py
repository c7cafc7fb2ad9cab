"""``placer.run --verify``: run a Python program, and verify the map when its process group is there.

Hidden here: how a call gets in behind ``torch.distributed.init_process_group`` without a change of the program.
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from placer.errors import PlacerError
from placer.launch.failure_report import render, report_failure
from placer.launch.torch_job import verify

_MODULE = "torch.distributed.distributed_c10d"


def main() -> None:
    """Run ``[-m] PROGRAM ARGUMENTS…`` from the command line, as Python would."""
    arguments = sys.argv[1:]
    sys.meta_path.insert(0, _Finder())
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        sys.path[0] = os.path.dirname(os.path.abspath(arguments[0]))
        runpy.run_path(arguments[0], run_name="__main__")


def verify_or_stop() -> None:
    """Verify the map that placer.run was given; a job that isn't the map's ends here, on every rank, with code 3."""
    try:
        verify()
    except PlacerError as error:
        report_failure(render(error))
        raise SystemExit(error.exit_code) from error
    if os.environ.get("RANK") == "0":
        sys.stderr.write("placer: verified: every rank is where the map says\n")


class _Finder(MetaPathFinder):
    """Finds the one module as usual, and has its loader wrap the function."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != _MODULE:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(Loader):
    def __init__(self, given: Loader) -> None:
        self._given = given

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._given.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._given.exec_module(module)
        init = module.init_process_group

        def init_process_group(*arguments: Any, **options: Any) -> None:
            init(*arguments, **options)
            verify_or_stop()

        init_process_group.__doc__ = init.__doc__
        module.init_process_group = init_process_group  # type: ignore[attr-defined]

    def __getattr__(self, name: str) -> Any:  # get_source and others, for tracebacks and inspection
        return getattr(self._given, name)


if __name__ == "__main__":
    main()
