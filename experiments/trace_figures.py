"""Draws one of the paper's figures from played traces.

    python experiments/trace_figures.py figure6
    python experiments/trace_figures.py figure7 --full --trace city.parquet --trace video.parquet

Generated traces have the paper's spread; means with an interval are over five of them. A recorded trace is
one. `ekya` is our default, `thief` the paper's search with our estimates, `paper` the paper's search with its
micro-profiler; all three with checkpoints.
"""

from dataclasses import replace

import baseline_figures as baseline
import planning_figures as planning
import sweep_figures as sweep
from bench_executed import EXECUTED
from estimate_figures import FIGURE11A
from figure4 import FIGURE4
from paper_size import PAPER_SIZE
from played import SEEDS, generated, over_traces
from recipe import run
from recipe_table import command_of

from ekya.simulation.trace.generator_parameters import DEFAULT_PARAMETERS

FIGURES = {
    "figure3": over_traces(
        "Cost and accuracy of every retraining configuration",
        "Figure 3: what retraining configurations cost and bring",
        lambda full, seed: generated(10, 10 if full else 4, [seed]),
        planning.list_gammas,
        planning.beside_gammas,
        "The generator was given the paper's spread of cost; a recorded fleet's Γ is what its file "
        "says, with fewer epochs and parts of the data.",
        planning.draw_gammas,
    ),
    "figure4": FIGURE4,
    "figure6": over_traces(
        "1 to 8 streams on one and on two GPUs: Figure 6 and Table 3",
        "Figure 6: accuracy by the number of streams, on one and on two GPUs",
        lambda full, seed: generated(8, 10 if full else 4, range(seed, seed + SEEDS)),
        sweep.play_by_streams,
        sweep.beside_by_streams,
        "A generated stream needs 0.15 to 0.45 GPUs to be analysed in full, and the paper does not "
        "say what its own need; so a target is passed at another number of streams, in the paper's "
        "order.",
        sweep.draw_by_streams,
    ),
    "figure7": over_traces(
        "Ten streams on 1 to 16 GPUs",
        "Figure 7: accuracy of ten streams (recorded: all there are) by GPUs",
        lambda full, seed: generated(10, 10 if full else 5, range(seed, seed + SEEDS)),
        sweep.play_by_gpus,
        sweep.beside_by_gpus,
        "The paper does not say what its inference costs; recorded streams have a head-only γ that is"
        " nearly free, so uniform soon keeps up.",
        sweep.draw_by_gpus,
    ),
    "figure8": over_traces(
        "Ten streams with one half of Ekya removed",
        "Figure 8: Ekya with one half taken out",
        lambda full, seed: generated(10, 10 if full else 5, range(seed, seed + SEEDS)),
        baseline.play_halves,
        baseline.beside_halves,
        "The paper draws its losses without numbers; shares count most where GPUs are scarce, as it "
        "says, and what γ count depends on how good the one that is fixed happens to be.",
        baseline.draw_halves,
    ),
    "figure9": over_traces(
        "Shares of two streams over the windows",
        "Figure 9: shares of two streams over the windows",
        lambda full, seed: generated(10, 10 if full else 8, [seed]),
        planning.play_shares,
        planning.beside_shares,
        "Other scenes, other accuracies; what the paper shows holds: uniform gives every stream the "
        "same, and Ekya retrains where, and as much as, it pays.",
        planning.draw_shares,
    ),
    "figure10": over_traces(
        "Ten streams with several quanta Δ",
        "Figure 10: the thief's quantum Δ, ten generated streams on 8 GPUs",
        lambda full, seed: generated(10, 10 if full else 5, range(seed, seed + 3) if full else [seed]),
        planning.play_by_quantum,
        planning.beside_by_quantum,
        "The paper does not give δ, and its loss lies between our two; planning takes a thousandth of"
        " the time because a steal changes two jobs, and all steals of a job are looked at in one "
        "array.",
        planning.draw_by_quantum,
        traces=False,
    ),
    "figure11a": FIGURE11A,
    "figure11b": over_traces(
        "Ten streams with erroneous estimates",
        "Figure 11b: accuracy when estimates are off by a controlled error",
        lambda full, seed: generated(10, 10 if full else 4, range(seed, seed + SEEDS)),
        sweep.play_by_error,
        sweep.beside_by_error,
        "The paper's errors all lie within 20%, so its Gaussian was about half as wide; and each of "
        "18 γ errs by itself here, so that the luckiest of them looks best.",
        sweep.draw_by_error,
    ),
    "bench_executed": EXECUTED,
    "paper_size": PAPER_SIZE,
    "pareto": over_traces(
        "γ on held-out streams",
        "Uniform's two configurations, on two held-out streams",
        lambda full, seed: generated(10, 10, [seed]),
        planning.average_gammas,
        planning.beside_averages,
        "The paper says no more than that both configurations lie on the frontier.",
        planning.draw_averages,
    ),
    "investing": over_traces(
        "ekya and no-retrain on few and many GPUs",
        "Accuracy of ekya above no-retrain, by GPUs a stream",
        lambda full, seed: generated(6, 8, baseline.FIGURE_SEEDS, baseline.CALM),
        baseline.play_investing,
        baseline.beside_investing,
        "Where models lose little or inference needs all GPUs, only labels tell that nothing is gained.",
        baseline.draw_investing,
    ),
    "reuse": over_traces(
        "Kept models by their mix of classes instead of retraining",
        "Serving an old model again, ten streams (recorded: all there are) on 0.8 GPUs each",
        lambda full, seed: generated(10, 10 if full else 8, range(seed, seed + SEEDS)),
        baseline.play_reuse,
        baseline.beside_reuse,
        "The paper keeps a few tens of models of a whole city's videos, here a stream keeps its own "
        "of the windows before; and how far a scene moves besides its mix of classes is the "
        "generator's choice, or the city's.",
        baseline.draw_reuse,
    ),
    "table4": over_traces(
        "Retraining in the cloud over cellular and satellite links",
        "Table 4: retraining in the cloud over the links of an edge server, windows of 400 s",
        lambda full, seed: generated(
            8,
            10 if full else 5,
            range(seed, seed + 3) if full else [seed],
            replace(DEFAULT_PARAMETERS, window_s=baseline.CLOUD_WINDOW_S),
        ),
        baseline.play_cloud,
        baseline.beside_cloud,
        "Eight streams that share a cellular link take 432 s, so nothing is here within the 400 s, "
        "and ours gives up what comes too late, which the paper, from its numbers, does not; and our "
        "cloud takes the most thorough γ, while the paper does not say which one its cloud takes.",
        baseline.draw_cloud,
    ),
}
"""Figures by the names of their files."""


main = command_of(FIGURES, "Play traces under schedulers, and draw one of the paper's figures.")

if __name__ == "__main__":
    run(
        main,
        "python experiments/trace_figures.py figure6",
        "python experiments/trace_figures.py figure7 --full --trace city.parquet",
        "python experiments/trace_figures.py figure10 --json - | jq .paper",
    )
