"""The folder of a service as its processes leave it, small."""

import json

from commands import write_fleet

from ekya.core.units import StreamId
from ekya.results.storage.run_folder import RunFolder
from ekya.results.storage.run_state import ModelRow, StateStore

CAM = StreamId("cam-1")


def a_service(root, **fleet):
    """Makes ``root/yard``: a service of one camera with five models, in its third segment."""
    folder = RunFolder.create_numbered(root, "yard")
    write_fleet(folder.path, **fleet)
    put(folder, "starts.jsonl", json.dumps({"run_us": 0, "unix_us": 1_700_000_000_000_000}))
    with StateStore(folder.state) as store:
        for version in range(5):
            path = f"models/{CAM}/{version}.safetensors"
            put(folder, path, f"weights {version}")
            store.put_model(ModelRow(CAM, version, version, path, None, 0.8 + version / 100, version * 10**6))
    put(folder, "journal.jsonl", steps(0))
    put(folder, "journal-000001.jsonl", steps(1))
    put(folder, "journal-000002.jsonl", steps(2) + '{"now_us": 12')
    put(folder, "snapshot.json", json.dumps({"format": 1, "segment": 2, "at_byte": 10}))
    put(folder, "history.json", '{"format": 1, "cameras": {}}')
    put(folder, f"predictions/{CAM}/2026-11-25T16.parquet", "an hour")
    put(folder, f"predictions/{CAM}/2026-11-25T17.parts/000000000000-000000000009.parquet", "a part")
    put(folder, "answers/broker.json", '{"cam-1": 17}')
    put(folder, "answers/events.jsonl", "delivered")
    for secret in (
        "exemplars/cam-1.safetensors",
        "validations/cam-1/7.json",
        "token",
        "service.json",
        "logs/service.jsonl",
        "supervisor.log",
    ):
        put(folder, secret, "TOP-SECRET")
    return folder


def steps(window):
    """Returns lines of a journal in which a window opens, among others."""
    opened = {"kind": "WindowOpened", "t_us": window * 10**7, "index": window, "end_us": (window + 1) * 10**7}
    counted = {"kind": "FramesCounted", "t_us": 3, "stream": "cam-1"}
    lines = (
        {"scheduler": "ekya", "options": {}},
        {"now_us": window * 10**7, "events": [counted, opened]},
        {"decided_us": 0, "plan": None, "commands": []},
        {"now_us": window * 10**7 + 5, "events": [counted]},
    )
    return "".join(json.dumps(line) + "\n" for line in lines)


def put(folder, name, content):
    """Writes a file of the folder, and returns its path."""
    path = folder.path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return path


def names(folder):
    """Returns the names of all files below a folder."""
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
