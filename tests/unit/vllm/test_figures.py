"""vLLM's page of metrics."""

from __future__ import annotations

from ascendd.vllm.figures import read_figures

PAGE = b"""# HELP python_info Python platform information
# TYPE python_info gauge
python_info{version="3.12"} 1.0
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 2.0
vllm:num_requests_running{engine="1",model_name="m"} 1.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 4.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.5
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0",model_name="m"} 1.2e+03
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{engine="0",model_name="m"} 34.0
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",num_gpu_blocks="100",sliding_window="None"} 1.0
http_requests_total{handler="/v1/completions"} 7.0
"""


def test_figures_are_summed_over_engines_and_the_fullest_cache_counts():
    """What runs and waits is added up; a cache that is full is not hidden by one that is empty."""
    figures = read_figures(PAGE)

    told = {sample.name: sample.value for sample in figures.samples}
    assert (figures.num_running, figures.num_waiting, figures.num_tokens) == (3, 4, 1234.0)
    assert told["ascendd_engine_kv_usage_ratio"] == 0.5
    assert (told["ascendd_engine_kv_blocks"], told["ascendd_engine_kv_blocks_used"]) == (100.0, 50.0)
    assert (figures.num_blocks, figures.block_size) == (100, 16)


def test_only_vllm_s_families_are_passed_on():
    """What its Python and its web server count is none of the instance's."""
    text = read_figures(PAGE).text.decode()

    assert all("vllm:" in line for line in text.splitlines())
    assert 'vllm:prompt_tokens_total{engine="0",model_name="m"} 1.2e+03' in text


def test_what_it_does_not_tell_is_left_out():
    """An older vLLM's page, or none, gives no zeros for names that it lacks."""
    figures = read_figures(b"vllm:num_requests_running 1.0\nvllm:num_requests_waiting nonsense\n")

    assert [sample.name for sample in figures.samples] == ["ascendd_engine_sequences_running"]
    assert read_figures(b"").text == b""
