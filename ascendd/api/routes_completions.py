"""POST /v1/completions."""

from __future__ import annotations

from aiohttp import web

from ascendd.api.answers import CompletionForm
from ascendd.api.parameters import read_spec, refuse_unsupported
from ascendd.api.prompts import completion_prompts, read_prompts
from ascendd.api.protocol import CompletionRequest, convert, decode_object
from ascendd.api.service import SERVICE

# OpenAI's default for this route.
DEFAULT_MAX_TOKENS = 16


async def create_completion(request: web.Request) -> web.StreamResponse:
    """Continue one or more prompts; choices are numbered prompt x n + sample."""
    service = request.app[SERVICE]
    bounds = service.admit(request)
    raw = decode_object(await service.read_body(request))
    body = convert(raw, CompletionRequest)
    service.check_model(body.model)
    refuse_unsupported(raw)
    spec = read_spec(
        body,
        bounds,
        service.tokenizer.added_token_id,
        max_tokens=body.max_tokens,
        default_max_tokens=DEFAULT_MAX_TOKENS,
        allow_zero=bool(body.echo),
    )
    num_prompts = len(read_prompts(body.prompt, bounds.vocab_size))
    with service.admission.place(num_prompts * spec.n):
        prompts = await completion_prompts(body, service.tokenizer, bounds.vocab_size)
        num_tokens = [spec.num_tokens_for(len(p.token_ids), bounds.max_model_len, "prompt") for p in prompts]
        options = body.stream_options
        form = CompletionForm(
            service.model_name,
            include_usage=options is not None and bool(options.include_usage),
            echo=bool(body.echo),
        )
        return await service.answer(request, form, prompts, spec, num_tokens, stream=bool(body.stream))
