"""What runs in the sandbox reaches nothing outside it."""

import os
import sys
import time

import pytest

from gradus.core.sandbox import run_sandboxed, sandbox_works

pytestmark = pytest.mark.skipif(not sandbox_works(), reason="needs Linux user namespaces")


def _run(code, folder, **options):
    return run_sandboxed([sys.executable, "-I", "-c", code], folder, **options)


def test_the_folder_keeps_what_was_written_and_nothing_else_can_be(tmp_path):
    outside = tmp_path / "outside"
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "given.txt").write_text("seven")
    code = (
        "print(open('given.txt').read()); open('made.txt', 'w').write('x')\n"
        f"for path in ({str(outside)!r}, '/tmp/out', '/etc/out'):\n"
        "    try: open(path, 'w')\n    except OSError as error: print('refused', error.errno)\n"
    )
    result = _run(code, inside)
    assert (result.code, result.stdout.split()) == (0, ["seven", *["refused", "30"] * 3])
    assert (inside / "made.txt").read_text() == "x"
    assert not outside.exists()


def test_there_is_no_network_no_foreign_process_and_no_secret_of_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("API_KEY", "hunter2")
    hidden = tmp_path / "hidden"
    work = tmp_path / "work"
    for folder in (hidden, work):
        folder.mkdir()
    (hidden / "gold.txt").write_text("42")
    code = (
        "import os, socket\n"
        f"print(os.environ.get('API_KEY'), os.listdir({str(hidden)!r}), os.getpid())\n"
        "try: socket.create_connection(('127.0.0.1', 9), 1)\nexcept OSError as error: print(error.errno)\n"
        f"try: os.kill({os.getpid()}, 0)\nexcept ProcessLookupError: print('nobody')\n"
    )
    result = _run(code, work, hidden=[str(hidden)])
    assert result.stdout.split("\n")[:3] == ["None [] 1", "101", "nobody"]
    assert (hidden / "gold.txt").read_text() == "42"


def test_what_takes_too_long_ends_with_all_its_children(tmp_path):
    code = (
        "import os, time\n"
        "if os.fork() == 0:\n    os.setsid()\n    time.sleep(1.5)\n    open('late.txt', 'w')\n    os._exit(0)\n"
        "print('begun', flush=True); time.sleep(60)\n"
    )
    result = _run(code, tmp_path, seconds=0.7)
    assert (result.code, result.stdout) == (None, "begun\n")
    time.sleep(1.2)
    assert not (tmp_path / "late.txt").exists()


@pytest.mark.parametrize("unsafe", [False, True])
def test_memory_output_and_exit_codes_are_bounded_and_told(tmp_path, unsafe):
    assert "MemoryError" in _run("x = bytearray(2 << 30)", tmp_path, unsafe=unsafe).stderr
    flood = _run("print('y' * (3 << 20))", tmp_path, unsafe=unsafe)
    assert flood.cut
    assert len(flood.stdout) <= 1 << 20
    assert _run("import sys; print(sys.stdin.read()); sys.exit(7)", tmp_path, stdin="hello", unsafe=unsafe).code == 7
