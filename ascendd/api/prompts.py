"""What is sent to the model: prompts of completions, and messages of chats, as token ids."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ascendd.api.chat_template import RESERVED_NAMES, ChatTemplate
from ascendd.api.protocol import ChatRequest, CompletionRequest, Message
from ascendd.api.ranges import check_count, check_token_id
from ascendd.api.tokenizer import ModelTokenizer
from ascendd.errors import InvalidRequest

if TYPE_CHECKING:
    from ascendd.api.preprocess import Preprocessor

MAX_PROMPTS = 1024
# `developer` is OpenAI's newer word for `system`; templates only know the older one.
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}


@dataclass(frozen=True)
class Prompt:
    """One prompt; `text` is what an echo gives back, `pieces` each token's part of it where its logprobs are echoed."""

    token_ids: list[int]
    text: str
    pieces: list[str] = field(default_factory=list)
    # Tokens that preprocessing removed, by step.
    removed: dict[str, int] = field(default_factory=dict)
    # Tokens at the head that are the system part of a chat.
    num_head_tokens: int = 0


async def completion_prompts(
    request: CompletionRequest, tokenizer: ModelTokenizer, vocab_size: int, preprocessor: Preprocessor | None = None
) -> list[Prompt]:
    """Return the prompts in their order; one bad one fails the whole call. Token ids stay. Raises InvalidRequest."""
    raw = read_prompts(request.prompt, vocab_size)
    add_special_tokens = request.add_special_tokens is not False
    num_chars = sum(len(item) for item in raw)
    with_pieces = bool(request.echo) and request.logprobs not in (None, False)

    def encode_all() -> list[Prompt]:
        prompts = []
        for written in raw:
            removed: dict[str, int] = {}
            item = written
            if preprocessor is not None and isinstance(written, str):
                item = preprocessor.clean_text(written, tokenizer.count, removed)
            if with_pieces:
                prompts.append(_cut_prompt(item, tokenizer, add_special_tokens=add_special_tokens))
            elif isinstance(item, str):
                prompts.append(Prompt(tokenizer.encode(item, add_special_tokens=add_special_tokens), item))
            else:
                prompts.append(Prompt(item, tokenizer.decode(item) if request.echo else ""))
            prompts[-1].removed.update(removed)
        return prompts

    prompts = await tokenizer.run(num_chars, encode_all)
    for prompt in prompts:
        if not prompt.token_ids:
            raise InvalidRequest("`prompt` is empty: it has no tokens", param="prompt")
    return prompts


def _cut_prompt(item: str | list[int], tokenizer: ModelTokenizer, *, add_special_tokens: bool) -> Prompt:
    """Return a prompt with its pieces, which joined are its text."""
    if isinstance(item, str):
        token_ids, pieces = tokenizer.encode_pieces(item, add_special_tokens=add_special_tokens)
        return Prompt(token_ids, item, pieces)
    detokenizer = tokenizer.detokenizer(skip_special_tokens=False)
    pieces = [detokenizer.push(token_id) for token_id in item]
    if pieces:
        pieces[-1] += detokenizer.flush()
    return Prompt(item, "".join(pieces), pieces)


def read_prompts(value: Any, vocab_size: int) -> list[str] | list[list[int]]:
    """Return a string, a list of strings, token ids or a list of them as a list. Raises InvalidRequest."""
    if isinstance(value, str):
        return [_checked_text(value)]
    if value is None:
        raise InvalidRequest("`prompt` is required", param="prompt")
    if not isinstance(value, list):
        raise InvalidRequest(
            "`prompt` must be a string, a list of strings, token ids, or a list of those", param="prompt"
        )
    if not value:
        raise InvalidRequest("`prompt` is empty: the list has no items", param="prompt")
    if all(isinstance(item, str) for item in value):
        check_count("prompt", len(value), MAX_PROMPTS, "prompts")
        return [_checked_text(item) for item in value]
    if isinstance(value[0], list):
        check_count("prompt", len(value), MAX_PROMPTS, "prompts")
        return [_checked_ids(item, vocab_size) for item in value]
    return [_checked_ids(value, vocab_size)]


async def chat_prompt(
    request: ChatRequest,
    tokenizer: ModelTokenizer,
    template: ChatTemplate,
    tools: Sequence[Mapping[str, Any]] | None = None,
    preprocessor: Preprocessor | None = None,
) -> Prompt:
    """Return the messages as one prompt, with no special tokens but the template's own. Raises InvalidRequest."""
    messages = read_messages(request.messages)
    extra = request.chat_template_kwargs or {}
    reserved = sorted(RESERVED_NAMES & extra.keys())
    if reserved:
        raise InvalidRequest(f"`chat_template_kwargs` must not set {', '.join(reserved)}", param="chat_template_kwargs")

    def encode() -> Prompt:
        removed: dict[str, int] = {}
        cleaned = messages
        if preprocessor is not None:
            cleaned = preprocessor.clean_messages(messages, tokenizer.count, removed)
        special = request.add_special_tokens is True
        text = template.render(
            cleaned, add_generation_prompt=request.add_generation_prompt is not False, extra=extra, tools=tools
        )
        prompt = Prompt(tokenizer.encode(text, add_special_tokens=special), text, removed=removed)
        if preprocessor is None or not preprocessor.truncates:
            return prompt
        head = _system_head(cleaned, template, extra)
        head_ids = tokenizer.encode(head, add_special_tokens=special) if head else []
        return replace(prompt, num_head_tokens=_num_shared(head_ids, prompt.token_ids))

    num_chars = sum(len(message.get("content") or "") for message in messages)
    prompt = await tokenizer.run(num_chars, encode)
    if not prompt.token_ids:
        raise InvalidRequest("`messages` give an empty prompt: it has no tokens", param="messages")
    return prompt


def _system_head(messages: list[dict[str, Any]], template: ChatTemplate, extra: dict[str, Any]) -> str:
    """Return the text of the system messages that a chat begins with; "" where the template refuses them alone."""
    head = list(itertools.takewhile(lambda message: message["role"] == "system", messages))
    try:
        return template.render(head, add_generation_prompt=False, extra=extra) if head else ""
    except InvalidRequest:
        return ""


def _num_shared(first: list[int], second: list[int]) -> int:
    """Return how many ids both begin with."""
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))


def read_messages(messages: Sequence[Message] | None) -> list[dict[str, Any]]:
    """Return the messages as the template sees them: roles it knows, content as text. Raises InvalidRequest."""
    if not messages:
        raise InvalidRequest("`messages` must hold at least one message", param="messages")
    return [_plain_message(number, message) for number, message in enumerate(messages)]


def _plain_message(number: int, message: Message) -> dict[str, Any]:
    where = f"messages[{number}]"
    role = _ROLES.get(message.role)
    if role is None:
        raise InvalidRequest(f"`{where}.role` is {message.role!r}; known: {', '.join(_ROLES)}", param=f"{where}.role")
    plain: dict[str, Any] = {"role": role, "content": _plain_content(f"{where}.content", message)}
    for name in ("name", "tool_call_id", "reasoning_content"):
        value = getattr(message, name)
        if value is not None:
            plain[name] = value
    if message.tool_calls:
        plain["tool_calls"] = [_plain_tool_call(call) for call in message.tool_calls]
    return plain


def _plain_content(where: str, message: Message) -> str:
    content = message.content
    if isinstance(content, str):
        return _checked_text(content, where)
    if content is None:
        if message.role == "assistant":
            return ""
        raise InvalidRequest(f"`{where}` is required", param=where)
    if not isinstance(content, list):
        raise InvalidRequest(f"`{where}` must be a string or a list of parts", param=where)
    texts = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        text = part.get("text") if isinstance(part, dict) else None
        if kind != "text" or not isinstance(text, str):
            raise InvalidRequest(
                f"`{where}` holds a part of type {kind!r}; this model takes parts of type 'text' with a `text`",
                param=where,
            )
        texts.append(_checked_text(text, where))
    return "\n".join(texts)


def _plain_tool_call(call: dict[str, Any]) -> dict[str, Any]:
    """Return `call` with its arguments as an object: OpenAI sends JSON text, templates want the values."""
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"])
    except ValueError:
        return call
    return {**call, "function": {**function, "arguments": arguments}}


def _checked_text(text: str, param: str = "prompt") -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(f"`{param}` holds half of a surrogate pair, which is no character", param=param) from None
    return text


def _checked_ids(value: Any, vocab_size: int) -> list[int]:
    if not isinstance(value, list) or not all(type(item) is int for item in value):
        raise InvalidRequest(
            "`prompt` mixes kinds; write a string, a list of strings, token ids, or a list of those", param="prompt"
        )
    if not value:
        raise InvalidRequest("`prompt` is empty: it has no tokens", param="prompt")
    for token_id in value:
        check_token_id(token_id, vocab_size, "prompt")
    return value
