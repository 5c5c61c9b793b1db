"""Draws the plots, as SVG files that are the same for the same figures."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.figures import Results, Series
from benchmarks.system import load

# A new system is black until it has a colour here.
_COLOURS = {
    "pgq": "#1f77b4",
    "floor": "#b0b0b0",
    "textbook": "#5c5c5c",
    "awa": "#d62728",
    "chancy": "#17becf",
    "graphile_worker": "#ff9f1c",
    "pg_boss": "#2ca02c",
    "pgqueuer": "#9467bd",
    "procrastinate": "#e377c2",
    "skytools_pgq": "#8c564b",
}
_BLACK = "#000000"

# Digits enough that labels of different ticks differ.
_NUMBER = "{x:,.10g}"


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
        plain = metric.replace("µ", "u")
        slug = "".join(x if x.isascii() and x.isalnum() else "_" for x in plain)
        made.append(_lines(results, lines, titles, title, place / f"{name}_{slug}.svg"))
    return made


def _bars(results: Results, titles: Mapping[str, str], title: str, file: Path) -> Path:
    """One panel for each variant and metric, one bar for each system."""
    groups = results.groups()
    figure, axes = _panels(len(groups), title)
    for axis, (variant, metric) in zip(axes, groups, strict=True):
        found = {
            system: list(values.values())
            for system in results.systems
            if (values := results.rounds(variant, system, metric))
        }
        names = [results.systems[system].name for system in found]
        _draw_bars(axis, names, list(found), list(found.values()))
        axis.set_title(titles.get(variant, variant), fontsize=10)
        axis.set_xlabel(metric)
    return _save(figure, file)


def _bars_by_metric(results: Results, titles: Mapping[str, str], title: str, file: Path) -> Path:
    """One panel for each metric, one bar for each variant and system that has it."""
    bars = {
        metric: {
            (variant, system): list(values.values())
            for variant in titles
            for system in results.systems
            if (values := results.rounds(variant, system, metric))
        }
        for metric in dict.fromkeys(figure.metric for figure in results.figures)
    }
    size = (5.5, 0.9 + 0.2 * max(map(len, bars.values())))
    figure, axes = _panels(len(bars), title, columns=2, size=size)
    for axis, (metric, found) in zip(axes, bars.items(), strict=True):
        names = [f"{titles[v]}, {results.systems[s].name}".lstrip(", ") for v, s in found]
        _draw_bars(axis, names, [system for _, system in found], list(found.values()))
        axis.tick_params(axis="y", labelsize=7)
        axis.set_xlabel(metric)
    return _save(figure, file)


def _draw_bars(
    axis: Any,  # of matplotlib
    names: Sequence[str],
    systems: Sequence[str],
    rounds: Sequence[Sequence[float]],
) -> None:
    """Draw a bar for each median, with whiskers for the spread."""
    medians = [statistics.median(values) for values in rounds]
    below = [m - min(values) for m, values in zip(medians, rounds, strict=True)]
    above = [max(values) - m for m, values in zip(medians, rounds, strict=True)]
    axis.barh(
        range(len(names)),
        medians,
        xerr=[below, above],
        color=[_COLOURS.get(system, _BLACK) for system in systems],
        tick_label=names,
        error_kw={"elinewidth": 1, "capsize": 2},
    )
    axis.invert_yaxis()
    axis.grid(axis="x", alpha=0.3)
    axis.xaxis.set_major_formatter(_NUMBER)
    axis.xaxis.set_major_locator(load("matplotlib.ticker").MaxNLocator(4))


def _lines(
    results: Results, series: Sequence[Series], titles: Mapping[str, str], title: str, file: Path
) -> Path:
    """One panel for each variant, one line for each system."""
    variants = list(dict.fromkeys(line.variant for line in series))
    figure, axes = _panels(len(variants), title)
    values = [value for line in series for _, value in line.points if value > 0] or [0.0]
    is_wide = series[0].metric.startswith("p99") and max(values) > 50 * min(values)
    for axis, variant in zip(axes, variants, strict=True):
        for line in series:
            if line.variant == variant:
                axis.plot(
                    [time for time, _ in line.points],
                    [value for _, value in line.points],
                    label=results.systems[line.system].name,
                    color=_COLOURS.get(line.system, _BLACK),
                    linewidth=1.2,
                )
        axis.set_title(titles.get(variant, variant), fontsize=10)
        axis.set_xlabel("seconds")
        axis.set_ylabel(series[0].metric)
        if is_wide:
            axis.set_yscale("log")
        else:
            axis.set_ylim(bottom=0)
        axis.grid(axis="y", alpha=0.3)
        axis.yaxis.set_major_formatter(_NUMBER)
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
