"""What runs in the sandbox reaches nothing outside it."""

import ctypes
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from gradus.sandbox import command, syscalls
from gradus.sandbox.command import run_python, run_sandboxed, sandbox_works
from gradus.sandbox.confinement import confine, landlock_version
from gradus.sandbox.worker import Fork, import_folders

needs_seccomp = pytest.mark.skipif(not syscalls.refused_calls(), reason="needs libseccomp")
pytestmark = pytest.mark.skipif(not sandbox_works(), reason="needs Linux user namespaces")


def _run(code, **options):
    return run_sandboxed([sys.executable, "-I", "-c", code], **options)


def test_a_python_below_the_folder_that_programs_work_in_is_found(monkeypatch):
    """An environment in /tmp was covered by the empty folder: nothing ran, and right programs earned nothing."""
    with tempfile.TemporaryDirectory(dir="/tmp") as home:
        (Path(home) / "lib").mkdir()
        (Path(home) / "lib" / "module.py").write_text("seven = 7\n")
        known = command._python_folders()
        monkeypatch.setattr(command, "_python_folders", lambda: [*known, f"{home}/lib"])
        code = (
            f"import sys; sys.path.append({home!r} + '/lib'); import module; print(module.seven)\n"
            f"try: open({home!r} + '/lib/out', 'w')\nexcept OSError as error: print('refused', error.errno)\n"
            "open('/tmp/made.txt', 'w').write('x'); print(open('/tmp/made.txt').read())\n"
        )
        result = run_python(code)
        assert (result.code, result.stdout.split()) == (0, ["7", "refused", "30", "x"]), result.stderr
        assert os.listdir(f"{home}/lib") == ["module.py"]


def test_what_takes_too_long_ends_with_all_its_children():
    code = (
        "import os, time\n"
        "if os.fork() == 0:\n    os.setsid()\n    time.sleep(60)\n    os._exit(0)\n"
        "print('begun', flush=True); time.sleep(60)\n"
    )
    result = run_sandboxed([sys.executable, "late-gradus.py"], files={"late-gradus.py": code}, seconds=0.7)
    assert (result.code, result.stdout) == (None, "begun\n")
    deadline = time.monotonic() + 20
    while running("late-gradus.py"):
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("unsafe", [False, True])
def test_memory_output_and_exit_codes_are_bounded_and_told(unsafe):
    assert "MemoryError" in _run("x = bytearray(2 << 30)", unsafe=unsafe).stderr
    flood = _run("print('y' * (3 << 20))", unsafe=unsafe)
    assert flood.limit == "output"
    assert len(flood.stdout) <= 1 << 20
    assert _run("import sys; print(sys.stdin.read()); sys.exit(7)", stdin="hello", unsafe=unsafe).code == 7


def running(name: str) -> list[int]:
    return [each.pid for each in psutil.process_iter(["cmdline"]) if name in (each.info["cmdline"] or [])]


TRESPASS = """
import os, socket, sys
kept, source, parent = sys.stdin.read().split()
for path in (kept, "/etc/gradus", "/usr/gradus", "/dev/gradus", "/proc/sys/kernel/core_pattern", "/gradus"):
    try:
        open(path, "w").close()
        print("wrote", path)
    except OSError:
        pass
for path in (kept, source, os.path.expanduser("~root/.bashrc")):
    if os.path.exists(path):
        print("saw", path)
for port in (80, 22):
    try:
        socket.create_connection(("127.0.0.1", port), 1)
        print("connected")
    except OSError:
        pass
try:
    os.kill(int(parent), 0)
    print("reached", parent)
except OSError:
    pass
print(sorted(os.environ), [name for name in os.listdir("/proc") if name.isdigit()])
open("scratch", "w").write("mine")
"""


def test_a_program_reads_writes_and_reaches_nothing_of_the_machine(tmp_path):
    (tmp_path / "kept").write_text("as it was")
    given = f"{tmp_path / 'kept'} {Path(__file__).resolve()} {psutil.Process().pid}"
    result = run_python(TRESPASS, stdin=given)
    environment = "['HOME', 'LANG', 'PATH', 'PYTHONDONTWRITEBYTECODE', 'PYTHONHASHSEED']"
    assert (result.code, result.stdout, result.stderr) == (0, f"{environment} ['1', '2']\n", "")
    assert (tmp_path / "kept").read_text() == "as it was"
    assert not Path("/etc/gradus").exists()
    assert not Path("scratch").exists()


@pytest.mark.parametrize(
    ("code", "limit", "seconds"),
    [
        ("while True: pass", "time", 1),
        ("while True: print('more' * 100)", "output", 50),
        (
            "import os, time\nfor _ in range(6): os.fork() or [bytearray(60 << 20), time.sleep(60)]\ntime.sleep(60)",
            "memory",
            50,
        ),
    ],
)
def test_a_program_that_does_not_end_is_ended(code, limit, seconds):
    result = run_sandboxed([sys.executable, "-c", code], seconds=seconds, memory=200 << 20)
    assert (result.limit, result.code) == (limit, None)
    assert len(result.stdout) <= 1 << 20


def test_a_fork_bomb_stays_small_and_leaves_nobody():
    bomb = "import os, time\nwhile True: os.fork() or time.sleep(60)"
    result = run_sandboxed([sys.executable, "bomb-of-gradus.py"], files={"bomb-of-gradus.py": bomb})
    assert result.code == 1
    assert "Resource temporarily unavailable" in result.stderr
    assert running("bomb-of-gradus.py") == []


def test_who_ends_early_takes_its_children_along():
    code = "import os, time\nif os.fork() == 0:\n    time.sleep(60)\n    print('late')\nos._exit(7)"
    result = run_sandboxed([sys.executable, "early-gradus.py"], files={"early-gradus.py": code})
    assert (result.code, result.stdout) == (7, "")
    assert running("early-gradus.py") == []


def test_signals_and_unknown_programs_are_told():
    assert run_python("import os; os.abort()").code == -6
    nothing = run_sandboxed(["/usr/bin/no-such-program"])
    assert (nothing.code, nothing.stderr) == (127, "/usr/bin/no-such-program: No such file or directory\n")


def test_without_a_sandbox_it_is_refused_unless_told():
    ask = "from gradus.sandbox.command import run_python\nprint(run_python('print(6 * 7)', unsafe={}).stdout)"
    shell = 'echo 0 > /proc/sys/user/max_mnt_namespaces && exec "$0" -c "$1"'

    def where_no_namespace_is(code: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["unshare", "--user", "--map-root-user", "sh", "-c", shell, sys.executable, code],
            capture_output=True,
            text=True,
        )

    refused = where_no_namespace_is(ask.format(False))
    assert "OSError: this machine allows no sandbox (" in refused.stderr
    assert refused.stdout == ""
    assert where_no_namespace_is(ask.format(True)).stdout == "42\n\n"


FORBIDDEN = """
import ctypes, errno, json, mmap, os, socket, sys
system = ctypes.CDLL(None, use_errno=True)
done = []
def tried(name, call):
    try:
        if call() >= 0:
            done.append(name)
    except OSError:
        pass
numbers = json.loads(sys.argv[1])
for name, arguments in {
    "shmget": (0, 1 << 20, 0o1600), "semget": (0, 1, 0o1600), "msgget": (0, 0o1600),
    "memfd_create": (b"x", 0), "memfd_secret": (0,), "add_key": (b"user", b"a", b"b", 1, -3), "keyctl": (0, -3, 0),
    "unshare": (0x10000000,), "userfaultfd": (1,), "ptrace": (0, 0, 0, 0),
}.items():
    tried(name, lambda: system.syscall(numbers[name], *arguments))
clone3 = system.syscall(numbers["clone3"], None, 0), ctypes.get_errno()
if clone3 != (-1, errno.ENOSYS):
    done.append("clone3")
for family in (socket.AF_UNIX, socket.AF_INET, socket.AF_NETLINK, socket.AF_VSOCK):
    tried(family.name, lambda: socket.socket(family).fileno())
tried("shared pages", lambda: len(mmap.mmap(-1, 1 << 20)))
tried("pages of /dev/zero", lambda: len(mmap.mmap(os.open("/dev/zero", os.O_RDWR), 1 << 20)))
print(done)
"""
NAMES = (
    "shmget semget msgget memfd_create memfd_secret add_key keyctl unshare userfaultfd ptrace clone3"  # of FORBIDDEN
)


def _numbers() -> str:
    library = ctypes.CDLL("libseccomp.so.2")
    return json.dumps({name: library.seccomp_syscall_resolve_name(name.encode()) for name in NAMES.split()})


@needs_seccomp
def test_what_would_pass_the_limits_or_leave_the_sandbox_is_refused():
    """Segments and memfds passed the limit on memory, keys were shared, AF_VSOCK answered, user namespaces could be made."""
    result = run_sandboxed([sys.executable, "-I", "-c", FORBIDDEN, _numbers()])
    assert (result.code, result.stdout, result.stderr) == (0, "[]\n", "")


@needs_seccomp
def test_an_audited_grader_is_refused_the_same():
    def handlers(folder):
        command = [sys.executable, "-I", "-c", FORBIDDEN, _numbers()]
        return {"try": lambda: subprocess.run(command, capture_output=True, text=True).stdout}

    fork = Fork(handlers, confined=True)
    try:
        assert fork.call("try", 60.0) == "[]\n"
    finally:
        fork.end()


USUAL = """
import asyncio, multiprocessing, subprocess, sys, threading
import matplotlib, numpy, torch
matplotlib.use("Agg")
import matplotlib.pyplot as plot
plot.plot([1, 2])
plot.savefig("a.png")
async def started():
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", "print(1)", stdout=-1)
    return (await process.communicate())[0]
child = multiprocessing.get_context("fork").Process(target=print, args=(2,))
child.start()
child.join()
threading.Thread(target=print, args=(3,)).start()
print(asyncio.run(started()), subprocess.check_output([sys.executable, "-c", "print(4)"]))
print(numpy.linalg.svd(numpy.eye(99))[1].sum(), float(torch.ones(99, 99).mm(torch.ones(99, 99)).sum()))
"""


def test_what_programs_usually_do_still_works():
    result = run_sandboxed([sys.executable, "main.py"], files={"main.py": USUAL}, seconds=100, memory=4 << 30)
    assert result.stdout.split() == ["2", "3", "b'1\\n'", "b'4\\n'", "99.0", "970299.0"], result.stderr


def test_without_libseccomp_what_is_not_held_is_told_once(monkeypatch, capsys):
    monkeypatch.setattr(syscalls, "_LIBRARY", "libseccomp-that-is-not-there.so")
    asked = syscalls.refused_calls.__wrapped__
    assert asked() == b""
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("warning: libseccomp-that-is-not-there.so was not found, so ")
    assert line.endswith("are not refused in the sandbox; install libseccomp")


def _confined(work):
    """What ``work`` returns in a process that is confined."""
    answers, told = os.pipe()
    with tempfile.TemporaryDirectory() as folder:
        child = os.fork()
        if child == 0:
            confine(folder, only=import_folders(), keep=(told,), changes_user=False)
            tempfile.tempdir = folder
            Path("expected.txt").write_text("42")
            os.write(told, json.dumps(work(folder)).encode())
            os._exit(0)
        os.close(told)
        os.waitpid(child, 0)
        with os.fdopen(answers) as pipe:
            return json.loads(pipe.read())


def _tried_inside(folder):
    code = (
        "import os, pathlib\n"
        f"for path in ({folder!r} + '/expected.txt', '/etc/hostname', __file__):\n"
        "    try: print(bool(pathlib.Path(path).read_text()))\n    except OSError as error: print(error.errno)\n"
        f"for path in ({folder!r} + '/canary', '/tmp/out', 'own.txt', '/dev/null'):\n"
        "    try: print(pathlib.Path(path).write_text('x'))\n    except OSError as error: print(error.errno)\n"
        f"for call in (lambda: os.kill({os.getpid()}, 0), lambda: open('/proc/{os.getpid()}/environ').read()):\n"
        "    try: print(call())\n    except OSError as error: print(error.errno)\n"
    )
    given = run_python(code)
    return [given.code, given.stdout.split(), os.listdir(folder), run_python("raise SystemExit(3)").code]


@pytest.mark.skipif(landlock_version() < 1, reason="needs Landlock")
def test_inside_a_sandbox_a_program_reaches_no_more_than_in_its_own():
    """It could not be run at all there: /proc cannot be written."""
    code, said, left, other = _confined(_tried_inside)
    assert code == 0
    assert said == ["13", "True", "True", "13", "30", "1", "1", "1", "13"], said
    assert (left, other) == (["expected.txt"], 3)


@pytest.mark.parametrize("unsafe", [False, True])
def test_a_program_cannot_say_how_it_ended(unsafe):
    spoof = (
        "import os\nfor number in range(3, 64):\n    try: os.write(number, b'code 0')\n    except OSError: pass\n"
        "os._exit(7)"
    )
    assert run_python(spoof, unsafe=unsafe).code == 7
