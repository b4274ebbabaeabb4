"""What machines say, as plain types. Fields that a newer machine adds are ignored."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Dict, List, Mapping, Optional, Tuple, Type, TypeVar

T = TypeVar("T")

PORTS = ("A", "C", "B-", "B+", "X-", "X+", "Y-", "Y+", "Z-", "Z+")
"""The ports in the order in which a device counts them."""

AXES = "XYZABC"

UNIT = 16
"""The unit in which a device counts bytes."""

Coords = Tuple[int, int, int, int, int, int]


def take(kind: Type[T], said: Mapping[str, Any]) -> T:
    """Makes an object of the fields that it has; those that are left out are None."""
    return kind(**{of.name: said.get(of.name) for of in fields(kind)})  # type: ignore[arg-type]


@dataclass(frozen=True)
class Node:
    """A node that has a device."""

    index: int
    at: Coords
    name: str
    kind: str
    state: str
    vmm: str
    arch: Optional[str]
    down: bool
    pid: Optional[int]
    part: Optional[int]
    seconds: float


@dataclass(frozen=True)
class Info:
    """A machine."""

    pid: int
    shape: str
    torus: Tuple[bool, bool, bool]
    generation: Optional[str]
    arch: Optional[str]
    seconds: float
    nodes: List[Node]
    jobs: List[Dict[str, Any]]
    time: Optional[Dict[str, Any]]

    @property
    def lengths(self) -> Coords:
        """The lengths of the six axes; those that a shape of TNW lacks are 1."""
        lengths = [int(length) for length in self.shape.split("x")]
        lengths += [1] * (6 - len(lengths))
        return tuple(lengths)  # type: ignore[return-value]

    def neighbor(self, at: Coords, port: str) -> Optional[Coords]:
        """The node at the other end of a link, or None if there is no link."""
        axis = AXES.index(port[0])
        length = self.lengths[axis]
        if length == 1:
            return None
        if len(port) == 1:
            to = 1 - at[axis]
        else:
            to = at[axis] + (1 if port[1] == "+" else -1)
            wraps = length == 3 if port[0] == "B" else bool(self.torus[axis])
            if not 0 <= to < length:
                if not wraps:
                    return None
                to %= length
        return at[:axis] + (to,) + at[axis + 1 :]  # type: ignore[return-value]


def info(said: Mapping[str, Any]) -> Info:
    """Reads the reply `machine`."""
    nodes = [take(Node, {**node, "at": tuple(node["at"])}) for node in said.get("nodes", [])]
    whole = {**said, "nodes": nodes, "torus": tuple(said.get("torus", (False,) * 3))}
    return take(Info, whole)


@dataclass(frozen=True)
class LinkLoad:
    """The rate at which bytes leave a node at a port."""

    node: int
    at: Coords
    port: str
    to: Optional[Coords]
    bytes_per_s: float


@dataclass(frozen=True)
class Completed:
    """A program that has ended on a node."""

    code: Optional[int]
    signal: Optional[int]
    out: bytes
    err: bytes

    @property
    def ok(self) -> bool:
        """True if its exit code was 0."""
        return self.code == 0

    @property
    def text(self) -> str:
        """Its output, as UTF-8."""
        return self.out.decode(errors="replace")


@dataclass(frozen=True)
class Event:
    """An event of a machine; `more` has the fields that are not those of all events."""

    seconds: float
    event: str
    node: Optional[int]
    at: Optional[Coords]
    more: Dict[str, Any] = field(default_factory=dict)


def event(said: Mapping[str, Any]) -> Event:
    """Reads the reply `event`."""
    own = {"reply", "seconds", "event", "node", "at"}
    at = said.get("at")
    return Event(
        seconds=said["seconds"],
        event=said["event"],
        node=said.get("node"),
        at=None if at is None else tuple(at),
        more={key: value for key, value in said.items() if key not in own},
    )


@dataclass(frozen=True)
class Traced:
    """The commands of a trace that have ended, as the protocol has them."""

    commands: List[Dict[str, Any]]
    interrupts: List[Dict[str, Any]]
    open: int
    lost: int
    seconds: float
