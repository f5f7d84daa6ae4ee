"""What the instance does to prompts that another engine reads: the same steps, on the texts of the body. Pure."""

from __future__ import annotations

from typing import Any

from ascendd.api.preprocess import Preprocessor, Removed
from ascendd.config.schema import PreprocessSection


def _no_count(_text: str) -> int:
    """Count nothing: only the engine has the tokenizer."""
    return 0


def prepare(raw: dict[str, Any], preprocessor: Preprocessor, section: PreprocessSection) -> dict[str, Any]:
    """Return `raw` as the engine is to read it. What is no prompt of text is left for the engine to judge."""
    body = dict(raw)
    removed: Removed = {}
    prompt, messages = raw.get("prompt"), raw.get("messages")
    if isinstance(prompt, str):
        body["prompt"] = preprocessor.clean_text(prompt, _no_count, removed)
    elif isinstance(prompt, list) and all(isinstance(item, str) for item in prompt):
        body["prompt"] = [preprocessor.clean_text(item, _no_count, removed) for item in prompt]
    if isinstance(messages, list) and messages and all(_is_message(message) for message in messages):
        body["messages"] = _clean(messages, preprocessor)
    if section.truncate == "last" and section.keep_last_tokens is not None and (prompt or messages):
        told = raw.get("truncate_prompt_tokens")
        kept = section.keep_last_tokens
        body["truncate_prompt_tokens"] = min(told, kept) if isinstance(told, int) and told > 0 else kept
    return body


def _is_message(message: Any) -> bool:
    return isinstance(message, dict) and isinstance(message.get("role"), str)


def _clean(messages: list[dict[str, Any]], preprocessor: Preprocessor) -> list[dict[str, Any]]:
    """Clean texts; contents of several parts, such as images, stand aside meanwhile under a text that none has."""
    aside: dict[str, Any] = {}
    plain = []
    for number, message in enumerate(messages):
        content = message.get("content")
        if isinstance(content, str):
            plain.append(message)
            continue
        token = f"\x00{number}\x00"
        aside[token] = [_clean_part(part, preprocessor) for part in content] if isinstance(content, list) else content
        plain.append({**message, "content": token})
    cleaned = preprocessor.clean_messages(plain, _no_count, {})
    return [
        {**message, "content": aside[message["content"]]} if message["content"] in aside else message
        for message in cleaned
    ]


def _clean_part(part: Any, preprocessor: Preprocessor) -> Any:
    if isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str):
        return {**part, "text": preprocessor.clean_text(part["text"], _no_count, {})}
    return part
