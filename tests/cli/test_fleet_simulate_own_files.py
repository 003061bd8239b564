"""Tests of ``ekya fleet simulate`` with a user's own jobs and cluster."""

import json
from pathlib import Path

import pytest
import yaml
from commands import error_line

from ekya import cli
from ekya.config.shipped import shipped_path

JOBS = shipped_path("datasets/small_cluster/jobs.yaml")
CLUSTER = shipped_path("datasets/small_cluster/cluster.yaml")
OKITA = ("okita", "okita-joint", "okita-fifo", "drf")


def simulate(*words, jobs: Path = JOBS, cluster: Path = CLUSTER) -> int:
    return cli.main(["fleet", "simulate", "--jobs", str(jobs), "--cluster", str(cluster), *words])


def played(capfd, *words, **files):
    assert simulate(*words, "--json", "-", **files) == 0
    return json.loads(capfd.readouterr().out)


def kept(raw):
    """Returns what a file has without the keys that are None."""
    if isinstance(raw, list):
        return [kept(one) for one in raw]
    return {key: kept(one) for key, one in raw.items() if one is not None} if isinstance(raw, dict) else raw


def changed(tmp_path, file: Path, **changes):
    """Returns a copy of a file; the name of an entry changes keys of it, and None removes a key."""
    raw = yaml.safe_load(file.read_text())
    entries = {
        entry["name"].replace("-", "_"): entry for entry in [*raw.get("jobs", ()), *raw.get("nodes", ())]
    }
    for key, value in changes.items():
        if key in entries:
            entries[key].update(value)
        else:
            raw[key] = value
    path = tmp_path / file.name
    path.write_text(yaml.safe_dump(kept(raw)))
    return path


def test_shipped_files_are_played_by_epoch_times_and_by_slots(capfd) -> None:
    report = played(capfd)
    assert [mean["policy"] for mean in report["mean"]] == ["andreas", "worth", "fifo", "edf", "priority"]
    assert (report["world"], report["nodes"]) == ("jobs.yaml on cluster.yaml", 3)
    assert all(run["unfinished_jobs"] == 0 and run["energy_cost"] > 0 for run in report["runs"])
    assert {run["currency"] for run in report["runs"]} == {"EUR"}
    slots = played(capfd, "--policy", ",".join(OKITA))
    assert [run["policy"] for run in slots["runs"]] == list(OKITA)
    for run in slots["runs"]:
        assert run["unfinished_jobs"] == 0 and run["link_cost"] > 0
        assert run["makespan_s"] % 600 == 0


def test_one_job_takes_what_its_file_says(capfd, tmp_path) -> None:
    job = {"name": "a", "arrives_s": 50, "epochs": 7, "epoch_s": {"T4": {1: 10}}}
    job["waiting"] = {"kind": "tardiness", "due_s": 30, "per_s": 2}
    (run,) = played(capfd, "--policy", "fifo", jobs=changed(tmp_path, JOBS, jobs=[job]))["runs"]
    assert (run["makespan_s"], run["epoch_s"], run["tardiness_s"], run["waiting_cost"]) == (70, 10, 40, 80)
    assert run["energy_cost"] == pytest.approx(165 * 70 / 3.6e6 * 0.172 * 1.33, abs=1e-6)


def test_links_are_paid_at_the_cluster_s_cost(capfd, tmp_path) -> None:
    """A job whose only node is at another site than its data."""
    job = {"name": "a", "epochs": 1, "waiting": {"kind": "linear", "per_s": 1}, "chunks": {"south": 4}}
    job |= {"chunk_mb": 10, "model_mb": 9, "worker": {"vcpu": 16}, "chunks_per_slot": 4}
    jobs = changed(tmp_path, JOBS, jobs=[job])
    for way, mb_cost in (({}, 0.0004), ({"mb_cost": 0.3}, 0.3)):
        links = {"mb_cost": 0.0004, "ways": [{"from": "south", "to": "north"} | way]}
        cluster = changed(tmp_path, CLUSTER, links=links)
        (run,) = played(capfd, "--policy", "okita", jobs=jobs, cluster=cluster)["runs"]
        assert (run["moved_mb"], run["makespan_s"], run["waiting_cost"]) == (40, 600, 600)
        assert run["link_cost"] == pytest.approx(40 * mb_cost)


def test_without_a_policy_those_run_that_can(capfd, tmp_path) -> None:
    jobs = changed(tmp_path, JOBS, gate={"waiting": {"kind": "linear", "per_s": 1}})
    assert [mean["policy"] for mean in played(capfd, jobs=jobs)["mean"]] == ["fifo", "priority"]
    slotted = changed(tmp_path, JOBS, yard={"epoch_s": None})
    assert [mean["policy"] for mean in played(capfd, jobs=slotted)["mean"]] == list(OKITA)


def test_first_fail_and_restart_work_as_in_the_papers_worlds(capfd) -> None:
    words, fails = ["--policy", "fifo", "--first", "2"], ["--fail", "west-1@100:5000"]
    runs = [played(capfd, *words, *more)["runs"][0] for more in ([], fails, [*fails, "--restart", "60"])]
    assert [run["lost_s"] for run in runs] == [0, 100, 100]
    assert runs[2]["energy_kwh"] > runs[1]["energy_kwh"]
    (everything,) = played(capfd, "--policy", "fifo")["runs"]
    assert everything["energy_kwh"] > runs[0]["energy_kwh"]


def test_a_job_whose_nodes_stay_away_is_open_at_the_end_of_the_slots(capfd, tmp_path) -> None:
    jobs = changed(tmp_path, JOBS, slots=9)
    fails = [word for node in ("north-1", "south-1", "west-1") for word in ("--fail", f"{node}@0")]
    (run,) = played(capfd, "--policy", "okita", *fails, jobs=jobs)["runs"]
    assert run["unfinished_jobs"] == 3
    assert run["makespan_s"] <= (2 + 9) * 600


def test_a_cost_that_grows_beyond_numbers_is_still_one(capfd, tmp_path) -> None:
    jobs = changed(tmp_path, JOBS, gate={"waiting": {"kind": "growing", "per_s": 1, "rate": 10}})
    (run,) = played(capfd, "--policy", "okita", jobs=jobs)["runs"]
    assert 1e200 < run["waiting_cost"] < float("inf")


@pytest.mark.parametrize(
    ("changes", "policy", "said"),
    [
        ({"gate": {"epoch_s": None}}, "edf", "jobs.gate.epoch_s: edf needs it; write seconds by kind"),
        ({"gate": {"epoch_s": {"A100": {1: 9}}}}, "edf", "jobs.gate.epoch_s: "),
        ({"gate": {"epoch_s": {"T4": {2: 9}}}}, "fifo", "write it for one of: 1 of T4, 1 of V100, 2 of V100"),
        ({"gate": {"allowed": ["west-1"], "epoch_s": {"V100": {1: 9}}}}, "fifo", "one of: 1 of T4"),
        (
            {"gate": {"epoch_s": {"V100": {2: 9}, "A100": {1: 9}}}},
            "worth",
            "worth needs it for 1 GPU of a kind",
        ),
        (
            {"yard": {"waiting": {"kind": "linear", "per_s": 1}}},
            "worth",
            "jobs.yard.waiting: worth needs a due",
        ),
        ({"slot_s": None}, "okita", "slot_s: okita needs it; write the seconds of a slot"),
        ({"yard": {"chunks": {"west": 0}}}, "drf", "jobs.yard.chunks: drf needs more than 0 of it"),
        ({"yard": {"model_mb": 0}}, "drf", "jobs.yard.model_mb: drf needs more than 0 of it"),
        ({"yard": {"chunks_per_slot": None}}, "drf", "jobs.yard.chunks_per_slot: drf needs more"),
        ({"yard": {"worker": {"vcpu": 0}}}, "drf", "jobs.yard.worker: drf needs more than 0 of it"),
        (
            {"yard": {"allowed": ["west-1"], "worker": {"vcpu": 9}}},
            "okita",
            "jobs.yard.worker: ",
        ),
        ({"yard": {"worker": {"tpu": 1}}}, "okita", "jobs.yard.worker: "),
        ({"yard": {"worker": {"vcpu": 16}, "parameter_server": {"vcpu": 9}}}, "okita", "more capacity"),
        ({}, "oasis-fixed", "jobs.gate.waiting: oasis-fixed needs a cost from the first slot on"),
        ({"gate": {"epoch_s": None, "chunks": None}}, "", "jobs.gate.chunks: okita needs more than 0 of it"),
        ({"gate": {"epochs": 0}}, "", "jobs[0].epochs: 0 is too small; use at least 1"),
        ({"gate": {"epoch": 3}}, "", "jobs[0].epoch: there is no such key; did you mean epochs?"),
        ({"gate": {"waiting": {"due_s": 3}}}, "", "jobs[0].waiting: kind is missing; add it"),
        ({"gate": {"name": "yard"}}, "", "jobs: two are called yard; give each its own name"),
        ({"gate": {"allowed": ["moon"]}}, "", "jobs.gate.allowed: "),
        ({"gate": {"chunks": {"moon": 1}}}, "", "has no moon; it has north, south, west"),
        ({"jobs": []}, "", "jobs: the list is empty"),
    ],
)
def test_what_the_jobs_lack_is_said_in_one_sentence(capfd, tmp_path, changes, policy, said) -> None:
    jobs = changed(tmp_path, JOBS, **changes)
    assert simulate("--policy", policy, jobs=jobs) == cli.USER_ERROR
    told = error_line(capfd)
    assert told.startswith(f"ekya: {jobs}: ")
    assert said in told


@pytest.mark.parametrize(
    ("changes", "policy", "said"),
    [
        (
            {"west_1": {"site": "north"}, "links": {"ways": [{"from": "west", "to": "north"}]}},
            "okita",
            "okita has one node a site, ",
        ),
        ({"north_1": {"power_w": [0, 1]}}, "", "nodes.north-1.power_w: with 2 GPUs write 3 numbers"),
        ({"north_1": {"capacity": {"gpu": 2}}}, "", "nodes.north-1.capacity.gpu: GPUs are counted by"),
        ({"north_1": {"name": "west-1"}}, "", "nodes: two are called west-1"),
        (
            {"links": {"ways": [{"from": "north", "to": "south", "mb_cost": -1}]}},
            "",
            "mb_cost: -1 is too small",
        ),
        ({"nodes": None}, "", "nodes: this key is missing; add it"),
        ({"pue": 0.5}, "", "pue: 0.5 is too small; use at least 1"),
    ],
)
def test_what_is_wrong_in_the_cluster_is_said_in_one_sentence(capfd, tmp_path, changes, policy, said) -> None:
    cluster = changed(tmp_path, CLUSTER, **changes)
    assert simulate("--policy", policy, cluster=cluster) == cli.USER_ERROR
    told = error_line(capfd)
    assert said in told and str(cluster) in told


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "WORLD: it is missing; name a paper's workload, or give --jobs and --cluster"),
        (["okita", "--jobs", "a", "--cluster", "b"], "WORLD okita: --jobs and --cluster are a workload too"),
        (["--jobs", "a.yaml"], "--cluster: it is missing; --jobs and --cluster need each other"),
        (["--cluster", "a.yaml"], "--jobs: it is missing; --jobs and --cluster need each other"),
        (["--jobs", "a.yaml", "--cluster", "b.yaml"], "a.yaml: there is no such file; check the path"),
        (["--jobs", "a", "--cluster", "b", "--nodes", "3"], "--nodes 3: b says it; leave --nodes out"),
        (
            ["--jobs", "a", "--cluster", "b", "--profiles", "p"],
            "--profiles p: a says it; leave --profiles out",
        ),
    ],
)
def test_files_and_worlds_exclude_each_other(capfd, words, sentence) -> None:
    assert cli.main(["fleet", "simulate", *words]) == cli.USER_ERROR
    assert capfd.readouterr().err.startswith(f"ekya: {sentence}")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--policy", "andreas,okita"], "--policy andreas,okita: okita trains in slots and andreas by times"),
        (["--policy", "moon"], "--policy moon: no policy of jobs.yaml on cluster.yaml has this name"),
        (["--policy", "okita", "--restart", "5"], "--restart: in slots an interruption costs the slot"),
        (["--fail", "moon@5"], "--fail moon: there is no such node; they are north-1, south-1, west-1"),
    ],
)
def test_options_that_do_not_fit_the_files_are_refused(capfd, words, sentence) -> None:
    assert simulate(*words) == cli.USER_ERROR
    assert capfd.readouterr().err.startswith(f"ekya: {sentence}")
