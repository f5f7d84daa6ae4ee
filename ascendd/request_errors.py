"""What can be wrong with one request, and its HTTP status; import all of it from ascendd.errors. Stdlib only."""

from __future__ import annotations

from typing import Optional

from ascendd.error_root import AscenddError


class RequestError(AscenddError):
    """One request cannot be served; nobody else is affected."""

    code = "ASD-R01"
    http_status = 400
    error_type = "invalid_request_error"
    retry_after_s: Optional[int] = None
    default_remedy = "Correct the request."

    @property
    def param(self) -> Optional[str]:
        """The request field at fault, in OpenAI's notation."""
        value = self.facts.get("param")
        return None if value is None else str(value)

    @property
    def openai_code(self) -> str:
        """The `code` member of OpenAI's error object."""
        return str(self.facts.get("openai_code") or self.code)


class InvalidRequest(RequestError):
    """The body is not what the route takes."""

    code = "ASD-R02"


class ContextLengthExceeded(RequestError):
    """Prompt, or prompt plus max_tokens, is longer than the model's context."""

    code = "ASD-R03"
    default_remedy = "Shorten the prompt or lower max_tokens."


class RequestNeverFits(RequestError):
    """One request alone takes more device memory than there is, however small its steps are made."""

    code = "ASD-R16"
    default_remedy = "Shorten the prompt or lower max_tokens; the operator may lower max_model_len to what fits."


class AuthenticationFailed(RequestError):
    """No key, or a wrong one, was sent."""

    code = "ASD-R04"
    http_status = 401
    error_type = "authentication_error"
    default_remedy = "Send `Authorization: Bearer KEY` with a key from the instance's key file."


class ActionForbidden(RequestError):
    """The configuration of the instance does not allow this to anybody who asks over HTTP."""

    code = "ASD-R15"
    http_status = 403
    error_type = "permission_error"
    default_remedy = "Change the setting that the message names, if it shall be allowed."


class ModelUnknown(RequestError):
    """The request names a model that this instance does not serve."""

    code = "ASD-R05"
    http_status = 404
    error_type = "not_found_error"
    default_remedy = "GET /v1/models lists the names."


class RouteUnknown(RequestError):
    """No such path."""

    code = "ASD-R06"
    http_status = 404
    error_type = "not_found_error"


class MethodNotAllowed(RequestError):
    """The path exists but not for this method."""

    code = "ASD-R07"
    http_status = 405


class BodyTooLarge(RequestError):
    """The body is longer than listen.max_body_bytes."""

    code = "ASD-R08"
    http_status = 413


class QueueFull(RequestError):
    """As many requests wait as admission.max_queue allows."""

    code = "ASD-R09"
    http_status = 429
    error_type = "rate_limit_error"
    retryable = True
    retry_after_s = 1
    default_remedy = "Retry after the time in Retry-After."


class KeyLimitReached(RequestError):
    """The key has as many requests in work, or has used as many tokens in a minute, as its line in the file allows."""

    code = "ASD-R17"
    http_status = 429
    error_type = "rate_limit_error"
    retryable = True
    retry_after_s = 1
    default_remedy = "Retry after the time in Retry-After, or have the key's limits raised."


class RequestAborted(RequestError):
    """The client went away or the request was cancelled."""

    code = "ASD-R10"
    http_status = 499


class InternalError(RequestError):
    """A defect in the server met this request; the log has the traceback under the request id."""

    code = "ASD-R11"
    http_status = 500
    error_type = "server_error"
    default_remedy = "Report it with the request id."


class EngineRestarting(RequestError):
    """The engine is loading or being restarted."""

    code = "ASD-R12"
    http_status = 503
    error_type = "service_unavailable_error"
    retryable = True
    retry_after_s = 5
    default_remedy = "Retry after the time in Retry-After."


class HostMemoryPressure(RequestError):
    """The host is so short of memory that new work would harm what runs."""

    code = "ASD-R18"
    http_status = 503
    error_type = "service_unavailable_error"
    retryable = True
    retry_after_s = 10
    default_remedy = "Retry after the time in Retry-After; the operator frees host memory or raises MemoryMax=."


class Draining(RequestError):
    """The instance is stopping and takes no new requests."""

    code = "ASD-R13"
    http_status = 503
    error_type = "service_unavailable_error"
    retryable = True
    retry_after_s = 10
    default_remedy = "Retry after the time in Retry-After."


class DeadlineExceeded(RequestError):
    """The request's deadline passed before it was finished."""

    code = "ASD-R14"
    http_status = 504
    error_type = "timeout_error"
    retryable = True


class InstanceUnavailable(RequestError):
    """No instance behind the gateway that may serve this request is up, or each of them failed it."""

    code = "ASD-W01"
    http_status = 503
    error_type = "service_unavailable_error"
    retryable = True
    retry_after_s = 2
    default_remedy = "Retry after the time in Retry-After; the operator looks at `systemctl status ascendd-gateway`."
