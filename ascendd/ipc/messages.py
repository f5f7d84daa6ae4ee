"""
Every Struct that crosses a process border.

Encoded as msgpack arrays: msgspec writes all fields in order, so fields are ordered by need and messages kept small.
Two kinds of link exist: *control* (supervisor <-> any child) and *data* (API <-> engine). See docs/ARCHITECTURE.md.
"""

from __future__ import annotations

import enum
import traceback
from typing import Any, Union

import msgspec

from ascendd.errors import AscenddError, error_by_code
from ascendd.ipc.rank_row import RankRow
from ascendd.ipc.sampling import Grammar as Grammar
from ascendd.ipc.sampling import SamplingParams as SamplingParams

PROTOCOL_VERSION = 3
# In StepOutput.token_ids: the sequence ends without a token, because max_tokens is 0.
NO_TOKEN = -1


class Message(msgspec.Struct, array_like=True, gc=False, frozen=True, tag=True):
    """Base of all messages; the class name is the tag on the wire."""


class Role(enum.Enum):
    """What a child process is for."""

    ENGINE = "engine"
    API = "api"
    METRICS = "metrics"
    LOGWRITER = "logwriter"


class FinishReason(enum.IntEnum):
    """Why a sequence ended; RUNNING while it has not."""

    RUNNING = 0
    STOP = 1
    LENGTH = 2
    ABORT = 3
    ERROR = 4


class Fault(msgspec.Struct, array_like=True, frozen=True):
    """An AscenddError on the wire."""

    code: str
    message: str
    remedy: str = ""
    facts: dict[str, Any] = {}
    traceback_text: str = ""

    @classmethod
    def from_error(cls, error: BaseException) -> Fault:
        """Describe `error`; one that is not an AscenddError becomes the root code with its type's name."""
        text = "".join(traceback.format_exception(error))[-16_384:]
        if isinstance(error, AscenddError):
            facts = {
                key: value if isinstance(value, (str, int, float, bool)) else repr(value)
                for key, value in error.facts.items()
            }
            return cls(error.code, error.message, error.remedy, facts, text)
        return cls(AscenddError.code, f"{type(error).__name__}: {error}", "", {}, text)

    def to_error(self) -> AscenddError:
        """Rebuild the error by its stable code."""
        error = error_by_code(self.code)(self.message, remedy=self.remedy or None)
        # Not passed as keywords: a fact of another version may have the name of a parameter.
        error.facts.update(self.facts)
        return error


# --- control link, supervisor -> child ---------------------------------------------------------------------------


class Configure(Message, frozen=True, tag="configure"):
    """First message to each child: the resolved configuration as JSON (config.schema.InstanceConfig)."""

    config_json: bytes
    # Number of the process among those of its role.
    episode: int = 0
    # Id of the failure that the process is started after, for its log lines; empty where there was none.
    after: str = ""


class AttachPeer(Message, frozen=True, tag="attach_peer"):
    """A fresh data link; one descriptor travels with the frame. Replaces any earlier link to that role."""

    peer: Role
    episode: int


class SetLimits(Message, frozen=True, tag="set_limits"):
    """
    Supervisor -> engine: sequences in a batch, and prompt tokens that may join a step in which others decode.

    Takes effect with the next step; what runs beyond the new number runs to its end. Values beyond what the engine was
    built for are cut to that.
    """

    max_num_seqs: int
    prefill_tokens: int


class EngineState(Message, frozen=True, tag="engine_state"):
    """
    What the API answers on /readyz: `ready`, and a line for people: `loading 42 %`, `restarting in 8 s`.

    `is_final`: the instance has failed or is stopping, so nothing is worth waiting for. `degraded` says what an
    instance that serves does without, `pressure` why it takes no new work; `episode` is the id of the
    failure that is being recovered from, for log lines. `may_wait`: requests wait for the first start, too, because
    systemd took their connections before it.
    """

    ready: bool
    text: str
    retry_after_s: int = 5
    is_final: bool = False
    degraded: str = ""
    episode: str = ""
    pressure: str = ""
    may_wait: bool = False


class RunSelfTest(Message, frozen=True, tag="run_self_test"):
    """API: send one real request through the own listener and report SelfTestDone."""

    episode: int


class Drain(Message, frozen=True, tag="drain"):
    """Take no new work, finish what runs, report Drained; after `deadline_s` (seconds from now) abort the rest."""

    deadline_s: float


class Hold(Message, frozen=True, tag="hold"):
    """API: take no new requests while `held`; what runs is finished, and the instance stays up."""

    held: bool


class Reconfigure(Message, frozen=True, tag="reconfigure"):
    """The configuration from now on, as in Configure; only keys of config.reload.RELOADABLE differ."""

    config_json: bytes


class StatusReport(Message, frozen=True, tag="status_report"):
    """Supervisor -> API, once a second while WatchStatus says so: JSON of what the status page shows."""

    status_json: bytes
    history_json: bytes


class InjectFault(Message, frozen=True, tag="inject_fault"):
    """A drill: engine or log writer break as `kind` says, for `seconds`; obeyed only with recovery.drills."""

    kind: str
    seconds: float = 0.0


class Shutdown(Message, frozen=True, tag="shutdown"):
    """Leave at once with exit status 0."""


class MetricsSnapshot(Message, frozen=True, tag="metrics_snapshot"):
    """Supervisor -> metrics process: everything /metrics shows, already merged over restarts."""

    samples: list[Sample]
    unix_time_s: float
    foreign: bytes = b""


# --- control link, child -> supervisor ---------------------------------------------------------------------------


class Hello(Message, frozen=True, tag="hello"):
    """First message of each child."""

    role: Role
    pid: int
    protocol_version: int = PROTOCOL_VERSION


class Progress(Message, frozen=True, tag="progress"):
    """A long step goes on; `fraction` in 0..1, or -1 where it is not known."""

    phase: str
    fraction: float = -1.0


class Ready(Message, frozen=True, tag="ready"):
    """The child can do its work now; `facts` are for the log and for `ascendd status`."""

    facts: dict[str, Any] = {}


class Heartbeat(Message, frozen=True, tag="heartbeat"):
    """
    Sent once a second. The current step of `step_tokens` tokens has run for `inflight_s`, 0 when none does.
    `token_s` is what a token of a prompt took lately at the worst, 0 where none was seen; `ranks` are those of a group.
    """

    step_seq: int = 0
    inflight_s: float = 0.0
    num_running: int = 0
    num_waiting: int = 0
    step_tokens: int = 0
    token_s: float = 0.0
    ranks: list[RankRow] = []


class Sample(msgspec.Struct, array_like=True, gc=False, frozen=True):
    """
    One labelled value of a metric declared in telemetry.metrics.

    Counter and gauge: `value`. Histogram: `buckets` (not cumulative, one count per bound plus +Inf), `value` = sum.
    """

    name: str
    value: float
    labels: tuple[str, ...] = ()
    buckets: tuple[int, ...] = ()


class Stats(Message, frozen=True, tag="stats"):
    """Running totals of this process since it started; sent once a second and at every return to idle."""

    samples: list[Sample]


class ForeignMetrics(Message, frozen=True, tag="foreign_metrics"):
    """Metrics of an engine that counts by itself, in Prometheus' text format, to be shown as they are."""

    text: bytes


class SelfTestDone(Message, frozen=True, tag="self_test_done"):
    """Outcome of RunSelfTest; `fault` None when a token came back."""

    episode: int
    latency_s: float
    fault: Fault | None = None


class WatchStatus(Message, frozen=True, tag="watch_status"):
    """API -> supervisor: whether anybody has the status page open, so that StatusReport is wanted."""

    wanted: bool


class Drained(Message, frozen=True, tag="drained"):
    """Nothing runs any more; `num_aborted` were cut off by the deadline."""

    num_aborted: int = 0


class ChildFault(Message, frozen=True, tag="child_fault"):
    """Last words of a child that ends because of `fault`; the exit status follows errors.ExitCode."""

    fault: Fault


# --- data link, API -> engine -------------------------------------------------------------------------------------


class AddSequence(Message, frozen=True, tag="add_sequence"):
    """
    One sequence to generate. `seq_id` is unique per API process and never reused; `request_id` is a label for logs.

    `deadline_s` is CLOCK_MONOTONIC seconds (one host, one clock), 0 for none. Lower `priority` runs first.
    """

    seq_id: int
    prompt_token_ids: list[int]
    params: SamplingParams
    request_id: str = ""
    deadline_s: float = 0.0
    priority: int = 0
    # Name of a LoRA adapter; empty for the model as it is.
    adapter: str = ""


class LoadAdapter(Message, frozen=True, tag="load_adapter"):
    """Load the LoRA adapter in folder `path` as `name`; answered by AdapterResult with this `ticket`."""

    ticket: int
    name: str
    path: str


class UnloadAdapter(Message, frozen=True, tag="unload_adapter"):
    """Take the adapter `name` out; sequences that use it run to their end. Answered by AdapterResult."""

    ticket: int
    name: str


class AbortSequences(Message, frozen=True, tag="abort_sequences"):
    """Forget these sequences; unknown and finished ids are ignored."""

    seq_ids: list[int]


class Probe(Message, frozen=True, tag="probe"):
    """Compute one token beside whatever runs, after the current step; answered by ProbeDone with this `ticket`."""

    ticket: int


# --- data link, engine -> API -------------------------------------------------------------------------------------


class EngineHello(Message, frozen=True, tag="engine_hello"):
    """First message on each data link: the bounds that the API validates against."""

    model_name: str
    max_model_len: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    num_blocks: int
    block_size: int
    max_num_seqs: int
    adapters: tuple[str, ...] = ()
    # Where requests are sent to over HTTP, `unix:PATH` or `http://127.0.0.1:PORT`, and its key; empty where they are
    # given over this link.
    upstream: str = ""
    upstream_key: str = ""


class AdapterResult(Message, frozen=True, tag="adapter_result"):
    """How LoadAdapter or UnloadAdapter number `ticket` went, and the names of all adapters now."""

    ticket: int
    adapters: tuple[str, ...]
    fault: Fault | None = None


class ProbeDone(Message, frozen=True, tag="probe_done"):
    """A token was computed through every layer of every rank, or `fault` says why not."""

    ticket: int
    fault: Fault | None = None


class TokenLogprobs(msgspec.Struct, array_like=True, gc=False, frozen=True):
    """
    How likely one token was under the model's own logits, before penalties, bias, bans and temperature.

    `rank` is 1 for the most likely token. The alternatives are the most likely tokens, best first; the token itself is
    among them only if it is one of those. Natural logarithms; -inf is possible.
    """

    logprob: float
    rank: int
    top_token_ids: list[int]
    top_logprobs: list[float]


class StepOutput(Message, frozen=True, tag="step_output"):
    """
    All that one step produced, in columns of equal length; a sequence appears at most once per step.

    `finish[i]` is a FinishReason value; the token that ended the sequence is in `token_ids` (EOS included).
    `num_cached[i]` is the number of prompt tokens served by the prefix cache (first token only, else 0).
    `logprobs` is a column like the others where any of the sequences asked for it, else empty.
    `prompt_logprobs` maps a sequence to those of its prompt tokens, from the second on, that the step has scored; all
    have come by the sequence's first token.
    """

    seq_ids: list[int]
    token_ids: list[int]
    finish: list[int]
    num_cached: list[int]
    logprobs: list[TokenLogprobs | None] = []
    prompt_logprobs: dict[int, list[TokenLogprobs]] = {}


class SequenceFailed(Message, frozen=True, tag="sequence_failed"):
    """The sequence ended without a further token; others are unharmed."""

    seq_id: int
    fault: Fault


ControlMessage = Union[
    Configure, AttachPeer, SetLimits, EngineState, RunSelfTest, Drain, Hold, Reconfigure, InjectFault, StatusReport,
    Shutdown, MetricsSnapshot, Hello, Progress, Ready, Heartbeat, Stats, ForeignMetrics, SelfTestDone, WatchStatus,
    Drained, ChildFault,
]  # fmt: skip
DataMessage = Union[
    AddSequence, AbortSequences, LoadAdapter, UnloadAdapter, Probe,
    EngineHello, AdapterResult, StepOutput, SequenceFailed, ProbeDone,
]  # fmt: skip
