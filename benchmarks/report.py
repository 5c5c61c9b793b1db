"""Writes the report, in Markdown."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.figures import Participant, Results, median
from benchmarks.scenario import Scenario

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


def number(value: float) -> str:
    """Return a number with three digits at least, thousands apart: 12,345, 98.7, 0.123."""
    if abs(value) >= 100 or value == 0:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3g}"


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
    groups = results.groups()
    if scenario.matrix:
        blocks += [_matrix(results, titles)] if groups else []
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
        row = [system.name, system.version, number(median(values))]
        row.append(f"{number(min(values))} - {number(max(values))}")
        for baseline, _ in _BASELINES:
            ratio = results.ratio(variant, system.short, baseline, metric)
            row.append("" if ratio is None else f"{ratio:.2f}")
        rows.append(row)
    return _table(heads, rows, right_from=2)


def _matrix(results: Results, titles: Mapping[str, str]) -> str:
    """Put variants and systems in rows, metrics in columns; a figure is the rounds' median."""
    metrics = list(dict.fromkeys(figure.metric for figure in results.figures))
    variants = list(dict.fromkeys(figure.variant for figure in results.figures))
    rows: list[list[str]] = []
    for variant in variants:
        for system in results.systems.values():
            values = [results.rounds(variant, system.short, metric).values() for metric in metrics]
            if any(values):
                cells = [number(median(found)) if found else "" for found in values]
                rows.append([titles.get(variant, variant), system.name, *cells])
    return _table(["", "system", *metrics], rows, right_from=2)


def _bars(section: Section) -> Iterable[list[str]]:
    for bar in section.scenario.bars:
        verdict, reading = bar.judge(section.results)
        text = "" if reading is None else f"{number(reading.value)} {reading.note}".rstrip()
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
