"""Few-shot methods, one short file each, behind one interface over batched tasks."""

from fewcal.methods.base import Head, Method
from fewcal.methods.gdc import GDC
from fewcal.methods.registry import METHODS, make_method, parse_methods, parse_settings

__all__ = ["GDC", "METHODS", "Head", "Method", "make_method", "parse_methods", "parse_settings"]
