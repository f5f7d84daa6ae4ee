"""
Names under which users of vLLM scrape our figures: exported beside ours, with vLLM's labels and bounds.

Source of names, labels and bounds: the metrics of vLLM's V1 engine, https://docs.vllm.ai/en/stable/design/metrics/.
Three names that older dashboards and alert rules ask for come last. A figure that we count per sequence (one of `n`
answers to one prompt) and vLLM per request is said to be so in its help.
"""

from __future__ import annotations

from dataclasses import dataclass

from ascendd.telemetry.buckets import (
    TOKEN_COUNT_BUCKETS,
    VLLM_CHOICE_BUCKETS,
    VLLM_FIRST_TOKEN_BUCKETS,
    VLLM_REQUEST_BUCKETS,
    VLLM_STEP_TOKEN_BUCKETS,
    VLLM_TOKEN_BUCKETS,
)

# vLLM numbers its engines; an instance has one.
COMMON_LABELS = ("model_name", "engine")
ENGINE_INDEX = "0"


@dataclass(frozen=True)
class Alias:
    """A second name for the metric `source`: labels renamed by position, and some of its bounds for a histogram."""

    name: str
    source: str
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


ALIASES = (
    Alias("vllm:num_requests_running", "ascendd_engine_sequences_running", "Sequences in execution."),
    Alias("vllm:num_requests_waiting", "ascendd_engine_sequences_waiting", "Sequences waiting."),
    Alias("vllm:kv_cache_usage_perc", "ascendd_engine_kv_usage_ratio", "KV cache usage; 1 means full."),
    Alias("vllm:prefix_cache_queries_total", "ascendd_engine_prefix_cache_queries_total", "Prompt tokens looked up."),
    Alias("vllm:prefix_cache_hits_total", "ascendd_engine_prefix_cache_hits_total", "Prompt tokens found in cache."),
    Alias("vllm:num_preemptions_total", "ascendd_engine_preemptions_total", "Sequences put back to waiting."),
    Alias("vllm:prompt_tokens_total", "ascendd_engine_prompt_tokens_total", "Prompt tokens."),
    Alias("vllm:generation_tokens_total", "ascendd_engine_generation_tokens_total", "Generated tokens."),
    Alias("vllm:request_success_total", "ascendd_requests_total", "Requests that ended.", ("finished_reason",)),
    Alias(
        "vllm:time_to_first_token_seconds", "ascendd_request_time_to_first_token_seconds",
        "Time to the first token.", (), VLLM_FIRST_TOKEN_BUCKETS,
    ),
    Alias(
        "vllm:inter_token_latency_seconds", "ascendd_request_inter_token_seconds",
        "Time between two tokens.", (), VLLM_TOKEN_BUCKETS,
    ),
    Alias(
        "vllm:e2e_request_latency_seconds", "ascendd_request_duration_seconds",
        "Time of whole requests.", (), VLLM_REQUEST_BUCKETS,
    ),
    Alias(
        "vllm:request_queue_time_seconds", "ascendd_engine_queue_seconds",
        "Time sequences waited for their first step.", (), VLLM_REQUEST_BUCKETS,
    ),
    Alias(
        "vllm:request_prefill_time_seconds", "ascendd_engine_prefill_seconds",
        "Time of sequences from their first step to their first token.", (), VLLM_REQUEST_BUCKETS,
    ),
    Alias(
        "vllm:request_decode_time_seconds", "ascendd_engine_decode_seconds",
        "Time of sequences from their first token to their last.", (), VLLM_REQUEST_BUCKETS,
    ),
    Alias(
        "vllm:iteration_tokens_total", "ascendd_engine_step_tokens",
        "Tokens computed in a step.", (), VLLM_STEP_TOKEN_BUCKETS,
    ),
    Alias(
        "vllm:request_prompt_tokens", "ascendd_request_prompt_tokens",
        "Prompt tokens of requests.", (), TOKEN_COUNT_BUCKETS,
    ),
    Alias(
        "vllm:request_generation_tokens", "ascendd_request_generation_tokens",
        "Generated tokens of requests.", (), TOKEN_COUNT_BUCKETS,
    ),
    Alias("vllm:request_params_n", "ascendd_request_choices", "Field n of requests.", (), VLLM_CHOICE_BUCKETS),
    Alias("vllm:gpu_cache_usage_ratio", "ascendd_engine_kv_usage_ratio", "KV cache usage; 1 means full."),
    Alias("vllm:request_queue_size", "ascendd_engine_sequences_waiting", "Sequences waiting."),
    Alias(
        "vllm:time_per_output_token_seconds", "ascendd_request_inter_token_seconds",
        "Time between two tokens.", (), VLLM_TOKEN_BUCKETS,
    ),
)  # fmt: skip
