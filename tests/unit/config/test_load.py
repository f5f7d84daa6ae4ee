"""Loading an instance file: every problem at once, each with its path, its value, the rule and what to write instead."""

from __future__ import annotations

from pathlib import Path

import pytest

from ascendd.config.load import convert, load_file, load_text
from ascendd.errors import ConfigFileMissing, ConfigInvalid, ConfigSyntaxError

MODEL = "model: {path: /srv/m}\n"

BAD = [
    ("", ["$.model: is required; add `model:`"]),
    ("model: {}", ["$.model.path: is required; add `path:`"]),
    ("model: {path: '  '}", ["$.model.path = '  ': must name a folder"]),
    ("model: {path: [1]}", ["$.model.path = [1]: expected `str`, got `array`"]),
    ("model: 3", ["$.model = 3: must be a mapping of keys to values; known keys: path, name, dtype, max_model_len"]),
    ("- a\n- b", ["$ = ['a', 'b']: must be a mapping of keys to values"]),
    ("just text", ["$ = 'just text': must be a mapping"]),
    (
        "modle: {path: x}",
        ["$.modle = {'path': 'x'}: is not a known key; did you mean `model`?", "$.model: is required"],
    ),
    (
        MODEL + "engine: {max_num_seq: 4}",
        ["$.engine.max_num_seq = 4: is not a known key; did you mean `max_num_seqs`?"],
    ),
    (MODEL + "engine: {max_num_seqs: 0}", ["$.engine.max_num_seqs = 0: expected `int` >= 1"]),
    (MODEL + "engine: {max_num_seqs: many}", ["$.engine.max_num_seqs = 'many': expected `int`, got `str`"]),
    (MODEL + "engine: {block_size: 24}", ["$.engine.block_size = 24: must be one of 16, 32, 64, 128"]),
    (MODEL + "engine: {device: tpu}", ["$.engine.device = 'tpu': must be one of auto, cpu, npu, cuda"]),
    (MODEL + "engine: {gpu_memory_utilization: 1.5}", ["$.engine.gpu_memory_utilization = 1.5: expected `float` <= 1"]),
    (
        MODEL + "engine: {kv_cache_memory: 4 gibs}",
        ["$.engine.kv_cache_memory = '4 gibs': is not a whole number of bytes"],
    ),
    (MODEL + "engine: {kv_cache_memory: 0}", ["$.engine.kv_cache_memory = 0: is not more than 0 bytes"]),
    (
        MODEL + "engine: {kv_cache_memory: 4GiB, max_num_blocks: 5}",
        ["$.engine = 'kv_cache_memory and max_num_blocks': at most one", "keep `kv_cache_memory` and remove the rest"],
    ),
    (
        MODEL + "engine: {max_num_seqs: 64, max_num_batched_tokens: 32}",
        ["$.engine.max_num_batched_tokens = 32: is less than max_num_seqs (64)", "write 64 or more"],
    ),
    (MODEL + "listen: {host: my.server}", ["$.listen.host = 'my.server': is not an IP address or `localhost`"]),
    (MODEL + "listen: {port: 70000}", ["$.listen.port = 70000: expected `int` <= 65535"]),
    (MODEL + "listen: {max_body_bytes: -1}", ["$.listen.max_body_bytes = -1: is not more than 0 bytes"]),
    (
        MODEL + "metrics: {host: 0.0.0.0}",
        ["$.metrics.host = '0.0.0.0': is not a loopback address; /metrics has no keys"],
    ),
    (MODEL + "metrics: {port: 8000}", ["$.metrics.port = 8000: is also listen.port"]),
    (MODEL + "log: {level: loud}", ["$.log.level = 'loud': must be one of debug, info, warning, error"]),
    (MODEL + "log: {max_bytes: 1XB}", ["$.log.max_bytes = '1XB': is not a whole number of bytes"]),
    (MODEL + "parallel: {devices: [0, 1]}", ["$.parallel.devices = [0, 1]: must name 1 different devices"]),
    (
        MODEL + "parallel: {tensor_parallel_size: 2, devices: [0, 0]}",
        ["$.parallel.devices = [0, 0]: must name 2 different devices"],
    ),
    (
        MODEL + "recovery: {backoff_min_s: 9, backoff_max_s: 3}",
        ["$.recovery.backoff_min_s = 9.0: is more than backoff_max_s (3)"],
    ),
    (MODEL + "health: {step_deadline_s: .inf}", ["$.health.step_deadline_s = inf: expected `float` <= 31536000"]),
    (MODEL + "engine: {seed: 18446744073709551616}", ["$.engine.seed = 18446744073709551616: "]),
    (MODEL + "engine: {num_threads: 100000}", ["$.engine.num_threads = 100000: expected `int` <= 1024"]),
    (
        MODEL + "engine: {max_num_seqs: 1000000000000}",
        ["$.engine.max_num_seqs = 1000000000000: expected `int` <= 65536"],
    ),
    (MODEL + "recovery: {drain_timeout_s: 1.0e+300}", ["$.recovery.drain_timeout_s = 1e+300: expected `float` <="]),
    (MODEL + "listen: {max_body_bytes: 99999TB}", ["$.listen.max_body_bytes = '99999TB': is more than 1.00 GiB"]),
    ("model: {path: m, name: ''}", ["$.model.name = '': is empty; write a value, or leave the key out"]),
    ('model: {path: "a\\nb"}', ["$.model.path = 'a\\nb': has a line break"]),
    ('model: {path: "a\\0b"}', ["$.model.path = 'a\\x00b': has a line break or another character"]),
    (
        MODEL + "listen: {port: 70000}\nmetrics: {host: 0.0.0.0}",
        ["$.listen.port = 70000", "$.metrics.host = '0.0.0.0'"],
    ),
    ("engine: {max_num_seqs: 64, max_num_batched_tokens: 32}", ["$.model: is required", "is less than max_num_seqs"]),
    (MODEL + "admission: {request_timeout_s: .nan}", ["$.admission.request_timeout_s = nan"]),
    (MODEL + "admission: {request_timeout_s: -3}", ["$.admission.request_timeout_s = -3: expected `float` > 0"]),
    (MODEL + "1: 2", ["$.1 = 2: is not a known key"]),
]


@pytest.mark.parametrize(("text", "expected"), BAD, ids=[text.replace("\n", " ")[:60] or "empty" for text, _ in BAD])
def test_bad_file_names_path_value_and_rule(text: str, expected: list[str]) -> None:
    """Each wrong file is refused with the lines that a reader needs to mend it."""
    with pytest.raises(ConfigInvalid) as caught:
        load_text(text, origin="one.yaml")

    message = str(caught.value)
    assert message.startswith("one.yaml: ")
    for line in expected:
        assert line in message


def test_all_shape_problems_come_at_once() -> None:
    """A file with problems in many sections is told all of them in one go, counted."""
    text = """
    model: {path: /srv/m, dtyp: float16}
    listen: {port: -1, hots: x}
    engine: {max_num_seqs: none, block_size: 7}
    log: 5
    """
    with pytest.raises(ConfigInvalid) as caught:
        load_text(text)

    problems = caught.value.facts["problems"]
    paths = [problem.split(" = ")[0] for problem in problems]
    assert sorted(paths) == sorted(
        ["$.model.dtyp", "$.listen.port", "$.listen.hots", "$.engine.max_num_seqs", "$.engine.block_size", "$.log"]
    )
    assert "configuration: 6 problems" in str(caught.value)


def test_all_rule_problems_come_at_once() -> None:
    """Rules across keys are all reported too, in the order of the file."""
    text = (
        MODEL
        + "listen: {host: nowhere}\nmetrics: {port: 8000}\nengine: {max_num_blocks: 1, gpu_memory_utilization: 0.5}\n"
    )
    with pytest.raises(ConfigInvalid) as caught:
        load_text(text)

    paths = [problem.split(" = ")[0] for problem in caught.value.facts["problems"]]
    assert paths == ["$.listen.host", "$.metrics.port", "$.engine"]


def test_one_problem_is_counted_as_one() -> None:
    """The count reads as English."""
    with pytest.raises(ConfigInvalid, match=r"one\.yaml: 1 problem\n"):
        load_text("model: {}", origin="one.yaml")


def test_long_value_is_cut_in_the_message() -> None:
    """A value of a thousand characters does not bury the rule."""
    with pytest.raises(ConfigInvalid) as caught:
        load_text(MODEL + f"listen: {{host: {'x' * 1000}}}")

    assert len(str(caught.value)) < 300


def test_defaults_fill_what_is_not_written() -> None:
    """A path is enough; an empty section is the section's defaults."""
    config = load_text(MODEL + "engine:\nlog: {}\n")

    assert (config.listen.host, config.listen.port, config.metrics.port) == ("127.0.0.1", 8000, 9475)
    assert (config.engine.max_num_seqs, config.engine.block_size, config.log.max_bytes) == (64, None, "100MB")


def test_loaded_configuration_is_immutable() -> None:
    """Nobody changes a configuration after it was checked."""
    config = load_text(MODEL)

    with pytest.raises(AttributeError):
        config.listen.port = 1  # type: ignore[misc]


def test_port_zero_may_be_used_twice() -> None:
    """Port 0 takes a free one each, so both listeners may ask for it."""
    config = load_text(MODEL + "listen: {port: 0}\nmetrics: {port: 0}\n")

    assert config.listen.port == config.metrics.port == 0


def test_disabled_metrics_may_name_the_same_port() -> None:
    """A listener that is off cannot collide."""
    assert load_text(MODEL + "metrics: {enabled: false, port: 8000}\n").metrics.port == 8000


def test_broken_yaml_names_file_and_line() -> None:
    """Text that is not YAML is refused with the place."""
    with pytest.raises(ConfigSyntaxError, match=r"one\.yaml is not YAML: (.|\n)*line 2"):
        load_text("model: {path: x}\n  listen: [", origin="one.yaml")


def test_missing_file_names_its_neighbours(tmp_path: Path) -> None:
    """A mistyped instance is answered with the instances that exist."""
    (tmp_path / "qwen2.yaml").write_text(MODEL)
    (tmp_path / "phi3.yaml").write_text(MODEL)

    with pytest.raises(ConfigFileMissing, match=r"qwen3\.yaml does not exist; .* has: phi3, qwen2"):
        load_file(tmp_path / "qwen3.yaml")


def test_missing_folder_is_said(tmp_path: Path) -> None:
    """A folder without instance files is named as such."""
    with pytest.raises(ConfigFileMissing, match="has no instance files"):
        load_file(tmp_path / "none" / "a.yaml")


def test_file_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    """Bytes that are no text are a readable error."""
    path = tmp_path / "a.yaml"
    path.write_bytes(b"model: \xff\xfe")

    with pytest.raises(ConfigFileMissing, match="cannot be read"):
        load_file(path)


def test_file_is_loaded(tmp_path: Path) -> None:
    """A good file gives its values."""
    path = tmp_path / "a.yaml"
    path.write_text(MODEL + "parallel: {tensor_parallel_size: 2, devices: [0, 1]}\n", encoding="utf-8")

    assert load_file(path).parallel.devices == [0, 1]


def test_yaml_tags_build_no_objects() -> None:
    """A file cannot make the loader call anything."""
    with pytest.raises(ConfigSyntaxError, match="not YAML"):
        load_text("model: !!python/object/apply:os.system ['true']")


def test_plain_data_is_checked_like_a_file() -> None:
    """The command line builds plain data and gets the same messages."""
    with pytest.raises(ConfigInvalid, match=r"\$\.listen\.port = 'x'"):
        convert({"model": {"path": "/m"}, "listen": {"port": "x"}})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (MODEL + "engine: {seed: 2024-13-45}", "month must be in 1..12"),
        ("[" * 5000, "nested too deep"),
        (MODEL + "engine: !!python/object:os.system {}", "could not determine a constructor"),
        ("model: {path: m", "is not YAML"),
    ],
)
def test_text_that_cannot_be_read_is_a_syntax_error(text: str, expected: str) -> None:
    """Whatever the YAML reader trips over is one named error of the file."""
    with pytest.raises(ConfigSyntaxError, match=expected):
        load_text(text, "x.yaml")


def test_a_key_written_twice_is_refused_with_its_lines() -> None:
    """The reader would keep the last of two equal keys, so each pair is named with its lines."""
    text = "model:\n  path: a\n  path: b\nlisten: {port: 1}\nlisten: {port: 2}\n"

    with pytest.raises(ConfigInvalid) as caught:
        load_text(text, "x.yaml")

    assert set(caught.value.facts["problems"]) == {"`path` in lines 2 and 3", "`listen` in lines 4 and 5"}


def test_values_that_name_each_other_are_told_in_bounded_space() -> None:
    """A few lines of aliases make a value of astronomic size, which a message must not spell out."""
    lines = ["a: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"b{n}: &a{n + 1} [" + ", ".join([f"*a{n}"] * 9) + "]" for n in range(12)]

    with pytest.raises(ConfigInvalid) as caught:
        load_text(MODEL + "\n".join(lines), "x.yaml")

    assert len(caught.value.message) < 10_000
