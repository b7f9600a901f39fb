"""`fewcal serve MODEL`: a saved classifier as a REST service.

model     the classifier and its extractor behind one call for many items
batching  items that arrive together are computed together
inputs    items of a request from its body, and limits on them
openapi   the interface for programs; page.html is the one for people
app       the HTTP interface
guard     token, names, sizes, metrics
server    the process
"""

from __future__ import annotations
