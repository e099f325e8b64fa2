"""Sweeps on real Ray clusters on loopback: the same bytes as elsewhere, even if nodes or workers are lost."""

import json
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from commands import run_here
from crashing import ENV, events_of, events_until, finish, gone, killing, start, trials_of, write
from proofs import plan_of, scores
from run_folders import files_of

from dst_analyze.cli.main import main
from dst_analyze.errors import DstError, InputError, OptionError
from dst_analyze.run.events import Notice, TrialRetried, TrialStep
from dst_analyze.slimming.proof.verify import verify_task_plan
from dst_analyze.sweep.engines.workers import Workers
from dst_analyze.sweep.planning.plan import plan_sweep
from dst_analyze.sweep.run_sweep import run_sweep

ray = pytest.importorskip("ray")

from dst_analyze.run.record import TrialKey  # noqa: E402
from dst_analyze.sweep.engines.jobs import Trial  # noqa: E402
from dst_analyze.sweep.engines.ray_worker import VERSIONS, pack, work  # noqa: E402
from dst_analyze.sweep.engines.sending.code_bundle import CodeBundle  # noqa: E402
from dst_analyze.sweep.engines.sending.serialize import PickledTask  # noqa: E402

OPTIONS = {"alphas": [1e-3], "seeds": 2, "steps": 60, "lr": 0.1}
ARGS = ("--alphas", "1e-3", "--seeds", "1", "--steps", "60", "--lr", "0.1")
RAY = ("--engine", "ray")

# Ray starts its daemons with pipes and sockets that it leaves to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def cluster():
    """A head that trains nothing, and finds out within seconds that a node is gone."""
    from ray.cluster_utils import Cluster

    watch = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_failure_threshold": 2}
    head = {"num_cpus": 0, "include_dashboard": False, "_system_config": watch}
    started = Cluster(initialize_head=True, head_node_args=head)
    yield started
    started.shutdown()


@pytest.fixture
def nodes(cluster):
    """Two nodes with a CPU each; those that the test before has left are used again."""
    while len(cluster.worker_nodes) < 2:
        cluster.add_node(num_cpus=1)
    return [*cluster.worker_nodes]


@pytest.fixture
def model(tmp_path, monkeypatch):
    """Writes the model of the other crashes; returns how to sweep it."""
    monkeypatch.chdir(tmp_path)

    def sweep(inject="pass", **options):
        write(tmp_path, inject)
        return run_sweep("m.py", out="run", engine="ray", **{**OPTIONS, **options})

    return sweep


def test_a_ray_of_this_machine_gives_the_same_bytes_and_is_gone_afterwards(tmp_path, inline):
    write(tmp_path)
    process = start(tmp_path, *ARGS, *RAY, "--jobs", "2")
    out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (0, "")
    there = files_of(tmp_path / "run")
    events = events_of(out)
    assert events[0]["jobs"] == 2
    names = [event["event"] for event in events]
    assert names.count("trial_started") == names.count("trial_finished") == 2
    assert names.count("trial_step") >= 2 * 40
    finish(tmp_path, *ARGS, "--force")
    assert files_of(tmp_path / "run") == there
    assert gone(process.pid, 1)
    assert not workers_of(process.pid)


OWN_LOOP = """

def fit(model):
    x, y = train_data()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for start in range(60):
        picked = torch.randint(0, len(x), (64,))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[picked]), y[picked]).backward()
        optimizer.step()

def evaluate(model):
    x, y = train_data()
    return (model(x).argmax(1) == y).float().mean()

def example_inputs():
    return train_data()[0][:2]
"""


def test_a_file_that_trains_itself_gives_the_same_bytes_on_ray(tmp_path, cluster, nodes, inline):
    write(tmp_path)
    (tmp_path / "m.py").write_text((tmp_path / "m.py").read_text() + OWN_LOOP)
    args = ("--alphas", "1e-5", "--jobs", "1")
    events, _ = finish(tmp_path, *args, *RAY, "--ray-address", cluster.address)
    assert [event["event"] for event in events].count("trial_finished") >= 2
    there = trials_of(files_of(tmp_path / "run"), 0)
    finish(tmp_path, *args, "--force")
    assert there
    assert trials_of(files_of(tmp_path / "run"), 0) == there


def test_a_killed_worker_is_tried_once_more_in_a_ray_that_is_there_already(tmp_path, whole, cluster, nodes, model):
    ray.init(cluster.address, log_to_driver=False)
    try:
        heard = []
        record = model(killing("run_trial", 1, seed=0), seeds=1, jobs=1, listener=heard.append)
        assert ray.is_initialized()
    finally:
        ray.shutdown()
    assert record.complete
    (retried,) = [event for event in heard if isinstance(event, TrialRetried)]
    assert "killed or crashed" in retried.reason
    assert retried.trial == TrialKey(None, 0)
    trials = trials_of(files_of(tmp_path / "run"), 0)
    assert trials
    assert trials.items() <= whole.items()


def test_a_cluster_proves_what_this_process_proves(tmp_path, monkeypatch, cluster, nodes):
    monkeypatch.chdir(tmp_path)
    write(tmp_path)
    task = plan_sweep("m.py", out="run", **OPTIONS).task
    plan = plan_of(task)
    with Workers(engine="ray", ray_address=cluster.address).started(task, None) as workers:
        there = verify_task_plan(task, plan, seeds=1, engine=workers)
    assert scores(there) == scores(verify_task_plan(task, plan, seeds=1))


def test_a_lost_node_is_a_trial_that_runs_elsewhere(tmp_path, whole, cluster, nodes, model):
    heard, trained = [], set()

    def listen(event):
        heard.append(event)
        if isinstance(event, TrialStep):
            trained.add(event.trial)
        if len(trained) == 2 and len(cluster.worker_nodes) == 2:  # one on each node
            cluster.remove_node(nodes[0], allow_graceful=False)

    record = model("time.sleep(0.05)", seeds=1, ray_address=cluster.address, listener=listen)
    assert record.complete
    assert len(cluster.worker_nodes) == 1
    (retried,) = [event for event in heard if isinstance(event, TrialRetried)]
    assert retried.trial in trained
    assert "node" in retried.reason
    trials = trials_of(files_of(tmp_path / "run"), 0)
    assert trials
    assert trials.items() <= whole.items()
    assert not ray.is_initialized()


def test_without_any_node_left_it_ends_and_can_be_resumed(tmp_path, cluster, nodes, model, monkeypatch):
    monkeypatch.setattr("dst_analyze.sweep.engines.ray_engine.PATIENCE", 1.0)
    heard = []

    def listen(event):
        heard.append(event)
        if isinstance(event, TrialStep):
            for node in [node for node in nodes if node in cluster.worker_nodes]:
                cluster.remove_node(node, allow_graceful=False)

    with pytest.raises(DstError, match="no node left") as error:
        model("time.sleep(0.05)", jobs=1, ray_address=cluster.address, listener=listen)
    assert "--resume" in error.value.hint
    assert any(isinstance(event, Notice) and "waiting" in event.text for event in heard)
    with pytest.raises(OptionError, match="no node of the Ray cluster has a CPU"):
        model("time.sleep(0.05)", ray_address=cluster.address, resume=True)


@pytest.mark.parametrize(("number", "code", "said"), [(signal.SIGINT, 130, ["interrupted"]), (signal.SIGTERM, 143, [])])
def test_a_signal_ends_a_ray_of_this_machine_that_listened_to_nobody_else(tmp_path, number, code, said):
    write(tmp_path, "time.sleep(0.05)")
    process = start(tmp_path, *ARGS, *RAY, "--jobs", "1")
    events_until(process, lambda event: event["event"] == "trial_step")
    assert workers_of(process.pid)
    family = psutil.Process(process.pid).children(recursive=True)
    listening = {c.laddr.ip for one in family for c in one.net_connections("inet") if c.status == psutil.CONN_LISTEN}
    assert listening
    assert {ip.removeprefix("::ffff:") for ip in listening} == {"127.0.0.1"}
    os.killpg(process.pid, number)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err.split()) == (code, said)
    assert gone(process.pid, 1)
    assert not workers_of(process.pid)


def workers_of(pid):
    """Ray's workers have process groups of their own, but write into a session whose name ends in the driver's pid."""
    found = []
    for output in Path("/proc").glob("[0-9]*/fd/1"):
        with suppress(OSError):
            if f"_{pid}/logs/worker-" in os.readlink(output):
                found.append(output)
    return found


UNPACK = """
import pickle, sys
from pathlib import Path
from dst_analyze.sweep.engines.ray_worker import work

*events, done = work(*pickle.loads(Path(sys.argv[1]).read_bytes()))
print(len(events), done.output.result.model_dump_json(), sep=chr(10))
"""


def test_the_users_files_travel_to_machines_that_lack_them(tmp_path, monkeypatch, whole):
    home = tmp_path / "home"
    home.mkdir()
    write(home, "import sibling; sibling.used()")
    (home / "sibling.py").write_text("def used():\n    pass\n")
    monkeypatch.chdir(home)
    task = plan_sweep("m.py", alphas=[1e-3], steps=60, lr=0.1, out="run").task
    arguments = pack(PickledTask(task)), CodeBundle.packed(), Trial(TrialKey(1e-3, 0)), VERSIONS
    (tmp_path / "payload").write_bytes(pickle.dumps(arguments, protocol=5))
    monkeypatch.chdir(tmp_path)
    shutil.rmtree(home)
    done = subprocess.run(
        [sys.executable, "-c", UNPACK, "payload"], cwd=tmp_path, env=ENV, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    events, result = done.stdout.splitlines()
    assert int(events) > 40
    assert json.loads(result) == json.loads(whole["trials/alpha=0.001,seed=0/trial.json"])
    assert [entry.name for entry in tmp_path.iterdir()] == ["payload"]


def test_other_versions_on_a_node_are_refused():
    with pytest.raises(InputError, match="a node of the Ray cluster has torch"):
        next(work((b"", []), CodeBundle("/", {}), Trial(TrialKey(None, 0)), {**VERSIONS, "torch": "0"}))


@pytest.fixture(scope="module")
def closed_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


@pytest.mark.parametrize(
    ("address", "cause"),
    [
        ("nonsense", "no HOST:PORT"),
        ("ray://127.0.0.1:10001", "Ray Client"),
        ("127.0.0.1:{closed_port}", "refused"),
        ("127.0.0.1:99999", "no HOST:PORT"),
    ],
)
def test_an_address_where_nothing_listens_is_an_error_with_a_hint(
    tmp_path, monkeypatch, capsys, address, cause, closed_port
):
    monkeypatch.chdir(tmp_path)
    write(tmp_path)
    address = address.format(closed_port=closed_port)
    assert main(["m.py", "--out", "run", *RAY, "--ray-address", address]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert cause in captured.err
    assert f"at --ray-address {address}" in captured.err
    assert "hint: give HOST:PORT" in captured.err
    assert not (tmp_path / "run").exists()


def test_a_daemon_that_does_not_start_is_an_error_with_a_hint(tmp_path, monkeypatch, capsys):
    def too_slow(*args, **options):
        raise Exception("The current node timed out during startup.")  # as Ray raises it

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ray, "init", too_slow)
    write(tmp_path)
    assert main(["m.py", "--out", "run", *RAY]) == 2
    said = capsys.readouterr().err
    assert "Ray did not start on this machine" in said
    assert "The current node timed out during startup" in said
    assert "at --engine ray" in said
    assert "ray start --head" in said


def test_an_address_is_for_ray(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write(tmp_path)
    assert main(["m.py", "--out", "run", "--ray-address", "auto"]) == 2
    assert "hint: add --engine ray" in capsys.readouterr().err


def test_without_ray_there_is_a_hint(tmp_path, monkeypatch, inline):
    write(tmp_path)
    monkeypatch.setitem(sys.modules, "ray", None)  # as where it is not installed
    monkeypatch.delitem(sys.modules, "dst_analyze.sweep.engines.ray_engine", raising=False)
    monkeypatch.delattr("dst_analyze.sweep.engines.ray_engine", raising=False)
    done = run_here(tmp_path, "m.py", *RAY)
    assert (done.returncode, done.stdout) == (2, "")
    assert "error: Ray is not installed" in done.stderr
    assert "hint: pip install 'dst-analyze[ray]'" in done.stderr
