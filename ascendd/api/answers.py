"""What a generation looks like in the two dialects: text completions and chats, whole or in chunks."""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Sequence

import msgspec

from ascendd.api.generation import Delta, Generation
from ascendd.api.protocol import (
    Answer,
    ChatChoice,
    ChatChunkChoice,
    ChatDelta,
    ChatMessage,
    CompletionChoice,
    Usage,
)


class AnswerForm(ABC):
    """Makes the bodies of one request's answer; ids are ours, whatever the caller's X-Request-Id says."""

    prefix: str
    whole_object: str
    chunk_object: str

    def __init__(self, model: str, *, include_usage: bool = False) -> None:
        self.id = f"{self.prefix}-{uuid.uuid4().hex}"
        self._created = int(time.time())
        self._model = model
        self._include_usage = include_usage

    @abstractmethod
    def opening(self, generation: Generation) -> list[Answer]:
        """Return the chunks that come before any token."""

    @abstractmethod
    def pieces(self, delta: Delta) -> list[Answer]:
        """Return the chunks of `delta`; the finish reason has one of its own."""

    @abstractmethod
    def whole(self, generation: Generation, texts: Sequence[str]) -> Answer:
        """Return the whole answer."""

    def closing(self, usage: Usage) -> list[Answer]:
        """Return the usage chunk where it was asked for: no choices, but the key is there."""
        return [msgspec.structs.replace(self._chunk([]), usage=usage)] if self._include_usage else []

    def _chunk(self, choices: list[CompletionChoice] | list[ChatChunkChoice]) -> Answer:
        chunk = Answer(id=self.id, object=self.chunk_object, created=self._created, model=self._model, choices=choices)
        if self._include_usage:
            chunk.usage = None
        return chunk

    def _whole(self, choices: list[CompletionChoice] | list[ChatChoice], usage: Usage) -> Answer:
        return Answer(
            id=self.id,
            object=self.whole_object,
            created=self._created,
            model=self._model,
            choices=choices,
            usage=usage,
        )


class CompletionForm(AnswerForm):
    """Answers of /v1/completions."""

    prefix = "cmpl"
    whole_object = chunk_object = "text_completion"

    def __init__(self, model: str, *, include_usage: bool = False, echo: bool = False) -> None:
        super().__init__(model, include_usage=include_usage)
        self._echo = echo

    def opening(self, generation: Generation) -> list[Answer]:
        """Return the prompts where they are to be echoed."""
        if not self._echo:
            return []
        return [
            self._chunk([CompletionChoice(index, generation.prompts[index // generation.num_samples].text)])
            for index in range(generation.num_sequences)
        ]

    def pieces(self, delta: Delta) -> list[Answer]:
        """Return the text, then the finish reason."""
        chunks = [self._chunk([CompletionChoice(delta.choice, delta.text)])] if delta.text else []
        if delta.finish_reason is not None:
            chunks.append(self._chunk([CompletionChoice(delta.choice, "", finish_reason=delta.finish_reason)]))
        return chunks

    def whole(self, generation: Generation, texts: Sequence[str]) -> Answer:
        """Return one choice per sequence, in the order of index."""
        choices = []
        for index, (text, reason) in enumerate(zip(texts, generation.finish_reasons, strict=True)):
            echo = generation.prompts[index // generation.num_samples].text if self._echo else ""
            choices.append(CompletionChoice(index, echo + text, finish_reason=reason))
        return self._whole(choices, generation.usage)


class ChatForm(AnswerForm):
    """Answers of /v1/chat/completions."""

    prefix = "chatcmpl"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def opening(self, generation: Generation) -> list[Answer]:
        """Return the role of each choice; later deltas do not repeat it."""
        return [
            self._chunk([ChatChunkChoice(index, ChatDelta(role="assistant", content=""))])
            for index in range(generation.num_sequences)
        ]

    def pieces(self, delta: Delta) -> list[Answer]:
        """Return the text, then the finish reason with an empty delta."""
        chunks = []
        if delta.text:
            chunks.append(self._chunk([ChatChunkChoice(delta.choice, ChatDelta(content=delta.text))]))
        if delta.finish_reason is not None:
            chunks.append(self._chunk([ChatChunkChoice(delta.choice, ChatDelta(), finish_reason=delta.finish_reason)]))
        return chunks

    def whole(self, generation: Generation, texts: Sequence[str]) -> Answer:
        """Return one choice per sample."""
        choices = [
            ChatChoice(index, ChatMessage(text), finish_reason=reason)
            for index, (text, reason) in enumerate(zip(texts, generation.finish_reasons, strict=True))
        ]
        return self._whole(choices, generation.usage)
