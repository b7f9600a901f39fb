"""Pages and pictures that several parts of fewcal draw: plain functions of numbers, no knowledge of methods."""

from fewcal.render.page import Cell, Page

__all__ = ["Cell", "Page"]
