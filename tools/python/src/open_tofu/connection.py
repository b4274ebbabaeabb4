"""A connection to a machine's control socket: lines of JSON in both directions.

The manual's page "The control socket" describes the protocol.
"""

from __future__ import annotations

import json
import os
import select
import socket
import time
from typing import Any, Dict, Optional

from .errors import NoMachine, ProtocolError, Refused, TimedOut

PROTOCOL = 1
"""The version of the protocol that this package knows."""

MOST_BYTES = 64 << 20
"""The longest line that is read."""

Message = Dict[str, Any]


class Connection:
    """A connection, after the machine's greeting."""

    def __init__(self, path: str, timeout: Optional[float] = 30.0) -> None:
        self._timeout = timeout
        self._buffer = bytearray()
        self._searched = 0
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.settimeout(timeout)
            self._socket.connect(os.fspath(path))
            hello = self.receive()
        except OSError as error:
            self._socket.close()
            raise NoMachine(f"no machine answers at {path}: {error}") from error
        except BaseException:
            self._socket.close()
            raise
        if hello is None or hello.get("reply") != "hello":
            self._socket.close()
            raise ProtocolError(f"{path}: no greeting of a machine")
        if hello.get("protocol") != PROTOCOL:
            self._socket.close()
            raise ProtocolError(
                f"{path}: the machine has protocol {hello.get('protocol')}, this package {PROTOCOL}"
            )

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connection."""
        self._socket.close()

    def send(self, message: Message) -> None:
        """Sends a line."""
        line = json.dumps(message, ensure_ascii=False, separators=(",", ":")) + "\n"
        self._socket.settimeout(self._timeout)
        try:
            self._socket.sendall(line.encode())
        except socket.timeout as error:
            raise TimedOut("the machine takes nothing") from error
        except OSError as error:
            raise NoMachine(f"the machine has closed the connection: {error}") from error

    def has_input(self) -> bool:
        """Returns true if `receive` would return at once."""
        if b"\n" in self._buffer:
            return True
        return bool(select.select([self._socket], [], [], 0)[0])

    def receive(self, timeout: Optional[float] = None) -> Optional[Message]:
        """Returns the next message, or None at the end of the connection.

        Waits for `timeout` seconds at most, or for as long as the connection says.
        """
        limit = self._timeout if timeout is None else timeout
        deadline = None if limit is None else time.monotonic() + limit
        while True:
            end = self._buffer.find(b"\n", self._searched)
            if end >= 0:
                line = bytes(self._buffer[:end])
                del self._buffer[: end + 1]
                self._searched = 0
                return _parsed(line)
            self._searched = len(self._buffer)
            if len(self._buffer) > MOST_BYTES:
                raise ProtocolError(f"a line of more than {MOST_BYTES} bytes")
            if deadline is not None:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise TimedOut(f"the machine has not answered within {limit} s")
                self._socket.settimeout(left)
            else:
                self._socket.settimeout(None)
            try:
                more = self._socket.recv(1 << 16)
            except socket.timeout as error:
                raise TimedOut(f"the machine has not answered within {limit} s") from error
            except ConnectionError:
                more = b""
            if not more:
                if self._buffer:
                    raise ProtocolError("the connection ends within a line")
                return None
            self._buffer += more

    def ask(self, request: str, **fields: Any) -> Message:
        """Sends a request and returns its reply."""
        self.send({"request": request, **fields})
        return self.answer()

    def answer(self, timeout: Optional[float] = None) -> Message:
        """Returns the next message, which must be there and no error."""
        reply = self.receive(timeout)
        if reply is None:
            raise NoMachine("the machine has ended")
        if reply.get("reply") == "error":
            raise Refused(str(reply.get("why")))
        return reply

    def finish(self) -> None:
        """Says that no more requests come, which ends a trace."""
        self._socket.shutdown(socket.SHUT_WR)


def _parsed(line: bytes) -> Message:
    try:
        message = json.loads(line)
    except ValueError as error:
        raise ProtocolError(f"not a line of JSON: {line[:80]!r}") from error
    if not isinstance(message, dict) or "reply" not in message:
        raise ProtocolError(f"not a reply: {line[:80]!r}")
    return message
