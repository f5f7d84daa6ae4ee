"""What rules may ask of a request, read from its body without judging it: that is the instance's business. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

# English text and code are near four bytes a token, for every tokenizer of the models served here.
BYTES_PER_TOKEN = 4
# What an answer is taken to be where the request sets no limit.
DEFAULT_ANSWER_TOKENS = 512
_NUMBERS = ("temperature", "top_p", "presence_penalty", "frequency_penalty", "repetition_penalty")
_PART_MODALITY = {
    "image_url": "image", "input_image": "image", "image": "image",
    "input_audio": "audio", "audio_url": "audio", "audio": "audio",
    "video_url": "video", "video": "video",
}  # fmt: skip


class RequestFacts(NamedTuple):
    """One request as rules see it; `numbers` has only what the request gives."""

    model: str
    numbers: Mapping[str, float]
    stream: bool
    modalities: frozenset[str]
    key: str
    # The beginning of the prompt, as long as stickiness looks at.
    prefix: str

    @property
    def outstanding_tokens(self) -> int:
        """Estimated tokens that an instance has to do for it."""
        return int(self.numbers["prompt_tokens"] + self.numbers.get("max_tokens", DEFAULT_ANSWER_TOKENS))


def read_facts(raw: Mapping[str, Any], *, key: str, prefix_chars: int, modality: str = "text") -> RequestFacts:
    """Return the facts of the body `raw`, whatever shape its values have; `modality` is that of the route."""
    numbers = {name: float(raw[name]) for name in _NUMBERS if _is_number(raw.get(name))}
    for name in ("max_tokens", "max_completion_tokens"):
        if _is_number(raw.get(name)):
            numbers["max_tokens"] = float(raw[name])
    modalities = {modality}
    texts = list(_texts(raw, modalities))
    num_bytes = sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)
    if raw.get("audio") is not None:
        modalities.add("audio")
    wanted = raw.get("modalities")
    if isinstance(wanted, list):
        modalities.update(item for item in wanted if isinstance(item, str))
    prompt = raw.get("prompt")
    ids = prompt if isinstance(prompt, list) and prompt and isinstance(prompt[0], int) else []
    numbers["prompt_tokens"] = float(len(ids) or -(-num_bytes // BYTES_PER_TOKEN))
    prefix = repr(ids[:prefix_chars]) if ids else _head(texts, prefix_chars)
    model = raw.get("model")
    return RequestFacts(
        model if isinstance(model, str) else "",
        numbers,
        raw.get("stream") is True,
        frozenset(modalities - {"text"}) or frozenset({"text"}),
        key,
        prefix,
    )


def _texts(raw: Mapping[str, Any], modalities: set[str]) -> list[str]:
    texts: list[str] = []
    prompt = raw.get("prompt")
    if isinstance(prompt, str):
        texts.append(prompt)
    elif isinstance(prompt, list):
        texts += [item for item in prompt if isinstance(item, str)]
    messages = raw.get("messages")
    for message in messages if isinstance(messages, list) else ():
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, str):
            texts.append(content)
        for part in content if isinstance(content, list) else ():
            if not isinstance(part, dict):
                continue
            if isinstance(part.get("text"), str):
                texts.append(part["text"])
            kind = part.get("type")
            if isinstance(kind, str) and kind in _PART_MODALITY:
                modalities.add(_PART_MODALITY[kind])
    return texts


def _head(texts: list[str], num_chars: int) -> str:
    head = ""
    for text in texts:
        if len(head) >= num_chars:
            break
        head += text[: num_chars - len(head)] + "\n"
    return head[:num_chars]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e15
