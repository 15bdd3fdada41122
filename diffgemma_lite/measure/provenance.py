"""Where a measurement comes from.

Device, driver, clocks, versions, code and how busy the machine was.

Nothing here names a folder or a user of the machine. What cannot be asked is said to be unknown,
never guessed.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from .device import cache_bytes
from .environment import version

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("torch", "transformers", "numpy", "triton")
CODE = ("diffgemma_lite", "benchmarks")  # what the revision is about


def default_device() -> torch.device:
    """CUDA if there is one, else Apple's MPS, else the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def describe(device: torch.device) -> dict[str, Any]:
    """What `recording.DEVICE` lists."""
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        name, cores, memory = (
            properties.name,
            properties.multi_processor_count,
            properties.total_memory,
        )
    else:
        name, cores, memory = _cpu_name(), os.cpu_count() or 1, _memory_bytes()
        name = f"{name} (MPS)" if device.type == "mps" else name
    system = f"{platform.system()} {platform.release()} {platform.machine()}"
    return {
        "name": name,
        "kind": device.type,
        "cores": cores,
        "memory_bytes": memory,
        "cache_bytes": cache_bytes(device),
        "system": system,
    }


def file_name(device: dict[str, Any]) -> str:
    """ "AMD EPYC" with 2 cores -> "amd-epyc-2-cores"."""
    words = re.sub(r"[^a-z0-9]+", "-", device["name"].lower()).strip("-")
    return f"{words}-{device['cores']}-cores" if device["kind"] == "cpu" else words


def run_provenance(device: torch.device, command: str) -> dict[str, Any]:
    """What `recording.PROVENANCE` lists, as it is now.

    `load` gets its second number when the run ends (`load_now`).
    """
    revision, changed = code_revision()
    versions = {"python": platform.python_version()} | {
        p: v for p in PACKAGES if (v := version(p)) is not None
    }
    if device.type == "cuda":
        versions["cuda"] = str(torch.version.cuda)
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "command": command,
        "revision": revision,
        "changed": changed,
        "versions": versions,
        "driver": driver(device),
        "clocks": clocks(device),
        "load": load_now(),
        "threads": torch.get_num_threads(),
    }


def load_now() -> list[float]:
    """The load average of the last minute: how many processes wanted to run.

    Empty where the system has none.
    """
    return [round(os.getloadavg()[0], 2)] if hasattr(os, "getloadavg") else []


def driver(device: torch.device) -> str:
    if device.type == "cuda":
        return _nvidia("driver_version").get("driver_version", "unknown")
    return f"none (kernel {platform.release()})"


def clocks(device: torch.device) -> dict[str, Any]:
    """MHz now and at most, as far as the system tells."""
    if device.type == "cuda":
        return _nvidia(
            "clocks.sm",
            "clocks.max.sm",
            "clocks.mem",
            "power.limit",
            "persistence_mode",
            "mig.mode.current",
        )
    cpuinfo = _read("/proc/cpuinfo")
    now = [float(mhz) for mhz in re.findall(r"^cpu MHz\s*: ([\d.]+)", cpuinfo, re.MULTILINE)]
    most = _read("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq").strip()
    found: dict[str, Any] = {"mhz now": now} if now else {}
    return found | ({"mhz at most": int(most) / 1000} if most.isdigit() else {})


def code_revision() -> tuple[str, list[str]]:
    """The commit of this code and the files that differ from it; ("unknown", []) where git does not
    say.
    """
    commit = _run("git", "-C", str(ROOT), "rev-parse", "HEAD").strip()
    if not commit:
        return "unknown", []
    status = _run("git", "-C", str(ROOT), "status", "--porcelain", "--", *CODE)
    return commit, sorted(line[3:] for line in status.splitlines() if line)


def _nvidia(*fields: str) -> dict[str, str]:
    answer = _run(
        "nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader"
    ).splitlines()
    return (
        dict(zip(fields, (value.strip() for value in answer[0].split(",")), strict=False))
        if answer
        else {}
    )


def _run(*command: str) -> str:
    try:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=30, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError:
        return ""


def _cpu_name() -> str:
    found = re.search(r"^model name\s*: (.+)$", _read("/proc/cpuinfo"), re.MULTILINE)
    if found:
        return found[1].strip()
    mac = _run("sysctl", "-n", "machdep.cpu.brand_string").strip()
    return mac or platform.processor() or platform.machine() or "unknown"


def _memory_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 0
