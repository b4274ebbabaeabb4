"""What the command does without a machine that runs: jobs, and networks in modelled time."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Sequence, Union

from .errors import TimedOut, TofuError
from .machine import Machine, command


@dataclass(frozen=True)
class JobResult:
    """A job that has ended: its exit code, and the events that `tofu run --json` printed."""

    code: int
    events: List[Dict[str, Any]]

    @property
    def ok(self) -> bool:
        """True if its exit code was 0."""
        return self.code == 0

    def lines(self, rank: Optional[int] = None) -> List[str]:
        """The lines that ranks have written, of all or of one."""
        said = [event for event in self.events if event.get("event") == "line"]
        return [event["text"] for event in said if rank is None or event.get("rank") == rank]


def run(
    program: Union[str, Sequence[str]],
    *,
    n: int = 2,
    machine: Optional[Machine] = None,
    options: Sequence[str] = (),
    timeout: Optional[float] = None,
) -> JobResult:
    """Runs a program as a job of `n` ranks: on the Linux nodes of a machine, or, without one, as
    processes of this host."""
    where = ["--local"] if machine is None else ["--machine", str(machine.name)]
    words = [program] if isinstance(program, str) else list(program)
    done = _call(["run", "--json", *where, "-n", str(n), *options, *words], timeout)
    events = []
    for line in done.stdout.splitlines():
        try:
            events.append(json.loads(line))
        except ValueError:
            continue
    if not any(event.get("event") == "summary" for event in events):
        raise TofuError(done.stderr.strip() or f"tofu run ended with {done.returncode}")
    return JobResult(done.returncode, events)


def simulate(
    scenario: Union[str, Mapping[str, Any]], *, timeout: Optional[float] = None
) -> Dict[str, Any]:
    """Runs a scenario of `tofu sim`: its name, the path of a file, or its fields."""
    if isinstance(scenario, str):
        return _simulated(scenario, timeout)
    # Numbers, texts and lists of them are written in TOML as in JSON.
    text = "".join(f"{key} = {json.dumps(value)}\n" for key, value in scenario.items())
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "scenario.toml")
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return _simulated(path, timeout)


def _simulated(what: str, timeout: Optional[float]) -> Dict[str, Any]:
    done = _call(["sim", what, "--json"], timeout)
    if done.returncode != 0:
        raise TofuError(done.stderr.strip() or f"tofu sim ended with {done.returncode}")
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def _call(words: Sequence[str], timeout: Optional[float]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            [command(), *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise TimedOut(f"tofu {words[0]} has not ended within {timeout} s") from error
    except OSError as error:
        raise TofuError(f"cannot start {command()}: {error}") from error
