"""Flatout finds why a training job is slow, erratic or out of memory.

The program is `flatout` (try `flatout run -- python train.py`). This package reads what it recorded:

    >>> import flatout
    >>> run = flatout.read("flatout-runs/latest")
    >>> run.verdict
    'input.decode_cpu'
    >>> run.findings[0].where
    Where(file='data.py', line=41, function='__getitem__')
"""

import json
from dataclasses import dataclass, field
from typing import Dict, List, Optional

__all__ = ["Evidence", "Finding", "Remedy", "Run", "Where", "read"]


@dataclass(frozen=True)
class Where:
    """The line of the user's code that is to blame."""

    file: str
    line: int
    function: str


@dataclass(frozen=True)
class Evidence:
    """One measured statement: a value with its unit, its source, and how many readings it rests on."""

    text: str
    value: float
    unit: str
    source: str
    readings: int


@dataclass(frozen=True)
class Remedy:
    """What to do about a finding."""

    id: str
    text: str


@dataclass(frozen=True)
class Finding:
    """One cause that costs the job time or memory.

    `cost_ms_per_step` is in milliseconds, `cost_bytes` in bytes, `gain` the predicted factor in steps per second if this
    cause alone were gone; each is None where it does not apply. `id` is explained in docs/findings.
    """

    id: str
    title: str
    confidence: float
    cost_ms_per_step: Optional[float]
    cost_bytes: Optional[float]
    gain: Optional[float]
    where: Optional[Where]
    evidence: List[Evidence]
    remedies: List[Remedy]


@dataclass
class Run:
    """A recorded run and what Flatout says of it."""

    folder: str
    verdict: str
    steps: Dict[str, float]
    """count, warmup, median_ms, p95_ms, samples_per_s"""
    breakdown: Dict[str, float]
    """Fractions of the median step by part; they add up to 1."""
    findings: List[Finding]
    missing: List[Dict[str, str]]
    """What could not be measured: signal, reason, hint."""
    _native: object = field(repr=False, default=None)

    def step_ms(self, warmup: bool = False) -> List[float]:
        """Length of each recorded step in milliseconds, in order."""
        return self._native.step_ms(warmup)

    def facts(self) -> Dict[str, str]:
        """Host, command, versions, limits: everything that run.json holds under "facts"."""
        return self._native.facts()

    def html(self) -> str:
        """The report as one self-contained page."""
        return self._native.html()

    def text(self) -> str:
        """The report as `flatout report` prints it."""
        return self._native.text()


def _finding(data: dict) -> Finding:
    where = data.get("where")
    return Finding(
        id=data["id"], title=data["title"], confidence=data["confidence"], cost_ms_per_step=data["cost_ms_per_step"],
        cost_bytes=data["cost_bytes"], gain=data["gain"],
        where=Where(where["file"], where["line"], where["function"]) if where else None,
        evidence=[Evidence(e["text"], e["value"], e["unit"], e["source"], e["readings"]) for e in data["evidence"]],
        remedies=[Remedy(r["id"], r["text"]) for r in data["remedies"]])


def read(folder: str) -> Run:
    """Reads a run folder, also one of a run that was killed.

    Raises FileNotFoundError where `folder` is not a run folder, ValueError where a newer Flatout wrote it.
    """
    try:
        from . import _native  # the agent's part of this package must import without it
    except ImportError as error:
        raise ImportError("flatout.read() needs the compiled part of the package, which %s lacks: install the package (pip install .)" % __path__[0]) from error

    native = _native.read(str(folder))
    data = json.loads(native.findings_json())
    return Run(folder=str(folder), verdict=data["verdict"], steps=data["steps"], breakdown=data["breakdown"],
               findings=[_finding(f) for f in data["findings"]], missing=data["missing"], _native=native)
