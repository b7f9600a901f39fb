"""Figures: plain data in, a matplotlib figure out, the same bytes for the same data.

Colours are Okabe and Ito's, which differ for any kind of colour vision, and no figure works by colour alone: series
also differ by marker and line. Letters are 8 points high at the width of a column (3.35 inches) or of a
page (6.9 inches) of a two-column paper. Accuracies come in as shares (0 to 1) and are shown in per cent.

>>> figure = accuracy_intervals({"ncm": {"accuracy": 0.5, "ci95": 0.01}})
>>> len(svg_bytes(figure)) > 1000
True
"""

from fewcal.render.figures.curves import accuracy_panels, heat_maps, mean_curve, weight_histograms
from fewcal.render.figures.planes import Cloud, Panel, TaskView, drifting_samples, embedding_panels, task_map
from fewcal.render.figures.runs import accuracy_intervals, difference_forest, reliability, task_distribution
from fewcal.render.figures.style import PAGE, save, svg_bytes

__all__ = [
    "PAGE",
    "Cloud",
    "Panel",
    "TaskView",
    "accuracy_intervals",
    "accuracy_panels",
    "difference_forest",
    "drifting_samples",
    "embedding_panels",
    "heat_maps",
    "mean_curve",
    "reliability",
    "save",
    "svg_bytes",
    "task_distribution",
    "task_map",
    "weight_histograms",
]
