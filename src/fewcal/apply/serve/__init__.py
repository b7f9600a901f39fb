"""`fewcal serve MODEL`: a saved classifier as a REST service.

model     the classifier and its extractor behind one call for many items
batching  requests that come together are computed together; limits on waiting
openapi   the interface in words, for programs and as a page
app       the HTTP interface
server    the process
"""

from __future__ import annotations
