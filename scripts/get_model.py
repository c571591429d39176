"""Get the model that demo, tests and `rlproxy serve` use when none is named: `scripts/get_model.py [SPEC] [--json]`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # works before `pip install`, too

from trainer.formats.weights import main

if __name__ == "__main__":
    raise SystemExit(main())
