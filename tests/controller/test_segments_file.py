"""Rules, tree and merged tags in a file of their own, for `steersman serve --segments`."""

from pathlib import Path

import pytest

from steersman_controller.sidecar.config import read_config

YAML = "rules: [{attribute: tenant, value: acme, segment: vip}]\n"


def test_rules_may_stand_in_a_file_of_their_own(tmp_path: Path) -> None:
    """As strict as in the configuration, which must then say nothing; it is part of what is printed."""
    file = tmp_path / "segments.yaml"
    file.write_text(YAML)
    config = read_config(None, {}, {"segments": str(file)})
    assert config.controller.segmenter.segment_of("", {"tenant": "acme"}) == "vip"
    assert config.segments == ""
    with pytest.raises(ValueError, match="says already how requests are sorted"):
        read_config(None, {}, {"segments": str(file), "controller.segmenter.version": 2})
    for text, words in (
        ("rules: [{attribut: tenant, value: a, segment: b}]", "'rules.0.attribut', did you mean 'attribute'"),
        ("tree: {features: [0], thresholds: [0], left: [0], right: [0], segments: ['']}", "child 0, allowed"),
        ("same_as: {a: b, b: c}", "'a' counts as 'b', which counts as another one"),
        ("[1]", "must map keys to values"),
        ("a: [", "neither a bundle nor YAML"),
    ):
        file.write_text(text)
        with pytest.raises(ValueError, match=r"segments\.yaml") as error:
            read_config(None, {}, {"segments": str(file)})
        assert words in str(error.value)


def test_a_tag_with_an_slo_is_no_other_tag(tmp_path: Path) -> None:
    """What was promised to one segment is not lost in another."""
    file = tmp_path / "segments.yaml"
    file.write_text("same_as: {chat: talk}")
    slo = {"controller.slo": {"chat": {"ttft_s": 1, "tpot_s": 0.1}}}
    with pytest.raises(ValueError, match="'chat' counts as 'talk', but has an SLO of its own"):
        read_config(None, {}, {"segments": str(file), **slo})
