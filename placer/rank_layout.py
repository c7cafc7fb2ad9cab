"""How plain a map's ranks are, and so which launchers can realise it. Light: launch processes import it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

LayoutClass = Literal["contiguous", "residue", "general"]


def layout_class(host_ranks: Sequence[Sequence[int]]) -> LayoutClass:
    """How plain the ranks of the hosts are (rank map format): contiguous, residue or general.

    ``host_ranks``: the ranks of every host in the order of their GPUs in the map, hosts in node order.
    contiguous: with n ranks on every host, host k holds n·k … n·k + n − 1, ascending. residue: the ranks of every host
    are distinct modulo n. With unequal hosts it is general.
    """
    sizes = {len(ranks) for ranks in host_ranks}
    if len(sizes) != 1:
        return "general"
    n = sizes.pop()
    if all(list(ranks) == list(range(n * k, n * k + n)) for k, ranks in enumerate(host_ranks)):
        return "contiguous"
    return "residue" if all(len({rank % n for rank in ranks}) == n for ranks in host_ranks) else "general"
