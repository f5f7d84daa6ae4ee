"""One real request over the own listener, so that ready means: a client would get a token."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import time

import aiohttp

from ascendd.api.service import FrontService
from ascendd.errors import AscenddError, SelfTestFailed
from ascendd.ipc.messages import Fault, SelfTestDone


async def run_self_test(service: FrontService, listener: socket.socket, episode: int) -> SelfTestDone:
    """Ask for one token of `service` at `listener`'s address; a failure is in the result's fault, never raised."""
    started = time.monotonic()
    timeout_s = service.config.health.self_test_timeout_s
    try:
        await asyncio.wait_for(
            _ask(service, own_url(listener, "http" if service.tls is None else "https"), timeout_s), timeout_s
        )
    except (asyncio.TimeoutError, TimeoutError):
        error: AscenddError = SelfTestFailed(f"no token came back within {timeout_s:g} s (health.self_test_timeout_s)")
    except AscenddError as failure:
        error = failure
    except (aiohttp.ClientError, OSError, ValueError) as failure:
        error = SelfTestFailed(f"the own listener did not answer: {type(failure).__name__}: {failure}")
    else:
        return SelfTestDone(episode, time.monotonic() - started)
    return SelfTestDone(episode, time.monotonic() - started, Fault.from_error(error))


def own_url(listener: socket.socket, scheme: str = "http") -> str:
    """Return the URL under which this machine reaches `listener`; an address for all interfaces becomes loopback."""
    host, port = listener.getsockname()[:2]
    address = ipaddress.ip_address(host.split("%", 1)[0])
    if address.is_unspecified:
        address = ipaddress.ip_address("127.0.0.1" if address.version == 4 else "::1")
    return f"{scheme}://[{address}]:{port}" if address.version == 6 else f"{scheme}://{address}:{port}"


async def _ask(service: FrontService, url: str, timeout_s: float) -> None:
    await service.engine.wait_attached()
    body = {
        "model": service.model_name,
        "prompt": "Hello",
        "max_tokens": 1,
        "temperature": 0,
        "ignore_eos": True,
    }
    with service.authenticator.one_time_key() as key:
        headers = {"Authorization": f"Bearer {key}"}
        # Its certificate is for the name that clients use, not for this address: it must be the very one that was read.
        ssl = True if service.tls is None else aiohttp.Fingerprint(service.tls.certificate.digest)
        # trust_env stays off: a proxy must not come between the daemon and itself.
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=timeout_s)) as session,
            session.post(f"{url}/v1/completions", json=body, headers=headers, ssl=ssl) as response,
        ):
            answer = await response.json(content_type=None)
            if response.status != 200:
                reason = answer.get("error", {}).get("message") if isinstance(answer, dict) else None
                raise SelfTestFailed(f"the test request was answered {response.status}: {reason}")
    num_tokens = answer["usage"]["completion_tokens"]
    if num_tokens != 1:
        raise SelfTestFailed(f"the test request asked for 1 token and got {num_tokens}")
