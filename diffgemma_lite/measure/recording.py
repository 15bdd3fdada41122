"""What was measured on a device, with where it came from.

One JSON file that a notebook can show without the device.

Against a table of benchmark results: nothing is in it without provenance. Every point names the run
that made it, and every run says when, with which command, code, versions, driver and clocks, and
how busy the machine was; a file that lacks one of these is refused, when it is read and when it is
written. run.py makes recordings, replay.py prints them. Walked through in notebooks 01 and 11.

    {"device": {...}, "runs": [{...}], "sections": {"steps": {"about": "...", "points": [{"key",
    "run", "result"}]}}}
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..cost.hardware import Hardware, Sourced
from ..trace import read_json, write_json

FORMAT, VERSION = "diffgemma_lite.device", 1
DEVICE = {
    "name": str,
    "kind": str,
    "cores": int,
    "memory_bytes": int,
    "cache_bytes": int,
    "system": str,
}
PROVENANCE = {
    "date": str,  # when the run began, UTC
    "command": str,
    "revision": str,  # commit of the code; "unknown" where there is no git
    "changed": list,  # files of the code that differed from that commit
    "versions": dict,
    "driver": str,  # of the GPU; of a CPU the kernel
    "clocks": dict,
    # the machine's load average of one minute, at start and end; empty where there is none
    "load": list,
    "threads": int,
}
TIMING = ("median", "low", "high", "least", "repeats")  # seconds; low and high are the quartiles
PEAK_NAMES = {"float32": "fp32", "tf32": "tf32", "bfloat16": "bf16", "float8_e4m3fn": "fp8"}


@dataclass
class Recording:
    """Sections of points measured on one device.

    `add` while measuring; `find` and `points` afterwards.
    """

    device: dict[str, Any]
    runs: list[dict[str, Any]] = field(default_factory=list)
    sections: dict[str, dict[str, Any]] = field(default_factory=dict)

    def points(self, section: str, **key: Any) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
        """(key, result) of the points whose key holds these values, failed ones left out, in the
        order measured.
        """
        for point in self.sections.get(section, {}).get("points", []):
            if "failed" not in point["result"] and all(
                point["key"].get(k) == v for k, v in key.items()
            ):
                yield point["key"], point["result"]

    def find(self, section: str, **key: Any) -> dict[str, Any]:
        """The result of the one point with these values in its key.

        Errors: ValueError if there is none, or several.
        """
        found = [result for _, result in self.points(section, **key)]
        if len(found) != 1:
            raise ValueError(
                f"key: {section} has {len(found)} points with {key}, takes a key that fits one"
            )
        return found[0]

    def has(self, section: str, key: dict[str, Any], *, failed: bool = True) -> bool:
        """Whether the point was measured; `failed` True: or tried and failed."""
        points = self.sections.get(section, {}).get("points", [])
        return any(
            point["key"] == key and (failed or "failed" not in point["result"]) for point in points
        )

    def add(self, section: str, about: str, key: dict[str, Any], result: dict[str, Any]) -> None:
        """A point of the latest run, in place of an earlier one with the same key."""
        here = self.sections.setdefault(section, {"about": about, "points": []})
        here["points"] = [point for point in here["points"] if point["key"] != key]
        here["points"].append({"key": key, "run": len(self.runs) - 1, "result": result})

    # ---- as roofs --------------------------------------------------------------------------------

    @property
    def label(self) -> str:
        """The device and the days it was measured on, for a title."""
        days = sorted({run["date"][:10] for run in self.runs})
        return f"{self.device['name']}, {self.device['cores']} cores, {' and '.join(days)}"

    def hardware(self) -> Hardware:
        """The device as the cost model takes it.

        Best bandwidth measured beyond the cache, best peak of each dtype.
        """
        reads = [(r["rate"], key, r) for key, r in self.points("bandwidth", where="memory")]
        if not reads:
            raise ValueError("sections: 'bandwidth' has no point beyond the cache; record it first")
        rate, key, result = max(reads, key=lambda entry: entry[0])
        said = (
            f"measured: {key['what']} of {result['bytes'] / 1e6:.0f} MB, "
            f"median of {result['timing']['repeats']}"
        )
        peaks: dict[str, Sourced] = {}
        for key, result in self.points("peak"):
            name = PEAK_NAMES[key["dtype"]]
            if name not in peaks or result["rate"] > peaks[name].value:
                source = (
                    f"measured: product of {key['n']} x {key['n']}, "
                    f"median of {result['timing']['repeats']}"
                )
                peaks[name] = Sourced(result["rate"], source)
        cache = Sourced(float(self.device["cache_bytes"]), "as the system reports it")
        return Hardware(self.device["name"], Sourced(rate, said), peaks, cache)

    # ---- files -----------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "version": VERSION,
            "device": self.device,
            "runs": self.runs,
            "sections": self.sections,
        }

    def save(self, path: str | Path) -> Path:
        """Written whole or not at all. Errors: ValueError for what `validate` refuses."""
        validate(self.to_json())
        return write_json(path, self.to_json())

    @classmethod
    def load(cls, path: str | Path) -> Recording:
        data = read_json(path, FORMAT, VERSION)
        validate(data)
        return cls(data["device"], data["runs"], data["sections"])


def recordings(folder: str | Path) -> list[Recording]:
    """The device recordings of a folder, by file name; other JSON files (traces) are passed over.

    Errors: ValueError for a file of this format that `validate` refuses.
    """
    mark = f'"format":"{FORMAT}"'
    files = sorted(Path(folder).glob("*.json"))
    return [Recording.load(path) for path in files if mark in path.read_text(encoding="utf-8")[:80]]


def validate(data: dict[str, Any]) -> None:
    """Refuse a recording that does not say where each of its points comes from.

    Errors: ValueError with the place.
    """
    _need(data, {"device": dict, "runs": list, "sections": dict}, "recording")
    _need(data["device"], DEVICE, "device")
    if not data["runs"]:
        raise ValueError("runs: is empty, takes the provenance of at least one run")
    for i, run in enumerate(data["runs"]):
        _need(run, PROVENANCE, f"runs[{i}]")
        for part in ("python", "torch"):
            _need(run["versions"], {part: str}, f"runs[{i}].versions")
    for name, section in data["sections"].items():
        _need(section, {"about": str, "points": list}, name)
        for i, point in enumerate(section["points"]):
            place = f"{name}.points[{i}]"
            _need(point, {"key": dict, "run": int, "result": dict}, place)
            if not 0 <= point["run"] < len(data["runs"]):
                raise ValueError(
                    f"{place}.run: got {point['run']}, "
                    f"takes the number of one of the {len(data['runs'])} runs"
                )
            if "timing" in point["result"]:
                _need(
                    point["result"]["timing"],
                    dict.fromkeys(TIMING, (int, float)),
                    f"{place}.timing",
                )


def _need(data: Any, fields: dict[str, Any], place: str) -> None:
    for name, kind in fields.items():
        value = data.get(name) if isinstance(data, dict) else None
        if not isinstance(value, kind) or isinstance(value, bool) or value == "":
            kinds = " or ".join(k.__name__ for k in (kind if isinstance(kind, tuple) else (kind,)))
            raise ValueError(
                f"{place}.{name}: got {value!r}, takes {kinds}; a recording says where it is from"
            )
