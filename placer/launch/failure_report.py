"""How a process of a job tells why it stops: on stderr, and in the file from which torchrun makes its report."""

from __future__ import annotations

import json
import os
import sys
import time

from placer.errors import PlacerError


def render(error: PlacerError) -> str:
    """The text of all issues."""
    return "\n".join(issue.render() for issue in error.issues)


def report_failure(text: str) -> None:
    """Print the reason, every line marked, and leave it for torchrun's agent."""
    sys.stderr.write("".join(f"placer: {line}\n" for line in text.splitlines()))
    sys.stderr.flush()
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not path:
        return
    extra = {"py_callstack": text, "timestamp": str(int(time.time()))}
    try:
        with open(path, "w", encoding="utf-8") as stream:
            json.dump({"message": {"message": text, "extraInfo": extra}}, stream)
    except OSError:
        return  # the reason is on stderr all the same
