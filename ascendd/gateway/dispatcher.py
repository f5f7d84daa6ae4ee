"""One request from facts to answer: the rules, the attempts, and what is told to clients when none succeeds."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ascendd.config.certificate import check_pair
from ascendd.errors import InstanceUnavailable, InvalidRequest, ModelUnknown, QueueFull, RequestError
from ascendd.gateway.keys import NamedKeys, trusted, upstream_key
from ascendd.gateway.on_demand import OnDemand
from ascendd.gateway.pool import Attempt, Candidates, Instance, InstancePool
from ascendd.gateway.request_facts import RequestFacts
from ascendd.gateway.rules import BY_NAME, Choice, RuleBook
from ascendd.gateway.schema import AUTO, GatewayConfig
from ascendd.telemetry.log import get_logger
from ascendd.telemetry.metrics import GATEWAY_METRICS, MetricStore

_log = get_logger("gateway")
_RETRY_AFTER_S = 2


class Dispatcher:
    """Rules, instances, keys and figures of one configuration; a reload puts another in its place."""

    def __init__(self, config: GatewayConfig, earlier: Dispatcher | None = None) -> None:
        """Read every key file and certificate. Raises ConfigError or PermissionMissing."""
        self.config = config
        self.book = RuleBook(config)
        self.keys = NamedKeys(config.listen.api_key_file)
        self.headers: Mapping[str, dict[str, str]] = {
            entry.name: {}
            if entry.api_key_file is None
            else {"Authorization": f"Bearer {upstream_key(Path(entry.api_key_file))}"}
            for entry in config.instances
        }
        if config.listen.tls is not None:
            check_pair(config.listen.tls)
        self.trust: Mapping[str, ssl.SSLContext | bool] = {entry.name: trusted(entry) for entry in config.instances}
        self.pool: InstancePool = InstancePool(config, None if earlier is None else earlier.pool)
        self.metrics: MetricStore = MetricStore(GATEWAY_METRICS) if earlier is None else earlier.metrics
        self.on_demand = OnDemand(config, self.metrics)
        for rule in self.book.rules:
            for mode in ("live", "dry_run"):
                self.metrics.inc("ascendd_gateway_rule_matches_total", 0.0, labels=(rule.name, mode))

    def choose(self, facts: RequestFacts) -> tuple[Choice, Candidates]:
        """Return the choice of the rules and the attempts in their order. Raises RequestError where there are none."""
        choice = self.book.choose(facts)
        for name in choice.shadowed:
            self.metrics.inc("ascendd_gateway_rule_matches_total", labels=(name, "dry_run"))
        self.metrics.inc("ascendd_gateway_rule_matches_total", labels=(choice.rule, "live"))
        if choice.refuse is not None:
            raise InvalidRequest(
                f"{choice.refuse} (rule `{choice.rule}` of the gateway)",
                openai_code="refused_by_rule",
                rule=choice.rule,
            )
        if not choice.models:
            raise self._unknown(facts)
        candidates = self.pool.candidates(choice.models, facts, asyncio.get_running_loop().time())
        if not candidates.attempts:
            waking = None if candidates.num_up else self.on_demand.wake(choice.models, facts, self.pool)
            if waking is not None:
                raise waking
            raise refusal(choice, candidates, facts)
        return choice, candidates

    def _unknown(self, facts: RequestFacts) -> RequestError:
        if facts.model == AUTO:
            kinds = facts.modalities - {"text"}
            if kinds:
                return _no_modality(facts)
            return InvalidRequest(
                "no rule of the gateway matches this request; name a model, or have the operator add a rule without "
                "`when` at the end", param="model", openai_code="no_rule",
            )  # fmt: skip
        if not facts.model:
            return InvalidRequest(f"`model` is required; `{AUTO}` lets the gateway choose", param="model")
        return ModelUnknown(
            f"the model `{facts.model[:200]}` is served by no instance of this gateway; GET /v1/models lists the names",
            param="model", openai_code="model_not_found",
        )  # fmt: skip

    def failed(self, attempt: Attempt, reason: str, *, down: bool) -> None:
        """Note that an attempt came to nothing; `down` takes the instance out until a probe succeeds."""
        instance = attempt.instance
        self.metrics.inc("ascendd_gateway_fallbacks_total", labels=(instance.name, "down" if down else "full"))
        if down:
            self.mark(instance.name, is_up=False, reason=reason)
        else:
            instance.full_until_s = asyncio.get_running_loop().time() + _RETRY_AFTER_S
        _log.warning("gateway.attempt_failed", target=instance.name, model=attempt.model, reason=reason)

    def silent(self, instance: Instance) -> None:
        """
        Count a probe that got no answer in time; the last of `probe.fall` in a row takes the instance out.

        One slow answer is what a busy host gives, and taking its only instance out for it would refuse requests that
        are served a moment later.
        """
        instance.num_silent += 1
        section = self.config.probe
        if instance.num_silent >= section.fall or not instance.is_up:
            times = "once" if instance.num_silent == 1 else f"{instance.num_silent} times in a row"
            reason = f"{instance.entry.ready_path} has not answered within {section.timeout_s:g} s, {times}"
            self.mark(instance.name, is_up=False, reason=reason)

    def mark(self, name: str, *, is_up: bool, reason: str) -> None:
        """Set whether the instance called `name` is up, and log the change."""
        for instance in self.pool.instances:
            if instance.name == name:
                if instance.is_stopping:
                    return  # it may still answer, and is not to be asked
                if instance.entry.on_demand is not None and not is_up and not instance.is_loading:
                    reason = "not loaded"
                if is_up and not instance.is_up:
                    # Idle counts from here, also for one that was up before the gateway.
                    instance.used_at_s = asyncio.get_running_loop().time()
                if instance.is_up != is_up or instance.reason == "not asked yet":
                    log = _log.info if is_up else _log.warning
                    log("gateway.instance_up" if is_up else "gateway.instance_down", target=name, reason=reason)
                instance.is_up, instance.reason = is_up, reason

    def count(self, rule: str, instance: str, status: int, since_s: float) -> None:
        """Count one answered request; `since_s` is when it came (time.monotonic)."""
        self.metrics.inc("ascendd_gateway_requests_total", labels=(rule, instance, str(status)))
        self.metrics.observe("ascendd_gateway_request_duration_seconds", time.monotonic() - since_s)

    def gauge(self) -> None:
        """Bring the figures of instances up to date."""
        for instance in self.pool.instances:
            self.metrics.set("ascendd_gateway_instance_up", float(instance.is_up), (instance.name,))
            self.metrics.set("ascendd_gateway_open_requests", instance.num_open, (instance.name,))
            self.metrics.set("ascendd_gateway_outstanding_tokens", instance.outstanding_tokens, (instance.name,))


def refusal(choice: Choice, candidates: Candidates, facts: RequestFacts) -> RequestError:
    """Return why no instance can be tried: none has the modality (400), all are down (503), or all are full (429)."""
    if candidates.lacks_modality:
        return _no_modality(facts)
    models = " or ".join(f"`{model}`" for model in choice.models)
    how = "named by the request" if choice.rule == BY_NAME else f"chosen by rule `{choice.rule}`"
    if not candidates.num_up:
        return InstanceUnavailable(f"no instance that serves {models} ({how}) is up", rule=choice.rule)
    return QueueFull(
        f"every instance that serves {models} ({how}) has as much to do as it takes", retry_after_s=_RETRY_AFTER_S
    )


def _no_modality(facts: RequestFacts) -> RequestError:
    kinds: Any = ", ".join(sorted(facts.modalities - {"text"}))
    return InvalidRequest(
        f"this request holds {kinds}, which no instance behind this gateway serves yet; send text",
        openai_code="unsupported_modality",
    )
