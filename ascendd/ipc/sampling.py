"""How tokens of a sequence are chosen: part of AddSequence (ipc.messages)."""

from __future__ import annotations

import msgspec


class Grammar(msgspec.Struct, array_like=True, frozen=True):
    """What the output must fit, in llguidance's form; `param` is the field of the request that asked for it."""

    text: str
    param: str


class SamplingParams(msgspec.Struct, array_like=True, frozen=True):
    """
    How the next token of a sequence is chosen; already validated by the API.

    `temperature` 0 is greedy. `top_k` 0 and `top_p` 1.0 are off. `seed` None draws a fresh stream.
    `stop_token_ids` stop whatever `ignore_eos` says; the model's own EOS ids are known to the engine.
    Presence and frequency penalty count output tokens, the repetition penalty prompt and output (1.0 is off).
    `bad_words` are token sequences whose last token is banned where the output ends with the others; `logit_bias` is
    added to the logits; of non-empty `allowed_token_ids` alone tokens are drawn.
    `logprobs` is the number of alternatives told beside each drawn token, None tells nothing; `prompt_logprobs` the
    same for each prompt token but the first. `max_tokens` may be 0 with it: only the prompt is scored.
    Tokens that leave `grammar` are not drawn.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    min_tokens: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = {}
    bad_words: tuple[tuple[int, ...], ...] = ()
    allowed_token_ids: tuple[int, ...] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    grammar: Grammar | None = None
