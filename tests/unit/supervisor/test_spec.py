"""What children are started with."""

from __future__ import annotations

import sys

import pytest

from ascendd.config.load import load_text
from ascendd.ipc.messages import Role
from ascendd.supervisor.spec import ENGINE_NICE, build_specs, device_kind
from ascendd.telemetry.log import INSTANCE_VARIABLE


def specs(text="model: {path: /m}", kind="cpu", environ=None, num_cores=8):
    """Return the specs of an instance called qwen2."""
    return build_specs(load_text(text), "qwen2", kind=kind, environ=environ or {"PATH": "/bin"}, num_cores=num_cores)


def test_roles_follow_the_configuration():
    """The engine and the API always exist; the metrics process unless disabled; a log writer only for a log file."""
    assert list(specs()) == [Role.METRICS, Role.ENGINE, Role.API]
    text = "model: {path: /m}\nmetrics: {enabled: false}\nlog: {file: /l}"
    assert list(specs(text)) == [Role.LOGWRITER, Role.ENGINE, Role.API]


def test_children_are_our_own_module_by_exec():
    """Each role is `python -m ascendd _ROLE`, with nothing of the configuration on its command line."""
    for role, spec in specs().items():
        assert spec.argv == (sys.executable, "-m", "ascendd", f"_{role.value}")


def test_only_what_clients_need_fails_the_instance():
    """Metrics and log writer may die for ever without harm."""
    built = specs("model: {path: /m}\nlog: {file: /l}")

    assert {role for role, spec in built.items() if spec.essential} == {Role.ENGINE, Role.API}


def test_the_engine_steps_back_for_the_api():
    """Only the engine is niced, spins but briefly in OpenMP and uses the cores; the others get one thread."""
    built = specs()

    assert {role: spec.nice for role, spec in built.items()} == {Role.METRICS: 0, Role.ENGINE: ENGINE_NICE, Role.API: 0}
    engine, api = built[Role.ENGINE].env, built[Role.API].env
    assert (engine["GOMP_SPINCOUNT"], engine["KMP_BLOCKTIME"]) == ("100000", "1")
    assert (engine["ONEDNN_PRIMITIVE_CACHE_CAPACITY"], engine["LRU_CACHE_CAPACITY"]) == ("64", "64")
    assert "OMP_WAIT_POLICY" not in engine
    assert (engine["OMP_NUM_THREADS"], api["OMP_NUM_THREADS"]) == ("8", "1")
    assert engine["TORCH_DEVICE_BACKEND_AUTOLOAD"] == "0"
    assert engine[INSTANCE_VARIABLE] == "qwen2"


@pytest.mark.parametrize(
    ("text", "threads"),
    [
        ("engine: {num_threads: 3}", "3"),
        ("parallel: {tensor_parallel_size: 4}", "2"),
        ("parallel: {tensor_parallel_size: 64}", "1"),
    ],
)
def test_threads_are_shared_between_ranks(text, threads):
    """The configured number wins; else the cores are divided by the ranks, one at least."""
    assert specs(f"model: {{path: /m}}\n{text}")[Role.ENGINE].env["OMP_NUM_THREADS"] == threads


def test_vendor_variables_exist_only_on_npu():
    """ASCEND_RT_VISIBLE_DEVICES, HCCL_*, TASK_QUEUE_ENABLE and PYTORCH_NPU_ALLOC_CONF are the NPU engine's alone."""

    def vendor(spec):
        return {name for name in spec.env if name.startswith(("ASCEND_", "HCCL_", "TASK_QUEUE", "PYTORCH_NPU"))}

    npu = specs("model: {path: /m}\nparallel: {tensor_parallel_size: 2, devices: [4, 5]}", kind="npu")

    assert npu[Role.ENGINE].env["ASCEND_RT_VISIBLE_DEVICES"] == "4,5"
    assert {"TASK_QUEUE_ENABLE", "PYTORCH_NPU_ALLOC_CONF", "HCCL_CONNECT_TIMEOUT"} <= vendor(npu[Role.ENGINE])
    assert vendor(npu[Role.API]) - {INSTANCE_VARIABLE} == set()
    assert vendor(specs()[Role.ENGINE]) == set()


def test_the_first_devices_are_taken_by_default():
    """Without parallel.devices an instance of two ranks sees devices 0 and 1."""
    npu = specs("model: {path: /m}\nparallel: {tensor_parallel_size: 2}", kind="npu")

    assert npu[Role.ENGINE].env["ASCEND_RT_VISIBLE_DEVICES"] == "0,1"


def test_a_vendor_variable_set_for_the_unit_is_kept():
    """Environment= of the unit overrides the table."""
    environ = {"HCCL_CONNECT_TIMEOUT": "7200", "ASCEND_HOME_PATH": "/usr/local/Ascend"}

    env = specs(kind="npu", environ=environ)[Role.ENGINE].env

    assert (env["HCCL_CONNECT_TIMEOUT"], env["ASCEND_HOME_PATH"]) == ("7200", "/usr/local/Ascend")


@pytest.mark.parametrize(
    "name",
    ["NOTIFY_SOCKET", "WATCHDOG_USEC", "LISTEN_FDS", "HF_TOKEN", "OPENAI_API_KEY", "DB_PASSWORD", "aws_secret"],
)
def test_neither_secrets_nor_the_service_manager_reach_children(name):
    """A child can neither speak to systemd for the unit nor leak a credential of the environment."""
    for spec in specs(environ={name: "x", "PATH": "/bin"}).values():
        assert name not in spec.env
        assert spec.env["PATH"] == "/bin"


@pytest.mark.parametrize(
    ("nodes", "written", "kind"),
    [
        ([], "auto", "cpu"),
        (["davinci0"], "auto", "npu"),
        (["davinci_manager"], "auto", "cpu"),
        (["nvidia0"], "auto", "cuda"),
        (["davinci0"], "cpu", "cpu"),
    ],
)
def test_the_device_kind_is_seen_without_a_driver(tmp_path, nodes, written, kind):
    """Device nodes decide where the file says auto."""
    for node in nodes:
        (tmp_path / node).touch()

    assert device_kind(load_text(f"model: {{path: /m}}\nengine: {{device: {written}}}"), tmp_path) == kind


@pytest.mark.parametrize(
    ("visible", "text", "expected"),
    [
        ("4,5", "", "4"),
        ("4,5", "parallel: {tensor_parallel_size: 2}", "4,5"),
        ("4,5", "parallel: {devices: [7]}", "7"),
        ("", "", "0"),
        ("a, b", "", "0"),
    ],
)
def test_the_unit_says_which_chips_unless_the_file_does(visible, text, expected):
    """parallel.devices comes first, then ASCEND_RT_VISIBLE_DEVICES of the unit, then the first chips of the host."""
    built = specs(f"model: {{path: /m}}\n{text}", kind="npu", environ={"ASCEND_RT_VISIBLE_DEVICES": visible})

    assert built[Role.ENGINE].env["ASCEND_RT_VISIBLE_DEVICES"] == expected
