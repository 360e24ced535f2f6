"""A file that is there whole or not at all."""

import os
from pathlib import Path


def write_whole(path: Path, content: bytes) -> None:
    """Put `content` in the place of what was at `path`, also where the power fails. Raises OSError."""
    if path.is_dir():
        raise IsADirectoryError(f"{path}: is a folder")
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
