"""POST /tokenize and /detokenize, in vLLM's form; and /v1/embeddings, which this server does not make."""

from __future__ import annotations

from typing import NoReturn

import msgspec
from aiohttp import web

from ascendd.api.body import convert, decode_object
from ascendd.api.prompts import chat_prompt, read_prompts
from ascendd.api.protocol import ChatRequest, DetokenizeAnswer, DetokenizeRequest, TokenizeAnswer, TokenizeRequest
from ascendd.api.ranges import check_token_id
from ascendd.api.service import SERVICE
from ascendd.api.tools import read_tools
from ascendd.errors import InvalidRequest


async def tokenize(request: web.Request) -> web.Response:
    """Answer with the token ids of `prompt`, or of `messages` in the chat template."""
    service = request.app[SERVICE]
    bounds = await service.admit(request)
    raw = decode_object(await service.read_body(request))
    body = convert(raw, TokenizeRequest)
    service.check_fields(raw, TokenizeRequest, ChatRequest)
    service.check_model(body.model or service.model_name)
    if (body.prompt is None) == (raw.get("messages") is None):
        raise InvalidRequest("exactly one of `prompt` and `messages` is to be given", param="prompt")
    if body.prompt is None:
        chat = convert(raw, ChatRequest)
        tools = read_tools(chat, service.template)
        shown = None if tools is None else tools.shown
        prompt = await chat_prompt(chat, service.tokenizer, service.template, shown, service.preprocessor)
        token_ids = prompt.token_ids
    else:
        text = read_prompts(body.prompt, bounds.vocab_size)[0]
        assert isinstance(text, str)
        add_special_tokens = body.add_special_tokens is not False
        token_ids = await service.tokenizer.run(
            len(text), lambda: service.tokenizer.encode(text, add_special_tokens=add_special_tokens)
        )
    texts = [service.tokenizer.token_bytes.text(token_id) for token_id in token_ids]
    return _json(
        TokenizeAnswer(len(token_ids), bounds.max_model_len, token_ids, texts if body.return_token_strs else None)
    )


async def detokenize(request: web.Request) -> web.Response:
    """Answer with the text of `tokens`, special ones included."""
    service = request.app[SERVICE]
    bounds = await service.admit(request)
    raw = decode_object(await service.read_body(request))
    body = convert(raw, DetokenizeRequest)
    service.check_fields(raw, DetokenizeRequest)
    service.check_model(body.model or service.model_name)
    if body.tokens is None:
        raise InvalidRequest("`tokens` is required: a list of token ids", param="tokens")
    token_ids = body.tokens
    for token_id in token_ids:
        check_token_id(token_id, bounds.vocab_size, "tokens")
    text = await service.tokenizer.run(len(token_ids), lambda: service.tokenizer.decode(token_ids))
    return _json(DetokenizeAnswer(text))


async def refuse_embeddings(request: web.Request) -> NoReturn:
    """Say why there are none."""
    service = request.app[SERVICE]
    raise InvalidRequest(
        f"`{service.model_name}` is a text generator and makes no embeddings; ask an instance of an embedding model",
        param="model",
        openai_code="unsupported_route",
    )


def _json(value: msgspec.Struct) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")
