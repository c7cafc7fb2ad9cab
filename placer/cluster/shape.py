"""A regular pool: ``{pod: 8, leaf: 24, host: 16, gpu: 8}``.

Hidden here: which keys a shape needs, in which order, and the names of what it generates.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np

from placer.cluster.pool import MAX_GPUS, IdArray, Pool
from placer.errors import Issue, KeyName, Path, did_you_mean

PATH: Path = ("cluster", "shape")


def read_shape(shape: Mapping[str, int], tier_names: tuple[str, ...]) -> tuple[Pool | None, list[Issue]]:
    """The pool of a shape, or the mistakes in it.

    Keys stand outermost first: tier names, ``host``, and ``gpu`` last. The root tier may be absent. Tier 0 is the host
    itself when it is absent; standing before ``host`` it is an NVLink domain of several hosts, after it one of several
    domains of a host. Every other tier must be there.
    """
    issues = _check_shape(shape, tier_names)
    if issues:
        return None, issues
    keys = list(shape)
    gpus_below = {key: prod(shape[inner] for inner in keys[position + 1 :]) for position, key in enumerate(keys)}
    num_gpus = prod(shape.values())
    gpus_per_host = gpus_below["host"]
    hosts = _number("host", num_gpus // gpus_per_host)
    sizes = [gpus_below.get(name, gpus_per_host) for name in tier_names[:-1]]
    slots = np.arange(num_gpus, dtype=np.int64)

    def name_domains(tier: int, ids: IdArray) -> tuple[str, ...]:
        if tier_names[tier] not in shape or tier_names[tier] == "host":
            return tuple(hosts[k] for k in ids.tolist())
        names = _number(tier_names[tier], num_gpus // sizes[tier])
        return tuple(names[k] for k in ids.tolist())

    pool = Pool(
        hosts=hosts,
        offsets=np.arange(len(hosts) + 1, dtype=np.int64) * gpus_per_host,
        is_usable=np.ones(num_gpus, dtype=np.bool_),
        domain_ids=tuple(slots // size for size in sizes),
        name_domains=name_domains,
    )
    return pool, []


def _number(stem: str, count: int) -> tuple[str, ...]:
    """``count`` names with zero padding, so that their order as text is their order in the tree."""
    width = len(str(count - 1))
    separator = "-" if stem[-1].isdigit() else ""
    return tuple(f"{stem}{separator}{k:0{width}d}" for k in range(count))


def _check_shape(shape: Mapping[str, int], tier_names: tuple[str, ...]) -> list[Issue]:
    keys = list(shape)
    issues: list[Issue] = []
    known = [*reversed(tier_names), *(["host"] if "host" not in tier_names else []), "gpu"]
    for key in keys:
        if key not in known:
            hint = did_you_mean(key, known)
            issues.append(
                Issue(f"unknown key '{key}' in cluster.shape: no tier has that name", hint, (*PATH, KeyName(key)))
            )
    if issues:
        return issues  # a misspelt key would be missing as well
    example = ", ".join(f"{name}: 2" for name in reversed(tier_names[1:-1])) + (", " if len(tier_names) > 2 else "")
    hint = f"write outermost first, e.g. {{{example}host: 4, gpu: 8}}"
    needed = [name for name in (*reversed(tier_names[1:-1]), "host", "gpu") if name not in shape]
    if needed:
        missing = ", ".join(f"`{name}`" for name in dict.fromkeys(needed))
        return [Issue(f"cluster.shape has no {missing}", hint, PATH)]
    expected = [name for name in reversed(tier_names) if name in shape]
    actual = [key for key in keys if key in tier_names]
    if keys[-1] != "gpu":
        issues.append(Issue("cluster.shape must end with `gpu`", hint, (*PATH, KeyName(keys[-1]))))
    elif actual != expected:
        wrong = next(a for a, e in zip(actual, expected, strict=True) if a != e)
        message = f"cluster.shape names {' > '.join(actual)}: outermost first it is {' > '.join(expected)}"
        issues.append(Issue(message, "put the keys in the order of the tree", (*PATH, KeyName(wrong))))
    elif tier_names[0] not in shape:
        inside = [key for key in keys[keys.index("host") + 1 : -1] if key in tier_names]
        if inside:
            message = f"cluster.shape puts {inside[0]} inside a host, but without `{tier_names[0]}` tier 0 is the host"
            issues.append(
                Issue(
                    message, f"add `{tier_names[0]}`, or put `{inside[0]}` before `host`", (*PATH, KeyName(inside[0]))
                )
            )
    root = tier_names[-1]
    if shape.get(root, 1) != 1:
        message = f"cluster.shape has {shape[root]} of '{root}', but the last tier is the whole cluster"
        issues.append(Issue(message, f"write `{root}: 1`, or add an outer tier to `tiers`", (*PATH, root)))
    if prod(shape.values()) > MAX_GPUS:
        message = f"cluster.shape has {prod(shape.values()):,} GPUs; at most {MAX_GPUS:,} are possible"
        issues.append(Issue(message, "each number counts what lies in one of the previous", PATH))
    return issues
