"""Load, check, split and partition data sets (import name `bench.datasets`)."""

if __name__ != "bench.datasets":
    raise ImportError(
        f"this folder is bench.datasets, imported as {__name__!r} because the current folder is on "
        "sys.path; run with `bench`, `pytest` or `python -P` instead of `python -m`"
    )
