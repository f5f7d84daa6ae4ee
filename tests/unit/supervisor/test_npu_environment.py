"""The variables of an NPU instance's engine."""

from __future__ import annotations

from ascendd.supervisor.npu_environment import NPU_VARIABLES, npu_environment


def test_what_the_unit_sets_wins() -> None:
    """Every variable of the table may be overridden from outside."""
    environ = {variable.name: "theirs" for variable in NPU_VARIABLES}
    env = npu_environment(environ, devices=[0], instance="demo")

    assert {env[variable.name] for variable in NPU_VARIABLES} == {"theirs"}


def test_devices_are_ascending_without_blanks() -> None:
    """As the runtime wants them; it reads no further than the first it does not like."""
    assert npu_environment({}, devices=[3, 1, 2], instance="demo")["ASCEND_RT_VISIBLE_DEVICES"] == "1,2,3"


def test_the_vendors_log_goes_below_the_services_own() -> None:
    """One folder an instance; without a logs directory the vendor's default stays."""
    env = npu_environment({"LOGS_DIRECTORY": "/var/log/ascendd"}, devices=[0], instance="demo")

    assert env["ASCEND_PROCESS_LOG_PATH"] == "/var/log/ascendd/demo/ascend"
    assert "ASCEND_PROCESS_LOG_PATH" not in npu_environment({}, devices=[0], instance="demo")


def test_hccls_event_timeout_is_longer_than_its_execution_timeout() -> None:
    """Else torch_npu gives up first and HCCL's own message is never seen."""
    values = {variable.name: variable.value for variable in NPU_VARIABLES}

    assert int(values["HCCL_EVENT_TIMEOUT"]) > int(values["HCCL_EXEC_TIMEOUT"])
    assert all(variable.why for variable in NPU_VARIABLES)
