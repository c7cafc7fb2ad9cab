"""Output files: refused before the work if they can't be written, replaced in one step, never half written."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Callable

from placer.errors import UsageError


def check_destination(
    path: str | os.PathLike[str], *, is_replaceable: Callable[[str], bool], what: str, force: bool = False
) -> None:
    """Find out before the work whether ``path`` may and can be written. Raises `UsageError` if not.

    Without ``force`` only a missing file and one that ``is_replaceable`` (it is a ``what``) may be written over;
    directories and devices never.
    """
    file = os.fspath(path)
    folder = os.path.dirname(file) or "."
    if not os.path.isdir(folder):
        raise UsageError(f"can't write {file!r}: there is no folder {folder!r}", hint="create it first")
    if not os.path.basename(file):
        raise UsageError(f"can't write {file!r}: it is a folder", hint="name a file in it")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"can't write {file!r}: the folder {folder!r} can't be written", hint="name another folder")
    try:
        status = os.lstat(file)
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        raise UsageError(f"can't write {file!r}: {getattr(error, 'strerror', None) or error}") from error
    if stat.S_ISDIR(status.st_mode):
        raise UsageError(f"can't write {file!r}: it is a folder", hint="name a file in it")
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode)):
        raise UsageError(f"can't write {file!r}: it is no regular file", hint="name another file, or `-` for stdout")
    if force:
        return
    if stat.S_ISLNK(status.st_mode):
        hint = "name the file itself, or replace the link with --force"
        raise UsageError(f"{file!r} is a symbolic link", hint=hint)
    if not is_replaceable(file):
        hint = "name another file, or replace it with --force"
        raise UsageError(f"{file!r} exists and is no {what}", hint=hint)


def replace_file(path: str | os.PathLike[str], content: bytes) -> None:
    """Write ``content`` to a file in one step, through a temporary file beside it. Raises `UsageError` if it fails."""
    file = os.fspath(path)
    folder = os.path.dirname(file) or "."
    temporary = os.path.join(folder, f".placer-{secrets.token_hex(6)}.tmp")
    try:
        # 0o666 less the umask is what open() gives; an earlier file keeps its own permissions
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            with open(descriptor, "wb") as stream:
                if os.path.isfile(file) and not os.path.islink(file):
                    os.fchmod(descriptor, stat.S_IMODE(os.stat(file).st_mode))
                stream.write(content)
                stream.flush()
                os.fsync(descriptor)
            os.replace(temporary, file)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
            raise
        _sync_folder(folder)
    except OSError as error:
        raise UsageError(f"can't write {file!r}: {error.strerror or error}", hint="nothing was changed") from error


def _sync_folder(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some network file systems can't; the file itself is safe
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
