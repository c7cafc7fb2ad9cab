"""Which host of a rank map this machine is. Light: every process of a job asks it.

Hidden here: where names come from, and when two different spellings mean one host.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence

from placer.errors import InvalidInputError, did_you_mean

_EXPLICIT = "PLACER_HOST"
_SLURM = "SLURMD_NODENAME"
_ADDRESS = re.compile(r"[\d.]+|.*:.*")  # IPv4 and IPv6: their parts are no names
_MAX_CANDIDATES = 8


def find_host(
    hosts: Sequence[str],
    *,
    given: str | None = None,
    environment: Mapping[str, str],
    hostname: Callable[[], str] = socket.gethostname,
    aliases: Callable[[str], Iterable[str]] | None = None,
) -> str:
    """The name in ``hosts`` of the machine this process runs on.

    ``given`` (the user's --host) or else PLACER_HOST must be the host. Without them SLURMD_NODENAME, the host name and
    its ``aliases`` (the resolver's: full name, other names, addresses) are tried, the first that fits counts. A name
    fits by `match_host`. Raises `InvalidInputError` when none fits or a short name fits several hosts. Example::

        find_host(["gpu-1.a.example", "gpu-2.a.example"], given="gpu-2", environment={})  # "gpu-2.a.example"
    """
    explicit = given or environment.get(_EXPLICIT)
    if explicit:
        found = match_host(explicit, hosts)
        if found is None:
            source = "--host" if given else _EXPLICIT
            raise InvalidInputError(f"{source} {explicit!r} is no host of the map", hint=did_you_mean(explicit, hosts))
        return found
    tried: list[str] = []
    for name in _own_names(environment, hostname, aliases or resolver_names):
        if name in tried:
            continue
        tried.append(name)
        found = match_host(name, hosts)
        if found is not None:
            return found
    hint = f"name this machine as the map does, with --host or {_EXPLICIT}; {did_you_mean(tried[0], hosts)}"
    raise InvalidInputError(f"this machine ({', '.join(tried)}) is no host of the map", hint=hint)


def match_host(name: str, hosts: Sequence[str]) -> str | None:
    """The host that ``name`` means, or None.

    The full name decides, letter case aside. Else a short name fits a host's first label, as long as one of the two
    has no domain: gpu-1 and gpu-1.a.example fit each other, gpu-1.a.example and gpu-1.b.example don't.

    Raises `InvalidInputError`, with the candidates, when a short name fits several hosts.
    """
    if name in hosts:
        return name
    wanted = name.casefold()
    found = [host for host in hosts if host.casefold() == wanted] or [
        host
        for host in hosts
        if short_name(host).casefold() == short_name(name).casefold() and (is_short(host) or is_short(name))
    ]
    if len(found) > 1:
        shown = ", ".join(found[:_MAX_CANDIDATES]) + (", …" if len(found) > _MAX_CANDIDATES else "")
        hint = f"write the full name with --host or {_EXPLICIT}"
        raise InvalidInputError(f"host name {name!r} is ambiguous, it fits {shown}", hint=hint)
    return found[0] if found else None


def short_name(name: str) -> str:
    """``name`` without its domain; an address stays whole."""
    return name if _ADDRESS.fullmatch(name) else name.split(".", maxsplit=1)[0]


def is_short(name: str) -> bool:
    """Whether ``name`` has no domain."""
    return short_name(name) == name


def resolver_names(hostname: str) -> list[str]:
    """Other names of a machine: its full name, the aliases of hosts file or DNS, its addresses. May ask the network."""
    names = [socket.getfqdn(hostname)]
    try:
        canonical, others, addresses = socket.gethostbyname_ex(hostname)
    except OSError:
        return names
    return [*names, canonical, *others, *(address for address in addresses if not address.startswith("127."))]


def _own_names(
    environment: Mapping[str, str], hostname: Callable[[], str], aliases: Callable[[str], Iterable[str]]
) -> Iterable[str]:
    """Names of this machine, the ones that cost a question to the network last."""
    if environment.get(_SLURM):
        yield environment[_SLURM]
    own = hostname()
    yield own
    yield from aliases(own)
