"""Check the machine: torch with torchvision, GPU, cores and threads, as seen from a separate process.

Importing a broken torchvision can crash the process, so this module imports neither; `bench doctor`'s other checks work
even if torch does not."""

import json
import os
import subprocess
import sys
from typing import Any

from bench.health.finding import Finding

_PROBE = """
import json
versions = {}
try:
    import torch
    versions["torch"] = torch.__version__
    versions["cuda"] = torch.version.cuda
    versions["gpus"] = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    versions["threads"] = torch.get_num_threads()
    try:
        import torchvision
        import torchvision.ops
        versions["torchvision"] = torchvision.__version__
    except ModuleNotFoundError as error:
        versions["no torchvision"] = str(error)
    except Exception as error:
        versions["torchvision error"] = f"{type(error).__name__}: {error}"
except Exception as error:
    versions["torch error"] = f"{type(error).__name__}: {error}"
print("\\n" + json.dumps(versions))
"""
_SAME = "install both from one index in one command: both CPU-only, or both for the same CUDA"


def probe(timeout: float = 120) -> dict[str, Any]:
    """Return torch's version, GPUs and threads, as seen by a fresh Python process within `timeout` seconds. If torch
    cannot be imported, the key `torch error` holds the reason."""
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", _PROBE], capture_output=True, text=True, timeout=timeout, check=False
        )
        versions: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    except subprocess.TimeoutExpired:
        return {"torch error": f"importing torch took more than {timeout:g} s"}
    except (IndexError, ValueError):
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return {"torch error": f"the interpreter ended with code {done.returncode}: {last}"}
    return versions


def pair(versions: dict[str, Any]) -> Finding:
    """Check that torch and torchvision can be imported together; a mismatched pair may crash. `versions` holds the
    versions and import errors that `probe` found."""
    name = "torch + torchvision"
    if "torch error" in versions:
        return Finding(name, "fail", _line(versions["torch error"]), "install torch again, from its own index")
    if "torchvision error" in versions:
        error = _line(versions["torchvision error"])
        detail = f"torch {versions['torch']} works, torchvision does not: {error}"
        return Finding(name, "fail", detail, f"{_SAME}; until then LPIPS is left out and all else works")
    if "torchvision" not in versions:
        return Finding(name, "warn", f"torch {versions['torch']}, no torchvision", f"for LPIPS {_SAME}")
    return Finding(name, "ok", f"{versions['torch']} with {versions['torchvision']}")


def gpu(versions: dict[str, Any]) -> Finding:
    """Return a finding that lists the GPUs that torch can use; a machine without a GPU is no error. `versions` holds
    the versions and GPUs that `probe` found."""
    detail = "none: torch is built for the CPU alone"
    if versions.get("cuda"):
        detail = f"none visible (torch is built for CUDA {versions['cuda']}); runs use the CPU"
    return Finding("gpu", "ok", ", ".join(versions.get("gpus", ())) or detail)


def cores(versions: dict[str, Any]) -> Finding:
    """Return a finding that compares the CPU cores available to this process with torch's threads: more threads than
    cores cost time. `versions` holds the number of threads that `probe` found."""
    # only Linux has sched_getaffinity; other systems allow every core
    usable = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    threads = int(versions.get("threads", usable))
    detail = f"{usable} usable of {os.cpu_count()}, {threads} torch threads"
    remedy = f"set OMP_NUM_THREADS={usable}" if threads > usable else ""
    return Finding("cpu", "warn" if remedy else "ok", detail, remedy)


def _line(text: str) -> str:
    return text.strip().splitlines()[0]
