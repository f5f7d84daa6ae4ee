"""How far a load of vLLM is, from its log."""

from __future__ import annotations

from ascendd.vllm.log_progress import LoadProgress

# Lines of a V1 engine, in their order, as public issues of vLLM 0.8 to 0.32 and vllm-ascend show them.
LINES = (
    "(APIServer pid=1) INFO 08-19 13:12:33 [api_server.py:1805] vLLM API server version 0.10.1",
    "(EngineCore_0 pid=2) INFO 08-19 13:12:47 [core.py:74] Initializing a V1 LLM engine (v0.10.1) with config: model='m'",
    "(EngineCore_0 pid=2) INFO 08-19 13:12:48 [gpu_model_runner.py:1] Starting to load model m...",
    "Loading safetensors checkpoint shards:   0% Completed | 0/4 [00:00<?, ?it/s]",
    "Loading safetensors checkpoint shards:  50% Completed | 2/4 [00:01<00:01,  1.02s/it]",
    "Loading safetensors checkpoint shards: 100% Completed | 4/4 [00:02<00:00,  1.02s/it]",
    "(EngineCore_0 pid=2) INFO 08-19 13:12:50 [default_loader.py:262] Loading weights took 2.10 seconds",
    "(EngineCore_0 pid=2) INFO 08-19 13:12:50 [gpu_model_runner.py:2] Model loading took 1.2 GiB and 2.5 seconds",
    "(EngineCore_0 pid=2) INFO 08-19 13:12:55 [backends.py:559] Dynamo bytecode transform time: 4.1 s",
    "(EngineCore_DP0 pid=2) INFO 10-27 11:59:15 [kv_cache_utils.py:1087] GPU KV cache size: 246,272 tokens",
    "(EngineCore_DP0 pid=2) INFO 10-27 11:59:15 [kv_cache_utils.py:1087] GPU KV cache size: 236,416 tokens",
    "Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):  33%|###      | 1/3 [00:00<00:01]",
    "Capturing CUDA graphs (mixed prefill-decode, PIECEWISE): 100%|#########| 3/3 [00:01<00:00]",
    "(Worker_TP0 pid=3) INFO 07-07 12:54:22 [gpu_model_runner.py:6456] Graph capturing finished in 21 secs, took 0.23 GiB",
    "(EngineCore_0 pid=2) INFO [core.py:193] init engine (profile, create kv cache, warmup model) took 9.30 seconds",
    "(APIServer pid=1) INFO:     Application startup complete.",
)


def test_every_stage_moves_on():
    """Each line of a load is further than the one before it, but for a second rank's cache."""
    progress = LoadProgress()

    moved = [progress.read(line) for line in LINES]

    assert [LINES[at] for at, further in enumerate(moved) if not further] == [LINES[3], LINES[10]]
    assert (progress.phase, progress.fraction) == ("vLLM listens", 0.98)


def test_facts_of_the_load_are_kept():
    """The version, and the tokens of the smallest cache, are for who asks the keeper."""
    progress = LoadProgress()
    for line in LINES:
        progress.read(line)

    assert (progress.version, progress.cache_tokens) == ("0.10.1", 236_416)


def test_nothing_goes_back_and_noise_is_no_progress():
    """An earlier stage's line, or one that nobody knows, is no sign of progress."""
    progress = LoadProgress()
    progress.read(LINES[5])

    assert not progress.read(LINES[4])
    assert not progress.read("INFO 08-19 still waiting for the lock of a file")
    assert progress.phase == "loading weights"
