"""Figures, what is computed from them, and the bars that they have to reach."""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from benchmarks.system import Kind

Verdict = Literal["met", "missed", "not measured"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Participant:
    """A system as the report names it; `reason` says why it could not take part, if so."""

    short: str
    name: str
    kind: Kind
    lifecycle: bool = True
    url: str = ""
    version: str = ""
    notes: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """What one system reached in one round; `metric` is also the unit."""

    variant: str
    system: str
    round: int
    value: float
    metric: str = "jobs/s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """What one system did over time: seconds since the start and values; `metric` as above."""

    variant: str
    system: str
    metric: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A system that could not finish a scenario, and why."""

    variant: str
    system: str
    reason: str


@dataclass(slots=True)
class Results:
    """All that one scenario has found out."""

    systems: Mapping[str, Participant]
    figures: list[Figure] = field(default_factory=list[Figure])
    series: list[Series] = field(default_factory=list[Series])
    failures: list[Failure] = field(default_factory=list[Failure])
    remarks: list[str] = field(default_factory=list[str])

    def add(self, found: Figure | Series | Failure) -> None:
        """Take up what a scenario has found."""
        if isinstance(found, Figure):
            self.figures.append(found)
        elif isinstance(found, Series):
            self.series.append(found)
        else:
            self.failures.append(found)

    def has_failed(self, variant: str, system: str) -> bool:
        """Tell whether a system could not finish a variant."""
        return any((f.variant, f.system) == (variant, system) for f in self.failures)

    def groups(self) -> list[tuple[str, str]]:
        """Return variants and metrics that have figures, in the order of their appearance."""
        return list(dict.fromkeys((f.variant, f.metric) for f in self.figures))

    def rounds(self, variant: str, system: str, metric: str = "jobs/s") -> dict[int, float]:
        """Return the values of a system by round; none if it failed, for it is out of the race."""
        if self.has_failed(variant, system):
            return {}
        wanted = (variant, system, metric)
        return {f.round: f.value for f in self.figures if (f.variant, f.system, f.metric) == wanted}

    def ratio(
        self, variant: str, system: str, baseline: str, metric: str = "jobs/s"
    ) -> float | None:
        """Return the median of the rounds' ratios of a system to another, if there are any."""
        return median_ratio(
            self.rounds(variant, system, metric), self.rounds(variant, baseline, metric)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A figure as a bar sees it, None if there is none, and what a reader has to know of it."""

    value: float | None
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """What pgq has to reach: a figure, and the least (or the most) that it may be.

    `variants` are those that it looks at: a failure of pgq in one of them misses the bar.
    """

    text: str
    measure: Callable[[Results], Reading]
    limit: float
    at_most: bool = False
    variants: Sequence[str] = ("",)

    def judge(self, results: Results) -> tuple[Verdict, Reading]:
        """Return whether the figure reaches the limit, and the figure."""
        if any(results.has_failed(variant, "pgq") for variant in self.variants):
            return "missed", Reading(value=None, note="failed")
        reading = self.measure(results)
        if reading.value is None:
            return "not measured", reading
        met = reading.value <= self.limit if self.at_most else reading.value >= self.limit
        return ("met" if met else "missed"), reading


def median_ratio(values: Mapping[int, float], baseline: Mapping[int, float]) -> float | None:
    """Return the median of the ratios of the rounds that both have."""
    ratios = [values[r] / baseline[r] for r in values if baseline.get(r, 0) > 0]
    return statistics.median(ratios) if ratios else None


def number(value: float) -> str:
    """Return a number with three digits at least, thousands apart: 12,345, 98.7, 0.123."""
    if abs(value) >= 100 or value == 0:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3g}"


def percentile(values: Iterable[float], percent: float) -> float:
    """Return the smallest value that at least `percent` of the values do not exceed."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("there is no percentile of nothing")
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def of_system(
    baseline: str,
    limit: float,
    *,
    name: str,
    variant: str = "",
    label: str = "",
    metric: str = "jobs/s",
    at_most: bool = False,
) -> Bar:
    """Make the bar that pgq reaches `limit` times what another system does, or takes at most that.

    `name` is the other one in the report, `label` the variant.
    """

    def measure(results: Results) -> Reading:
        return Reading(value=results.ratio(variant, "pgq", baseline, metric))

    sign = "<=" if at_most else ">="
    text = f"{_prefix(label)}{sign} {limit} of {name}"
    return Bar(text=text, measure=measure, limit=limit, at_most=at_most, variants=[variant])


def of_every_peer(
    *,
    lifecycle: bool = False,
    variant: str = "",
    label: str = "",
    metric: str = "jobs/s",
    at_most: bool = False,
) -> Bar:
    """Make the bar that pgq does not fall behind any peer (that has a life cycle per job).

    `at_most` is for figures of which less is better.
    """

    def measure(results: Results) -> Reading:
        peers = [
            system
            for system in results.systems.values()
            if system.kind == "peer" and (system.lifecycle or not lifecycle)
        ]
        ratios = {
            system.name: ratio
            for system in peers
            if (ratio := results.ratio(variant, "pgq", system.short, metric)) is not None
        }
        failed = [system.name for system in peers if results.has_failed(variant, system.short)]
        notes = [f"failed: {', '.join(failed)}"] if failed else []
        if not ratios:
            return Reading(value=None, note="".join(notes))
        best = (max if at_most else min)(ratios, key=lambda name: ratios[name])
        notes.insert(0, f"of {best}, the best of {len(ratios)}")
        return Reading(value=ratios[best], note="; ".join(notes))

    peers = "every peer with a life cycle per job" if lifecycle else "every peer"
    text = f"{_prefix(label)}{'<=' if at_most else '>='} {peers}"
    return Bar(text=text, measure=measure, limit=1.0, at_most=at_most, variants=[variant])


def of_variant(
    baseline: str,
    limit: float,
    *,
    text: str,
    variant: str,
    metric: str = "jobs/s",
    at_most: bool = False,
) -> Bar:
    """Make the bar that pgq reaches in one variant `limit` times what it does in another."""

    def measure(results: Results) -> Reading:
        ratio = median_ratio(
            results.rounds(variant, "pgq", metric), results.rounds(baseline, "pgq", metric)
        )
        return Reading(value=ratio)

    variants = [variant, baseline]
    return Bar(text=text, measure=measure, limit=limit, at_most=at_most, variants=variants)


def of_itself(
    limit: float, *, text: str, metric: str, variant: str = "", at_most: bool = False
) -> Bar:
    """Make the bar that a figure of pgq is at least, or at most, `limit`."""

    def measure(results: Results) -> Reading:
        values = results.rounds(variant, "pgq", metric)
        return Reading(value=statistics.median(values.values()) if values else None)

    return Bar(text=text, measure=measure, limit=limit, at_most=at_most, variants=[variant])


def _prefix(label: str) -> str:
    return f"{label}: " if label else ""
