"""Machines of virtual machines on an emulated Tofu interconnect, from Python.

    import open_tofu

    with open_tofu.Machine.start("--guest", "allpairs", "--args", "rounds=1000") as machine:
        print(machine.stats())
        picture = open_tofu.machine_under_load(machine.info(), machine.link_loads())
"""

from .commands import JobResult, run, simulate
from .errors import NoMachine, ProtocolError, Refused, TimedOut, TofuError
from .machine import Machine, machines
from .model import Completed, Event, Info, LinkLoad, Node, Traced
from .picture import Picture, curves, machine_under_load
from .tables import table

__all__ = [
    "Completed",
    "Event",
    "Info",
    "JobResult",
    "LinkLoad",
    "Machine",
    "NoMachine",
    "Node",
    "Picture",
    "ProtocolError",
    "Refused",
    "TimedOut",
    "TofuError",
    "Traced",
    "curves",
    "machine_under_load",
    "machines",
    "run",
    "simulate",
    "table",
]

__version__ = "0.1.0"
