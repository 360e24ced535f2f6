"""What the verb tells the process that it starts with vLLM's interpreter."""

from typing import Literal

from msgspec import Struct


class Sizes(Struct, frozen=True):
    """What one part measures, and how often."""

    part: Literal["driven", "live"]
    """Around a worker without a model, or around a real one."""
    requests: int
    groups: int
    """Of paired blocks."""
    kills: int
    """On a virtual clock, or of real sidecars."""
    steps: int = 0
    """By state of the sidecar; `live` counts blocks."""
    step_s: float = 0.0
    """Of the worker without a model."""
    block_tokens: int = 0
    """Output tokens of each request of a block."""


class Spec(Struct, frozen=True):
    """One part of the benchmark, and where it runs."""

    sizes: Sizes
    channel: int
    """File descriptor that progress and result go to, one JSON object a line."""
    model: str
    """Folder of the model; `driven` reads only its configuration."""
    folder: str
    """Short enough for sockets."""
    sidecar: list[str]
    """Arguments that start a steering sidecar at `endpoint`."""
    endpoint: str
    sidecar_environment: dict[str, str]
    seed: int
