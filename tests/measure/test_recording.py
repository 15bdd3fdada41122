"""A recording says where each of its points comes from, and the roofs drawn from it are the ones
that were measured.
"""

from __future__ import annotations

import copy
import json
import re

import pytest
from recorded import TIME, made, run
from tiny import refused

from diffgemma_lite.measure.provenance import ROOT
from diffgemma_lite.measure.recording import (
    DEVICE,
    FORMAT,
    PROVENANCE,
    TIMING,
    Recording,
    recordings,
    validate,
)


def test_a_recording_survives_its_file(tmp_path):
    path = made().save(tmp_path / "toy.json")
    again = Recording.load(path)
    assert again == made() and json.loads(path.read_text())["format"] == FORMAT
    assert again.label == "toy, 2 cores, 2026-11-30"
    path.write_text("{}")
    with refused("path", "toy.json", FORMAT):
        Recording.load(path)


PLACES = [("device", name) for name in DEVICE] + [("runs", name) for name in PROVENANCE]


@pytest.mark.parametrize(("place", "name"), PLACES)
def test_a_recording_without_provenance_is_refused(place, name, tmp_path):
    for value in (None, "", "absent"):
        data = copy.deepcopy(made().to_json())
        holder = data[place] if place == "device" else data[place][0]
        if value == "absent":
            del holder[name]
        else:
            holder[name] = value
        with pytest.raises(
            ValueError, match=re.escape(f".{name}" if place == "runs" else f"device.{name}")
        ):
            validate(data)
    bare = Recording(made().device, [{k: v for k, v in run().items() if k != "command"}])
    with pytest.raises(ValueError, match="command"):
        bare.save(tmp_path / "bare.json")
    assert not (tmp_path / "bare.json").exists()


def test_a_point_without_a_run_is_refused():
    def changed(change):
        data = copy.deepcopy(made().to_json())
        change(data)
        return data

    point = ("sections", "peak", "points", 0)

    def at(data):
        for step in point:
            data = data[step]
        return data

    for change, says in (
        (lambda d: d.update(runs=[]), "runs: is empty"),
        (lambda d: at(d).pop("run"), r"peak.points\[0\].run"),
        (lambda d: at(d).update(run=1), "takes the number of one of the 1 runs"),
        (lambda d: at(d).update(run=-1), "takes the number of one of the 1 runs"),
        (lambda d: at(d).pop("key"), r"peak.points\[0\].key"),
        (lambda d: at(d)["result"]["timing"].pop("repeats"), "timing.repeats"),
        (lambda d: d["runs"][0]["versions"].pop("torch"), "versions.torch"),
        (lambda d: d["sections"]["peak"].pop("about"), "peak.about"),
    ):
        with pytest.raises(ValueError, match=says):
            validate(changed(change))
    validate(changed(lambda d: None))


def test_points_are_found_by_their_key():
    recording = made()
    assert [r["rate"] for _, r in recording.points("bandwidth", where="memory")] == [10.0, 12.0]
    assert recording.find("bandwidth", where="cache")["rate"] == 90.0
    assert list(recording.points("peak", dtype="bfloat16")) == []  # it failed
    for key in ({"where": "memory"}, {"where": "disk"}):
        with refused("key", "bandwidth"):
            recording.find("bandwidth", **key)
    key = {"dtype": "bfloat16", "n": 8}
    assert recording.has("peak", key) and not recording.has("peak", key, failed=False)
    recording.add("peak", "multiplying", key, {"rate": 200.0, "timing": TIME})
    assert (
        recording.find("peak", **key)["rate"] == 200.0
        and len(recording.sections["peak"]["points"]) == 3
    )


def test_the_roofs_are_the_best_that_were_measured():
    device = made().hardware()
    assert (device.name, device.bandwidth.value, device.peak("fp32"), device.cache.value) == (
        "toy",
        12.0,
        120.0,
        4.0,
    )
    assert device.bandwidth.source == "measured: read of 1 MB, median of 7"
    assert device.peaks["fp32"].source == "measured: product of 16 x 16, median of 7"
    assert set(device.peaks) == {"fp32"}
    with refused("sections", "bandwidth"):
        Recording(made().device, [run()]).hardware()


COMMITTED = recordings(ROOT / "assets" / "recordings")


def test_a_folder_gives_its_device_recordings(tmp_path):
    (tmp_path / "a-trace.json").write_text('{"format":"diffgemma_lite.trace"}')
    made().save(tmp_path / "toy.json")
    assert recordings(tmp_path) == [made()]
    (tmp_path / "bad.json").write_text(f'{{"format":"{FORMAT}","version":1}}')
    with pytest.raises(ValueError, match="recording"):
        recordings(tmp_path)


@pytest.mark.parametrize("recording", COMMITTED, ids=lambda recording: recording.device["name"])
def test_a_committed_recording_is_of_committed_code_and_holds_every_section(recording):
    assert {point["run"] for s in recording.sections.values() for point in s["points"]} == set(
        range(len(recording.runs))
    )
    for made_by in recording.runs:
        assert re.fullmatch(r"[0-9a-f]{40}", made_by["revision"]) and made_by["changed"] == []
        assert made_by["command"].startswith(
            "python -m diffgemma_lite.measure record --out assets/recordings/"
        )
        assert len(made_by["load"]) == 2
    assert {"bandwidth", "peak", "steps", "breakdown", "answers"} <= set(recording.sections)
    assert all(
        r["timing"]["low"] <= r["timing"]["median"] <= r["timing"]["high"]
        for _, r in recording.points("steps")
    )
    assert set(TIMING) <= set(next(recording.points("steps"))[1]["timing"])
