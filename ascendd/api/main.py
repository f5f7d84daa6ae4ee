"""Entry of the API process: `python -m ascendd _api --control-fd N --listen-fd M`, started by the supervisor."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Sequence

from ascendd.api.front import load_front
from ascendd.api.process import ApiProcess
from ascendd.api.service import served_name
from ascendd.errors import PeerClosed, UsageError
from ascendd.ipc.channel import BlockingChannel
from ascendd.ipc.child import ChildArguments, receive_config, run_role
from ascendd.ipc.messages import ControlMessage, Role
from ascendd.telemetry import log


def main(argv: Sequence[str]) -> int:
    """Run the API process and return its exit status."""
    return run_role(Role.API, argv, _serve)


def _serve(arguments: ChildArguments, channel: BlockingChannel[ControlMessage]) -> int:
    if arguments.listen_fd is None:
        raise UsageError("the API process needs --listen-fd")
    os.set_inheritable(arguments.listen_fd, False)
    listener = socket.socket(fileno=arguments.listen_fd)
    config, _episode = receive_config(channel, Role.API)
    log.configure(config.log, instance=served_name(config), role=Role.API.value)
    service = load_front(config)

    async def body() -> None:
        try:
            await ApiProcess(service, listener, channel.into_async()).run()
        except PeerClosed:
            # The supervisor is gone: no tokenization in a thread may keep this process and its socket alive.
            os._exit(0)

    asyncio.run(body())
    return 0
