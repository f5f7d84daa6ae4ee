"""The chat's link to a server: a stream is read by a thread, so that whoever shows it can leave at any moment."""

from __future__ import annotations

import contextlib
import http.client
import json
import queue
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult

from ascendd.errors import ServerUnreachable

# How long a wish to stop may wait while nothing comes from the server.
_LOOK_S = 0.1
_TIMEOUT_S = 600.0
_UNREADABLE = (OSError, ValueError, LookupError, TypeError, AttributeError, http.client.HTTPException)


@dataclass(frozen=True)
class ChatPiece:
    """What came of an answer at once: text of it, or of the reasoning before it."""

    content: str = ""
    reasoning: str = ""


@dataclass(frozen=True)
class _End:
    """The last thing a reader hands over; no error: the answer is whole."""

    error: ServerUnreachable | None


class ChatLink:
    """One server, asked over a new connection each time; leaving a stream early ends it at the server."""

    def __init__(self, parts: SplitResult, key: str | None, trusted: ssl.SSLContext | None = None) -> None:
        self._parts = parts
        self._trusted = trusted
        self._headers = {"Content-Type": "application/json"}
        if key is not None:
            self._headers["Authorization"] = f"Bearer {key}"

    def first_model(self) -> str:
        """Return the first model that the server lists. Raises ServerUnreachable."""
        exchange = self._exchange("GET", "models", None)
        try:
            return str(json.loads(exchange.open().read())["data"][0]["id"])
        except _UNREADABLE:
            raise ServerUnreachable("the server lists no model", remedy="Name one with --model.") from None
        finally:
            exchange.close()

    def stream(self, body: dict[str, Any], is_stopped: Callable[[], bool] = lambda: False) -> Iterator[ChatPiece]:
        """
        Yield pieces to the end, or until `is_stopped`, which is asked every 0.1 s at the latest.

        Raises ServerUnreachable for an error of any kind, in the stream or before.
        """
        # Not read here: a signal between the interpreter's look for one and the wait in the system call would go
        # unseen until the server sends more, and a look-up of a name cannot be interrupted at all.
        pieces: queue.SimpleQueue[ChatPiece | _End] = queue.SimpleQueue()
        exchange = self._exchange("POST", "chat/completions", json.dumps(body))
        threading.Thread(target=_read, args=(exchange, pieces), daemon=True, name="answer").start()
        try:
            while not is_stopped():
                try:
                    piece = pieces.get(timeout=_LOOK_S)
                except queue.Empty:
                    continue
                if not isinstance(piece, _End):
                    yield piece
                elif piece.error is None:
                    return
                else:
                    raise piece.error
        finally:
            exchange.cut()

    def _exchange(self, method: str, name: str, body: str | None) -> _Exchange:
        root = self._parts.path.rstrip("/")
        path = f"{root if root.endswith('/v1') else root + '/v1'}/{name}"
        return _Exchange(self._parts, self._trusted, (method, path, body, self._headers))


class _Exchange:
    """One request (method, path, body, headers) and its answer; `cut` is for another thread than the one that reads."""

    def __init__(
        self,
        parts: SplitResult,
        trusted: ssl.SSLContext | None,
        request: tuple[str, str, str | None, dict[str, str]],
    ) -> None:
        host = parts.hostname or ""
        self._connection = (
            http.client.HTTPSConnection(host, parts.port, timeout=_TIMEOUT_S, context=trusted)
            if parts.scheme == "https"
            else http.client.HTTPConnection(host, parts.port, timeout=_TIMEOUT_S)
        )
        self._server = f"{parts.scheme}://{parts.netloc}"
        self._request = request
        self._socket: socket.socket | None = None
        self._response: http.client.HTTPResponse | None = None
        self._is_cut = False

    def open(self) -> http.client.HTTPResponse:
        """Send the request and return the answer, which has status 200. Raises ServerUnreachable."""
        path = self._request[1]
        try:
            self._connection.connect()
            self._socket = self._connection.sock
            if self._is_cut:
                self.cut()  # it was asked for before there was anything to cut
            self._connection.request(*self._request)
            self._response = response = self._connection.getresponse()
            if response.status == 200:
                return response
            text = response.read().decode("utf-8", "replace")
        except (OSError, http.client.HTTPException) as error:
            raise ServerUnreachable(f"{self._server}: {error}") from error
        raise ServerUnreachable(f"{path} answered {response.status}: {_message(text)}")

    def cut(self) -> None:
        """End the connection under a thread that reads from it, which then sees the end of the stream."""
        self._is_cut = True
        if self._socket is not None:
            with contextlib.suppress(OSError):
                # The plain one: that of a TLS socket takes the cipher away from under the reader.
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def close(self) -> None:
        """Give the connection back; for the thread that reads."""
        if self._response is not None:
            self._response.close()
        self._connection.close()


def _read(exchange: _Exchange, pieces: queue.SimpleQueue[ChatPiece | _End]) -> None:
    end = _End(ServerUnreachable("the answer broke off: the stream has no end"))
    try:
        response = exchange.open()
        while line := response.readline():
            data = line.removeprefix(b"data:").strip()
            if not line.startswith(b"data:"):
                continue
            if data == b"[DONE]":
                end = _End(None)
                return
            event = json.loads(data)
            if event.get("error"):
                raise ServerUnreachable(str(event["error"].get("message", event["error"])))
            for choice in event.get("choices") or ():
                delta = choice.get("delta") or {}
                # vLLM's newer servers leave the second half of the name out.
                reasoning = delta.get("reasoning_content") or delta.get("reasoning") or ""
                pieces.put(ChatPiece(str(delta.get("content") or ""), str(reasoning)))
    except ServerUnreachable as error:
        end = _End(error)
    except _UNREADABLE as error:
        end = _End(ServerUnreachable(f"the answer broke off: {error}"))
    finally:
        exchange.close()
        pieces.put(end)


def _message(text: str) -> str:
    try:
        return str(json.loads(text)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return text[:300]
