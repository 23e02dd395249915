"""Calls in another process: results, errors, limits of time and memory."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gradus.sandbox.worker import Fork, Worker, WorkerError, WorkerLimit

SCRIPT = """
import time
def add(a, b):
    print("noise on standard output")
    return a + b
def loop():
    while True:
        pass
def big_power():
    return len(str(9 ** (9 ** 9)))
def eat():
    return len([0] * 10**10)
def hash_of(text):
    return hash(text)
HANDLERS = {"add": add, "loop": loop, "big_power": big_power, "eat": eat, "hash_of": hash_of}
"""


@pytest.fixture
def worker(tmp_path: Path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    made = Worker(script, cpu_seconds=1, memory=2**30)
    yield made
    made.close()


def test_results_and_errors_come_back_and_prints_do_no_harm(worker: Worker) -> None:
    assert worker.call("add", a=2, b=3) == 5
    with pytest.raises(WorkerError, match="TypeError"):
        worker.call("add", a=2, b="x")
    assert worker.call("add", a="x", b="y") == "xy"


@pytest.mark.parametrize("method", ["loop", "big_power", "eat"])
def test_what_takes_too_much_is_cut_off_and_the_next_call_works(worker: Worker, method: str) -> None:
    with pytest.raises(WorkerLimit):
        worker.call(method)
    assert worker.call("add", a=1, b=1) == 2


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("import os; os._exit(7)", "did not start: .*ended with code 7"),
        ("raise MemoryError('none left')", "did not start: MemoryError: none left"),
        ("import time; time.sleep(60)", "did not start: .*took more than 2 s"),
    ],
)
def test_a_worker_that_does_not_start_is_no_limit_of_a_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, says: str
) -> None:
    """A limit counts as a wrong answer where answers are compared: all answers were wrong."""
    monkeypatch.setattr("gradus.sandbox.worker._START", 2 if "sleep" in script else 60)
    (tmp_path / "script.py").write_text(script)
    worker = Worker(tmp_path / "script.py", cpu_seconds=1)
    with pytest.raises(WorkerError, match=says) as raised:
        worker.call("add", a=1, b=1)
    assert not isinstance(raised.value, WorkerLimit)
    (tmp_path / "script.py").write_text(SCRIPT)
    assert worker.call("add", a=1, b=1) == 2  # what did not start is gone


def test_hashes_are_the_same_in_every_process(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    hashes = []
    for _ in range(2):
        worker = Worker(script)
        hashes.append(worker.call("hash_of", text="some text"))
        worker.close()
    assert hashes[0] == hashes[1]


def test_a_fork_has_a_worker_of_its_own(tmp_path: Path) -> None:
    script = tmp_path / "handlers.py"
    script.write_text("import os\nHANDLERS = {'pid': os.getpid}\n")
    worker = Worker(script)
    mine = worker.call("pid")
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, str(worker.call("pid")).encode())
        worker.close()
        os._exit(0)
    os.waitpid(child, 0)
    assert int(os.read(reader, 100)) != mine
    assert worker.call("pid") == mine  # the fork's end has not ended it
    worker.close()


def test_a_call_that_its_caller_breaks_off_leaves_no_reply_to_the_next(worker: Worker) -> None:
    worker.start()

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    with pytest.raises(KeyboardInterrupt):
        worker.call("loop")
    signal.signal(signal.SIGALRM, before)
    assert worker.call("add", a=2, b=3) == 5


def test_the_folder_of_a_fork_has_a_plain_name_and_goes_with_it():
    """A random name has an underscore one time in five. verl's prime_math does not run an answer with one, and passed an audit by it."""
    forks = [Fork(lambda folder: {"folder": lambda: str(folder)}, confined=False) for _ in range(20)]
    folders = [Path(fork.call("folder", 60.0)) for fork in forks]
    assert len(set(folders)) == 20
    assert all(folder.is_dir() and folder.name.isalnum() for folder in folders)
    for fork in forks:
        fork.end()
    assert not any(folder.exists() for folder in folders)


HOLD = """
import sys
from gradus.sandbox.worker import Fork
fork = Fork(lambda folder: {"folder": lambda: str(folder)}, confined=False)
print(fork.call("folder", 60.0), flush=True)
fork.end()
sys.stdin.read()
"""


def test_a_process_keeps_the_names_of_its_forks_as_long_as_it_lives(tmp_path: Path):
    """A name that one process had freed was taken by another one, in one of 2,857 runs between two lines of a test."""

    def start() -> tuple[subprocess.Popen[str], str]:
        command = [sys.executable, "-c", HOLD]
        process = subprocess.Popen(command, stdin=-1, stdout=-1, text=True, env={**os.environ, "TMPDIR": str(tmp_path)})
        return process, process.stdout.readline().strip()

    (first, held), (second, other) = start(), start()
    assert (held, other) == (f"{tmp_path}/gradus0/0", f"{tmp_path}/gradus1/0")
    first.kill()
    first.communicate()
    third, again = start()
    assert again == held
    for process in (second, third):
        process.communicate("")


def test_confined_forks_have_one_path_in_each_run_and_do_not_meet():
    forks = [Fork(lambda folder: {"files": lambda: _written(folder)}, confined=True) for _ in range(2)]
    replies = [fork.call("files", 60.0) for fork in forks for _ in range(2)]
    assert replies == [["/run/gradus", 1], ["/run/gradus", 2]] * 2
    for fork in forks:
        fork.end()
    assert not Path("/run/gradus").exists()


def _written(folder: Path) -> tuple[str, int]:
    count = len(list(folder.iterdir()))
    (folder / str(count)).touch()
    return str(folder), count + 1


def test_a_confined_fork_reads_what_a_link_in_a_readable_folder_leads_to(tmp_path: Path):
    """A project whose .venv is a link: each audit from its folder ended with "the grader's process ended"."""
    project, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    for folder in (project, elsewhere):
        folder.mkdir()
        (folder / "word").write_text(folder.name)
    (project / ".venv").symlink_to(elsewhere)
    words = [str(project / "word"), str(project / ".venv" / "word")]
    fork = Fork(
        lambda folder: {"words": lambda: [Path(word).read_text() for word in words]},
        confined=True,
        readable=[str(project), str(project / ".venv")],
    )
    assert fork.call("words", 60.0) == ["project", "elsewhere"]
    fork.end()


def test_a_fork_that_cannot_be_confined_says_why(tmp_path: Path):
    fork = Fork(lambda folder: {"word": lambda: "unconfined"}, confined=True, readable=[__file__])
    with pytest.raises(BrokenPipeError, match="sandbox"):
        fork.call("word", 60.0)
    fork.end()
