"""
A stand-in for the parts of Ray that a unit meets: `ray start --block`, and the `python` of its environment that asks.

    standin_ray.py ray start --block --node-ip-address A (--head --port P | --address H:P)
    standin_ray.py python -c CODE HOST:PORT EVERY_S

As Ray's, the head listens on every interface and takes who has its token; a node has a child of its own (a raylet) and
ends without it; a node whose connection ends is lost.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path


def token() -> str:
    """Return the token of the file that the environment names."""
    assert os.environ["RAY_AUTH_MODE"] == "token"
    return Path(os.environ["RAY_AUTH_TOKEN_PATH"]).read_text().strip()


class Head:
    """Who is there, by address."""

    def __init__(self, own: str, port: int) -> None:
        self.nodes = {own: True}
        self.labels: dict[str, dict[str, str]] = {}
        self.secret = token()
        self.server = socket.create_server(("0.0.0.0", port))
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        """Take whoever comes."""
        while True:
            threading.Thread(target=self.serve, args=(self.server.accept()[0],), daemon=True).start()

    def serve(self, sock: socket.socket) -> None:
        """Answer `ASK token`, or hold `JOIN token address` until its connection ends."""
        with sock, sock.makefile("rw") as file:
            word, secret, *rest = file.readline().split()
            if secret != self.secret:
                file.write("Unauthenticated: invalid token\n")
                return
            if word == "ASK":
                file.write(
                    "NODES "
                    + json.dumps([[n, alive, self.labels.get(n, {})] for n, alive in self.nodes.items()])
                    + "\n"
                )
                return
            self.nodes[rest[0]] = True
            self.labels[rest[0]] = labelled(rest[1])
            file.write("JOINED\n")
            file.flush()
            with contextlib.suppress(OSError):
                file.readline()
            self.nodes[rest[0]] = False


def labelled(text: str) -> dict[str, str]:
    """Return the labels of `--labels a=b,c=d`."""
    return dict(part.split("=", 1) for part in text.split(","))


def talk(address: str, line: str) -> tuple[socket.socket, str]:
    """Say one line to the head and return the connection and its answer."""
    host, _, port = address.partition(":")
    sock = socket.create_connection((host, int(port)), 5)
    sock.sendall(f"{line}\n".encode())
    sock.settimeout(20)
    return sock, sock.makefile().readline().strip()


def ask(address: str, every_s: float) -> int:
    """Print the nodes, once or again and again."""
    while True:
        _, answer = talk(address, f"ASK {token()}")
        if not answer.startswith("NODES"):
            print(answer, file=sys.stderr)
            return 1
        print(answer, flush=True)
        if not every_s:
            return 0
        time.sleep(every_s)


def start(argv: list[str]) -> int:
    """Be a node until told to end or without a raylet."""
    parser = argparse.ArgumentParser(prog="ray start")
    for name in ("--block", "--head", "--disable-usage-stats"):
        parser.add_argument(name, action="store_true")
    for name in ("--node-ip-address", "--address", "--include-dashboard", "--labels"):
        parser.add_argument(name)
    parser.add_argument("--port", type=int)
    args = parser.parse_args(argv)
    folder = Path(os.environ["RAY_TMPDIR"]) / "ray"
    folder.mkdir(exist_ok=True)
    raylet = subprocess.Popen(["raylet", "86400"], executable="/bin/sleep")
    signal.signal(signal.SIGTERM, lambda *_: (raylet.terminate(), sys.exit(0)))
    if args.head:
        Head(args.node_ip_address, args.port).labels[args.node_ip_address] = labelled(args.labels)
    else:
        sock, answer = talk(args.address, f"JOIN {token()} {args.node_ip_address} {args.labels}")
        if answer != "JOINED":
            print(answer, file=sys.stderr)
            return 1
        threading.Thread(target=lambda: (sock.recv(1), os._exit(1)), daemon=True).start()
    print(f"node {args.node_ip_address} runs", flush=True)
    return raylet.wait() and 1


if __name__ == "__main__":
    if sys.argv[1] == "python":
        sys.exit(ask(sys.argv[4], float(sys.argv[5])))
    sys.exit(start(sys.argv[3:]))
