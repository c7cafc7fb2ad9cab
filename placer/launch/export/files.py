"""The files of an export: their marks, and how a folder gets them without losing anything of another kind."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass

from placer.errors import UsageError
from placer.output_file import check_destination, replace_file
from placer.rank_map import RankMap, check_map_destination

MAP_NAME = "rank_map.json"
_MARK = "# placer export --to "
_HEAD_BYTES = 200


@dataclass(frozen=True)
class ExportFile:
    """One file: its name in the folder, its text, which has the mark of an export, and whether it is a program."""

    name: str
    text: str
    is_program: bool = False


def mark(rank_map: RankMap, to: str) -> str:
    """The comment line by which a later export knows that it may replace the file."""
    size = f"{rank_map.world_size} ranks on {len(rank_map.hosts)} hosts"
    return f"{_MARK}{to}: {size}, {rank_map.layout_class}, from {rank_map.provenance.scenario!r}\n"


def map_copy(rank_map: RankMap) -> ExportFile:
    """The map itself, for files that refer to it."""
    return ExportFile(MAP_NAME, rank_map.to_json())


def write_files(files: Sequence[ExportFile], folder: str, *, force: bool = False) -> list[str]:
    """Write all files, or none when one of them can't or must not be written. Answers their paths.

    A missing folder is made. Raises `UsageError` when a file of that name isn't an earlier export's, without ``force``.
    """
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise UsageError(f"can't make the folder {folder!r}: {error.strerror or error}") from error
    paths = [os.path.join(folder, file.name) for file in files]
    for file, path in zip(files, paths, strict=True):
        if file.name == MAP_NAME:
            check_map_destination(path, force=force)
        else:
            check_destination(path, is_replaceable=_is_export, what="file of an earlier export", force=force)
    for file, path in zip(files, paths, strict=True):
        replace_file(path, file.text.encode())
        if file.is_program:
            os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    return paths


def _is_export(path: str) -> bool:
    with open(path, "rb") as stream:
        lines = stream.read(_HEAD_BYTES).split(b"\n")
    return any(line.startswith(_MARK.encode()) for line in lines[:2])
