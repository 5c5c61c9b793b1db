"""Writes the report, in Markdown."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.figures import Participant, Results, median_ratio, number
from benchmarks.scenario import Scenario, Variant

_BASELINES = (("floor", "of the floor"), ("pgq", "of pgq"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One scenario in the report; `plots` are paths relative to the report."""

    scenario: Scenario
    results: Results
    plots: Sequence[str] = ()


def render(
    *,
    remark: str,
    environment: Mapping[str, str],
    systems: Sequence[Participant],
    sections: Sequence[Section],
) -> str:
    """Return the whole report."""
    blocks = ["# Benchmarks", remark]
    blocks += [_summary(sections)] if sections else []
    blocks += ["## Environment", _table(["", ""], environment.items())]
    blocks += ["## Systems", _systems([s for s in systems if not s.reason])]
    if missing := [system for system in systems if system.reason]:
        blocks += ["Not measured, because not available:"]
        blocks += ["\n".join(f"* {system.name}: {_cell(system.reason)}" for system in missing)]
    for section in sections:
        blocks += _render_section(section)
    return "\n\n".join(blocks) + "\n"


def _summary(sections: Sequence[Section]) -> str:
    verdicts = [
        bar.judge(section.results)[0] for section in sections for bar in section.scenario.bars
    ]
    counts = [f"{verdicts.count(v)} {v}" for v in ("met", "missed", "not measured")]
    rows = [[section.scenario.title, *row] for section in sections for row in _bars(section)]
    table = _table(["scenario", "bar", "figure", "met/missed"], rows)
    return f"Of {len(verdicts)} bars: {', '.join(counts)}.\n\n{table}"


def _systems(systems: Iterable[Participant]) -> str:
    rows = [
        (f"[{s.name}]({s.url})" if s.url else s.name, s.version, s.kind, s.notes) for s in systems
    ]
    return _table(["system", "version", "kind", "notes"], rows)


def _render_section(section: Section) -> list[str]:
    scenario, results = section.scenario, section.results
    titles = {variant.name: variant.title or variant.name for variant in scenario.variants}
    blocks = [f"## {scenario.title}", scenario.description]
    if scenario.settings:
        pairs = ", ".join(f"{name} = {value}" for name, value in scenario.settings.items())
        blocks.append(f"The server runs with {pairs} here.")
    groups = results.groups()
    if scenario.matrix:
        blocks += [_matrix(results, titles, scenario.variants)] if groups else []
        groups = []
    for variant, metric in groups:
        if len(groups) > 1:
            blocks.append(f"### {titles.get(variant, variant)}, {metric}".replace("### , ", "### "))
        blocks.append(_figures(results, variant, metric))
    if results.failures:
        blocks.append(
            "\n".join(
                f"* {results.systems[f.system].name} {titles.get(f.variant, f.variant)}".rstrip()
                + f" failed: {_cell(f.reason)}"
                for f in results.failures
            )
        )
    if results.remarks:
        blocks.append("\n".join(f"* {remark}" for remark in results.remarks))
    if scenario.bars:
        blocks.append(_table(["bar", "figure", "met/missed"], _bars(section)))
    blocks += [f"![{scenario.title}]({plot})" for plot in section.plots]
    return blocks


def _figures(results: Results, variant: str, metric: str) -> str:
    heads = ["system", "version", metric, "spread", *(head for _, head in _BASELINES)]
    rows: list[list[str]] = []
    for system in results.systems.values():
        values = results.rounds(variant, system.short, metric).values()
        if not values:
            continue
        row = [system.name, system.version, number(statistics.median(values))]
        row.append(f"{number(min(values))} - {number(max(values))}")
        for baseline, _ in _BASELINES:
            ratio = results.ratio(variant, system.short, baseline, metric)
            row.append("" if ratio is None else f"{ratio:.2f}")
        rows.append(row)
    return _table(heads, rows, right_from=2)


def _matrix(results: Results, titles: Mapping[str, str], variants: Sequence[Variant]) -> str:
    """Put variants and systems in rows, metrics in columns, and what a variant is compared with."""
    metrics = list(dict.fromkeys(figure.metric for figure in results.figures))
    ratios = any(variant.of for variant in variants)
    rows: list[list[str]] = []
    for variant in variants:
        for system in results.systems.values():
            found = [results.rounds(variant.name, system.short, metric) for metric in metrics]
            if not any(found):
                continue
            row = [titles[variant.name], system.name, *(_spread(values) for values in found)]
            if ratios:
                baseline = results.rounds(variant.of, system.short, metrics[0])
                ratio = median_ratio(found[0], baseline) if variant.of else None
                row.append("" if ratio is None else f"{ratio:.2f} of {titles[variant.of]}")
            rows.append(row)
    heads = ["", "system", *metrics, *(["ratio"] if ratios else [])]
    return _table(heads, rows, right_from=2)


def _spread(values: Mapping[int, float]) -> str:
    """Return the median of the rounds, and the least and the greatest if there are several."""
    if not values:
        return ""
    middle = number(statistics.median(values.values()))
    if len(values) == 1:
        return middle
    return f"{middle} ({number(min(values.values()))} - {number(max(values.values()))})"


def _bars(section: Section) -> Iterable[list[str]]:
    for bar in section.scenario.bars:
        verdict, reading = bar.judge(section.results)
        figure = "" if reading.value is None else number(reading.value)
        text = f"{figure} {reading.note}".strip()
        yield [bar.text, text, verdict if verdict == "met" else f"**{verdict}**"]


def _table(
    heads: Sequence[str], rows: Iterable[Sequence[str]], right_from: int | None = None
) -> str:
    right = len(heads) if right_from is None else right_from
    rule = ["---"] * right + ["---:"] * (len(heads) - right)
    lines = [heads, rule, *([_cell(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
