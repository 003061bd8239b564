"""A day of a service in an hour: ``ekya serve`` over RTSP cameras, with power cuts, kills and changes.

    python experiments/soak.py
    python experiments/soak.py --minutes 6 --seed 2 --json -

Three RTSP cameras play real videos in a loop. Every two minutes one loses its power for ten seconds; every
three minutes a random process of the service is killed with `kill -9`; every minute something is changed
over the API. An MQTT consumer counts the answers. At the end these must hold:

- the consumer has a camera's next answer within five seconds after its power is back (and the service is
  in order);
- the memory (PSS) of all processes is within 5% of that after ten minutes, with the same cameras (judged in
  runs of twenty minutes or more);
- the folder is within its retention again three windows after it was not, and something of the past was
  removed for that;
- the logs of Ray's session are below 300 MB;
- no answer is missing outside of cuts, kills and pauses, and each frame on disk that was analysed has
  arrived at the consumer;
- the invariants of ``chaos.py``.
"""

import itertools
import os
import random
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from chaos import Chaos
from chaos_checks import Answers, shared_memory
from chaos_faults import INVARIANTS, RECOVERIES, Fault, killed, line, summary
from chaos_service import KINDS, SINK, Service, UnansweredError
from chaos_surroundings import Camera
from chaos_terms import Terms
from mosquitto import Broker, Consumer
from recipe import RESULTS, Json, Out, Seed, print_rows, publish_rows, run
from soak_facts import BACK_S, Busy, Cut, Sample, backs, gaps, median, memory_mb, missing_at_consumer, slowest

from ekya.cli.command import Output, open_output
from ekya.core.errors import UserError
from ekya.service.run_folder_contents import folder_bytes

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
VIDEOS = ("ahmetozlu_input_video.mp4", "intel_one-by-one-person-detection.mp4", "degirum_Traffic.mp4")
CLASSES = ("person", "bicycle", "car", "motorcycle", "bus", "truck", "background")

GROWTH = 1.05
RETENTION_GB, MOST_GB = 0.6, 1.0
"""Limit of the folder, and what it must never exceed. What always stays was at most 0.5 GB; see ``fill``."""

RAY_MB = 300.0
_COLLECTED_WINDOWS = 3
"""The service looks once a window, and as it does so more may come."""

_PAST_FILES, _PAST_BYTES, _PAST_AGE_S = 590, 1_000_000, 3600.0
_WINDOW_S = 16.0
_CUT_S, _KILL_S, _CHANGE_S, _NOTE_S = 120.0, 180.0, 60.0, 20.0
_AWAY_S = 10.0
_SETTLED_S = 600.0

_DELIVERED_S = 20.0


@dataclass(slots=True, eq=False)
class Day:
    """What happened to a service, as wall-clock times.

    Attributes:
        now_s: a clock that is never set.
        busy: faults and pauses, in which answers may be missing.
        over_s: longest time for which the folder was above its retention, while the service could look.
    """

    chaos: Chaos
    cameras: Sequence[Camera]
    consumer: Consumer
    cuts: list[Cut] = field(default_factory=list)
    busy: list[Busy] = field(default_factory=list)
    over_s: float = 0.0
    samples: list[Sample] = field(default_factory=list)
    changes: int = 0
    failed: list[str] = field(default_factory=list)
    now_s: Callable[[], float] = time.monotonic
    _away: dict[str, float] = field(default_factory=dict)
    _large_since_s: float | None = None
    _over: threading.Event = field(default_factory=threading.Event)

    def cut_by_turns(self, seconds: float) -> None:
        """Cuts the power of one camera after the other, until ``end_cuts`` or little of the time is left."""
        for number, camera in enumerate(itertools.cycle(self.cameras), start=1):
            if number * _CUT_S > seconds - 3 * _AWAY_S or self._over.wait(_CUT_S - _AWAY_S):
                return
            at_s = time.time()
            camera.kill()
            self._over.wait(_AWAY_S)
            camera.start()
            self.cuts.append(Cut(camera.id, at_s, time.time()))

    def end_cuts(self) -> None:
        """Ends the power cuts."""
        self._over.set()

    def kill(self, kind: str) -> str:
        """Kills a process of a kind and waits for the recovery; returns a line on it."""
        at_s = time.time()
        outcome = self.chaos.strike(Fault("kill", (kind,)))
        self.changes += len(outcome.changed)
        self.busy.append(("", at_s, time.time()))
        self.note_away()
        self._large_since_s = None  # a service that dies looks again after its start
        return line(len(self.chaos.outcomes), outcome)

    def change(self) -> str:
        """Changes something over the API; takes back first what keeps a camera from serving."""
        chaos = self.chaos
        paused = next((name for name, terms in chaos.wanted.items() if terms.paused), None)
        missing = len(chaos.wanted) < len(self.cameras)
        kinds = ["pause", "freeze", "weight", "accuracy", "labels", "remove"]
        kind = "pause" if paused else "add" if missing else chaos.chance.choice(kinds)
        name = paused or chaos.chance.choice(sorted(chaos.wanted))
        try:
            said = chaos.changed(kind, name)
        except UserError as error:
            said = f"{kind} {name} refused ({error})"
            if kind != "labels":
                self.failed.append(f"terms: {said}")
        except UnansweredError as error:
            said = f"{kind} {name} unanswered ({error})"
            self.failed.append(f"serves: {said}")
        self.changes += 1
        self.note_away()
        return said or f"{kind} {name}: nothing to change"

    def note_away(self) -> None:
        """Notes cameras that are paused or removed, and those that are back."""
        active, now_s = set(self.chaos.active()), time.time()
        for camera in self.cameras:
            if camera.id not in active:
                self._away.setdefault(camera.id, now_s)
            elif (since_s := self._away.pop(camera.id, None)) is not None:
                self.busy.append((camera.id, since_s - 1.0, now_s))

    def sample(self, at_s: float) -> None:
        """Notes memory and disk, if all cameras serve."""
        told = self.chaos.service.status()
        serving = [] if told is None else [one for one in told["cameras"] if one["state"] == "serving"]
        if len(serving) < len(self.cameras):
            return
        service = self.chaos.service
        processes = len(service.processes())
        pss, disk = service.pss_bytes(), folder_bytes(service.runs.path)
        ray = folder_bytes(service.ray_logs)
        self.samples.append(Sample(at_s, pss / 1e6, processes, disk / 1e6, ray / 1e6))

    def watch_disk(self) -> None:
        """Notes for how long the folder is above its retention."""
        now_s = self.now_s()
        if folder_bytes(self.chaos.service.runs.path) <= 1e9 * RETENTION_GB:
            self._large_since_s = None
            return
        if self._large_since_s is None:
            self._large_since_s = now_s
        self.over_s = max(self.over_s, now_s - self._large_since_s)


def fill(folder: Path) -> None:
    """Adds to a service's folder rotated logs of an hour before.

    An hour's answers and journal are some 20 MB beside weights of hundreds, which stay: without a past
    there would be nothing that the size limit could remove. The files have a size and no content.
    """
    folder.mkdir(exist_ok=True)
    written_s = time.time() - _PAST_AGE_S
    for number in range(1, _PAST_FILES + 1):
        path = folder / f"past.jsonl.{number}"
        with path.open("wb") as file:
            file.truncate(_PAST_BYTES)
        os.utime(path, (written_s, written_s))


def live(day: Day, seconds: float, chance: random.Random, say: Output) -> None:
    """Lets a day pass; the last minutes are left in peace, so that memory settles."""
    service = day.chaos.service
    service.start()
    if not day.chaos.ready():
        raise UserError(f"{service.said}: the service does not start")
    fill(service.runs.path / "logs")
    day.chaos.began_s = began_s = time.monotonic()
    cutter = threading.Thread(target=day.cut_by_turns, args=(seconds,))
    cutter.start()
    due = {"kill": _KILL_S / 2, "change": _CHANGE_S / 2, "note": _NOTE_S}
    kinds: list[str] = []
    try:
        while (at_s := time.monotonic() - began_s) < seconds:
            if at_s >= due["kill"] and at_s < seconds - _KILL_S:
                kinds = kinds or chance.sample(KINDS, len(KINDS))
                _say(say, day.kill(kinds.pop()))
                due["kill"] += _KILL_S
            elif at_s >= due["change"]:
                _say(say, f"    {at_s:6.0f} s  {day.change()}")
                due["change"] += _CHANGE_S
            elif at_s >= due["note"]:
                day.sample(at_s)
                due["note"] = at_s + _NOTE_S
            day.chaos.look(day.failed)
            day.watch_disk()
            time.sleep(0.5)
    finally:
        day.end_cuts()
        cutter.join()


def wrong(
    day: Day, returns: Sequence[dict[str, Any]], lacking: dict[str, tuple[int, int]], first_s: float
) -> Iterator[str]:
    """Yields what does not hold."""
    yield from day.failed
    yield from (f"{one.fault}: {said}" for one in day.chaos.outcomes for said in one.failed)
    for row in returns:
        if not row["left_out"] and (row["back_s"] is None or row["back_s"] > BACK_S):
            yield f"back: {row['camera']} after {row['back_s']} s"
    yield from (f"gap: {said}" for said in gaps(day.cuts, day.busy, day.consumer.cameras()))
    yield from (f"MQTT: {count} of {of} of {name}" for name, (of, count) in lacking.items() if count)
    early, late = memory_mb(day.samples, first_s)
    if late > GROWTH * early and first_s >= _SETTLED_S:
        yield f"memory: {early:.0f} MB became {late:.0f} MB"
    if day.over_s > _COLLECTED_WINDOWS * _WINDOW_S:
        yield f"disk: for {day.over_s:.0f} s above {1000 * RETENTION_GB:.0f} MB, which is the retention"
    if not past_removed(day.chaos.service.runs.path):
        yield "disk: the retention did not remove anything, so nothing is known of it"
    if (most := max((one.disk_mb for one in day.samples), default=0.0)) > 1000 * MOST_GB:
        yield f"disk: {most:.0f} MB, and the retention is {1000 * RETENTION_GB:.0f} MB"
    if not 0 < (most := max((one.ray_mb for one in day.samples), default=0.0)) <= RAY_MB:
        yield f"Ray: {most:.0f} MB of logs"


def past_removed(folder: Path) -> int:
    """Returns how many files of ``fill`` are gone."""
    return _PAST_FILES - sum(1 for _ in (folder / "logs").glob("past.jsonl.*"))


def main(
    minutes: Annotated[float, typer.Option(min=3.0, help="How long the service runs.")] = 60.0,
    seed: Seed = 0,
    golden: Annotated[Path, typer.Option(help="FastestDet's ONNX file.")] = DATA
    / "weights"
    / "FastestDet.onnx",
    video: Annotated[list[Path] | None, typer.Option(help="What a camera shows; once for each.")] = None,
    out: Out = RESULTS,
    json_to: Json = None,
) -> None:
    """Serve RTSP cameras through a day of power cuts, kills and changes within an hour."""
    videos = video or [DATA / "videos" / name for name in VIDEOS]
    for file in (*videos, golden):
        if not file.is_file():
            raise UserError(f"{file}: there is no such file; name others with --video and --golden")
    chance = random.Random(seed)  # noqa: S311
    shared = shared_memory()
    place = Path(tempfile.mkdtemp(prefix="day-"))
    with open_output(json_to) as channel, ExitStack() as stack:
        _say(channel, f"Seed {seed}; folder {place}")
        broker = Broker(place / "broker")
        stack.callback(broker.kill)
        broker.start()
        consumer = Consumer(broker.port)
        stack.callback(consumer.close)
        cameras = [Camera(f"cam-{number}", {"plain": file}) for number, file in enumerate(videos, start=1)]
        for camera in cameras:
            stack.callback(camera.kill)
            camera.start()
        service = Service(place / "service", _WINDOW_S)
        stack.callback(service.end)
        prepare(service, cameras, golden, broker.port)
        chaos = Chaos(
            service, Answers(service.answers), chance, 1.0, {camera.id: Terms() for camera in cameras}
        )
        day = Day(chaos, cameras, consumer)
        live(day, 60.0 * minutes, chance, channel)
        chaos.stop(day.failed)
        time.sleep(_DELIVERED_S / 4)
        lacking = missing_at_consumer(service, consumer)
        returns = backs(day.cuts, day.busy, consumer.cameras())
        told = [one for one in returns if not one["left_out"]]
        day.failed += chaos.journal_wrong()
        if more := shared_memory() - shared:
            day.failed.append(f"left: /dev/shm/{', '.join(sorted(more))}")
        first_s = _SETTLED_S if 60.0 * minutes >= 2 * _SETTLED_S else 0.0
        failed = list(dict.fromkeys(wrong(day, returns, lacking, first_s)))
        early_mb, late_mb = memory_mb(day.samples, first_s)
        row = {
            "minutes": minutes,
            "seed": seed,
            "kills": killed(chaos.outcomes),
            "cuts": len(day.cuts),
            "changes": day.changes,
            "slowest_back_s": slowest([one["back_s"] for one in told]),
            "median_back_s": median([one["back_s"] for one in told]),
            "slowest_frame_s": slowest([one["frame_s"] for one in told]),
            "backs_left_out": len(returns) - len(told),
            "slowest_recovery_s": slowest([one.recovered_s for one in chaos.outcomes]),
            "answers": sum(of for of, _ in lacking.values()),
            "answers_missing": sum(count for _, count in lacking.values()),
            "answers_again": sum(one.again for one in consumer.cameras().values()),
            "memory_early_mb": round(early_mb),
            "memory_late_mb": round(late_mb),
            "disk_most_mb": round(max((one.disk_mb for one in day.samples), default=0.0)),
            "disk_over_s": day.over_s,
            "past_removed": past_removed(service.runs.path),
            "ray_early_mb": next((one.ray_mb for one in day.samples if one.at_s >= first_s), 0.0),
            "ray_mb": day.samples[-1].ray_mb if day.samples else 0.0,
            "ray_most_mb": max((one.ray_mb for one in day.samples), default=0.0),
            "restarts": service.restarts(),
            "failed": len(failed),
        }
        publish_rows(
            channel,
            "A day in an hour",
            [row],
            out / f"soak_{minutes:g}.csv",
            invariants=INVARIANTS,
            backs=returns,
            faults=[asdict(one) for one in chaos.outcomes],
            samples=[asdict(one) for one in day.samples],
            failures=failed,
            folder=str(place),
        )
        print_rows(channel.console, RECOVERIES, summary(chaos.outcomes))
        for said in failed:
            channel.print_text(f"FAILED {said}")
        if failed:
            channel.print_text(f"Seed {seed}; the folder is {place}")
            raise typer.Exit(1)
        channel.print_text("All of it held.")
    shutil.rmtree(place, ignore_errors=True)


def prepare(service: Service, cameras: Sequence[Camera], golden: Path, port: int) -> None:
    """Writes the fleet file: the cameras, the answers to a file and to the broker, the retention."""
    service.cameras = {camera.id: camera.stream for camera in cameras}
    fleet = {
        "classes": list(CLASSES),
        "gpus": 1.0,
        "window_s": _WINDOW_S,
        "preparation": {"share_milli": 600},
        "golden": {"model": "fastestdet", "weights": str(golden.resolve())},
        "streams": list(service.cameras.values()),
        "http": {"port": 0},
        "retention": {"days": 1, "gigabytes": RETENTION_GB},
        "answers": [
            {"kind": "jsonl", "name": SINK, "folder": str(service.folder)},
            {"kind": "mqtt", "host": "127.0.0.1", "port": port},
        ],
    }
    service.folder.mkdir(parents=True)
    (service.folder / "fleet.yaml").write_text(yaml.safe_dump(fleet))


def _say(channel: Output, said: str) -> None:
    channel.print_text(said)
    channel.console.file.flush()


if __name__ == "__main__":
    run(main, "python experiments/soak.py --minutes 6 --seed 2 --json -")
