"""What accelerators can do by their data sheets: dense bfloat16 arithmetic and memory bandwidth."""

from msgspec import Struct

from steersman_controller.train.table_file import known


class Device(Struct, frozen=True):
    """Peak rates. Real kernels reach the fractions below of them."""

    flops_per_s: float
    """Dense bfloat16, fp32 accumulation, no sparsity."""
    bytes_per_s: float
    memory_bytes: float
    link_bytes_per_s: float
    """To the other devices of the same machine, one direction."""
    source: str


BANDWIDTH_SHARE = 0.81
"""Of the peak bandwidth; a public fit of Llama-3.1-8B decoding on H100 reaches it (SpecDecode-Bench)."""

ARITHMETIC_SHARE = 0.77
"""Of the peak arithmetic; the same fit."""

LAUNCH_S = 2e-6
"""Smallest time of one kernel inside a CUDA graph."""

KERNELS_PER_LAYER = 9
"""Four matrix products, attention, two norms, activation, rotary embedding with the cache write."""

DEVICES = {
    "h100": Device(989.4e12, 3.35e12, 80e9, 450e9, "NVIDIA H100 SXM5 80GB data sheet"),
    "h200": Device(989.4e12, 4.80e12, 141e9, 450e9, "NVIDIA H200 SXM data sheet"),
    "a100": Device(312.0e12, 2.039e12, 80e9, 300e9, "NVIDIA A100 SXM4 80GB data sheet"),
    "l40s": Device(362.05e12, 0.864e12, 48e9, 32e9, "NVIDIA L40S data sheet (half the sparse figure)"),
    "rtx4090": Device(165.2e12, 1.008e12, 24e9, 32e9, "NVIDIA Ada architecture white paper"),
    "rtxpro6000": Device(503.8e12, 1.792e12, 96e9, 64e9, "NVIDIA RTX PRO 6000 Blackwell data sheet"),
    "b200": Device(2250.0e12, 8.00e12, 180e9, 900e9, "NVIDIA HGX B200 data sheet"),
}


def device(name: str) -> Device:
    """The device called so. Raises ValueError with what it may have meant."""
    return DEVICES[known(DEVICES, name.lower(), "device")]
