"""The pictures of the demo and the notebooks, as PNG files, drawn without a display."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pyarrow as pa
from matplotlib.figure import Figure

from .report import pivot

# The delay of the darkest colour. A handful of late evening flights would otherwise bleach all the rest.
_DARKEST_MINUTES = 40


def draw(departures: pa.Table, path: Path) -> None:
    """Save the demo's table: mean delays by carrier and hour, above them the number of departures."""
    hours, carriers, delays = pivot(departures, "mean_delay")
    _, _, counts = pivot(departures, "departures")
    minutes = np.array([[delays.get((hour, carrier), np.nan) for hour in hours] for carrier in carriers])
    flights = [sum(counts.get((hour, carrier), 0) for carrier in carriers) for hour in hours]

    figure = Figure(figsize=(11, 7.5), layout="constrained", dpi=120)
    above, below = figure.subplots(2, 1, height_ratios=(1, 4), sharex=True)
    figure.suptitle("Departures from New York in 2013, read from Pub/Sub", fontsize=14, x=0.02, ha="left")

    above.bar(range(len(hours)), flights, color="#5b7c99")
    above.set_ylabel("departures")
    above.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    above.spines[["top", "right"]].set_visible(False)

    colours = mpl.colormaps["YlOrRd"].with_extremes(bad="#f2f2f2")
    image = below.imshow(minutes, aspect="auto", cmap=colours, vmin=0, vmax=_DARKEST_MINUTES)
    for row, column in np.argwhere(~np.isnan(minutes)):
        value = minutes[row, column]
        colour = "white" if value > 0.6 * _DARKEST_MINUTES else "#333333"
        below.text(column, row, str(round(value)), ha="center", va="center", fontsize=8, color=colour)
    below.set_xticks(range(len(hours)), [f"{hour}" for hour in hours])
    below.set_yticks(range(len(carriers)), carriers)
    below.set_xlabel("scheduled hour of departure")
    below.set_ylabel("carrier")
    figure.colorbar(image, ax=below, label="mean departure delay, minutes", extend="both")
    figure.savefig(path)


def draw_steps(
    counts: Mapping[str, Sequence[float]], moments: Mapping[str, float], title: str, y_label: str, path: Path
) -> None:
    """Save a picture of counts that grow with time. Vertical lines mark the moments.

    counts: by name, the time of each of them in seconds.
    """
    figure = Figure(figsize=(9, 4), layout="constrained", dpi=100)
    axes = figure.subplots()
    figure.suptitle(title, fontsize=13, x=0.02, ha="left")
    for (name, times), colour in zip(counts.items(), ("#5b7c99", "#c2571a"), strict=False):
        axes.step(sorted(times), range(1, len(times) + 1), where="post", label=name, color=colour, linewidth=2)
    for name, time in moments.items():
        axes.axvline(time, color="#333333", linestyle=":")
        axes.annotate(name, (time, 0.02), xycoords=("data", "axes fraction"), rotation=90, ha="right", fontsize=9)
    axes.set_xlabel("seconds")
    axes.set_ylabel(y_label)
    axes.legend(loc="upper left")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)


def show(path: Path) -> None:
    """Show a picture in a notebook's cell (Jupyter, Databricks). Elsewhere print its path."""
    if "ipykernel" in sys.modules:
        shown: Any = import_module("IPython.display")
        shown.display(shown.Image(filename=str(path)))
    else:
        sys.stdout.write(f"the picture is {path}\n")
