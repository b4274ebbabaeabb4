"""Rows as data frames where pandas is installed."""

from __future__ import annotations

import importlib
from typing import Any, Dict, Iterable, Iterator, List, Mapping

from .model import PORTS, Traced

Rows = List[Dict[str, Any]]


def table(rows: Iterable[Mapping[str, Any]]) -> Any:
    """A pandas.DataFrame, or a list of dictionaries where there is no pandas."""
    listed = [dict(row) for row in rows]
    try:
        pandas: Any = importlib.import_module("pandas")
    except ImportError:
        return listed
    return pandas.DataFrame(listed)


def counter_rows(node: int, counters: Mapping[str, Any]) -> Iterator[Dict[str, Any]]:
    """A row for each counter: node, unit, counter, value."""
    units = [(f"tni {i}", of) for i, of in enumerate(counters.get("tnis") or [])]
    units += [(f"port {port}", of) for port, of in zip(PORTS, counters.get("ports") or [])]
    for queue in counters.get("queues") or []:
        units.append((f"queue {queue['tni']}/{queue['cq']}", queue["counters"]))
    for name in ("ip", "nwp"):
        if counters.get(name):
            units.append((name, counters[name]))
    for link in counters.get("links") or []:
        units.append((f"link {link['port']}", link["counters"]))
    for unit, of in units:
        for counter, value in of.items():
            if isinstance(value, (int, float)):
                yield {"node": node, "unit": unit, "counter": counter, "value": value}


def command_rows(traced: Traced) -> Iterator[Dict[str, Any]]:
    """A row for each traced command, with its time in microseconds."""
    for command in traced.commands:
        to = command.get("to") or {}
        yield {
            "node": command["node"],
            "queue": f"{command['tni']}/{command['cq']}",
            "command": command["command"],
            "to": to.get("node"),
            "length": command["length"],
            "hops": len(command.get("hops") or []),
            "begin_ns": command["begin_ns"],
            "us": (command["end_ns"] - command["begin_ns"]) / 1000,
            "result": command["result"],
            "why": command.get("why"),
        }
