"""Draws the plots, as SVG files that are the same for the same figures."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.figures import Results, Series
from benchmarks.system import Kind, load

_COLOURS: Mapping[Kind, str] = {"own": "#1f77b4", "yardstick": "#9a9a9a", "peer": "#e0a458"}
_CYCLE = ("#1f77b4", "#9a9a9a", "#555555", "#e0a458", "#d1495b", "#66a182", "#8d6cab", "#2e4057")


def draw(
    results: Results,
    titles: Mapping[str, str],
    title: str,
    place: Path,
    name: str,
    *,
    matrix: bool = False,
) -> list[Path]:
    """Draw what a scenario found into files `name*.svg`; `titles` are those of the variants.

    `matrix` makes a panel for each metric, and not for each variant and metric.
    """
    made: list[Path] = []
    if results.figures:
        bars = _bars_by_metric if matrix else _bars
        made.append(bars(results, titles, title, place / f"{name}.svg"))
    for metric in dict.fromkeys(series.metric for series in results.series):
        lines = [series for series in results.series if series.metric == metric]
        slug = "".join(letter if letter.isalnum() else "_" for letter in metric)
        made.append(_lines(results, lines, titles, title, place / f"{name}_{slug}.svg"))
    return made


def _bars(results: Results, titles: Mapping[str, str], title: str, file: Path) -> Path:
    """One panel for each variant and metric, one bar for each system, whiskers for the spread."""
    groups = results.groups()
    figure, axes = _panels(len(groups), title)
    for axis, (variant, metric) in zip(axes, groups, strict=True):
        found = {
            system: list(values.values())
            for system in results.systems
            if (values := results.rounds(variant, system, metric))
        }
        medians = [statistics.median(values) for values in found.values()]
        below = [m - min(v) for m, v in zip(medians, found.values(), strict=True)]
        above = [max(v) - m for m, v in zip(medians, found.values(), strict=True)]
        axis.barh(
            [results.systems[system].name for system in found],
            medians,
            xerr=[below, above],
            color=[_COLOURS[results.systems[system].kind] for system in found],
            error_kw={"elinewidth": 1, "capsize": 2},
        )
        axis.invert_yaxis()
        axis.grid(axis="x", alpha=0.3)
        axis.xaxis.set_major_formatter("{x:,.0f}" if max(medians) >= 10 else "{x:g}")
        axis.xaxis.set_major_locator(load("matplotlib.ticker").MaxNLocator(4))
        axis.set_title(titles.get(variant, variant), fontsize=10)
        axis.set_xlabel(metric)
    return _save(figure, file)


def _bars_by_metric(results: Results, titles: Mapping[str, str], title: str, file: Path) -> Path:
    """One panel for each metric, one bar for each variant and system."""
    metrics = list(dict.fromkeys(figure.metric for figure in results.figures))
    variants = list(dict.fromkeys(figure.variant for figure in results.figures))
    bars = [
        (variant, system)
        for variant in variants
        for system in results.systems
        if any(results.rounds(variant, system, metric) for metric in metrics)
    ]
    size = (5.5, 0.9 + 0.2 * len(bars))
    figure, axes = _panels(len(metrics), title, columns=2, size=size)
    for axis, metric in zip(axes, metrics, strict=True):
        values = [list(results.rounds(v, s, metric).values()) or [0.0] for v, s in bars]
        axis.barh(
            range(len(bars)),
            [statistics.median(found) for found in values],
            color=[_COLOURS[results.systems[system].kind] for _, system in bars],
            tick_label=[
                f"{titles.get(v, v)}, {results.systems[s].name}".lstrip(", ") for v, s in bars
            ],
        )
        axis.invert_yaxis()
        axis.tick_params(axis="y", labelsize=7)
        axis.grid(axis="x", alpha=0.3)
        axis.xaxis.set_major_locator(load("matplotlib.ticker").MaxNLocator(4))
        axis.xaxis.set_major_formatter("{x:,g}")
        axis.set_xlabel(metric)
    return _save(figure, file)


def _lines(
    results: Results, series: Sequence[Series], titles: Mapping[str, str], title: str, file: Path
) -> Path:
    """One panel for each variant, one line for each system."""
    variants = list(dict.fromkeys(line.variant for line in series))
    figure, axes = _panels(len(variants), title)
    colours = dict(zip(results.systems, _CYCLE * 9, strict=False))
    for axis, variant in zip(axes, variants, strict=True):
        for line in series:
            if line.variant == variant:
                axis.plot(
                    [time for time, _ in line.points],
                    [value for _, value in line.points],
                    label=results.systems[line.system].name,
                    color=colours[line.system],
                    linewidth=1.2,
                )
        axis.set_title(titles.get(variant, variant), fontsize=10)
        axis.set_xlabel("seconds")
        axis.set_ylabel(series[0].metric)
        axis.set_ylim(bottom=0)
        axis.grid(axis="y", alpha=0.3)
        axis.yaxis.set_major_formatter("{x:,.0f}")
    legend = {
        label: handle
        for axis in axes
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    figure.legend(legend.values(), legend.keys(), fontsize=8, loc="outside right upper")
    return _save(figure, file)


def _panels(
    count: int, title: str, *, columns: int = 3, size: tuple[float, float] = (3.6, 3.2)
) -> tuple[Any, list[Any]]:
    """Return a figure and its panels, of which each has that size in inches."""
    matplotlib = load("matplotlib")
    matplotlib.use("Agg")
    matplotlib.rcParams.update({"svg.hashsalt": "pgq", "svg.fonttype": "none"})
    pyplot = load("matplotlib.pyplot")
    columns = min(count, columns)
    rows = -(-count // columns)
    whole = (max(5.0, size[0] * columns), size[1] * rows)
    figure, axes = pyplot.subplots(
        rows, columns, figsize=whole, squeeze=False, layout="constrained"
    )
    figure.suptitle(title)
    panels = list(axes.flat)
    for unused in panels[count:]:
        unused.remove()
    for axis in panels[:count]:
        axis.spines[["top", "right"]].set_visible(False)
        axis.set_axisbelow(True)
    return figure, panels[:count]


def _save(figure: Any, file: Path) -> Path:  # a figure of matplotlib
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    load("matplotlib.pyplot").close(figure)
    return file
