"""``placer``, the command, and ``python -m placer``."""

import sys


def run() -> int:
    """Run the command line; Ctrl-C while it is still being imported is no traceback either."""
    try:
        from placer.cli import main  # noqa: PLC0415  what takes time must come inside

        return main()
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(run())
