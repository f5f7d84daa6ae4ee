"""`ascendd chat`: a conversation in the terminal with any OpenAI-compatible server; a pipe gets the bare answer."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Optional, TextIO
from urllib.parse import urlsplit

import typer

from ascendd.cli.chat_interrupts import Interrupts
from ascendd.cli.chat_link import ChatLink
from ascendd.cli.chat_screen import Screen
from ascendd.errors import AscenddError, UsageError

_HELP = """/help            this text
/system TEXT     set the system prompt and begin anew; without TEXT there is none
/new             forget the conversation
/undo            take back the last question and its answer
/retry           ask the last question again
/temperature T   set the sampling temperature
/max N           set the most tokens of an answer; 0 for no limit
/save FILE       write the conversation as JSON
/exit            leave; so does Ctrl-D"""


def register(app: typer.Typer) -> None:
    """Add the verb to `app`."""
    app.command("chat")(chat)


def chat(  # noqa: PLR0917 - typer reads one parameter per option
    url: Annotated[str, typer.Option(metavar="URL", help="The server.")] = "http://127.0.0.1:8000",
    model: Annotated[
        str, typer.Option(metavar="NAME", help="The model; default: the first that the server lists.")
    ] = "",
    system: Annotated[str, typer.Option(metavar="TEXT", help="A system prompt.")] = "",
    temperature: Annotated[
        Optional[float], typer.Option(metavar="T", min=0, max=2, help="Sampling temperature.")
    ] = None,
    max_tokens: Annotated[Optional[int], typer.Option(metavar="N", min=1, help="Most tokens of an answer.")] = None,
    ca_file: Annotated[
        Optional[Path], typer.Option(metavar="FILE", help="Certificates to trust instead of the host's, as PEM.")
    ] = None,
    api_key_file: Annotated[Optional[Path], typer.Option(metavar="FILE", help="File with the API key.")] = None,
    api_key_env: Annotated[
        Optional[str], typer.Option(metavar="NAME", help="Environment variable with the API key.")
    ] = None,
) -> int:
    """
    Talk to a served model. In a pipe all of standard input is one question, and the answer alone is printed.

    Exit status: 0 done; 1 an answer broke off; 70 the server did not answer.
    """
    from ascendd.cli.ca_option import trust
    from ascendd.cli.key_option import read_key

    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"--url {url!r} is not the address of a server; write http://HOST:PORT")
    link = ChatLink(parts, read_key(api_key_file, api_key_env), trust(ca_file))
    talk = Conversation(model or link.first_model(), system, temperature, max_tokens)
    if not sys.stdin.isatty():
        question = sys.stdin.read().strip()
        if not question:
            raise UsageError("standard input holds no question")
        with Interrupts() as interrupts:
            return 0 if talk.ask(link, question, sys.stdout, interrupts) else 1
    with Interrupts() as interrupts:
        return _converse(link, talk, url, interrupts)


@dataclass
class Conversation:
    """The messages so far and how the next answer is made."""

    model: str
    system: str = ""
    temperature: float | None = None
    max_tokens: int | None = None
    messages: list[dict[str, str]] = field(default_factory=list)

    def body(self) -> dict[str, Any]:
        """Return the request for the next answer."""
        head = [{"role": "system", "content": self.system}] if self.system else []
        body: dict[str, Any] = {"model": self.model, "messages": head + self.messages, "stream": True}
        if self.temperature is not None:
            body["temperature"] = self.temperature
        if self.max_tokens is not None:
            body["max_tokens"] = self.max_tokens
        return body

    def ask(self, link: ChatLink, question: str, out: TextIO, interrupts: Interrupts) -> bool:
        """Ask, write the answer to `out` as it comes, and keep both; False where it broke off or Ctrl-C ended it."""
        self.messages.append({"role": "user", "content": question})
        screen, is_whole = Screen(out), False
        try:
            for piece in link.stream(self.body(), lambda: interrupts.is_asked):
                screen.show(piece)
            is_whole = not interrupts.is_asked
        except AscenddError as error:
            print(f"{chr(10) if screen.answer else ''}error {error.code}: {error.message}", file=sys.stderr)
        if interrupts.is_asked:
            print("\n(stopped)", file=sys.stderr)
        screen.end()
        # Reasoning is not sent back: templates leave that of earlier turns out.
        if screen.answer:
            self.messages.append({"role": "assistant", "content": screen.answer})
        else:
            self.messages.pop()
            if screen.reasoning and is_whole:
                print("(the answer ended within its reasoning; allow it more tokens)", file=sys.stderr)
        return is_whole

    def undo(self) -> str | None:
        """Take back the last question and its answer; return the question, None where there is none."""
        while self.messages:
            last = self.messages.pop()
            if last["role"] == "user":
                return last["content"]
        return None


def _converse(link: ChatLink, talk: Conversation, url: str, interrupts: Interrupts) -> int:
    print(f"{talk.model} at {url}; /help lists commands, Ctrl-C stops an answer, Ctrl-D leaves", file=sys.stderr)
    while True:
        try:
            line = interrupts.line("> ").strip()
        except EOFError:
            print(file=sys.stderr)
            return 0
        if not line:
            continue
        if line.startswith("/"):
            question = command(talk, line)
            if question is None:
                return 0
            if not question:
                continue
            line = question
        talk.ask(link, line, sys.stdout, interrupts)


def command(talk: Conversation, line: str) -> str | None:
    """Do what a line with a slash says; return a question to ask, "" for none, None to leave."""
    name, _, rest = line[1:].partition(" ")
    rest = rest.strip()
    said = ""
    if name in ("exit", "quit"):
        return None
    if name == "retry":
        question = talk.undo()
        if question is not None:
            return question
        said = "there is no question yet"
    elif name == "help":
        said = _HELP
    elif name == "system":
        talk.system = rest
        talk.messages.clear()
        said = "begun anew"
    elif name == "new":
        talk.messages.clear()
        said = "forgotten"
    elif name == "undo":
        said = "taken back" if talk.undo() is not None else "there is no question yet"
    elif name in ("temperature", "max"):
        said = _set_number(talk, name, rest)
    elif name == "save":
        said = _save(talk, rest)
    else:
        said = f"/{name} is no command; /help lists them"
    print(said, file=sys.stderr)
    return ""


def _set_number(talk: Conversation, name: str, text: str) -> str:
    try:
        value = float(text)
    except ValueError:
        return f"/{name} needs a number, not {text!r}"
    if name == "temperature":
        if not 0 <= value <= 2:
            return "a temperature is from 0 to 2"
        talk.temperature = value
    else:
        if value != int(value) or value < 0:
            return "a number of tokens is 0 or more, without a fraction"
        talk.max_tokens = int(value) or None
    return "set"


def _save(talk: Conversation, name: str) -> str:
    if not name:
        return "/save needs the name of a file"
    head = [{"role": "system", "content": talk.system}] if talk.system else []
    try:
        Path(name).write_text(json.dumps({"model": talk.model, "messages": head + talk.messages}, indent=2) + "\n")
    except OSError as error:
        return f"{name} cannot be written: {error.strerror}"
    return f"written to {name}"
