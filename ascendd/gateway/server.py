"""The gateway's process: its listener, its probes of instances, its metrics page and its life under systemd."""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
import time
from pathlib import Path

import aiohttp
import msgspec
from aiohttp import hdrs, web

from ascendd.api.errors import as_request_error, error_response
from ascendd.api.server_tls import ServerTls
from ascendd.api.wire import JsonRunner
from ascendd.config.quantity import parse_bytes
from ascendd.errors import AscenddError, InstanceUnavailable, ListenFailed
from ascendd.gateway.dispatcher import Dispatcher
from ascendd.gateway.pool import Instance
from ascendd.gateway.proxy import Proxy
from ascendd.gateway.schema import AUTO, GatewayConfig, load_gateway
from ascendd.host.systemd import Notifier
from ascendd.telemetry import log
from ascendd.telemetry.exporter import MetricsServer
from ascendd.telemetry.exposition import Exposition
from ascendd.telemetry.scrape_limit import ScrapeLimit

_log = log.get_logger("gateway")
_PERIOD_S = 1.0
_FAREWELL_S = 30.0
_PASSED = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/tokenize", "/detokenize")


class Gateway:
    """Serves `config` until SIGTERM or SIGINT; SIGHUP reads `path` again."""

    def __init__(self, config: GatewayConfig, path: Path) -> None:
        self._path = path
        self._dispatcher = Dispatcher(config)
        self._tls = ServerTls.of(config.listen.tls, "gateway")
        self._page = Exposition("gateway")
        self._notifier = Notifier()
        self._started_unix_s = int(time.time())

    async def run(self) -> None:
        """Listen, probe, say READY, and drain at the end. Raises ListenFailed."""
        config = self._dispatcher.config
        listener = bind(config.listen.host, config.listen.port)
        metrics = self._serve_metrics() if config.metrics.enabled else None
        loop = asyncio.get_running_loop()
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        # No limit of connections: how much an instance takes is its own affair, and told by 429.
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), auto_decompress=False) as session:
            self._proxy = Proxy(session)
            runner = JsonRunner(self._app(), handler_cancellation=True, access_log=None, shutdown_timeout=_FAREWELL_S)
            await runner.setup()
            await self._probe_all(session)
            context = None if self._tls is None else self._tls.context
            await web.SockSite(runner, listener, backlog=1024, ssl_context=context).start()
            host, port = listener.getsockname()[:2]
            _log.info(
                "gateway.listening", host=host, port=port, metrics_port=None if metrics is None else metrics.server_port
            )
            self._notifier.ready()
            tasks = [asyncio.create_task(self._watch(session)), asyncio.create_task(self._report())]
            stopping = asyncio.create_task(stop.wait())
            await asyncio.wait([*tasks, stopping], return_when=asyncio.FIRST_COMPLETED)
            # A gateway that no longer watches or reports is worse than one that is started again.
            failed = [task for task in tasks if task.done()]
            self._notifier.stopping()
            for task in (*tasks, stopping):
                task.cancel()
            _log.info("gateway.stopping", open_requests=sum(i.num_open for i in self._dispatcher.pool.instances))
            await runner.cleanup()
        if metrics is not None:
            metrics.shutdown()
        for task in failed:
            task.result()

    def _app(self) -> web.Application:
        app = web.Application(client_max_size=parse_bytes(self._dispatcher.config.listen.max_body_bytes))
        app.on_response_prepare.append(_hide_software)
        for path in _PASSED:
            app.router.add_post(path, self._pass)
        app.router.add_post("/v1/audio/{tail:.+}", self._pass)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/livez", self._livez)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/health", self._readyz)
        return app

    async def _pass(self, request: web.Request) -> web.StreamResponse:
        return await self._proxy.answer(request, self._dispatcher)

    async def _models(self, request: web.Request) -> web.Response:
        try:
            self._dispatcher.keys.check(request.path, request.headers.get("Authorization"))
        except AscenddError as error:
            return error_response(as_request_error(error))
        names = [AUTO] if self._dispatcher.book.rules else []
        names += [
            n
            for n in self._dispatcher.book.served
            if any(n in i.models and (i.is_up or i.entry.on_demand) for i in self._dispatcher.pool.instances)
        ]
        data = [
            {"id": name, "object": "model", "created": self._started_unix_s, "owned_by": "ascendd"} for name in names
        ]
        return _json(200, {"object": "list", "data": data})

    async def _livez(self, _request: web.Request) -> web.Response:
        return _json(200, {"status": "alive"})

    async def _readyz(self, _request: web.Request) -> web.Response:
        instances = self._dispatcher.pool.instances
        # One that is loaded on demand is where it should be, up or not.
        num_up = sum(instance.is_up or instance.entry.on_demand is not None for instance in instances)
        if not num_up:
            return error_response(InstanceUnavailable("no instance behind this gateway is up"))
        return _json(200, {"status": "ready" if num_up == len(instances) else "degraded"})

    def _reload(self) -> None:
        try:
            config = load_gateway(self._path)
            fresh = Dispatcher(config, self._dispatcher)
        except AscenddError as error:
            _log.error("gateway.reload_refused", code=error.code, reason=error.message)
            return
        old = self._dispatcher.config
        kept = [key for key in ("listen", "metrics") if _place(old, key) != _place(config, key)]
        self._dispatcher = fresh
        if self._tls is not None:
            self._tls.reload()
        _log.info("gateway.reloaded", rules=len(config.rules), instances=len(config.instances), needs_restart=kept)

    async def _watch(self, session: aiohttp.ClientSession) -> None:
        while True:
            await asyncio.sleep(self._dispatcher.config.probe.interval_s)
            await self._probe_all(session)
            await self._dispatcher.on_demand.tick(self._dispatcher.pool)

    async def _probe_all(self, session: aiohttp.ClientSession) -> None:
        dispatcher = self._dispatcher
        await asyncio.gather(*(self._probe(session, dispatcher, item) for item in dispatcher.pool.instances))

    async def _probe(self, session: aiohttp.ClientSession, dispatcher: Dispatcher, instance: Instance) -> None:
        timeout = aiohttp.ClientTimeout(total=dispatcher.config.probe.timeout_s)
        url = instance.entry.url.rstrip("/") + instance.entry.ready_path
        try:
            trust = dispatcher.trust[instance.name]
            headers = dispatcher.headers[instance.name]
            async with session.get(url, headers=headers, timeout=timeout, ssl=trust) as response:
                is_up, reason = response.status == 200, f"{instance.entry.ready_path} answers {response.status}"
        except (asyncio.TimeoutError, TimeoutError):
            dispatcher.silent(instance)
            return
        except (aiohttp.ClientError, OSError) as error:
            is_up, reason = False, f"{type(error).__name__}: {error}"
        instance.num_silent = 0
        dispatcher.mark(instance.name, is_up=is_up, reason=reason)

    async def _report(self) -> None:
        while True:
            self._dispatcher.gauge()
            self._page.replace(self._dispatcher.metrics.samples())
            instances = self._dispatcher.pool.instances
            down = [i.name for i in instances if not i.is_up and i.entry.on_demand is None]
            asleep = [i.name for i in instances if not i.is_up and i.entry.on_demand is not None]
            self._notifier.status(f"{len(instances) - len(down) - len(asleep)} of {len(instances)} instances up"
                                  + (f"; not loaded: {', '.join(asleep)}" if asleep else "")
                                  + (f"; down: {', '.join(down)}" if down else ""))  # fmt: skip
            self._notifier.watchdog()
            await asyncio.sleep(_PERIOD_S)

    def _serve_metrics(self) -> MetricsServer:
        section = self._dispatcher.config.metrics
        limit = ScrapeLimit(section.max_scrapes_per_s)
        server = MetricsServer(bind(section.host, section.port), self._page, limit)
        threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 1.0}, daemon=True, name="metrics"
        ).start()
        return server


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raises ListenFailed."""
    try:
        return socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=1024
        )
    except OSError as error:
        raise ListenFailed(f"{host}:{port} cannot be listened on: {error.strerror}", host=host, port=port) from error


def _place(config: GatewayConfig, key: str) -> tuple[object, ...]:
    section = getattr(config, key)
    return section.host, section.port, getattr(section, "tls", None)


async def _hide_software(_request: web.Request, response: web.StreamResponse) -> None:
    response.headers.pop(hdrs.SERVER, None)


def _json(status: int, value: object) -> web.Response:
    return web.Response(
        body=msgspec.json.encode(value),
        status=status,
        content_type="application/json",
        headers={"Cache-Control": "no-store"},
    )


def run_gateway(path: Path) -> int:
    """Run the gateway of the file `path` to its end. Raises ConfigError, PermissionMissing or ListenFailed."""
    config = load_gateway(path)
    log.configure(config.log, role="gateway")
    asyncio.run(Gateway(config, path).run())
    return 0
