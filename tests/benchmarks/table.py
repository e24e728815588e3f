"""The tables of a stored benchmark, again:  python -m tests.benchmarks.table tests/benchmarks/results/<processor>.json"""

from __future__ import annotations

import json
import sys

from tests.benchmarks.measure import table


def main(path: str) -> None:
    """Prints every table in the file."""
    with open(path) as file:
        stored = json.load(file)
    print(stored["machine_info"]["cpu"].get("brand_raw", "unknown processor"))
    for benchmark in stored["benchmarks"]:
        extra = benchmark["extra_info"]
        if "rows" in extra:
            memory = f", memory copies {extra['copy_bytes_a_second'] / 1e9:.0f} GB/s" if "copy_bytes_a_second" in extra else ""
            print(f"\n{extra['shape']}, {extra['parameters'] / 1e6:.2f} M parameters, {extra['threads']} threads{memory}")
            print(table(extra["rows"]))
        elif "first_step_s" in extra:
            print(f"\n{benchmark['name']}: {extra['first_step_s']}")
        elif "grid" in extra:
            print(f"\n{extra['grid']}")


if __name__ == "__main__":
    main(sys.argv[1])
