"""
How long the gateway takes to decide: 50 rules, 8 instances, the last rule matches. Exit 1 above 100 microseconds.

    python tests/bench/bench_routing.py
"""

from __future__ import annotations

import json
import statistics
import sys
import time

from ascendd.gateway.pool import InstancePool
from ascendd.gateway.request_facts import read_facts
from ascendd.gateway.rules import RuleBook
from ascendd.gateway.schema import load_text

NUM_RULES = 50
LIMIT_S = 100e-6


def main() -> int:
    """Measure the reading of facts and the decision; print microseconds."""
    instances = ", ".join(f"{{name: i{n}, url: 'http://127.0.0.1:{9000 + n}', models: [m]}}" for n in range(8))
    rules = [
        f"{{name: r{n}, when: {{temperature: '>= {n + 1}.5', max_tokens: '< 9', stream: true, key: 'team-{n}'}}, to: m}}"
        for n in range(NUM_RULES - 1)
    ]
    config = load_text(f"instances: [{instances}]\nrules: [{', '.join([*rules, '{name: last, to: m}'])}]")
    book, pool = RuleBook(config), InstancePool(config)
    for instance in pool.instances:
        instance.is_up = True
    message = "The quick brown fox jumps over the lazy dog. " * 20
    body = {"model": "auto", "stream": True, "temperature": 0.7, "max_tokens": 256,
            "messages": [{"role": "system", "content": message}, {"role": "user", "content": message}]}  # fmt: skip
    times: list[float] = []
    for _ in range(5000):
        started = time.perf_counter()
        facts = read_facts(body, key="team-x", prefix_chars=1024)
        choice = book.choose(facts)
        found = pool.candidates(choice.models, facts, 0.0)
        times.append(time.perf_counter() - started)
        assert choice.rule == "last"
        assert len(found.attempts) == 8
    times.sort()
    median_s = statistics.median(times)
    figures = {"rules": NUM_RULES, "instances": 8, "median_us": round(median_s * 1e6, 1),
               "p99_us": round(times[int(len(times) * 0.99)] * 1e6, 1), "limit_us": LIMIT_S * 1e6}  # fmt: skip
    print(json.dumps(figures))
    return 0 if median_s < LIMIT_S else 1


if __name__ == "__main__":
    sys.exit(main())
