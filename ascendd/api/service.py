"""What the routes of one API process share, and the way every generating route goes."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web
from aiohttp.http_exceptions import ContentEncodingError, TransferEncodingError

from ascendd.api.admission import Admission
from ascendd.api.answers import AnswerForm
from ascendd.api.auth import Authenticator
from ascendd.api.body import refuse_unknown
from ascendd.api.chat_template import ChatTemplate
from ascendd.api.engine_client import EngineClient
from ascendd.api.errors import as_request_error, error_json
from ascendd.api.generation import Generation
from ascendd.api.key_limits import KeyLimits
from ascendd.api.parameters import UNSUPPORTED, GenerationSpec
from ascendd.api.preprocess import Preprocessor
from ascendd.api.prompts import Prompt
from ascendd.api.proxied_answer import ProxiedAnswer
from ascendd.api.server_tls import ServerTls
from ascendd.api.sse import EventStream
from ascendd.api.status_hub import StatusHub
from ascendd.api.tokenizer import ModelTokenizer
from ascendd.api.tracing import TraceContext, Tracer
from ascendd.config.credentials import Credential
from ascendd.config.quantity import parse_bytes
from ascendd.config.schema import InstanceConfig
from ascendd.errors import AscenddError, BodyTooLarge, DeadlineExceeded, InvalidRequest, ModelUnknown
from ascendd.ipc.messages import EngineHello
from ascendd.telemetry.log import get_logger, set_level
from ascendd.telemetry.metrics import API_METRICS, MetricStore

_log = get_logger("api")
_CODINGS = frozenset({"identity", "gzip", "deflate"})
# Fields that change nothing by their nature: labels for whoever reads records.
_LABELS = frozenset({"strict", "user", "metadata", "safety_identifier", "store", *UNSUPPORTED})
_encode = msgspec.json.Encoder().encode


@dataclass
class RequestRecord:
    """What is known of one HTTP request for its log line and its metrics; filled in while it runs."""

    request_id: str
    received_at: float = field(default_factory=time.monotonic)
    trace: TraceContext | None = None
    is_self_test: bool = False
    credential: Credential | None = None
    # Seconds that X-Request-Timeout leaves; infinite without.
    timeout_s: float = math.inf
    generation: Generation | ProxiedAnswer | None = None
    # The name that was asked for: the model's or an adapter's.
    model: str = ""
    error_code: str | None = None
    note: str | None = None


def record_of(request: web.Request) -> RequestRecord:
    """Return the record that middleware.observe made for `request`."""
    record: RequestRecord = request["record"]
    return record


class FrontService:
    """Engine link, admission, keys and metrics of one instance, whichever engine is behind it."""

    def __init__(self, config: InstanceConfig, authenticator: Authenticator, tls: ServerTls | None = None) -> None:
        self.config = config
        self.tls = tls
        self.model_name = served_name(config)
        self.started_unix_s = int(time.time())
        self.max_body_bytes = parse_bytes(config.listen.max_body_bytes)
        self.key_limits = KeyLimits()
        self.authenticator = authenticator
        names = [adapter.name for adapter in config.model.adapters]
        self.engine = EngineClient(
            names,
            config.admission.request_timeout_s,
            config.admission.restart_wait_s,
            config.health.probe_timeout_s,
        )
        self.adapters = self.engine.adapters
        self.admission = Admission(self.engine, config.admission.max_queue, config.admission.restart_wait_s)
        self.metrics = MetricStore(API_METRICS)
        self.tracer = Tracer(config.tracing, self.model_name, self.metrics)
        self.preprocessor = Preprocessor(config.preprocess)
        self._show_certificate()
        self.status = StatusHub()

    def reconfigure(self, config: InstanceConfig) -> None:
        """
        Go on with `config`, of which only keys of config.reload.RELOADABLE may differ, and read key files anew.

        A file that cannot be read leaves keys or certificate as they are; the supervisor has looked at it before.
        """
        self.config = config
        set_level(config.log.level)
        self.admission.set_limits(config.admission.max_queue, config.admission.restart_wait_s)
        self.engine.set_limits(config.admission.request_timeout_s, config.admission.restart_wait_s)
        try:
            self.authenticator.reload(config.listen.api_key_file)
        except AscenddError as error:
            _log.error("api.keys_not_reloaded", code=error.code, error=error.message)
        if self.tls is not None:
            self.tls.reload()
            self._show_certificate()

    def _show_certificate(self) -> None:
        if self.tls is not None:
            expiry = self.tls.certificate.not_after_unix_s
            self.metrics.set("ascendd_tls_certificate_expiry_timestamp_seconds", expiry)

    async def admit(self, request: web.Request) -> EngineHello:
        """
        Return the engine's bounds, across a restart once it is back. The self-test comes before readiness.

        Raises Draining, EngineRestarting or QueueFull.
        """
        record = record_of(request)
        if not record.is_self_test:
            await self.admission.wait_ready(self.deadline(record))
        return self.engine.bounds()

    def deadline(self, record: RequestRecord) -> float:
        """Return the loop time at which the request fails: the client's own limit or the instance's."""
        return record.received_at + min(record.timeout_s, self.config.admission.request_timeout_s)

    async def read_body(self, request: web.Request) -> bytes:
        """Return the body. Raises BodyTooLarge, or DeadlineExceeded for a client that does not send it."""
        coding = request.headers.get("Content-Encoding", "identity").strip().lower()
        if coding not in _CODINGS:
            raise InvalidRequest(
                f"the content coding `{coding[:32]}` is not taken; send one of {', '.join(sorted(_CODINGS))}",
                param="Content-Encoding",
            )
        if (request.content_length or 0) > self.max_body_bytes:
            raise BodyTooLarge(
                f"the body has {request.content_length} bytes; listen.max_body_bytes is {self.max_body_bytes}",
                max_body_bytes=self.max_body_bytes,
            )
        reading = asyncio.ensure_future(request.read())
        try:
            # Not asyncio.wait_for, which may lose the cancellation of a client that leaves (see engine_client).
            done, _ = await asyncio.wait({reading}, timeout=self.config.admission.request_timeout_s)
            if not done:
                raise DeadlineExceeded("the body was not received within admission.request_timeout_s")
            return reading.result()
        except (web.RequestPayloadError, ContentEncodingError, TransferEncodingError) as error:
            raise InvalidRequest(
                f"the body could not be read: it is cut short, or it is not in the content coding `{coding}` it claims",
                openai_code="invalid_body",
            ) from error
        finally:
            reading.cancel()

    def check_fields(self, raw: Mapping[str, Any], *kinds: type[msgspec.Struct]) -> None:
        """Raise InvalidRequest for fields that nobody knows, where listen.strict or `strict` of the request is true."""
        if self.config.listen.strict or raw.get("strict") is True:
            refuse_unknown(raw, *kinds, also=_LABELS)

    def check_model(self, name: str | None) -> str:
        """Return `name`. Raises ModelUnknown unless it is the model or an adapter; no other ever answers for it."""
        if name is None:
            raise InvalidRequest(f"`model` is required; this instance serves `{self.model_name}`", param="model")
        if name != self.model_name and name not in self.adapters.names:
            adapters = f" and {len(self.adapters.names)} adapters of it" if self.adapters.names else ""
            raise ModelUnknown(
                f"the model `{name[:200]}` is not served here; this instance serves `{self.model_name}`{adapters}",
                param="model",
                openai_code="model_not_found",
            )
        return name

    async def close(self) -> None:
        """Give back what outlives a request."""


class ApiService(FrontService):
    """What serves ascendd's own engine: texts become token ids here, and tokens texts."""

    def __init__(
        self,
        config: InstanceConfig,
        tokenizer: ModelTokenizer,
        template: ChatTemplate,
        authenticator: Authenticator,
        tls: ServerTls | None = None,
    ) -> None:
        super().__init__(config, authenticator, tls)
        self.tokenizer = tokenizer
        self.template = template

    @classmethod
    def load(cls, config: InstanceConfig) -> ApiService:
        """
        Read keys, certificate, tokenizer and template.

        Raises ConfigError, PermissionMissing, ModelNotFound or WeightsCorrupt.
        """
        folder = Path(config.model.path)
        authenticator = Authenticator.from_file(config.listen.api_key_file)
        tls = ServerTls.of(config.listen.tls)
        tokenizer = ModelTokenizer.load(folder)
        template = ChatTemplate.load(folder, tokenizer.config, tokenizer.special_texts)
        if template.problem is not None:
            _log.warning("api.no_chat", reason=template.problem)
        return cls(config, tokenizer, template, authenticator, tls)

    async def close(self) -> None:
        """End the threads of the tokenizer."""
        self.tokenizer.close()

    def fit(self, prompt: Prompt, spec: GenerationSpec, max_model_len: int) -> Prompt:
        """Return `prompt` truncated where the policy says so; its text is then that of the tokens left."""
        num_asked = max(1, spec.min_tokens) if spec.max_tokens is None else spec.max_tokens
        fitted = self.preprocessor.truncate(prompt, max_model_len - num_asked)
        if fitted is prompt:
            return prompt
        return replace(fitted, text="".join(fitted.pieces) or self.tokenizer.decode(fitted.token_ids))

    async def answer(
        self,
        request: web.Request,
        form: AnswerForm,
        prompts: list[Prompt],
        spec: GenerationSpec,
        num_tokens: list[int],
        *,
        stream: bool,
    ) -> web.StreamResponse:
        """
        Generate and answer under the name of `form`, the model's or an adapter's.

        The caller holds a place; leaving in any way aborts what still runs.
        """
        for prompt in prompts:
            for step, num_removed in prompt.removed.items():
                self.metrics.inc("ascendd_preprocess_removed_tokens_total", num_removed, labels=(step,))
        record = record_of(request)
        deadline = self.deadline(record)
        generation = Generation(
            prompts,
            spec,
            num_tokens,
            self.tokenizer,
            metrics=self.metrics,
            received_at=record.received_at,
            adapter="" if form.model == self.model_name else form.model,
        )
        record.generation = generation
        record.model = form.model
        with generation:
            generation.submit(self.engine, record.request_id, deadline)
            if stream:
                return await self._stream(request, form, generation)
            body = _encode(form.whole(generation, await generation.whole_texts()))
        return web.Response(body=body, content_type="application/json")

    async def _stream(self, request: web.Request, form: AnswerForm, generation: Generation) -> web.StreamResponse:
        record = record_of(request)
        events = EventStream(request)
        opened: set[int] = set()
        try:
            async for deltas in generation.deltas():
                chunks = []
                for delta in deltas:
                    if delta.choice not in opened:
                        opened.add(delta.choice)
                        chunks += form.opening(generation, delta.choice)
                    chunks += form.pieces(delta)
                if not events.started:
                    # Not sooner: what fails before the first token is answered with its own status.
                    await events.start({"X-Request-Id": record.request_id})
                if chunks:
                    await events.send(*chunks)
            await events.send(*form.closing(generation.usage))
            await events.finish()
        except (ConnectionError, asyncio.CancelledError):
            if events.stalled:
                record.note = "the client read nothing for too long"
            raise
        except Exception as error:
            if not events.started:
                raise
            failure = as_request_error(error)
            record.error_code = failure.code
            if failure.http_status == 500:
                log_defect("api.stream_failed", error, record)
            await events.send_error(error_json(failure))
        return events.response


def log_defect(event: str, error: Exception, record: RequestRecord) -> None:
    """Log why a request got a 500; an error with a name was logged with its traceback where it happened."""
    if isinstance(error, AscenddError):
        _log.error(event, request_id=record.request_id, code=error.code, error=error.message)
    else:
        _log.error(event, request_id=record.request_id, exc_info=error)


FRONT: web.AppKey[FrontService] = web.AppKey("front", FrontService)
SERVICE: web.AppKey[ApiService] = web.AppKey("service", ApiService)


def served_name(config: InstanceConfig) -> str:
    """Return the name that clients use: model.name, else the name of the model's folder."""
    return config.model.name or Path(config.model.path).name
