"""Describes this machine: GPU, driver, libraries, Python's frameworks. Reports
what is missing, but never fails because of it."""

import datetime
import json
import os
import pathlib
import platform
import re
import shutil
import subprocess

# Prints the versions of the peers that a Python has, as JSON.
PEERS = """
import importlib, json
found = {}
for name in ("torch", "torchvision", "jax", "jaxlib", "triton", "numpy"):
    try:
        found[name] = importlib.import_module(name).__version__
    except Exception as e:
        found[name] = None
if found["torch"]:
    import torch
    found["torch_cuda"] = torch.version.cuda
    found["torch_cudnn"] = torch.backends.cudnn.version()
    found["torch_sees_gpu"] = torch.cuda.is_available()
if found["jax"]:
    import jax
    found["jax_platform"] = jax.default_backend()
print(json.dumps(found))
"""
GPU_FIELDS = ["name", "driver_version", "memory.total", "clocks.max.sm",
              "clocks.max.mem", "power.limit", "compute_cap"]
CLOCK_FIELDS = ["clocks.sm", "clocks.mem", "power.draw", "temperature.gpu",
                "clocks_event_reasons.active"]


def output(command, timeout=120):
    """Returns stdout, or None."""
    try:
        done = subprocess.run([str(word) for word in command], timeout=timeout,
                              capture_output=True, text=True, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def query_gpu(fields):
    """Returns {field: text} of the first GPU, or None."""
    text = output(["nvidia-smi", f"--query-gpu={','.join(fields)}",
                   "--format=csv,noheader", "-i", "0"])
    if not text:
        return None
    return dict(zip(fields, (part.strip() for part in text.split(","))))


def clocks():
    return query_gpu(CLOCK_FIELDS)


def cpu_name():
    try:
        text = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return "unknown"
    match = re.search(r"^model name\s*: (.*)$", text, re.MULTILINE)
    return match[1] if match else "unknown"


def doctor(fusor):
    text = output([fusor, "doctor"])
    return text.splitlines() if text else []


def gpu_count(doctor_lines):
    for line in doctor_lines:
        match = re.search(r"driver: CUDA .*?, (\d+) device", line)
        if match:
            return int(match[1])
    return 0


def probe(python, seconds):
    """Returns {"python", "found": versions of its frameworks, "why": reason if
    there is no answer}. Imports may take up to the time limit."""
    try:
        done = subprocess.run([python, "-c", PEERS], timeout=max(1, seconds),
                              capture_output=True, text=True, check=False)
        # Imports may print lines before that.
        return {"python": python,
                "found": json.loads(done.stdout.strip().splitlines()[-1])}
    except subprocess.TimeoutExpired:
        why = f"Python did not answer within {seconds:.0f} s"
    except (OSError, ValueError, IndexError):
        why = None
    return {"python": python, "found": {}, "why": why}


def describe(fusor, backend):
    """Returns {date, host, cpu, .., gpu, doctor, has: {what units need: True
    or why it is missing}}. add_peers adds the rest."""
    lines = doctor(fusor)
    gpu = query_gpu(GPU_FIELDS)
    on_gpu = backend == "cuda"
    has = {"backend": True, "gpu": True, "tests": True}
    if gpu_count(lines) == 0:
        has["gpu"] = "no GPU"
        if on_gpu:
            has["backend"] = "no GPU"
    elif not on_gpu:
        has["gpu"] = "no GPU asked for"
    has["sanitizer"] = (shutil.which("compute-sanitizer") is not None or
                        "no compute-sanitizer")
    return {"date": datetime.datetime.now().isoformat(timespec="seconds"),
            "kernel": platform.release(), "libc": " ".join(platform.libc_ver()),
            "cpu": cpu_name(), "cores": os.cpu_count(), "gpu": gpu,
            "doctor": lines, "has": has}


def add_peers(here, probed, backend):
    """Adds the versions of the frameworks in `probed`, also to `has`."""
    peers, has = probed["found"], here["has"]
    on_gpu = backend == "cuda"
    here["versions"] = peers
    for name, title in (("torch", "PyTorch"), ("torchvision", "torchvision"),
                        ("jax", "JAX")):
        has[name] = (bool(peers.get(name)) or probed.get("why") or
                     f"no {title}")
    if on_gpu and peers.get("torch") and not peers.get("torch_sees_gpu"):
        has["torch"] = has["torchvision"] = "PyTorch sees no GPU"
    if on_gpu and peers.get("jax") and peers.get("jax_platform") != "gpu":
        has["jax"] = "JAX sees no GPU"
