"""`GET /openapi.json`: the OpenAPI 3.1 document of all that other programs may use.

`operations` is the table of the routes, `asked` and `answered` are the shapes of their bodies, `document` puts them
together. Nothing here answers a request but the one for the document: tests hold the handlers against it.
"""

from proxy.openapi.document import document, left_out, route
from proxy.openapi.operations import OPERATIONS

__all__ = ["OPERATIONS", "document", "left_out", "route"]
