"""`?line=` of other routes, within what a key may see."""

from __future__ import annotations

from aiohttp import web

from proxy.access.security import principal_of
from proxy.versions.lines import Lines


def line_of(request: web.Request, lines: Lines) -> str:
    """The line that is asked for, else the key's, else the common one. Raises Forbidden, NotFound, Gone."""
    return lines.permit(principal_of(request), request.query.get("line"))


def only_line(request: web.Request, lines: Lines) -> str | None:
    """The same for lists, where None is every line."""
    principal, line = principal_of(request), request.query.get("line")
    return None if line is None and principal.line is None else lines.permit(principal, line)
