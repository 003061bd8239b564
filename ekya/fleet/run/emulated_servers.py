"""Servers of the emulated world: everything is really trained and answered, on virtual time, without Ray."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack

from ekya.control.loop import Observer
from ekya.fleet.policy.brokering import Broker
from ekya.fleet.policy.names import SiteName
from ekya.fleet.policy.offers import Sizes
from ekya.fleet.run.desk import LoanDesk
from ekya.fleet.run.servers import Failure, ServerFleet, ServerSpec
from ekya.fleet.run.servers_folder import LoanFile, ServersFolder
from ekya.fleet.servers_file import Server, Servers
from ekya.learning.checkpoints import to_bytes
from ekya.setup import base_model, crop_side, with_classes
from ekya.sim.emulated import EmulatedRun, open_emulated


def emulate_servers(
    folder: ServersFolder,
    servers: Servers,
    broker: Broker | None,
    failures: Sequence[Failure],
    seed: int,
    observe: Callable[[SiteName], Observer],
) -> LoanDesk | None:
    """Runs all of them beside each other, each into a run folder of its own.

    Args:
        folder: that was just made.
        servers: which.
        broker: finds loans; None: every server is by itself.
        failures: servers that die.
        seed: of everything that is drawn.
        observe: for each site, who is told of its turns.

    Returns:
        Where they agreed; None where there was no such place.

    Raises:
        KeyboardInterrupt: Ctrl-C came; what happened until then is measured and written.
    """
    stopped = False
    runs: list[EmulatedRun] = []
    with ExitStack() as stack:
        loans = LoanFile(folder.loans)
        stack.callback(loans.close)
        desk = None if broker is None else LoanDesk(broker, servers.links, seed, loans)
        specs = []
        for server in servers.servers:
            fleet = with_classes(server.fleet)
            own = folder.new_run(server.terms.site)
            run = stack.enter_context(open_emulated(own, fleet, fleet.scheduler, seed))
            runs.append(run)
            specs.append(_spec(server, run, observe(server.terms.site)))
        try:
            ServerFleet(specs, desk, failures).run()
        except KeyboardInterrupt:
            stopped = True
    for run in runs:
        run.finish()
    if stopped:
        raise KeyboardInterrupt
    return desk


def _spec(server: Server, run: EmulatedRun, observe: Observer) -> ServerSpec:
    return ServerSpec(
        terms=server.terms,
        executor=run.executor,
        journal=run.journal,
        scheduler=run.scheduler,
        options=run.options,
        sizes=sizes_of(run),
        plan=run.plan,
        observe=observe,
    )


def sizes_of(run: EmulatedRun) -> Sizes:
    """What a retraining of its streams sends."""
    side = crop_side(run.fleet)
    model = base_model(run.fleet, run.options.seed)
    blocks = (sum(weight.numel() for weight in block.parameters()) for block in reversed(model.blocks))
    return Sizes(
        crop_mb=side * side * 3 / 1e6,
        model_mb=len(to_bytes(model)) / 1e6,
        blocks_mb=tuple(4e-6 * weights for weights in blocks),
        features=model.features,
        classes=len(model.classes),
    )
