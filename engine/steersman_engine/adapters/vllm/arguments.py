"""The line that launches a steerable vLLM server, and what its largest K costs."""

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct, to_builtins

from steersman_engine.adapters.vllm import memory, settings
from steersman_engine.adapters.vllm.checks import METHODS
from steersman_engine.adapters.vllm.settings import parse_k, read_settings
from steersman_engine.adapters.vllm.table import bands, compact, fewer, with_table
from steersman_policies.policy import did_you_mean

SCHEDULER = "steersman_engine.adapters.vllm.SteersmanScheduler"
NAMES = "allowed are a local folder and a hub id such as org/name"
DEFAULT_K_MAX = 8
DEFAULT_LOOKUP_TOKENS = (2, 4)
"""Shortest and longest n-gram that prompt look-up matches."""

OWN_DRAFTER = ("draft_model", "eagle", "eagle3")
"""Methods whose drafter is a model that must be named."""


class Launch(Struct, frozen=True):
    """What somebody wants to launch."""

    model: str
    method: str = "ngram"
    draft_model: str | None = None
    k: str | None = None
    k_max: int | None = None
    max_num_seqs: int = 256
    max_model_len: int | None = None
    prompt_lookup_min: int | None = None
    prompt_lookup_max: int | None = None
    tensor_parallel: int = 1
    dtype: str = "auto"
    sidecar: str | None = None
    engine_id: str | None = None
    strict: bool = False
    insecure: bool = False


class Costs(Struct, frozen=True):
    """What the largest K costs on each GPU: computed, not measured."""

    kv_tokens_always: int
    """Slots reserved at `max_num_seqs` running requests whatever K is in force."""
    kv_tokens_at_k_max: int
    """The same in steps at the largest K."""
    kv_bytes_per_token: int | None
    """Of the target; None where `kv_unknown` says why."""
    kv_unknown: str
    drafter_kv_bytes_per_token: int | None
    """0 for a drafter without a KV cache; None where `drafter_unknown` says why."""
    drafter_unknown: str
    decode_graphs_by_k: dict[int, int]
    """Full decode graphs of the target on the V2 runner."""
    decode_graphs_extra: int
    """As against a launch without a table."""
    logits_bytes: int | None
    """None where config.json does not say how large the vocabulary is."""
    logits_bytes_extra: int | None
    """As against a launch without speculation."""


def reachable(launch: Launch) -> tuple[int, ...]:
    """The K that the server is to be ready for, ascending from 0 to its `num_speculative_tokens`.

    Raises ValueError for K that do not fit together or into the table.
    """
    if launch.k is None:
        ks = tuple(range((DEFAULT_K_MAX if launch.k_max is None else launch.k_max) + 1))
    else:
        ks = parse_k(launch.k, "--k")
    if launch.k_max not in (None, ks[-1]):
        raise ValueError(f"--k-max: {launch.k_max}, but the largest of --k is {ks[-1]}; give one of them")
    if len(ks) > launch.max_num_seqs:
        raise ValueError(_crowded(ks, launch.max_num_seqs))
    return ks


def speculative_config(launch: Launch) -> dict[str, Any]:
    """What to give to `--speculative-config`. Raises ValueError for options that exclude each other."""
    if launch.method not in METHODS:
        hint = did_you_mean(launch.method, METHODS)
        raise ValueError(f"--method: {launch.method!r}{hint}; can be steered: {', '.join(METHODS)}")
    if launch.dtype not in memory.DTYPES:
        hint = did_you_mean(launch.dtype, memory.DTYPES)
        raise ValueError(f"--dtype: {launch.dtype!r}{hint}; allowed are {', '.join(memory.DTYPES)}")
    if launch.draft_model is not None and not _is_name(launch.draft_model):
        raise ValueError(f"--draft-model: {launch.draft_model!r}; {NAMES}")
    if launch.method in OWN_DRAFTER and launch.draft_model is None:
        raise ValueError(f"--draft-model: needed with --method {launch.method}")
    ks = reachable(launch)
    config: dict[str, Any] = {"method": launch.method, "num_speculative_tokens": ks[-1]}
    if launch.method == "ngram":
        if launch.draft_model is not None:
            raise ValueError("--draft-model: --method ngram has none")
        config |= _lookup(launch)
    elif launch.prompt_lookup_min is not None or launch.prompt_lookup_max is not None:
        raise ValueError(f"--prompt-lookup-min, --prompt-lookup-max: --method {launch.method} has none")
    elif launch.draft_model is not None:
        config["model"] = _expanded(launch.draft_model)
    return with_table(config, bands(ks, launch.max_num_seqs))


def environment(launch: Launch) -> dict[str, str]:
    """The variables to set, none where a default does. Raises ValueError for a value not allowed."""
    ks = reachable(launch)
    found = {
        settings.ENGINE_ID: launch.engine_id,
        settings.SIDECAR: launch.sidecar,
        settings.REACHABLE_K: None if len(ks) == ks[-1] + 1 else ",".join(map(str, ks)),
        settings.STRICT: "1" if launch.strict else None,
        settings.INSECURE: "1" if launch.insecure else None,
    }
    given = {name: value for name, value in found.items() if value is not None}
    read_settings({settings.SIDECAR: "ipc:///run/any", **given})
    return given


def command(launch: Launch) -> list[str]:
    """The command as a list of arguments."""
    optional = {
        "--dtype": None if launch.dtype == "auto" else launch.dtype,
        "--max-model-len": launch.max_model_len,
        "--tensor-parallel-size": None if launch.tensor_parallel == 1 else launch.tensor_parallel,
    }
    words = ["vllm", "serve", _expanded(launch.model), "--max-num-seqs", str(launch.max_num_seqs)]
    words += [word for flag, value in optional.items() if value is not None for word in (flag, str(value))]
    return [*words, "--scheduler-cls", SCHEDULER, "--speculative-config", compact(speculative_config(launch))]


def costs(launch: Launch) -> Costs | None:
    """What the largest K costs; None for a model that is no local folder.

    Raises ValueError or OSError for a folder without a usable `config.json`.
    """
    folder = Path(launch.model).expanduser()
    if not _is_name(launch.model):
        raise ValueError(f"MODEL: {launch.model!r}; {NAMES}")
    if not folder.is_dir():
        if launch.model.startswith(("/", ".", "~")):
            raise ValueError(f"MODEL: there is no folder {folder}")
        return None
    model, k_max, rows = memory.read_model(folder), reachable(launch)[-1], launch.max_num_seqs
    slots = memory.kv_cost(launch.method, k_max)
    kv, kv_unknown = _kv(launch, model)
    drafter, drafter_unknown = _drafter_kv(launch, model)
    table = bands(reachable(launch), rows)
    lookup = [0, *(k for first, last, k in table for _ in range(first, last + 1))]
    graphs = memory.graph_cost(lookup, k_max, rows)
    logits, plain = _logits(model, k_max, rows), _logits(model, 0, rows)
    return Costs(
        kv_tokens_always=rows * slots.always_tokens,
        kv_tokens_at_k_max=rows * slots.at_k_max_tokens,
        kv_bytes_per_token=kv,
        kv_unknown=kv_unknown,
        drafter_kv_bytes_per_token=drafter,
        drafter_unknown=drafter_unknown,
        decode_graphs_by_k=graphs.sizes_by_k,
        decode_graphs_extra=graphs.extra,
        logits_bytes=logits,
        logits_bytes_extra=None if logits is None or plain is None else logits - plain,
    )


def shell_lines(launch: Launch) -> Iterator[str]:
    """Environment and command, ready to paste."""
    for name, value in environment(launch).items():
        yield f"{name}={shlex.quote(value)} \\"
    words = list(map(shlex.quote, command(launch)))
    yield " ".join(words[:3]) + " \\"
    flags = [f"  {flag} {value}" for flag, value in zip(words[3::2], words[4::2], strict=True)]
    yield " \\\n".join(flags)


def described(launch: Launch) -> dict[str, Any]:
    """Everything as one JSON object; `costs` is null for a model that is no local folder."""
    return {
        "environment": environment(launch),
        "command": command(launch),
        "shell": "\n".join(shell_lines(launch)),
        "speculative_config": speculative_config(launch),
        "reachable_k": reachable(launch),
        "costs": to_builtins(costs(launch), str_keys=True),
    }


def cost_lines(launch: Launch, found: Costs | None) -> Iterator[str]:
    """The costs in words, as comments of a shell."""
    if found is None:
        yield f"# costs: not computed, {launch.model} is no local folder with a config.json"
        return
    yield f"# What K up to {reachable(launch)[-1]} costs on each GPU: computed, not measured."
    yield from _kv_lines(launch, found)
    by_k = ", ".join(f"{count} at K={k}" for k, count in found.decode_graphs_by_k.items())
    yield (
        f"# graphs (computed): {found.decode_graphs_extra} full decode graphs of the target more than without"
        f" a table ({by_k}), on the V2 runner with its default sizes; other runners capture none per K"
    )
    yield "# graphs: fewer K in --k mean fewer graphs and a faster start"
    if launch.method != "ngram":
        yield "# graphs: the drafter's own may come once for each K above 1 as well"
    yield '# graphs: their bytes depend on the GPU; look for "Graph capturing finished" in vLLM\'s log'
    if found.logits_bytes is None or found.logits_bytes_extra is None:
        yield "# logits: unknown, config.json does not say vocab_size"
    else:
        yield (
            f"# logits (computed): at most {_size(found.logits_bytes)} in a step,"
            f" {_size(found.logits_bytes_extra)} of them for drafts"
        )


def _kv_lines(launch: Launch, found: Costs) -> Iterator[str]:
    rows, k_max = launch.max_num_seqs, reachable(launch)[-1]
    always, at_k_max = found.kv_tokens_always, found.kv_tokens_at_k_max
    yield (
        f"# KV cache (computed): at {rows} requests {at_k_max} tokens{_bytes(found, at_k_max)} less for"
        f" context in steps at K={k_max}, {always} tokens{_bytes(found, always)} at K=0"
    )
    if launch.max_model_len:
        full = at_k_max / launch.max_model_len
        yield f"# KV cache (computed): the former is {full:.1f} requests of {launch.max_model_len} tokens"
    if found.kv_unknown:
        yield f"# {found.kv_unknown}"
    drafter, target = found.drafter_kv_bytes_per_token, found.kv_bytes_per_token
    if drafter is None:
        yield f"# KV cache of the drafter: unknown, {found.drafter_unknown}"
    elif drafter and target:
        fraction = drafter / (drafter + target)
        yield f"# KV cache of the drafter (computed): {drafter} bytes per token, {fraction:.1%} of the pool"


def _bytes(found: Costs, tokens: int) -> str:
    if found.kv_bytes_per_token is None:
        return ""
    per_token = found.kv_bytes_per_token + (found.drafter_kv_bytes_per_token or 0)
    return f" ({_size(tokens * per_token)})"


def _logits(model: dict[str, Any], k: int, rows: int) -> int | None:
    try:
        return memory.logits_bytes(model, k, rows)
    except ValueError:
        return None


def _kv(launch: Launch, model: dict[str, Any]) -> tuple[int | None, str]:
    """Bytes per token of the target, or why they are unknown."""
    try:
        dtype = memory.cache_dtype(model, launch.dtype)
        return memory.kv_bytes_per_token(model, dtype=dtype, tensor_parallel=launch.tensor_parallel), ""
    except ValueError as error:
        return None, str(error)


def _drafter_kv(launch: Launch, model: dict[str, Any]) -> tuple[int | None, str]:
    """Bytes per token of the drafter, or why they are unknown."""
    if launch.method == "ngram":
        return 0, ""
    layers = 0
    if launch.draft_model is None:
        found = model.get("num_nextn_predict_layers")
        if not isinstance(found, int) or found <= 0:
            return None, f"config.json: num_nextn_predict_layers: {found!r}"
        layers = found
    try:
        dtype = memory.cache_dtype(model, launch.dtype)
        if launch.draft_model is not None:
            model = memory.read_model(Path(launch.draft_model).expanduser())
        taken = memory.kv_bytes_per_token(
            model, dtype=dtype, tensor_parallel=launch.tensor_parallel, layers=layers
        )
    except OSError:
        return None, f"{launch.draft_model} is no local folder with a config.json"
    except ValueError as error:
        return None, str(error)
    return taken, ""


def _lookup(launch: Launch) -> dict[str, int]:
    shortest, longest = launch.prompt_lookup_min, launch.prompt_lookup_max
    if shortest is None:
        shortest = min(DEFAULT_LOOKUP_TOKENS[0], longest or DEFAULT_LOOKUP_TOKENS[0])
    if longest is None:
        longest = max(DEFAULT_LOOKUP_TOKENS[1], shortest)
    if shortest > longest:
        raise ValueError(f"--prompt-lookup-min: {shortest}, at most --prompt-lookup-max {longest}")
    return {"prompt_lookup_min": shortest, "prompt_lookup_max": longest}


def _crowded(ks: tuple[int, ...], rows: int) -> str:
    text = f"--k: {len(ks)} K, but a table for --max-num-seqs {rows} holds {rows} at most"
    if rows < 2:
        return f"{text}; raise it to {len(ks)}"
    return f"{text}; try --k {','.join(map(str, fewer(ks, rows)))} or --max-num-seqs {len(ks)}"


def _is_name(text: str) -> bool:
    """Whether this can be a folder or a hub id; what begins with a dash would be an option of vLLM's."""
    return bool(text.strip()) and not text.startswith("-")


def _expanded(path: str) -> str:
    """A shell would not expand a quoted ``~``."""
    return str(Path(path).expanduser()) if path.startswith("~") else path


def _size(count: int) -> str:
    """Bytes for people.

    >>> _size(512), _size(3 * 1024**2)
    ('512 B', '3.0 MiB')
    """
    size = float(count)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{count} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"
