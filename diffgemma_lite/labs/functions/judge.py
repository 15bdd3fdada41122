"""Right or wrong, by running it: the written function against the reference, in a process that may
do nothing else.

    with Judge() as judge:
        judge.right(function, body)     # equal on the shown examples and on every hidden input

The process (worker.py) has limits on time, memory, files, sockets and processes. Many programs go
through one, which is started again after a program that hung or killed it; such a program is tried
once more, alone, before it counts as wrong.
"""

from __future__ import annotations

import contextlib
import json
import select
import subprocess
import sys
import time
from pathlib import Path

from .data import Function

WORKER, SECONDS, PROGRAMS = (
    Path(__file__).with_name("worker.py"),
    2.0,
    500,
)  # wall-clock a program; programs a process


class Judge:
    """A worker process, started when it is needed. seconds: what one program may take, all its
    calls together.
    """

    def __init__(self, seconds: float = SECONDS):
        self.seconds, self.process, self.done = seconds, None, 0

    def __enter__(self) -> Judge:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        """End the worker, whatever it is doing."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            for stream in (self.process.stdin, self.process.stdout):
                with contextlib.suppress(OSError):  # what was not sent yet has nowhere to go
                    stream.close()
        self.process, self.done = None, 0

    def run(self, source: str, name: str, calls: list[str]) -> list[tuple[str, str]]:
        """("ok", repr of the result) or ("error", its kind) for each call, given as the text of its
        arguments.
        """
        for fresh in (False, True):
            if fresh or self.done >= PROGRAMS:
                self.close()
            answer = self._ask(json.dumps({"source": source, "name": name, "calls": calls}))
            if isinstance(answer, list):
                return [(kind, text) for kind, text in answer]
        return [("error", answer)] * len(calls)

    def right(self, function: Function, body: str) -> bool:
        """Does this body do what the reference does?"""
        cases = [*function.examples, *function.hidden]
        if not cases:
            raise ValueError(
                "function: has no examples and no hidden inputs, "
                "takes at least one (functions(hidden=20))"
            )
        found = self.run(function.prompt + body + "\n", function.name, [call for call, _ in cases])
        return found == [("ok", result) for _, result in cases]

    def _ask(self, line: str) -> list | str:
        """What the worker answers, or why it does not: "TimeoutError", "ProcessLookupError"."""
        if self.process is None:
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(WORKER)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={},
                cwd="/",
                close_fds=True,
            )
            self._send('{"source": "", "name": "f", "calls": []}')
            self._receive(30.0)  # its start is not the program's time
        self.done += 1
        if not self._send(line):
            answer: list | str = "ProcessLookupError"
        else:
            answer = self._receive(self.seconds)
        if isinstance(answer, str):
            self.close()
        return answer

    def _send(self, line: str) -> bool:
        try:
            self.process.stdin.write(line.encode() + b"\n")
            self.process.stdin.flush()
        except OSError:
            return False
        return True

    def _receive(self, seconds: float) -> list | str:
        """One line within the time."""
        data, end, out = b"", time.monotonic() + seconds, self.process.stdout
        while not data.endswith(b"\n"):
            left = end - time.monotonic()
            if left <= 0 or not select.select([out], [], [], left)[0]:
                return "TimeoutError"
            piece = out.read1(65536)
            if not piece:
                return "ProcessLookupError"
            data += piece
        return json.loads(data)
