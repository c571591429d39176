"""Sphinx's configuration: `make docs` builds the site from these pages and fails on a link that leads nowhere."""

import posixpath
import re

project = "rlproxy"
extensions = ["myst_parser"]
html_theme = "furo"
html_title = "rlproxy"
exclude_patterns = ["README.md", "lab"]  # index.md includes the one; the other is the developers' records
myst_heading_anchors = 4
myst_enable_extensions = ["html_image"]
suppress_warnings = ["myst.header"]  # a page may begin a table of contents at any level


def _links_out_of_site(app: object, page: str, source: list[str]) -> None:
    """Keep the words of a link to a file that the site has not: outside docs/, or the developers' records."""
    folder = posixpath.dirname(page)

    def words(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(folder, link[2]))
        return link[1] if path.startswith(("..", "lab/")) else link[0]

    source[0] = re.sub(r"\[([^\]]+)\]\((?!\w+://)([^)#\s]+)(?:#[^)\s]*)?\)", words, source[0])


def setup(app) -> None:
    app.connect("source-read", _links_out_of_site)
    app.connect("include-read", lambda app, path, page, source: _links_out_of_site(app, page, source))
