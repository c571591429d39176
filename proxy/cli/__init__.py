"""The `rlproxy` command."""

from __future__ import annotations


def main() -> None:
    """Runs the command and exits with its status. The import is inside: modules of this package are used without it."""
    from proxy.cli.app import app
    from proxy.core.terminal import guard

    guard()
    app(prog_name="rlproxy")  # also as `python -m proxy.cli`: completion and help name what a person types
