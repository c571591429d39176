"""Get the model that demo, tests and `rlproxy serve` use when none is named.
`python -m scripts.get_model [SPEC] [--json]`.
"""

from trainer.formats.weights import main

if __name__ == "__main__":
    raise SystemExit(main())
