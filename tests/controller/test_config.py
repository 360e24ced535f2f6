"""The sidecar's configuration and endpoints."""

from pathlib import Path

import pytest
import yaml

from steersman_controller.sidecar.config import read_config
from steersman_controller.sidecar.endpoints import claim, default_endpoint, prepare
from steersman_controller.sidecar.shape import plain


def test_flags_override_the_environment_which_overrides_the_file(tmp_path: Path) -> None:
    """The nearer to the person, the stronger; keys that nobody set keep their defaults."""
    file = tmp_path / "c.yaml"
    file.write_text("lease_s: 2\nmetrics_port: 1\ncontroller: {seed: 3, plan_interval_s: 0.5}\n")
    env = {"STEERSMAN__METRICS_PORT": "2", "STEERSMAN__CONTROLLER__SEED": "4", "OTHER": "x"}
    config = read_config(file, env, {"controller.seed": 5})
    assert (config.lease_s, config.metrics_port) == (2.0, 2)
    assert (config.controller.seed, config.controller.plan_interval_s) == (5, 0.5)
    assert config.controller.mode == "shadow"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("lease: 2", ["c.yaml", "unknown key 'lease'", "did you mean 'lease_s'?", "allowed: telemetry, "]),
        ("controller: {moed: steer}", ["'controller.moed'", "did you mean 'mode'?", "plan_interval_s"]),
        ("controller: {slo: {chat: {ttft: 1}}}", ["'controller.slo.chat.ttft'", "'ttft_s'"]),
        ("controller: {slo: {chat: {ttft_s: 1}}}", ["controller.slo.chat.tpot_s is missing"]),
        ("lease_s: .nan", ["lease_s", "nan"]),
        ("lease_s: 0.01", ["lease_s", ">= 0.2", "found 0.01"]),
        ("controller: {mode: fast}", ["controller.mode", "found 'fast'", "allowed: shadow, steer"]),
        ("controller: {plan_interval_s: 0}", ["plan_interval_s", "at least 0.01"]),
        ("metrics_port: 70000", ["metrics_port", "65535"]),
        ("[1, 2]", ["must map keys to values"]),
        ("a: [", ["not YAML"]),
        ("policy: fixed", ["policy must map keys to values"]),
    ],
)
def test_a_bad_key_or_value_is_named_with_what_is_allowed(
    tmp_path: Path, text: str, parts: list[str]
) -> None:
    """The error says where it is, what was found and what is allowed."""
    file = tmp_path / "c.yaml"
    file.write_text(text)
    with pytest.raises(ValueError) as error:  # noqa: PT011 - the text is checked below
        read_config(file, {}, {})
    for part in parts:
        assert part in str(error.value)


RULE = "{attribute: tenant, value: acme, segment: vip}"


@pytest.mark.parametrize(
    ("rules", "parts"),
    [
        ("[{attribute: tenent, value: a, segment: b}]", ["rules.0.attribute: found 'tenent'", "'tenant'?"]),
        ("[{attribute: prompt, value: a, segment: b}]", ["allowed: lora, route, sampling, struct"]),
        ("[{attribute: tenant, valeu: a, segment: b}]", ["'controller.segmenter.rules.0.valeu'", "'value'?"]),
        ("[{attribute: tenant, value: a}]", ["controller.segmenter.rules.0.segment is missing"]),
        ("[{attribute: tenant, value: 5, segment: b}]", ["rules.0.value: Expected `str`", "found 5"]),
        ("[{attribute: tenant, value: a, segment: a b}]", ["rules.0.segment: ", "found 'a b'"]),
        (RULE, ["controller.segmenter.rules: Expected `array`"]),
        (f"[{RULE}, {RULE}]", ["rules.1: never reached, rule 0 takes tenant 'acme' already"]),
    ],
)
def test_a_bad_segment_rule_is_named_with_what_is_allowed(
    tmp_path: Path, rules: str, parts: list[str]
) -> None:
    """By its number and its key, as it stands in the file."""
    file = tmp_path / "c.yaml"
    file.write_text(f"controller: {{segmenter: {{rules: {rules}}}}}")
    with pytest.raises(ValueError) as error:  # noqa: PT011 - the text is checked below
        read_config(file, {}, {})
    for part in parts:
        assert part in str(error.value)


def test_rules_are_bounded() -> None:
    """An engine knows 15 segments beside `unknown`, and every plan carries the rules."""

    def configured(rules: int, segments: int) -> None:
        found = [
            {"attribute": "route", "value": f"r{n}", "segment": f"s{n % segments}" if segments else "unknown"}
            for n in range(rules)
        ]
        read_config(None, {}, {"controller.segmenter.rules": found})

    configured(256, 15)
    configured(3, 0)
    with pytest.raises(ValueError, match=r"segmenter\.rules: at most 15 segments .* found 16"):
        configured(40, 16)
    with pytest.raises(ValueError, match=r"segmenter\.rules: at most 256, found 257"):
        configured(257, 1)


def test_a_record_that_travels_as_an_array_is_overridden_key_by_key(tmp_path: Path) -> None:
    """Rules from the environment leave the version that the file gives them."""
    file = tmp_path / "c.yaml"
    file.write_text("controller: {segmenter: {version: 3}}")
    segmenter = read_config(
        file, {"STEERSMAN__CONTROLLER__SEGMENTER__RULES": f"[{RULE}]"}, {}
    ).controller.segmenter
    assert segmenter.version == 3
    assert segmenter.segment_of("", {"tenant": "acme"}) == "vip"


def test_the_source_of_a_bad_value_is_named() -> None:
    """An error from the environment names the variable, not the file."""
    with pytest.raises(ValueError, match=r"^STEERSMAN__CONTROLLER__MOD: unknown key 'controller\.mod'"):
        read_config(None, {"STEERSMAN__CONTROLLER__MOD": "steer"}, {})


def test_records_that_travel_as_arrays_are_written_as_maps(tmp_path: Path) -> None:
    """SLOs and segment rules are maps in the file, with the defaults of their records."""
    file = tmp_path / "c.yaml"
    file.write_text(
        "controller:\n"
        "  slo: {chat: {ttft_s: 1, tpot_s: 0.1}}\n"
        "  segmenter: {version: 1, rules: [{attribute: lora, value: sql, segment: code}]}\n"
    )
    controller = read_config(file, {}, {}).controller
    assert controller.slo["chat"].quantile == 0.95
    assert controller.segmenter.segment_of("", {"lora": "sql"}) == "code"


def test_a_printed_configuration_reads_back(tmp_path: Path) -> None:
    """What `--print-config` shows is itself a configuration."""
    config = read_config(None, {}, {"controller.mode": "steer", "lease_s": 3})
    file = tmp_path / "c.yaml"
    file.write_text(yaml.safe_dump(plain(config)))
    assert read_config(file, {}, {}) == config


def test_the_default_endpoint_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It lies in a folder of mode 700, which is made; one that others can enter is refused."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    endpoint = default_endpoint("telemetry")
    assert endpoint == f"ipc://{tmp_path}/steersman/telemetry.ipc"
    prepare(endpoint, flag="--telemetry", insecure=False)
    assert (tmp_path / "steersman").stat().st_mode & 0o777 == 0o700
    (tmp_path / "steersman").chmod(0o755)
    with pytest.raises(ValueError, match="mode 755"):
        prepare(endpoint, flag="--telemetry", insecure=False)


@pytest.mark.parametrize("endpoint", ["tcp://0.0.0.0:5555", "tcp://*:5555", "tcp://example.org:1"])
def test_other_machines_stay_out_unless_asked_in(endpoint: str) -> None:
    """Only loopback TCP is bound without `--insecure`."""
    with pytest.raises(ValueError, match="--insecure"):
        prepare(endpoint, flag="--telemetry", insecure=False)
    prepare(endpoint, flag="--telemetry", insecure=True)


@pytest.mark.parametrize("endpoint", ["tcp://127.0.0.1:5555", "tcp://[::1]:5555", "tcp://localhost:1"])
def test_loopback_needs_no_permission(endpoint: str) -> None:
    """The loopback addresses of both families are allowed."""
    prepare(endpoint, flag="--telemetry", insecure=False)


@pytest.mark.parametrize("endpoint", ["inproc://x", "ipc://relative", "nonsense", "ipc:///" + "x" * 120])
def test_what_is_no_endpoint_is_refused(endpoint: str) -> None:
    """The error names the flag."""
    with pytest.raises(ValueError, match=r"^--admin: "):
        prepare(endpoint, flag="--admin", insecure=True)


def test_an_endpoint_is_claimed_once(tmp_path: Path) -> None:
    """The second claim names the process that holds the first; a released endpoint is free again."""
    endpoint = f"ipc://{tmp_path}/t.ipc"
    first = claim(endpoint, flag="--telemetry")
    assert first is not None
    with pytest.raises(ValueError, match=r"another sidecar \(process \d+\) is serving"):
        claim(endpoint, flag="--telemetry")
    first.close()
    second = claim(endpoint, flag="--telemetry")
    assert second is not None
    second.close()
