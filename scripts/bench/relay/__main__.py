"""`python -m scripts.bench.relay`."""

from scripts.bench.relay.measure import main

main()
