"""POST /v1/completions."""

from __future__ import annotations

from aiohttp import web

from ascendd.api.answers import CompletionForm
from ascendd.api.body import convert, decode_object
from ascendd.api.logit_fields import read_logprobs
from ascendd.api.logprobs import LogprobReport
from ascendd.api.parameters import read_spec, refuse_unsupported
from ascendd.api.prompts import completion_prompts, read_prompts
from ascendd.api.protocol import CompletionRequest
from ascendd.api.service import SERVICE
from ascendd.errors import InvalidRequest

# OpenAI's default for this route.
DEFAULT_MAX_TOKENS = 16


async def create_completion(request: web.Request) -> web.StreamResponse:
    """Continue one or more prompts; choices are numbered prompt x n + sample."""
    service = request.app[SERVICE]
    bounds = await service.admit(request)
    raw = decode_object(await service.read_body(request))
    body = convert(raw, CompletionRequest)
    model = service.check_model(body.model)
    refuse_unsupported(raw)
    service.check_fields(raw, CompletionRequest)
    if raw.get("top_logprobs"):
        raise InvalidRequest(
            "`top_logprobs` is for /v1/chat/completions; here `logprobs` is the number", param="top_logprobs"
        )
    if body.logprobs is True:
        raise InvalidRequest("`logprobs` is true; here it is a number of alternatives", param="logprobs")
    logprobs = read_logprobs(
        None if body.logprobs is False else body.logprobs,
        "logprobs",
        body.prompt_logprobs,
        stream=bool(body.stream),
        echo=bool(body.echo),
    )
    spec = read_spec(
        body,
        bounds,
        service.tokenizer,
        max_tokens=body.max_tokens,
        default_max_tokens=DEFAULT_MAX_TOKENS,
        allow_zero=bool(body.echo),
        logprobs=logprobs,
    )
    num_prompts = len(read_prompts(body.prompt, bounds.vocab_size))
    with service.admission.place(num_prompts * spec.best_of):
        prompts = await completion_prompts(body, service.tokenizer, bounds.vocab_size, service.preprocessor)
        prompts = [service.fit(prompt, spec, bounds.max_model_len) for prompt in prompts]
        num_tokens = [spec.num_tokens_for(len(p.token_ids), bounds.max_model_len, "prompt") for p in prompts]
        options = body.stream_options
        form = CompletionForm(
            model,
            LogprobReport(logprobs, service.tokenizer.token_bytes),
            include_usage=options is not None and bool(options.include_usage),
            echo=bool(body.echo),
        )
        return await service.answer(request, form, prompts, spec, num_tokens, stream=bool(body.stream))
