"""Shell scripts that find their host in a table. Hidden here: quoting, and the rules of `match_host` in bash."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from placer.launch.export.files import mark
from placer.launch.host_names import is_short, short_name
from placer.rank_map import RankMap


def begin_script(rank_map: RankMap, to: str, purpose: str) -> str:
    """The first lines of a script, up to the point where it does something."""
    return f"#!/usr/bin/env bash\n{mark(rank_map, to)}# {purpose}\nset -euo pipefail\n"


def find_host_code(rank_map: RankMap, host2values: Mapping[str, Mapping[str, object]]) -> str:
    """Code that sets ``host`` and the shell variables of this machine's host, or ends with exit code 3.

    ``host2values[host]`` maps variable names to values; every host has the same names.
    """
    shorts = Counter(short_name(entry.host).lower() for entry in rank_map.hosts)
    exact, loose, ambiguous = [], [], set()
    for entry in rank_map.hosts:
        name, short = entry.host.lower(), short_name(entry.host).lower()
        values = " ".join(f"{key}={_quote(str(value))}" for key, value in host2values[entry.host].items())
        action = f"host={_quote(entry.host)} {values} ;;"
        exact.append(f"    {_quote(name)}) {action}")
        if is_short(entry.host):
            loose.append(f"        {_quote(name)}.*) {action}")
        elif shorts[short] == 1:
            loose.append(f"        {_quote(short)}) {action}")
        else:
            ambiguous.add(short)
    loose += [f'        {_quote(short)}) fail "host name $1 is ambiguous" ;;' for short in sorted(ambiguous)]
    return _TEMPLATE.format(exact="\n".join(exact), loose="\n".join(loose))


def _quote(word: str) -> str:
    """``word`` in quotes even where it looks harmless: a host may be called esac. Names and numbers have no quotes."""
    assert "'" not in word, word
    return f"'{word}'"


_TEMPLATE = """\
fail() {{ echo "placer: $1" >&2; exit 3; }}
find_host() {{
  case "${{1,,}}" in
{exact}
    *)
      case "${{1,,}}" in
{loose}
        *) return 1 ;;
      esac ;;
  esac
}}
if [ -n "${{PLACER_HOST:-}}" ]; then
  find_host "$PLACER_HOST" || fail "PLACER_HOST $PLACER_HOST is no host of the map"
else
  find_host "${{SLURMD_NODENAME:-}}" || find_host "$(uname -n)" || find_host "$(hostname -f 2> /dev/null)" ||
    fail "this machine ($(uname -n)) is no host of the map: name it as the map does, with PLACER_HOST"
fi
"""
