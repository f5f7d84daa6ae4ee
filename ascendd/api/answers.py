"""What a generation looks like in the two dialects: text completions and chats, whole or in chunks."""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial

import msgspec
from msgspec import UNSET

from ascendd.api.chat_pieces import ChatPiece, ChatPieces
from ascendd.api.generation import Delta, Generation, WholeText
from ascendd.api.logprobs import LogprobReport, joined
from ascendd.api.protocol import (
    Answer,
    ChatChoice,
    ChatChunkChoice,
    ChatDelta,
    ChatMessage,
    CompletionChoice,
    FunctionCall,
    ToolCall,
    Usage,
)

_PLAIN = partial(ChatPieces, None, splits=False, open_=False)


class AnswerForm(ABC):
    """Makes the bodies of one request's answer; ids are ours, whatever the caller's X-Request-Id says."""

    prefix: str
    whole_object: str
    chunk_object: str

    def __init__(self, model: str, report: LogprobReport, *, include_usage: bool = False) -> None:
        self._report = report
        self.id = f"{self.prefix}-{uuid.uuid4().hex}"
        self._created = int(time.time())
        self.model = model
        self._include_usage = include_usage

    @abstractmethod
    def opening(self, generation: Generation, choice: int) -> list[Answer]:
        """Return the chunks that come before any token of `choice`."""

    @abstractmethod
    def pieces(self, delta: Delta) -> list[Answer]:
        """Return the chunks of `delta`; the finish reason has one of its own."""

    @abstractmethod
    def whole(self, generation: Generation, texts: Sequence[WholeText]) -> Answer:
        """Return the whole answer of `texts`, one choice each."""

    def closing(self, usage: Usage) -> list[Answer]:
        """Return the usage chunk where it was asked for: no choices, but the key is there."""
        return [msgspec.structs.replace(self._chunk([]), usage=usage)] if self._include_usage else []

    def _chunk(self, choices: list[CompletionChoice] | list[ChatChunkChoice]) -> Answer:
        chunk = Answer(id=self.id, object=self.chunk_object, created=self._created, model=self.model, choices=choices)
        if self._include_usage:
            chunk.usage = None
        return chunk

    def _whole(self, choices: list[CompletionChoice] | list[ChatChoice], usage: Usage) -> Answer:
        return Answer(
            id=self.id,
            object=self.whole_object,
            created=self._created,
            model=self.model,
            choices=choices,
            usage=usage,
        )


class CompletionForm(AnswerForm):
    """Answers of /v1/completions."""

    prefix = "cmpl"
    whole_object = chunk_object = "text_completion"

    def __init__(self, model: str, report: LogprobReport, *, include_usage: bool = False, echo: bool = False) -> None:
        super().__init__(model, report, include_usage=include_usage)
        self._echo = echo
        self._prompt_chars: dict[int, int] = {}

    def opening(self, generation: Generation, choice: int) -> list[Answer]:
        """Return the prompt where it is to be echoed."""
        if not self._echo:
            return []
        prompt = generation.prompts[choice // generation.num_samples]
        self._prompt_chars[choice] = len(prompt.text)
        logprobs = self._report.echo(prompt, generation.prompt_logprobs(choice))
        return [self._chunk([CompletionChoice(choice, prompt.text, logprobs)])]

    def pieces(self, delta: Delta) -> list[Answer]:
        """Return the text, then the finish reason."""
        chunks = []
        if delta.text or delta.entries:
            logprobs = self._report.completion(delta.entries, self._prompt_chars.get(delta.choice, 0))
            chunks.append(self._chunk([CompletionChoice(delta.choice, delta.text, logprobs)]))
        if delta.finish_reason is not None:
            chunks.append(self._chunk([CompletionChoice(delta.choice, "", finish_reason=delta.finish_reason)]))
        return chunks

    def whole(self, generation: Generation, texts: Sequence[WholeText]) -> Answer:
        """Return one choice per text, in the order of index."""
        return self._whole([self._choice(generation, *item) for item in enumerate(texts)], generation.usage)

    def _choice(self, generation: Generation, index: int, whole: WholeText) -> CompletionChoice:
        prompt, scores = generation.prompts[whole.prompt], generation.prompt_logprobs(whole.sequence)
        logprobs = self._report.completion(whole.entries, len(prompt.text) if self._echo else 0)
        if self._echo:
            logprobs = joined(self._report.echo(prompt, scores), logprobs)
        prompt_logprobs = self._report.prompt(prompt, scores)
        return CompletionChoice(
            index,
            (prompt.text if self._echo else "") + whole.text,
            logprobs,
            whole.finish_reason,
            UNSET if prompt_logprobs is None else prompt_logprobs,
        )


class ChatForm(AnswerForm):
    """Answers of /v1/chat/completions."""

    prefix = "chatcmpl"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(
        self,
        model: str,
        report: LogprobReport,
        *,
        include_usage: bool = False,
        reading: Callable[[], ChatPieces] = _PLAIN,
    ) -> None:
        super().__init__(model, report, include_usage=include_usage)
        self._reading = reading
        self._readers: dict[int, ChatPieces] = {}

    def opening(self, _generation: Generation, choice: int) -> list[Answer]:
        """Return the role; later deltas do not repeat it."""
        self._readers[choice] = self._reading()
        return [self._chunk([ChatChunkChoice(choice, ChatDelta(role="assistant", content=""))])]

    def pieces(self, delta: Delta) -> list[Answer]:
        """Return the text and calls, then the finish reason with an empty delta."""
        reader = self._readers[delta.choice]
        found = [_delta(piece) for piece in reader.push(delta.text, is_last=delta.finish_reason is not None)]
        if not found and delta.entries:
            found = [ChatDelta(content="")]
        choices = [ChatChunkChoice(delta.choice, item) for item in found]
        if choices:
            choices[0].logprobs = self._report.chat(delta.entries)
        if delta.finish_reason is not None:
            reason = _reason(delta.finish_reason, reader)
            choices.append(ChatChunkChoice(delta.choice, ChatDelta(), finish_reason=reason))
        return [self._chunk([choice]) for choice in choices]

    def whole(self, generation: Generation, texts: Sequence[WholeText]) -> Answer:
        """Return one choice per text; the one prompt is told beside them."""
        choices = []
        for index, whole in enumerate(texts):
            reader = self._reading()
            message = _message(reader.push(whole.text, is_last=True))
            reason = None if whole.finish_reason is None else _reason(whole.finish_reason, reader)
            choices.append(ChatChoice(index, message, self._report.chat(whole.entries), reason))
        answer = self._whole(choices, generation.usage)
        prompt_logprobs = self._report.prompt(generation.prompts[0], generation.prompt_logprobs(0))
        if prompt_logprobs is not None:
            answer.prompt_logprobs = prompt_logprobs
        return answer


def _reason(reason: str, reader: ChatPieces) -> str:
    return "tool_calls" if reason == "stop" and reader.num_calls else reason


def _delta(piece: ChatPiece) -> ChatDelta:
    if piece.reasoning:
        return ChatDelta(reasoning_content=piece.reasoning)
    call = piece.call
    if call is None:
        return ChatDelta(content=piece.content)
    if call.id is None or call.name is None:
        return ChatDelta(tool_calls=[ToolCall(FunctionCall(call.arguments), index=call.number)])
    function = FunctionCall(call.arguments, call.name)
    return ChatDelta(tool_calls=[ToolCall(function, call.id, "function", call.number)])


def _message(pieces: Sequence[ChatPiece]) -> ChatMessage:
    calls: list[ToolCall] = []
    for call in (piece.call for piece in pieces if piece.call is not None):
        if call.id is not None and call.name is not None:
            calls.append(ToolCall(FunctionCall("", call.name), call.id, "function"))
        calls[call.number].function.arguments += call.arguments
    content = "".join(piece.content for piece in pieces)
    reasoning = "".join(piece.reasoning for piece in pieces)
    return ChatMessage(
        content if content or not calls else None,
        reasoning_content=reasoning or UNSET,
        tool_calls=calls or UNSET,
    )
