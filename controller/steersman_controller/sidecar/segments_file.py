"""How requests are sorted, from a file: a bundle of `steersman train --segments`, or YAML of one's own."""

import zipfile
from pathlib import Path

import msgspec
import yaml

from steersman_controller.sidecar.shape import shaped
from steersman_policies.segmenter import Segmenter


def read_segmenter(path: Path) -> Segmenter:
    """The segmenter in a file; the YAML is that of `controller.segmenter` in the configuration.

    Raises OSError, or ValueError in one line naming file and key.
    """
    if zipfile.is_zipfile(path):
        from steersman_controller.train.bundle import read_bundle

        found = read_bundle(path).manifest.segmenter
        if found is None:
            raise ValueError(f"{path}: this bundle has no segmenter; see `steersman inspect {path}`")
        return found
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path}: neither a bundle nor YAML: {error}") from None
    where = str(path)
    try:
        return msgspec.convert(shaped({} if tree is None else tree, Segmenter, where), Segmenter)
    except msgspec.ValidationError as error:
        raise ValueError(f"{where}: {error}") from None
