"""Known kinds of GPU clusters: what a scenario's ``preset:`` fills in where it gives no value of its own.

Bandwidths are per GPU, one direction, and *usable* rather than nominal: what collectives reach on large messages (bus
bandwidth). Where only the nominal figure is known it is that. Explicit values in a scenario always win.

Sources: vendors' data sheets for memory, rate and nominal links (the rates of GB200 and MI300X are the least certain);
usable NVLink and NIC figures are measured all-reduce bus bandwidths (A100: 234.9 GB/s at 16 GB messages); H800 from
the DeepSeek-V3 report (arXiv 2412.19437); llama3-roce from "The Llama 3 Herd of Models" (arXiv 2407.21783, §3.3.1:
racks of 2 hosts, pods of 192 racks at full bisection, 8 pods at 1:7).
Latencies: NCCL's ring constants of the Simple protocol (nccl ``src/graph/tuning.cc``), 3.4 us an NVLink hop and 14 us a
network hop; each further switch level is taken as 4 us more.
"""

from __future__ import annotations

from dataclasses import dataclass

NVLINK_LATENCY_S = 3.4e-6
NETWORK_LATENCY_S = 14e-6
SWITCH_LEVEL_LATENCY_S = 4e-6
_GB = 1e9
_GIB = 2.0**30
_TFLOP = 1e12


@dataclass(frozen=True)
class Preset:
    """One kind of cluster.

    - ``memory_bytes``, ``flops_per_s``: of one GPU; dense 16-bit
    - ``nvlink_domain``: GPUs of one NVLink domain
    - ``nvlink_Bps``, ``nic_Bps``: usable bandwidth of one GPU inside the domain and through its NIC
    - ``root_Bps``: at the root, where the fabric is thinner there than the NICs
    - ``tiers``: names of its tiers, innermost first
    """

    name: str
    memory_bytes: float
    flops_per_s: float
    nvlink_domain: int
    nvlink_Bps: float  # noqa: N815  unit suffix
    nic_Bps: float  # noqa: N815
    tiers: tuple[str, ...] = ("nvlink", "leaf", "core")
    root_Bps: float | None = None  # noqa: N815

    def bandwidth(self, tier: int, *, num_tiers: int) -> float:
        """Bytes per second of one GPU at a tier of a tree of ``num_tiers`` (at least two: tier 0 is NVLink)."""
        if tier == 0:
            return self.nvlink_Bps
        is_root = tier == num_tiers - 1 and num_tiers > 2
        return self.root_Bps if is_root and self.root_Bps is not None else self.nic_Bps


def default_latency(tier: int) -> float:
    """Seconds per hop at a tier, whatever the preset."""
    return NVLINK_LATENCY_S if tier == 0 else NETWORK_LATENCY_S + SWITCH_LEVEL_LATENCY_S * (tier - 1)


PRESETS = {
    preset.name: preset
    for preset in (
        Preset("a100", 80 * _GIB, 312 * _TFLOP, 8, 235 * _GB, 23.5 * _GB),
        Preset("h100", 80 * _GIB, 989 * _TFLOP, 8, 370 * _GB, 48 * _GB),
        Preset("h200", 141 * _GIB, 989 * _TFLOP, 8, 370 * _GB, 48 * _GB),
        Preset("h800", 80 * _GIB, 989 * _TFLOP, 8, 160 * _GB, 48 * _GB, ("nvlink", "leaf", "minipod", "core")),
        Preset("b200", 180 * _GIB, 2250 * _TFLOP, 8, 630 * _GB, 50 * _GB),
        Preset("gb200-nvl72", 186 * _GIB, 2500 * _TFLOP, 72, 700 * _GB, 50 * _GB),
        Preset("mi300x", 192 * _GIB, 1307 * _TFLOP, 8, 448 * _GB, 50 * _GB, ("xgmi", "leaf", "core")),
        Preset("gcp-a3-mega", 80 * _GIB, 989 * _TFLOP, 8, 370 * _GB, 23 * _GB),
        Preset("aws-p5", 80 * _GIB, 989 * _TFLOP, 8, 370 * _GB, 50 * _GB),
        Preset(
            "llama3-roce",
            80 * _GIB,
            989 * _TFLOP,
            8,
            370 * _GB,
            50 * _GB,
            ("nvlink", "rack", "pod", "core"),
            root_Bps=7.1 * _GB,
        ),
    )
}
