"""Draw what `run.py` measured."""

from __future__ import annotations

import re


def draw_plot(figures, path):
    """Show for each network how long a run takes beside the forward passes alone, on a logarithmic scale."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    rows = []
    for ratio in figures["ratios"]:
        if match := re.fullmatch(r"(\w+): time / forward passes alone", ratio["what"]):
            slow, alone, board, png = map(float, re.findall(r"[\d.]+", ratio["note"]))
            rows.append((match[1], {"tutorials' way": slow / alone, "TensorBoard": board / alone, "PNG files": png / alone}))
    if not rows:
        return
    colors = {"tutorials' way": "#9aa0a6", "TensorBoard": "#e8710a", "PNG files": "#1a73e8"}
    figure, axes = pyplot.subplots(figsize=(8, 0.5 + 0.95 * len(rows)), layout="constrained")
    for place, (_, bars) in enumerate(rows):
        for number, (label, value) in enumerate(bars.items()):
            y = place + (number - 1) * 0.26
            axes.barh(y, value - 0.5, left=0.5, height=0.24, color=colors[label], label=label if place == 0 else None)
            axes.text(value * 1.06, y, f"{value:.3g}", va="center", fontsize=8)
    axes.axvline(1, color="black", linewidth=1, linestyle=":")
    axes.set(xscale="log", xlim=(0.5, 400), yticks=range(len(rows)), yticklabels=[name for name, _ in rows])
    axes.set_xticks([0.5, 1, 2, 5, 10, 20, 50, 100, 200], ["0.5", "1", "2", "5", "10", "20", "50", "100", "200"])
    axes.minorticks_off()
    axes.invert_yaxis()
    axes.set_xlabel("time of a whole run / forward passes alone (logarithmic)")
    axes.legend(loc="lower right", frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)
