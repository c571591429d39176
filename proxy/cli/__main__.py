"""`python -m proxy.cli`: the `rlproxy` command without its script."""

from __future__ import annotations

from proxy.cli import main

if __name__ == "__main__":
    main()
