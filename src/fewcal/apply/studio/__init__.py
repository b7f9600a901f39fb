"""`fewcal studio`: a local web page on which a few labels become a classifier.

store     what the folder remembers: items, classes, labels, history (SQLite)
intake    what may enter a project: files of the folder, dropped files, texts; limits and paths
embedder  features in the background, with progress
answers   the classifier on the labelled items, doubt, what to label next, the accuracy to expect
moment    a project as it is at one moment, and the answers to it, as values
project   all of these together, for any number of open pages
exports   CSV, folders by class, a Python snippet
guard     who may ask: token, Host, Origin, sizes, headers
app       the HTTP interface
server    the process: port, link, orderly stop
"""

from __future__ import annotations

from fewcal.apply.studio.project import Studio, StudioSettings

__all__ = ["Studio", "StudioSettings"]
