"""Servers of the emulated world: real training and inference on virtual time, without Ray."""

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

from ekya.control.loop import Observer
from ekya.core.units import us_to_seconds
from ekya.fleet.policy.registry import Tier
from ekya.fleet.run.coordinator import LoanCoordinator
from ekya.fleet.run.link_sizes import sizes_of
from ekya.fleet.run.loan_file import LoanFile
from ekya.fleet.run.servers import ServerDeath, ServerFleet, ServerRun
from ekya.fleet.run.servers_folder import RanServers, ServersFolder
from ekya.fleet.servers_file import ServerConfig, Servers
from ekya.pipeline.discover_classes import with_classes
from ekya.simulation.emulated.run import EmulatedRun, open_emulated
from ekya.system.host import give_back_freed


@contextmanager
def _models_forgotten() -> Iterator[None]:
    """Frees models after a call: servers and executors refer to each other, so only ``gc`` collects them."""
    try:
        yield
    finally:
        gc.collect()
        give_back_freed()


@_models_forgotten()
def emulate_servers(
    folder: ServersFolder,
    servers: Servers,
    tier: Tier | None,
    failures: Sequence[ServerDeath],
    seed: int,
    observe: Callable[[ServerConfig], Observer],
) -> RanServers:
    """Runs all servers side by side, each into a separate run folder.

    Args:
        folder: newly made.
        servers: of the fleet.
        tier: decides about loans; None: every server works alone.
        failures: servers that die.
        seed: of all random draws.
        observe: returns the observer of a server's control steps.

    Ctrl-C ends the run early; the results up to then are measured and written as usual.
    """
    ran = RanServers()
    runs: list[EmulatedRun] = []
    with ExitStack() as stack:
        loans = LoanFile(folder.loans)
        stack.callback(loans.close)
        above = None if tier is None else LoanCoordinator(tier, servers.links, seed, loans)
        specs = []
        for server in servers.servers:
            cameras = with_classes(server.fleet)
            own = folder.new_run(server.terms.site)
            run = stack.enter_context(open_emulated(own, cameras, cameras.scheduler, seed))
            runs.append(run)
            specs.append(_spec(server, run, observe(server)))
        fleet = ServerFleet(specs, above, failures)
        with suppress(KeyboardInterrupt):
            fleet.run()
        fleet.give_up_remote()
    for server, run in zip(servers.servers, runs, strict=True):
        ran.summaries[server.terms.site] = run.finish()
    ran.died_s = {site: us_to_seconds(at_us) for site, at_us in fleet.died_us.items()}
    return ran


def _spec(server: ServerConfig, run: EmulatedRun, observe: Observer) -> ServerRun:
    return ServerRun(
        terms=server.terms,
        executor=run.executor,
        journal=run.journal,
        scheduler=run.scheduler,
        options=run.options,
        sizes=sizes_of(run.fleet, run.options.seed),
        plan=run.plan,
        observe=observe,
    )
