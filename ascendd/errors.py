"""
The error tree of the product, stdlib only.

    AscenddError(message, *, remedy=None, **facts)
    |- UsageError                                                                       exit 64
    |- ConfigError        ConfigFileMissing . ConfigSyntaxError . ConfigInvalid         exit 78
    |- PreflightFailed                                                                  exit 69
    |- ProbeError         ProbeTimeout . ProbeParseError . ProbeUnavailable             exit 69
    |- HostError          ListenFailed . PermissionMissing . InsufficientHostMemory
    |                     . InstallationBroken                                          exit 71
    |- ModelError         ModelNotFound . ModelUnsupported . WeightsCorrupt
    |                     . PlanDoesNotFit . ConversionFailed . AdapterInvalid          exit 66
    |- DeviceFault        DeviceUnavailable . DeviceLost . DeviceOutOfMemory
    |                     . DeviceEccError . GraphCaptureFailed . KernelReplaced
    |                     . DeviceSlow                                                exit 70
    |- EngineFault        EngineDead . EngineHung . WorkerLost . CollectiveTimeout
    |                     . SelfTestFailed . RestartsExhausted                          exit 70
    |- IpcError           PeerClosed . FrameTooLarge . ProtocolMismatch
    |                     . ServerUnreachable                                           exit 70
    `- RequestError       InvalidRequest 400 . ContextLengthExceeded 400
                          . RequestNeverFits 400
                          . AuthenticationFailed 401 . ActionForbidden 403 . KeyLimitReached 429
                          . ModelUnknown 404
                          . RouteUnknown 404 . MethodNotAllowed 405
                          . BodyTooLarge 413 . QueueFull 429 . RequestAborted 499
                          . InternalError 500 . EngineRestarting 503 . Draining 503
                          . HostMemoryPressure 503 . InstanceUnavailable 503
                          . DeadlineExceeded 504

Every class has a stable ``code``; docs/runbooks/<code>.md exists for each.
``permanent`` means that the same start would fail again, so nothing restarts it.
Across processes an error travels as ipc.messages.Fault and is rebuilt by code.
"""

from __future__ import annotations

from typing import Iterator, Type

# The `as` forms re-export: everyone imports errors from here.
from ascendd.error_root import AscenddError as AscenddError, ExitCode as ExitCode
from ascendd.request_errors import (
    ActionForbidden as ActionForbidden,
    KeyLimitReached as KeyLimitReached,
    AuthenticationFailed as AuthenticationFailed,
    BodyTooLarge as BodyTooLarge,
    ContextLengthExceeded as ContextLengthExceeded,
    DeadlineExceeded as DeadlineExceeded,
    Draining as Draining,
    EngineRestarting as EngineRestarting,
    HostMemoryPressure as HostMemoryPressure,
    InstanceUnavailable as InstanceUnavailable,
    InternalError as InternalError,
    InvalidRequest as InvalidRequest,
    MethodNotAllowed as MethodNotAllowed,
    ModelUnknown as ModelUnknown,
    QueueFull as QueueFull,
    RequestAborted as RequestAborted,
    RequestError as RequestError,
    RequestNeverFits as RequestNeverFits,
    RouteUnknown as RouteUnknown,
)


class UsageError(AscenddError):
    """The command line cannot be understood or asks for what does not exist."""

    code = "ASD-U01"
    exit_code = ExitCode.USAGE
    permanent = True
    default_remedy = "Run the command with --help."


class ConfigError(AscenddError):
    """The configuration cannot be used."""

    code = "ASD-C01"
    exit_code = ExitCode.CONFIG
    permanent = True
    default_remedy = (
        "Compare with /opt/ascendd/current/docs/examples/example.yaml; `ascendd config check FILE` lists every problem."
    )


class ConfigFileMissing(ConfigError):
    """The instance file is not there or cannot be read."""

    code = "ASD-C02"


class ConfigSyntaxError(ConfigError):
    """The instance file is not YAML."""

    code = "ASD-C03"


class ConfigInvalid(ConfigError):
    """One or more keys or values break a rule; all of them are listed."""

    code = "ASD-C04"


class PreflightFailed(AscenddError):
    """A check that gates the start did not pass."""

    code = "ASD-P01"
    exit_code = ExitCode.PREFLIGHT
    permanent = True
    default_remedy = "Run `ascendd doctor` and follow the remedy of each failed check."


class ProbeError(AscenddError):
    """A fact about the host could not be read."""

    code = "ASD-P02"
    exit_code = ExitCode.PREFLIGHT
    default_remedy = "Run the probed command by hand as the service user."


class ProbeTimeout(ProbeError):
    """A vendor tool did not answer in time and was killed."""

    code = "ASD-P03"


class ProbeParseError(ProbeError):
    """A vendor tool answered in a form that is not known."""

    code = "ASD-P04"


class ProbeUnavailable(ProbeError):
    """A vendor tool or file is not installed or not executable."""

    code = "ASD-P05"


class HostError(AscenddError):
    """The host does not give what the daemon needs."""

    code = "ASD-H01"
    exit_code = ExitCode.HOST
    permanent = True


class ListenFailed(HostError):
    """An address cannot be listened on, most often because another process has the port."""

    code = "ASD-H02"
    default_remedy = "Find the holder with `ss -ltnp`, stop it, or choose another port."


class PermissionMissing(HostError):
    """A file, device node or credential cannot be opened by this user."""

    code = "ASD-H03"
    default_remedy = "Check owner and mode of the path and the groups of the service user."


class InsufficientHostMemory(HostError):
    """The host has less free memory than loading the model takes."""

    code = "ASD-H04"
    default_remedy = "Free memory, choose a smaller model or dtype, or lower the KV cache size."


class InstallationBroken(HostError):
    """A module, a shared library or a source file of the installation is missing or cannot be loaded."""

    code = "ASD-H05"
    default_remedy = "Install the release again."


class ModelError(AscenddError):
    """The model on disk cannot be served."""

    code = "ASD-M01"
    exit_code = ExitCode.MODEL
    permanent = True


class ModelNotFound(ModelError):
    """The model path does not exist or holds no model."""

    code = "ASD-M02"
    default_remedy = "Give the folder written by `ascendd convert`, or a Hugging Face folder with config.json."


class ModelUnsupported(ModelError):
    """The architecture, or a feature of it, is not one that the engine runs."""

    code = "ASD-M03"
    default_remedy = "Choose a model of a supported architecture; the message lists them."


class WeightsCorrupt(ModelError):
    """A weight file is missing, truncated, or differs from its checksum."""

    code = "ASD-M04"
    default_remedy = "Run `ascendd inspect MODEL --verify`, then convert or download again."


class PlanDoesNotFit(ModelError):
    """Weights, KV blocks and reserve do not fit the memory of the device."""

    code = "ASD-M05"
    default_remedy = "Use the number that the message says fits."


class ConversionFailed(ModelError):
    """A model could not be converted; the destination was not written."""

    code = "ASD-M06"
    default_remedy = "Run the same command again: finished files are kept in DST.partial and reused."


class AdapterInvalid(ModelError):
    """A LoRA adapter cannot be used with this model: its folder, its kind, its rank, a module or a shape."""

    code = "ASD-M07"
    default_remedy = "Check that the adapter was trained on this model and saved by PEFT in safetensors."


class DeviceFault(AscenddError):
    """An accelerator failed."""

    code = "ASD-D01"
    default_remedy = "Run `ascendd doctor`."


class DeviceUnavailable(DeviceFault):
    """The configured kind or number of devices is not there."""

    code = "ASD-D02"


class DeviceOutOfMemory(DeviceFault):
    """The device had no memory left for a step."""

    code = "ASD-D03"
    retryable = True
    default_remedy = "Lower max_num_seqs, max_num_batched_tokens or the KV cache size."


class DeviceLost(DeviceFault):
    """The device stopped answering."""

    code = "ASD-D04"


class DeviceEccError(DeviceFault):
    """The device reported an uncorrectable memory error."""

    code = "ASD-D05"


class GraphCaptureFailed(DeviceFault):
    """A decode graph could not be captured; the engine goes on eagerly."""

    code = "ASD-D06"
    retryable = True


class KernelReplaced(DeviceFault):
    """A fused kernel failed or deviated beside the reference at start; the engine goes on with the reference."""

    code = "ASD-D07"
    retryable = True
    default_remedy = "Answers are right, and slower. Report the line with the chip, CANN and torch_npu versions."


class DeviceSlow(DeviceFault):
    """A chip, or the links between chips, are far slower than specified or than their neighbours."""

    code = "ASD-D08"
    default_remedy = "Look at temperature and power, end what else uses the chip, and measure again."


class EngineFault(AscenddError):
    """The engine cannot go on."""

    code = "ASD-E01"
    retryable = True


class EngineDead(EngineFault):
    """The engine process ended."""

    code = "ASD-E02"


class EngineHung(EngineFault):
    """The engine had work and made no progress."""

    code = "ASD-E03"


class WorkerLost(EngineFault):
    """One rank of the engine ended, so the group ended."""

    code = "ASD-E04"


class CollectiveTimeout(EngineFault):
    """A collective operation between ranks did not finish."""

    code = "ASD-E05"


class SelfTestFailed(EngineFault):
    """The model loaded, yet no token came back over the whole path."""

    code = "ASD-E06"


class RestartsExhausted(EngineFault):
    """A child died too often in the window, so the daemon gave up."""

    code = "ASD-E07"
    retryable = False
    default_remedy = "Read the first failure in the log; fix its cause; `systemctl reset-failed` and start again."


class IpcError(AscenddError):
    """Two processes of the daemon could not talk."""

    code = "ASD-I01"


class PeerClosed(IpcError):
    """The other end of a channel is gone."""

    code = "ASD-I02"


class FrameTooLarge(IpcError):
    """A message is longer than the protocol allows."""

    code = "ASD-I03"


class ProtocolMismatch(IpcError):
    """The other end speaks another protocol version or sent what cannot be decoded."""

    code = "ASD-I04"
    permanent = True
    default_remedy = "Two versions of ascendd are mixed; restart the whole unit after an upgrade."


class ServerUnreachable(IpcError):
    """A server that a client verb was pointed at does not answer, or not as an OpenAI-compatible one."""

    code = "ASD-I09"
    retryable = True
    default_remedy = "Check the address, the key and that the server is ready: GET URL/v1/models must list a model."


def walk_errors(root: Type[AscenddError] = AscenddError) -> Iterator[Type[AscenddError]]:
    """Yield `root` and every class below it, parents first."""
    yield root
    for child in root.__subclasses__():
        yield from walk_errors(child)


def error_by_code(code: str) -> Type[AscenddError]:
    """Return the class whose stable code is `code`, or AscenddError for a code of another version."""
    for cls in walk_errors():
        if cls.code == code:
            return cls
    return AscenddError
