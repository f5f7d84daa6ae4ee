"""Progress of long verbs on standard error: a bar on a terminal, one line per tenth elsewhere."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID
    from typing_extensions import Self


class ProgressLines:
    """One stage at a time; a stage that ends leaves its last line."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._stage = ""
        self._last_tenth = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, stage: str, done: int, total: int) -> None:
        """Tell that `done` of `total` bytes of `stage` are through."""
        if self._stream.isatty():
            self._show_bar(stage, done, total)
            return
        tenth = 10 if done >= total else done * 10 // total
        if stage != self._stage:
            self._stage, self._last_tenth = stage, -1
        if tenth > self._last_tenth:
            self._last_tenth = tenth
            self._stream.write(f"{stage}: {tenth * 10} %\n")
            self._stream.flush()

    def _show_bar(self, stage: str, done: int, total: int) -> None:
        if self._bar is None:
            from rich.console import Console
            from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                DownloadColumn(binary_units=True),
                TimeRemainingColumn(),
            )
            self._bar = Progress(*columns, console=Console(file=self._stream))
            self._bar.start()
        if stage != self._stage or self._task is None:
            self._stage, self._task = stage, self._bar.add_task(stage, total=total)
        self._bar.update(self._task, completed=done, total=total)
