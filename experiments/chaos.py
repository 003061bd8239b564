"""Chaos: a real ``ekya serve`` under random faults, after each of which its invariants are checked.

    python experiments/chaos.py --minutes 10 --seed 1
    python experiments/chaos.py --faults kill:raylet,hang:decoder,full,camera:cut --json -
    python experiments/chaos.py --only kill,stop --minutes 120

The service watches rendered cameras in short windows, and an RTSP camera. Faults are drawn without
replacement until all were drawn: processes of each kind are killed, alone and in pairs, stopped for seconds,
left hanging, and denied memory; the service is stopped and started, also in the middle of a retraining and
of a swap of weights, and where its port is taken; its power is cut, with the end of its files; its disk is
full, its clock jumps, its broker is away; a camera floods, stalls, loses its power, and comes back with
another size or codec. Before each, terms are changed over the API. A seed gives the same faults in the same
order, but not at the same moments of the service; where a kind of process is not there, another is chosen.

A full disk needs root, who may mount one; a clock needs a C compiler, a broker mosquitto, an
RTSP camera GStreamer's server and FastestDet as golden model. What is missing is said, and its
faults are left out.

Printed is a line a fault, with the seconds until all was in order again, the longest time for which a
camera gave no answer meanwhile, and the processes that it hit. Exit code 1: an invariant failed; the
service's folder is kept then.
"""

import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from chaos_checks import Answers, shared_memory
from chaos_faults import INVARIANTS, PARTS, RECOVERIES, WHOLE, Fault, deck, killed, line, summary
from chaos_run import Chaos
from chaos_service import Service
from chaos_surroundings import Surroundings, free_port, opened
from chaos_terms import Terms
from recipe import Json, Seed, print_rows, run

from ekya.cli.command import Output, open_output
from ekya.core.errors import UserError

DETECTOR = Path(__file__).resolve().parents[2] / "shared" / "data" / "weights" / "FastestDet.onnx"
_GROWTH, _GROWTH_BYTES = 1.3, 200e6


def played(chaos: Chaos, faults: Iterator[Fault], seconds: float, say: Callable[[str], None]) -> list[str]:
    """Runs a service under faults, and returns what failed outside of a single one."""
    failed: list[str] = []
    shared = shared_memory()
    service = chaos.service
    service.start()
    if not chaos.ready():
        service.end()
        return ["serves: the service does not start"]
    chaos.began_s = time.monotonic()
    time.sleep(2 * service.window_s)
    first_bytes = most_bytes(service)
    while time.monotonic() - chaos.began_s < seconds and (fault := next(faults, None)) is not None:
        say(line(len(chaos.outcomes) + 1, chaos.strike(fault)))
    time.sleep(2 * service.window_s)
    last_bytes = most_bytes(service)
    say(f"memory: {first_bytes / 1e6:.0f} MB after the start, {last_bytes / 1e6:.0f} MB at the end")
    if last_bytes > _GROWTH * first_bytes + _GROWTH_BYTES:
        failed.append(f"memory: {first_bytes / 1e6:.0f} MB became {last_bytes / 1e6:.0f} MB")
    chaos.stop(failed)
    failed += chaos.journal_wrong()
    if more := shared_memory() - shared:
        failed.append(f"left: /dev/shm/{', '.join(sorted(more))}")
    return failed


def most_bytes(service: Service) -> int:
    """Returns the most memory that the service's processes need within some seconds."""
    most = 0
    for _ in range(4):
        most = max(most, service.pss_bytes())
        time.sleep(service.window_s / 4)
    return most


def main(
    minutes: Annotated[float, typer.Option(min=0.1, help="How long faults are done.")] = 10.0,
    seed: Seed = 0,
    faults: Annotated[
        str | None, typer.Option(metavar="LIST", help="Only these faults, in this order: kill:raylet,power.")
    ] = None,
    only: Annotated[
        str | None, typer.Option(metavar="LIST", help="Draw faults of these kinds alone: kill,stop.")
    ] = None,
    cameras: Annotated[int, typer.Option(min=2, max=3, help="Rendered cameras at the start.")] = 2,
    window: Annotated[float, typer.Option(min=5.0, help="Length of a retraining window, seconds.")] = 12.0,
    patience: Annotated[
        float, typer.Option(min=0.1, help="Factor of all time limits, for a busy machine.")
    ] = 1.0,
    golden: Annotated[Path, typer.Option(help="FastestDet's ONNX file, for RTSP cameras.")] = DETECTOR,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the folder also if nothing failed.")] = False,
    folder: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Of the service, new; default: a temporary one."),
    ] = None,
    json_to: Json = None,
) -> None:
    """Serve cameras under random faults, and check the service's invariants after each."""
    chance = random.Random(seed)  # noqa: S311
    named = None if faults is None else [Fault.of(one) for one in faults.split(",")]
    wanted = _wanted(named, only)
    place = (Path(tempfile.mkdtemp(prefix="chaos-")) if folder is None else folder).resolve()
    with open_output(json_to) as channel:
        channel.print_text(f"Seed {seed}; folder {place}")
        with ExitStack() as stack:
            around, without = opened(place, wanted, golden, stack, channel.print_text)
            service = served(place, window, cameras, around, golden)
            names = [*list(service.cameras)[:cameras], *(camera.id for camera in around.cameras)]
            wanted_of = {name: Terms() for name in names}
            chaos = Chaos(service, Answers(service.answers), chance, patience, wanted_of, around)
            stack.callback(service.end)
            if wanted is not None:
                without |= {*PARTS, *WHOLE} - wanted
            chosen = deck(chance, without) if named is None else iter(named)
            failed = played(chaos, chosen, 60.0 * minutes, lambda said: _say(channel, said))
        report(channel, chaos, seed, failed, place, keep)


def _wanted(named: Sequence[Fault] | None, only: str | None) -> set[str] | None:
    """Returns which faults are wanted, as in ``Fault.what``; None for all."""
    if named is not None:
        return {fault.what for fault in named}
    if only is None:
        return None
    wanted = set(only.split(","))
    if unknown := wanted - {*PARTS, *WHOLE}:
        raise UserError(f"--only: {', '.join(sorted(unknown))} is none of {', '.join((*PARTS, *WHOLE))}")
    return wanted


def served(place: Path, window_s: float, streams: int, around: Surroundings, detector: Path) -> Service:
    """Returns a service over rendered cameras and those around it, which is not started."""
    clock = {} if around.clock is None else around.clock.environment
    service = Service(place, window_s, port=free_port(), environment=clock)
    service.prepare(
        streams,
        [camera.stream for camera in around.cameras],
        around.sinks,
        detector.resolve() if around.cameras else None,
    )
    return service


def report(channel: Output, chaos: Chaos, seed: int, failed: Sequence[str], place: Path, keep: bool) -> None:
    """Prints and writes what was found; ends with exit code 1 if an invariant failed."""
    wrong = [*(f"{one.fault}: {said}" for one in chaos.outcomes for said in one.failed), *failed]
    rows = summary(chaos.outcomes)
    channel.write_json(
        {
            "seed": seed,
            "folder": str(place),
            "invariants": INVARIANTS,
            "answers": dict(chaos.answers.counts),
            "restarts": chaos.service.restarts(),
            "faults": [asdict(one) for one in chaos.outcomes],
            "killed": killed(chaos.outcomes),
            "summary": rows,
            "failed": wrong,
        }
    )
    print_rows(channel.console, RECOVERIES, rows)
    channel.print_text(f"{len(chaos.outcomes)} faults, {killed(chaos.outcomes)} processes killed")
    for said in wrong:
        channel.print_text(f"FAILED {said}")
    if wrong:
        channel.print_text(f"Seed {seed}; the journal is in {chaos.service.runs.path}")
        raise typer.Exit(1)
    channel.print_text("All invariants held.")
    if not keep:
        shutil.rmtree(place, ignore_errors=True)


def _say(channel: Output, said: str) -> None:
    channel.print_text(said)
    channel.console.file.flush()


if __name__ == "__main__":
    run(main, "python experiments/chaos.py --minutes 3 --seed 7 --json -")
