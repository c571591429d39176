"""`python -m scripts.bench.lessons told|http|runs|gaps|retirement`: measures lessons; each part says what it writes."""

from __future__ import annotations

import argparse

from scripts.bench.lessons import gaps, http, retirement, runs, told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(required=True)
    for module in (told, http, runs, gaps, retirement):
        part = parts.add_parser(module.__name__.rpartition(".")[2], description=module.__doc__)
        module.add_arguments(part)
        part.set_defaults(run=module.run)
    arguments = parser.parse_args()
    arguments.run(arguments)


if __name__ == "__main__":
    main()
