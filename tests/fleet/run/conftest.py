"""Fixture of tests with several servers: a town of two, of which north cannot train beside serving."""

import pytest
import yaml

from ekya.config.shipped import shipped_path


@pytest.fixture(scope="session")
def write_town():
    """Writes a fleet file and its servers file, and returns the path of the servers file."""

    def write(folder, windows_s, windows, blocks, scene, fps, south, own=None):
        """``scene`` is the index of the one scene of its own that every camera shows from the start.

        ``south`` has keys of that server, and ``own`` of north.
        """
        raw = yaml.safe_load(shipped_path("datasets/synthetic_city/fleet.yaml").read_text())
        raw |= {"window_s": windows_s, "windows": windows}
        raw |= {"preparation": {"share_milli": 250, "fraction": 0.15}}
        raw["retraining"] |= {"epochs": [4], "trainable_blocks": [blocks], "data_fractions": [1.0]}
        raw["streams"] = [one for one in raw["streams"] if one["id"] in ("cam-1", "cam-2", *south["streams"])]
        for stream in raw["streams"]:
            shown = {key: its for key, its in stream["source"]["scenes"][scene].items() if key != "ramp_s"}
            stream["source"] |= {"fps": fps, "scenes": [shown | {"at_s": 0}]}
        (folder / "fleet.yaml").write_text(yaml.safe_dump(raw))
        north = {"site": "north", "streams": ["cam-1", "cam-2"], "changes": {"gpus": 0.35}}
        north["samples_may_leave"] = "crops"
        servers = [north | (own or {}), {"site": "south", **south}]
        path = folder / "servers.yaml"
        path.write_text(
            yaml.safe_dump(
                {"name": "town", "fleet": "fleet.yaml", "links": {"mb_s": 1000}, "servers": servers}
            )
        )
        return path

    return write
