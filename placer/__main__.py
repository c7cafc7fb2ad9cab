"""``python -m placer`` is ``placer``."""

import sys

from placer.cli import main

if __name__ == "__main__":
    sys.exit(main())
