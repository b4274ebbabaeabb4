"""Machines that run."""

from __future__ import annotations

import base64
import collections
import contextlib
import json
import os
import subprocess
import threading
import time
from typing import Any, Deque, Dict, Iterator, List, Optional, Sequence

from . import model
from .connection import Connection
from .errors import NoMachine, ProtocolError, TimedOut, TofuError
from .model import PORTS, UNIT, Completed, Event, Info, LinkLoad, Node, Traced
from .tables import command_rows, counter_rows, table

MOST_INPUT = 32 << 10
"""Bytes of standard input in a message."""

WINDOW = 256 << 10
"""Bytes of a stream that may be in flight before the other side has granted more."""

UP = ("ready", "running", "ended", "attached", "gateway")
"""The states in which a node is there."""


def command() -> str:
    """The command `tofu`: that of the variable TOFU, or the one on the path."""
    return os.environ.get("TOFU", "tofu")


def run_directories() -> str:
    """The folder that has a folder for each machine of this user."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return os.path.join(runtime, "tofu") if runtime else f"/tmp/tofu-{os.getuid()}"


def machines() -> List[str]:
    """The names of this user's machines that answer."""
    base = run_directories()
    names = sorted(os.listdir(base)) if os.path.isdir(base) else []
    return [name for name in names if _answers(os.path.join(base, name, "control"))]


def _answers(path: str) -> bool:
    try:
        Connection(path, timeout=5).close()
    except TofuError:
        return False
    return True


class Machine:
    """A machine, by its name, or by the path of its control socket.

    Without either, the only one that runs.
    """

    def __init__(self, name: Optional[str] = None, *, socket: Optional[str] = None) -> None:
        if name is None and socket is None:
            names = machines()
            if len(names) != 1:
                raise NoMachine(f"{len(names)} machines run; give a name: {', '.join(names)}")
            name = names[0]
        self.name = name
        self.socket = socket or os.path.join(run_directories(), str(name), "control")
        self._process: Optional[_Process] = None
        self._connect().close()

    @classmethod
    def start(cls, *options: str, name: Optional[str] = None, timeout: float = 120.0) -> Machine:
        """Starts a machine by `tofu up`, with these options, and returns when its nodes are up.

        As a context manager, the machine ends with the block.
        """
        process = _Process(options, name, timeout)
        try:
            machine = cls(process.name)
            machine._process = process
            machine.wait_until_up(timeout, nodes=process.nodes)
        except BaseException:
            process.end()
            raise
        return machine

    def __enter__(self) -> Machine:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.end()

    def _connect(self, timeout: Optional[float] = 30.0) -> Connection:
        return Connection(self.socket, timeout)

    def _ask(self, request: str, **fields: Any) -> Dict[str, Any]:
        with self._connect() as connection:
            return connection.ask(request, **fields)

    # The machine and its nodes

    def info(self, *, ping: bool = False) -> Info:
        """The machine; with `ping`, Linux nodes must give a sign of life."""
        return model.info(self._ask("info", ping=ping))

    @property
    def nodes(self) -> List[Node]:
        """The nodes that have a device."""
        return self.info().nodes

    def wait_until_up(self, timeout: float = 120.0, *, nodes: int = 1) -> None:
        """Waits until there are so many nodes, and all of them are up."""
        deadline = time.monotonic() + timeout
        while True:
            try:
                there = self.nodes
            except NoMachine:
                # A machine of small guests may have ended.
                return
            waiting = [node.name for node in there if node.state not in UP]
            if not waiting and len(there) >= nodes:
                return
            if time.monotonic() > deadline:
                raise TimedOut(f"{len(waiting)} of {len(there)} nodes are not up in {timeout} s")
            time.sleep(0.05)

    def wait(self, timeout: Optional[float] = None) -> int:
        """Waits until the machine that `start` has started ends, and returns its exit code."""
        if self._process is None:
            raise TofuError("this object has not started the machine")
        return self._process.wait(timeout)

    @property
    def printed(self) -> List[Dict[str, Any]]:
        """The last events that `tofu up` has printed, of a machine that `start` has started."""
        return [] if self._process is None else list(self._process.events)

    def pause(self, node: int) -> None:
        """Stops the processors of a node."""
        self._ask("pause", node=node)

    def resume(self, node: int) -> None:
        """Lets them continue."""
        self._ask("resume", node=node)

    def restart(self, node: int) -> None:
        """Restarts a Linux node."""
        self._ask("restart", node=node)

    def set_nodes(self, nodes: Sequence[int], up: bool, *, guests: bool = False) -> None:
        """Makes the routers of nodes fail, or work again; with their guests or without."""
        self._ask("set_nodes", nodes=list(nodes), up=up, guests=guests)

    def down(self) -> None:
        """Ends the machine."""
        self._ask("down")

    # Programs

    def exec(
        self,
        node: int,
        args: Sequence[str],
        *,
        input: bytes = b"",
        env: Optional[Dict[str, str]] = None,
        timeout: Optional[float] = None,
    ) -> Completed:
        """Runs a program on a Linux node, and returns when it has ended."""
        deadline = None if timeout is None else time.monotonic() + timeout
        request: Dict[str, Any] = {"node": node, "args": list(args), "stdin": bool(input)}
        if env:
            request["env"] = [[key, value] for key, value in env.items()]
        streams = {"out": bytearray(), "err": bytearray()}
        credit, sent, closed = WINDOW, 0, not input
        with self._connect() as connection:
            connection.send({"request": "exec", **request})
            while True:
                while credit and sent < len(input) and not connection.has_input():
                    part = input[sent : sent + min(credit, MOST_INPUT)]
                    _say(connection, {"input": base64.b64encode(part).decode()})
                    sent, credit = sent + len(part), credit - len(part)
                if sent == len(input) and not closed:
                    _say(connection, "input_end")
                    closed = True
                left = float("inf") if deadline is None else deadline - time.monotonic()
                if left <= 0:
                    raise TimedOut(f"{args[0]} has not ended within {timeout} s")
                try:
                    reply = connection.answer(min(left, 3600.0))
                except TimedOut:
                    continue
                what = reply.get("what")
                if reply.get("reply") != "program" or not isinstance(what, dict):
                    raise ProtocolError(f"not of a program: {reply}")
                if "credit" in what:
                    credit += int(what["credit"])
                elif "output" in what:
                    stream, coded = what["output"]
                    part = base64.b64decode(coded)
                    streams[stream] += part
                    _say(connection, {"credit": [stream, len(part)]})
                elif "ended" in what:
                    ended = what["ended"]
                    if "not_run" in ended:
                        raise TofuError(f"{args[0]}: {ended['not_run'].get('why')}")
                    return Completed(
                        ended.get("code"),
                        ended.get("signal"),
                        bytes(streams["out"]),
                        bytes(streams["err"]),
                    )

    # Links and faults

    def links_down(self) -> List[Dict[str, Any]]:
        """The links that are down, each by one of its ends: node and port."""
        return list(self._ask("links")["down"])

    def set_link(self, node: int, port: str, up: bool) -> None:
        """Takes a link down or up, from one of its ends."""
        self._ask("set_link", node=node, port=port, up=up)

    def set_link_errors(self, node: int, port: str, errors: Optional[str]) -> None:
        """Errors of a modelled link, such as "ber=1e-7,lane=1", or none."""
        self._ask("set_link_errors", node=node, port=port, errors=errors)

    def faults(self) -> Optional[Dict[str, Any]]:
        """The faults of all links with their counts, or None."""
        return self._ask("faults")["faults"]  # type: ignore[no-any-return]

    def set_faults(self, faults: Optional[str]) -> None:
        """Faults of all links, as for `tofu fault`, such as "loss=1%,seed=7", or none."""
        self._ask("set_faults", faults=faults)

    def set_device_faults(self, node: int, faults: Optional[str]) -> None:
        """Faults of a device, such as "msix-lost=5%,seed=7", or none."""
        self._ask("set_device_faults", node=node, faults=faults)

    # Counters, registers, state

    def counters(self, node: int) -> Dict[str, Any]:
        """The counters of a node's device, as the protocol has them."""
        return self._ask("counters", node=node)["counters"] or {}

    def stats(self) -> Any:
        """The counters of all nodes as a table: node, unit, counter, value."""
        rows: List[Dict[str, Any]] = []
        with self._connect() as connection:
            for node in model.info(connection.ask("info")).nodes:
                said = connection.ask("counters", node=node.index)["counters"] or {}
                rows += counter_rows(node.index, said)
        return table(rows)

    def registers(self, node: int) -> List[Dict[str, Any]]:
        """The registers of a node's device."""
        return self._ask("registers", node=node)["registers"] or []

    def inspect(self, node: int, path: str = "", *, depth: int = 64) -> Any:
        """The live state of a node's device, or the part of it at a path."""
        return self._ask("inspect", node=node, path=path, depth=depth)["tree"]

    def link_loads(self, seconds: float = 0.5) -> List[LinkLoad]:
        """The rate at which bytes leave each node at each port, over some time."""
        with self._connect() as connection:
            machine = model.info(connection.ask("info"))
            before, start = _port_bytes(connection, machine), time.monotonic()
            time.sleep(seconds)
            after, elapsed = _port_bytes(connection, machine), time.monotonic() - start
        loads = []
        for node in machine.nodes:
            for port in PORTS:
                to = machine.neighbor(node.at, port)
                key = (node.index, port)
                if to is not None and key in before and key in after:
                    rate = (after[key] - before[key]) / elapsed
                    loads.append(LinkLoad(node.index, node.at, port, to, rate))
        return loads

    # Events and traces

    def events(self, timeout: Optional[float] = None) -> Iterator[Event]:
        """The events from now on, until the machine ends, or `timeout` passes without one."""
        with self._connect() as connection:
            connection.ask("events")
            while True:
                try:
                    reply = connection.receive(timeout if timeout is not None else 1e6)
                except TimedOut:
                    return
                if reply is None:
                    return
                if reply.get("reply") != "event":
                    raise TofuError(str(reply.get("why", reply)))
                yield model.event(reply)

    def trace(
        self,
        *,
        nodes: Sequence[int] = (),
        queues: Sequence[str] = (),
        kinds: Sequence[str] = (),
        results: Sequence[str] = (),
        count: Optional[int] = None,
        seconds: Optional[float] = None,
    ) -> Traced:
        """Traces commands until so many have ended, or for so long."""
        if count is None and seconds is None:
            raise ValueError("a trace needs count or seconds")
        commands: List[Dict[str, Any]] = []
        interrupts: List[Dict[str, Any]] = []
        with self._connect() as connection:
            connection.send(
                {
                    "request": "trace",
                    "nodes": list(nodes),
                    "queues": list(queues),
                    "kinds": list(kinds),
                    "results": list(results),
                    "limits": {"count": count, "seconds": seconds},
                }
            )
            while True:
                reply = connection.answer(1e6 if seconds is None else seconds + 30)
                if reply["reply"] == "traced":
                    commands += reply["commands"]
                    interrupts += reply["interrupts"]
                elif reply["reply"] == "trace_ended":
                    return Traced(
                        commands, interrupts, reply["open"], reply["lost"], reply["seconds"]
                    )
                else:
                    raise ProtocolError(f"not of a trace: {reply}")

    def trace_table(self, **arguments: Any) -> Any:
        """What `trace` returns as a table of commands."""
        return table(command_rows(self.trace(**arguments)))


def _say(connection: Connection, what: Any) -> None:
    """Sends something to a program, unless the machine has told that it has ended."""
    # The machine closes the connection then, and its last messages have still to be read.
    with contextlib.suppress(NoMachine):
        connection.send({"request": "to", "what": what})


def _port_bytes(connection: Connection, machine: Info) -> Dict[Any, int]:
    counted = {}
    for node in machine.nodes:
        said = connection.ask("counters", node=node.index)["counters"] or {}
        for port, of in zip(PORTS, said.get("ports") or []):
            counted[node.index, port] = UNIT * int(of.get("BYTE_SEND_TLP", 0))
    return counted


class _Process:
    """`tofu up`, whose output is read until it ends."""

    def __init__(self, options: Sequence[str], name: Optional[str], timeout: float) -> None:
        words = [command(), "up", "--json", *options]
        if name is not None:
            words += ["--name", name]
        try:
            self._child = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        except OSError as error:
            raise TofuError(f"cannot start {words[0]}: {error}") from error
        self.events: Deque[Dict[str, Any]] = collections.deque(maxlen=100_000)
        self._errors: Deque[str] = collections.deque(maxlen=100)
        self._named = threading.Event()
        self.name = ""
        self.nodes = 0
        self._readers = [
            threading.Thread(target=self._read_events, daemon=True),
            threading.Thread(target=self._read_errors, daemon=True),
        ]
        for reader in self._readers:
            reader.start()
        if not self._named.wait(timeout) or not self.name:
            self.end()
            raise TofuError("".join(self._errors).strip() or "tofu up has not started a machine")

    def _read_events(self) -> None:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            try:
                said = json.loads(line)
            except ValueError:
                continue
            self.events.append(said)
            if said.get("event") == "machine":
                self.name, self.nodes = said["name"], said["vms"]
                self._named.set()
        self._named.set()

    def _read_errors(self) -> None:
        assert self._child.stderr is not None
        self._errors.extend(self._child.stderr)

    def wait(self, timeout: Optional[float] = None) -> int:
        try:
            code = self._child.wait(timeout)
        except subprocess.TimeoutExpired as error:
            raise TimedOut(f"the machine has not ended within {timeout} s") from error
        for reader in self._readers:
            reader.join(5)
        return code

    def end(self) -> None:
        if self._child.poll() is None:
            self._child.terminate()
        try:
            self.wait(30)
        except TimedOut:
            self._child.kill()
            self.wait(30)
        for stream in (self._child.stdout, self._child.stderr):
            if stream is not None:
                stream.close()
