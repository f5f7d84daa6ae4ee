"""The bodies of OpenAI's completions and chat routes, as far as this server speaks them, and of its answers."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType


class StreamOptions(msgspec.Struct):
    """How a stream ends."""

    include_usage: bool | None = None


class SamplingFields(msgspec.Struct, kw_only=True):
    """What both routes take; vLLM's additions under vLLM's names. None means: not given."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    top_k: int | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    add_special_tokens: bool | None = None
    priority: int | None = None
    best_of: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    bad_words: list[str] | None = None
    allowed_token_ids: list[int] | None = None
    prompt_logprobs: int | None = None
    # The form of the answer (structured_output.read_grammar).
    response_format: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None
    guided_json: Any = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None


class CompletionRequest(SamplingFields, kw_only=True):
    """Body of POST /v1/completions; `prompt` is checked by prompts.read_prompts."""

    prompt: Any = None
    echo: bool | None = None
    # A number of alternatives; false is how some clients of chats say: none.
    logprobs: int | bool | None = None


class Message(msgspec.Struct, kw_only=True):
    """One message; `content` is text, a list of parts, or null beside tool calls."""

    role: str
    content: Any = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None


class ChatRequest(SamplingFields, kw_only=True):
    """Body of POST /v1/chat/completions."""

    messages: list[Message] | None = None
    max_completion_tokens: int | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None


class LoadAdapterRequest(msgspec.Struct):
    """Body of POST /v1/load_lora_adapter."""

    lora_name: str | None = None
    lora_path: str | None = None


class UnloadAdapterRequest(msgspec.Struct):
    """Body of POST /v1/unload_lora_adapter."""

    lora_name: str | None = None


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """Body of POST /tokenize, where it is not that of a chat."""

    model: str | None = None
    prompt: str | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class TokenizeAnswer(msgspec.Struct):
    """Token ids of a text, and the text of each where that was asked for."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    """Body of POST /detokenize."""

    model: str | None = None
    tokens: list[int] | None = None


class DetokenizeAnswer(msgspec.Struct):
    """The text of token ids."""

    prompt: str


class PromptTokensDetails(msgspec.Struct):
    """How many prompt tokens the prefix cache served; how many preprocessing removed, by step, where it is on."""

    cached_tokens: int
    removed_tokens: dict[str, int] | UnsetType = UNSET


class Usage(msgspec.Struct):
    """Tokens of one request: each prompt counts once, every sample counts."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class PromptLogprob(msgspec.Struct):
    """How likely a token was at its place of the prompt, in vLLM's form."""

    logprob: float
    rank: int
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]


class CompletionLogprobs(msgspec.Struct):
    """
    Columns with an entry for each token; joined, `tokens` are the text, in which they begin at `text_offset`.

    The first token of an echoed prompt has no logprob.
    """

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class TopLogprob(msgspec.Struct):
    """One of the most likely tokens; `bytes` are its UTF-8, which may be part of a character."""

    token: str
    logprob: float
    bytes: list[int]


class ChatTokenLogprob(msgspec.Struct):
    """One token of a chat's answer and what else was likely."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct):
    """The tokens of a chat's answer, the one that ended it included."""

    content: list[ChatTokenLogprob]
    refusal: None = None


class CompletionChoice(msgspec.Struct):
    """One text, whole or a piece of it; index = prompt x n + sample."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class FunctionCall(msgspec.Struct):
    """A function's name and its arguments as JSON text; of a stream, a piece of it."""

    arguments: str
    name: str | UnsetType = UNSET


class ToolCall(msgspec.Struct):
    """A call, whole or a piece of it; pieces have an index, and only the first of a call has id and type."""

    function: FunctionCall
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET
    index: int | UnsetType = UNSET


class ChatMessage(msgspec.Struct):
    """The assistant's answer; `content` is null where it is calls alone."""

    content: str | None
    role: str = "assistant"
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class ChatDelta(msgspec.Struct):
    """A piece of the answer; the role comes in the first one only."""

    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class ChatChoice(msgspec.Struct):
    """One whole answer."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None


class ChatChunkChoice(msgspec.Struct):
    """A piece of one answer."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None


class Answer(msgspec.Struct, kw_only=True):
    """
    A whole answer or a chunk of a stream.

    `usage` is absent from the chunks of a stream that did not ask for it, and null in all but the last that did.
    """

    id: str
    object: str
    created: int
    model: str
    choices: list[CompletionChoice] | list[ChatChoice] | list[ChatChunkChoice]
    usage: Usage | UnsetType | None = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class ModelCard(msgspec.Struct, kw_only=True):
    """One entry of GET /v1/models; no path of the file system is told."""

    id: str
    object: str = "model"
    created: int
    owned_by: str = "ascendd"
    root: str
    parent: str | None = None
    max_model_len: int | None = None


class ModelList(msgspec.Struct):
    """Answer of GET /v1/models."""

    data: list[ModelCard]
    object: str = "list"
