"""POST /v1/chat/completions."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from aiohttp import web

from ascendd.api.answers import ChatForm
from ascendd.api.body import convert, decode_object
from ascendd.api.chat_pieces import ChatPieces
from ascendd.api.logit_fields import read_logprobs
from ascendd.api.logprobs import LogprobReport
from ascendd.api.parameters import read_spec, refuse_unsupported
from ascendd.api.prompts import chat_prompt
from ascendd.api.protocol import ChatRequest
from ascendd.api.service import SERVICE
from ascendd.api.tools import read_tools
from ascendd.errors import InvalidRequest


async def create_chat_completion(request: web.Request) -> web.StreamResponse:
    """Answer a conversation; without a limit the answer may fill the context."""
    service = request.app[SERVICE]
    bounds = await service.admit(request)
    raw = decode_object(await service.read_body(request))
    body = convert(raw, ChatRequest)
    model = service.check_model(body.model)
    refuse_unsupported(raw)
    service.check_fields(raw, ChatRequest)
    if raw.get("echo"):
        raise InvalidRequest("`echo` is for /v1/completions; leave it out", param="echo")
    if body.top_logprobs and not body.logprobs:
        raise InvalidRequest("`top_logprobs` needs `logprobs`: true", param="top_logprobs")
    logprobs = read_logprobs(
        (body.top_logprobs or 0) if body.logprobs else None,
        "top_logprobs",
        body.prompt_logprobs,
        stream=bool(body.stream),
        echo=False,
    )
    newer = body.max_completion_tokens is not None
    spec = read_spec(
        body,
        bounds,
        service.tokenizer,
        max_tokens=body.max_completion_tokens if newer else body.max_tokens,
        default_max_tokens=None,
        max_tokens_field="max_completion_tokens" if newer else "max_tokens",
        logprobs=logprobs,
    )
    tools = read_tools(body, service.template)
    if tools is not None:
        # Marks of calls are special tokens of some tokenizers.
        spec = replace(spec, skip_special_tokens=False)
        if tools.grammar is not None:
            if spec.grammar is not None:
                raise InvalidRequest("`tool_choice` asks for a call; then the answer can have no other form",
                                     param="tool_choice")  # fmt: skip
            spec = replace(spec, grammar=tools.grammar)
    with service.admission.place(spec.best_of):
        shown = None if tools is None else tools.shown
        prompt = await chat_prompt(body, service.tokenizer, service.template, shown, service.preprocessor)
        prompt = service.fit(prompt, spec, bounds.max_model_len)
        num_tokens = [spec.num_tokens_for(len(prompt.token_ids), bounds.max_model_len, "messages")]
        options = body.stream_options
        form = ChatForm(
            model,
            LogprobReport(logprobs, service.tokenizer.token_bytes),
            include_usage=options is not None and bool(options.include_usage),
            reading=partial(
                ChatPieces,
                tools,
                # A grammar holds from the first token on, so there is no reasoning before its text.
                splits=service.template.has_reasoning and spec.grammar is None,
                open_=prompt.text.rstrip().endswith("<think>"),
            ),
        )
        return await service.answer(request, form, [prompt], spec, num_tokens, stream=bool(body.stream))
