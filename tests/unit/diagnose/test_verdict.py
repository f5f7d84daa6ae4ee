"""Which candidate is the cause: the earliest specific one over all logs, and what is said with it."""

from __future__ import annotations

from ascendd.diagnose.catalogue import Action, load_catalogue
from ascendd.diagnose.scanner import scan
from ascendd.diagnose.source import Source
from ascendd.diagnose.verdict import conclude

OOM = "NPU out of memory. Tried to allocate {want} GiB (NPU 0; 60.00 GiB total capacity; {allocated} GiB already allocated; {allocated} GiB current active; {free} GiB free; {reserved} GiB reserved in total by PyTorch)"


def id_of(report) -> str | None:
    return None if report.cause is None else report.cause.diagnosis.id


def test_the_earlier_time_wins_over_the_order_of_files(diagnose):
    """Of two specific causes on two ranks the one with the earlier stamp is the cause."""
    late = "2026-03-01 10:00:05 error code is 507018"
    early = "2026-03-01 10:00:01 error code is 507035"

    report = diagnose(late, early)

    assert id_of(report) == "dev.vector_core_exception"
    assert report.cause.evidence[0].source == "rank1.log"
    assert [other.diagnosis.id for other in report.others] == ["dev.aicpu_exception"]


def test_without_times_the_order_of_lines_decides(diagnose):
    """Nothing but the order is known, so the first cause stands."""
    assert id_of(diagnose("error code is 507018\nerror code is 507035")) == "dev.aicpu_exception"


def test_a_traceback_has_the_time_of_the_line_before_it(diagnose):
    """A line without a stamp takes the last one above it."""
    late = "2026-03-01 10:00:05 x\nTraceback\nerror code is 507018"
    early = "2026-03-01 10:00:01 x\nTraceback\nerror code is 507035"

    assert id_of(diagnose(late, early)) == "dev.vector_core_exception"


def test_a_victim_gives_way_to_the_failure_of_its_peer(diagnose):
    """A socket timeout two minutes before the peer's own line is read is not the cause."""
    victim = "2026-03-01 10:00:00 EI0006: Getting socket times out"
    culprit = "2026-03-01 10:01:50 open /dev/davinci3: Permission denied"

    assert id_of(diagnose(victim, culprit)) == "host.user_group"
    assert id_of(diagnose(victim)) == "hccl.connect_timeout"


def test_another_day_is_another_incident(diagnose):
    """A specific cause a day later does not replace an ambiguous one of today."""
    text = "2026-03-01 10:00:00 error code is 507033\n2026-03-02 10:00:00 error code is 507035"

    assert id_of(diagnose(text)) == "dev.open_failed"


def test_crash_loop_is_never_the_cause_beside_another(diagnose):
    """That a service was restarted too often tells less than anything else in the log."""
    text = "systemd[1]: x.service: Start request repeated too quickly.\n" + "x\n" * 9000 + "error code is 507035"

    assert id_of(diagnose(text)) == "dev.vector_core_exception"


def test_the_loader_path_of_a_library_decides_the_advice(diagnose):
    """One message, three libraries, three remedies."""
    names = {"libascend_hal.so": "container.driver_not_mounted", "libascendcl.so": "env.cann_not_sourced", "libatb.so": "env.nnal_not_sourced"}  # fmt: skip
    for library, expected in names.items():
        text = f"ImportError: {library}: cannot open shared object file: No such file or directory"

        assert id_of(diagnose(text)) == expected


def test_the_namespace_of_a_symbol_decides_the_advice(diagnose):
    """One message, three namespaces, three mismatches."""
    names = {"_ZN3atb6CreateE": "py.torch_npu_nnal_mismatch", "_ZN3c104warnE": "py.torch_npu_torch_mismatch", "_ZN2ge5GraphE": "env.cann_mixed"}  # fmt: skip
    for symbol, expected in names.items():
        assert id_of(diagnose(f"ImportError: libtorch_npu.so: undefined symbol: {symbol}")) == expected


def test_the_figures_of_an_oom_decide_whose_memory_it_was(diagnose):
    """Foreign, own, and fragmented memory are told apart by arithmetic; the figures stand in the cause."""
    cases = {
        "mem.held_by_others": {"want": 1, "allocated": 10, "reserved": 11, "free": 1},
        "mem.model_too_large": {"want": 3, "allocated": 57, "reserved": 58, "free": 1.5},
        "mem.fragmentation": {"want": 8, "allocated": 40, "reserved": 58, "free": 1.5},
    }
    for expected, figures in cases.items():
        report = diagnose(OOM.format(**figures))

        assert id_of(report) == expected
        assert "{" not in report.cause.cause
    assert id_of(diagnose("NPU out of memory")) == "mem.npu_oom"
    assert "48.0 GiB belong to other" in diagnose(OOM.format(**cases["mem.held_by_others"])).cause.cause


def test_output_of_vendor_tools_is_a_log_too(diagnose):
    """What npu-smi and hccn_tool print can be piped in."""
    cases = {
        "link status: DOWN": "hccl.link_down",
        "link status: UP": None,
        "\tHBM Double Bit Error Count               : 2": "hw.hbm_ecc",
        "\tHBM Double Bit Error Count               : 0": None,
        "dcmi module initialize failed. ret is -8008": "dev.absent",
        "npu-smi: error while loading shared libraries: libc_sec.so: cannot open shared object file": "container.driver_not_mounted",
    }
    assert {text: id_of(diagnose(text)) for text in cases} == cases


def test_a_warning_alone_is_no_ambiguous_cause(diagnose):
    """What a line only warns of counts where the line is specific, and not where it is a suspicion."""
    assert id_of(diagnose("[WARNING] HCCL(1,python): EI0006 wait socket establish timeout")) is None
    assert id_of(diagnose("[ERROR] HCCL(1,python): EI0006 wait socket establish timeout")) == "hccl.connect_timeout"
    assert id_of(diagnose("WARNING Bad: cannot allocate memory in static TLS block")) == "py.static_tls"


def test_ports_are_told_apart(diagnose):
    """A server's own port and a port between ranks need different advice."""
    assert (
        id_of(diagnose("[Errno 98] error while attempting to bind on address ('::', 80): address already in use"))
        == "port.http_in_use"
    )
    assert (
        id_of(
            diagnose(
                "server socket has failed to listen on any local address, name: EADDRINUSE, message: address already in use"
            )
        )
        == "port.internal_race"
    )


def test_own_error_codes_are_diagnoses(diagnose):
    """What the daemon logs by its own code is found under one id, with that code's runbook."""
    report = diagnose('{"level": "error", "event": "supervisor.failed", "code": "ASD-C04", "error": "x"}')

    assert (id_of(report), report.cause.diagnosis.runbook) == ("daemon.config_invalid", "docs/runbooks/ASD-C04.md")
    assert id_of(diagnose("error ASD-H02: 0.0.0.0:8000 is taken")) == "port.http_in_use"
    assert id_of(diagnose('{"level": "error", "event": "api.request", "code": "ASD-R08"}')) is None


def test_peer_codes_of_memory_errors_ask_for_the_peer(diagnose):
    """507053 takes this card out of service; 507055 looks at the peer first."""
    assert diagnose("error code is 507053").cause.action is Action.CORDON_DEVICE
    assert diagnose("error code is 507055").cause.action is Action.INSPECT_PEER


def test_a_slow_first_token_is_told_only_when_it_repeats(diagnose):
    """One cold prompt is normal; three in a row without cache hits are a finding."""
    line = '{"event": "api.request", "cached_tokens": 0, "completion_tokens": 9, "first_token_s": 6.2}\n'

    assert id_of(diagnose(line * 2)) is None
    assert id_of(diagnose(line * 3)) == "perf.prefix_cache_cold"


def test_empty_files_mean_a_start_that_failed():
    """A log file without a byte points to the environment, unless another log says more."""
    catalogue = load_catalogue()
    empty = scan(catalogue, Source("a.log", []), 0)

    assert id_of(conclude(catalogue, [empty])) == "env.empty_log"
    assert id_of(conclude(catalogue, [empty, scan(catalogue, Source("b.log", [b"fine\n"]), 1)])) is None


def test_json_has_the_documented_keys(diagnose):
    """The machine form names cause, evidence with places, others and sources."""
    data = diagnose("x\nerror code is 507035").to_json()

    assert sorted(data) == ["cause", "others", "schema", "sources", "unexplained"]
    assert data["cause"]["evidence"] == [{"source": "rank0.log", "line": 2, "time": None, "rank": None, "text": "error code is 507035"}]  # fmt: skip
    assert data["cause"]["action"] == "restart_all_ranks"
