"""One peer on one scenario, in this process: ``python -m benchmarks.run_peer PEER SCENARIO SEED LIMIT PLACEMENT``.

Writes rank2slot to PLACEMENT (.npy), beside it the seconds that the peer took (``.json``). Reading the scenario and
importing the peer's package aren't counted. Exit code 3: not applicable, with the reason on stderr.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np

from benchmarks.peers import NotApplicableError, find_peer
from placer.api import check, load_scenario

EXIT_NOT_APPLICABLE = 3


def main(arguments: list[str]) -> int:
    """Run the peer; the exit code."""
    name, scenario, seed, time_limit_s, output = arguments
    problem = check(load_scenario(scenario)).problem
    place = find_peer(name).place
    started = time.perf_counter()
    try:
        rank2slot = place(problem, int(seed), float(time_limit_s))
    except NotApplicableError as error:
        sys.stderr.write(str(error))
        return EXIT_NOT_APPLICABLE
    seconds = time.perf_counter() - started
    np.save(output, rank2slot)
    Path(output).with_suffix(".json").write_text(json.dumps({"seconds": seconds}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
