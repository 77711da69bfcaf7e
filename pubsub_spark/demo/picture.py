"""The demo's table as a picture: mean delays by carrier and hour, above them the number of departures."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import numpy as np
import pyarrow as pa
from matplotlib.figure import Figure

from .report import pivot

# The delay of the darkest colour; a handful of late evening flights would otherwise bleach all the rest.
_DARKEST_MINUTES = 40


def draw(departures: pa.Table, path: Path) -> None:
    """Save the picture as PNG. No display is needed: the figure is drawn by itself, without pyplot."""
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
