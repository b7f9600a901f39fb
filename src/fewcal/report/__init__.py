"""Reports: figures, and one self-contained HTML file that needs no network."""

from __future__ import annotations

from fewcal.report.page import Cell, Page

__all__ = ["Cell", "Page"]
