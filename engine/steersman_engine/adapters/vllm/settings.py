"""What an operator can tell the adapter: environment variables, read once in vLLM's EngineCore process.

There is no file and no flag: vLLM hands neither on to a scheduler class.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from steersman_engine.adapters.vllm.draft_timer import SWITCH
from steersman_engine.fallback import default_state_dir
from steersman_engine.transport import check_endpoint, default_endpoint
from steersman_policies.policy import did_you_mean
from steersman_policies.units import K_LIMIT

PREFIX = "STEERSMAN_"
SIDECAR_PREFIX = "STEERSMAN__"
"""Two underscores: settings of the sidecar, which may well run in the same environment."""

ENGINE_ID = "STEERSMAN_ENGINE_ID"
SIDECAR = "STEERSMAN_SIDECAR"
STATE_DIR = "STEERSMAN_STATE_DIR"
STRICT = "STEERSMAN_STRICT"
INSECURE = "STEERSMAN_INSECURE"
REACHABLE_K = "STEERSMAN_REACHABLE_K"

NAMES = (ENGINE_ID, SIDECAR, STATE_DIR, STRICT, INSECURE, REACHABLE_K)
ELSEWHERE = (SWITCH, "STEERSMAN_TRACEBACK")
"""Read by the draft timer and by the command line."""

_SERVICE_LINK = re.compile(r"STEERSMAN_(\w+_)?(SERVICE_(HOST|PORT\w*)|PORT(_\w+)?)")
"""What Kubernetes puts into every container beside a Service whose name begins with ours."""

DEFAULT_ENGINE_ID = "vllm-0"

# What `Link` allows, less what a rank adds.
_ENGINE_ID = re.compile(r"[A-Za-z0-9_:-][A-Za-z0-9_.:-]{0,99}")


class Settings(Struct, frozen=True):
    """Where this engine reports to, under which name, and what it may be asked for."""

    sidecar: str
    """Endpoint of the sidecar."""
    state_dir: Path
    """Where the pause file and the fallback table live."""
    engine_id: str = DEFAULT_ENGINE_ID
    strict: bool = False
    """Refuse to start where K cannot be steered."""
    insecure: bool = False
    """Connect to another machine without keys."""
    reachable_k: tuple[int, ...] | None = None
    """Ascending, with 0; None: every K from 0 to `num_speculative_tokens`."""

    def engine_id_of(self, rank: int) -> str:
        """The name of a data-parallel rank.

        >>> settings = Settings("tcp://127.0.0.1:5557", Path("state"), engine_id="chat")
        >>> settings.engine_id_of(0), settings.engine_id_of(2)
        ('chat', 'chat-dp2')
        """
        return f"{self.engine_id}-dp{rank}" if rank else self.engine_id


def read_settings(environment: Mapping[str, str]) -> Settings:
    """The settings in an environment. Makes the folder of the default endpoint where it is used.

    Raises ValueError in one line: name, value, what is allowed.
    """
    for name in sorted(environment):
        ours = name.startswith(PREFIX) and not name.startswith(SIDECAR_PREFIX)
        if ours and name not in NAMES and name not in ELSEWHERE and not _SERVICE_LINK.fullmatch(name):
            raise ValueError(f"{name}: unknown{did_you_mean(name, NAMES)}; known: {', '.join(NAMES)}")
    insecure = _flag(environment, INSECURE)
    _flag(environment, SWITCH)
    given_k = environment.get(REACHABLE_K)
    return Settings(
        sidecar=_sidecar(environment, insecure),
        state_dir=_state_dir(environment),
        engine_id=_engine_id(environment),
        strict=_flag(environment, STRICT),
        insecure=insecure,
        reachable_k=None if given_k is None else parse_k(given_k, REACHABLE_K),
    )


def parse_k(text: str, where: str) -> tuple[int, ...]:
    """The K of a list such as ``0,2,4,8``, ascending.

    0 must be among them: switching drafting off is what guard and controller fall back to.

    >>> parse_k("8, 0,2,2", "--k")
    (0, 2, 8)
    >>> parse_k("2,4", "--k")
    Traceback (most recent call last):
    ...
    ValueError: --k: '2,4' lacks 0, and switching drafting off must be possible: write '0,2,4'
    """
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdigit() and int(word) <= K_LIMIT for word in words):
        raise ValueError(f"{where}: {text!r}; allowed are numbers from 0 to {K_LIMIT}, as in '0,2,4,8'")
    found = tuple(sorted({int(word) for word in words}))
    if found[0] != 0:
        full = ",".join(map(str, (0, *found)))
        raise ValueError(
            f"{where}: {text!r} lacks 0, and switching drafting off must be possible: write {full!r}"
        )
    if len(found) == 1:
        raise ValueError(f"{where}: {text!r} leaves nothing to steer: name at least one K above 0")
    return found


def _flag(environment: Mapping[str, str], name: str) -> bool:
    value = environment.get(name, "0")
    if value not in ("0", "1"):
        raise ValueError(f"{name}: {value!r}; allowed are 0 and 1")
    return value == "1"


def _engine_id(environment: Mapping[str, str]) -> str:
    value = environment.get(ENGINE_ID, DEFAULT_ENGINE_ID)
    if not _ENGINE_ID.fullmatch(value):
        raise ValueError(f"{ENGINE_ID}: {value!r}; allowed are 1 to 100 of A-Z a-z 0-9 _ . : -, no dot first")
    return value


def _sidecar(environment: Mapping[str, str], insecure: bool) -> str:
    given = environment.get(SIDECAR)
    try:
        endpoint = default_endpoint(environment) if given is None else given
        check_endpoint(endpoint, insecure=insecure)
    except (OSError, ValueError) as error:
        raise ValueError(f"{SIDECAR}: {error}") from None
    return endpoint


def _state_dir(environment: Mapping[str, str]) -> Path:
    given = environment.get(STATE_DIR)
    if given == "":
        raise ValueError(f"{STATE_DIR}: is empty; allowed is the path of a folder")
    try:
        return default_state_dir(environment) if given is None else Path(given).expanduser()
    except RuntimeError as error:  # there is no home
        raise ValueError(f"{STATE_DIR}: {given or 'not set'}: {error}") from None
