"""`fewcal studio`: a local web page on which a few labels become a classifier.

store, rescue      what the folder remembers (SQLite), and what can be read of a damaged one
intake, embedder   what may enter a project; its features in the background
answers, moment    the classifier on the labelled items; a project at one moment and its answers, as values
checker            cross-validation of the examples in the background
project            all of these together, for any number of open pages
exports            CSV, folders by class, a Python snippet
guard, app, server who may use it (token, Host, Origin); the HTTP interface; the process
"""

from __future__ import annotations

from fewcal.apply.studio.project import Studio, StudioSettings

__all__ = ["Studio", "StudioSettings"]
