"""Starting: the port, one instance a data folder, the device, the browser, the log."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from octavo.app import browser, environment, ports, start
from octavo.app.instance import InstanceLock
from octavo.app.ports import page_url

if TYPE_CHECKING:
    from tests.app.cli.conftest import FakeServer, Result

Octavo = Callable[..., "Result"]


@contextmanager
def taken(port: int = 0) -> Iterator[int]:
    """Another program that listens on a port."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))
        other.listen()
        yield other.getsockname()[1]


@pytest.fixture
def range_of_three(monkeypatch: pytest.MonkeyPatch) -> int:
    """Three neighbouring free ports in the place of 7860 to 7870; the first is returned."""
    for first in range(20000, 60000, 7):
        try:
            with taken(first), taken(first + 1), taken(first + 2):
                break
        except OSError:
            continue
    monkeypatch.setattr(ports, "DEFAULT_PORT", first)
    monkeypatch.setattr(ports, "LAST_PORT", first + 2)
    return first


def file_with_port(folder: Path, port: int) -> str:
    path = folder / "c.yaml"
    path.write_text(f"server: {{port: {port}}}\n", encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(("command", "page"), [((), True), (("app",), True), (("serve",), False)])
def test_the_server_runs_with_the_checked_settings(
    octavo: Octavo, fake_server: FakeServer, own_folders: Path, command: tuple[str, ...], page: bool
) -> None:
    result = octavo(*command, "--port", "0", "--model", "none", "--device", "cpu", "--no-browser")
    [run] = fake_server.runs
    assert result.code == 0
    assert result.out == f"Running at http://127.0.0.1:{run['port']}\n"
    assert (run["page"], run["open_browser"]) == (page, False)
    assert run["settings"].values.model.id == "none"
    assert run["settings"].values.model.device == "cpu"
    assert len(list(own_folders.rglob("config.yaml"))) == 1  # written at the first start
    assert len(list(own_folders.rglob("octavo.log"))) == 1


def test_flags_before_and_behind_the_command_count(octavo: Octavo, fake_server: FakeServer) -> None:
    octavo("--port", "1", "--model", "a/b", "serve", "--port", "0")
    values = fake_server.runs[0]["settings"].values
    assert (values.server.port, values.model.id) == (0, "a/b")


def test_the_default_port_gives_way_to_the_next_free_one(
    octavo: Octavo, fake_server: FakeServer, range_of_three: int, own_folders: Path
) -> None:
    config = file_with_port(own_folders, range_of_three)
    with taken(range_of_three), taken(range_of_three + 1):
        result = octavo("serve", "--config", config)
        assert fake_server.runs[0]["port"] == range_of_three + 2
        assert f"taking {range_of_three + 2}" in result.err
        with taken(range_of_three + 2):
            full = octavo("serve", "--config", config)
    assert full.code == 1
    assert f"The ports {range_of_three} to {range_of_three + 2} are all in use." in full.err


@pytest.mark.parametrize("way", ["flag", "file", "environment"])
def test_a_port_that_was_chosen_is_taken_or_refused(
    octavo: Octavo, fake_server: FakeServer, own_folders: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    with taken() as port:
        if way == "environment":
            monkeypatch.setenv("OCTAVO_SERVER__PORT", str(port))
        flags = {"flag": ["--port", str(port)], "file": ["--config", file_with_port(own_folders, port)]}.get(way, [])
        result = octavo("serve", *flags)
    assert result.code == 1
    assert f"Port {port} is in use by another program. Start with --port {port + 1}, or close it." in result.err
    assert fake_server.runs == []


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (PermissionError(13, "Permission denied"), "Port 80 needs administrator rights, as all below 1024 do."),
        (
            OSError(5, "Input/output error"),
            "Octavo cannot listen on 127.0.0.1 port 80 (Input/output error). Start with",
        ),
    ],
)
@pytest.mark.skipif(sys.platform == "win32", reason="the numbers of the errors differ on Windows")
def test_what_the_system_refuses_is_explained(
    octavo: Octavo, fake_server: FakeServer, monkeypatch: pytest.MonkeyPatch, error: OSError, said: str
) -> None:
    def refuse(self: socket.socket, address: object) -> None:
        raise error

    monkeypatch.setattr(socket.socket, "bind", refuse)
    result = octavo("serve", "--port", "80")
    assert result.code == 1
    assert said in result.err


@pytest.mark.parametrize("command", ["serve", "app"])
@pytest.mark.parametrize(
    ("host", "said"),
    [
        ("not a host", "c.yaml line 1: server.host 'not a host' is no address; use 127.0.0.1, or"),
        ("no.such.host", "server.host 'no.such.host' is neither an address nor a name that is known here. Use 127"),
        ("a.name.without.form", "server.host 'a.name.without.form' is neither an address nor a name that is known"),
        ("192.0.2.1", "server.host '192.0.2.1' is not an address of this machine. Use 127.0.0.1, or an address of"),
    ],
)
def test_an_address_that_is_none_is_a_wrong_setting_and_costs_nothing(
    octavo: Octavo,
    fake_server: FakeServer,
    own_folders: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    host: str,
    said: str,
) -> None:
    def resolve(name: str, port: int, **_: object) -> list[tuple[object, ...]]:
        if name == "no.such.host":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        if name == "a.name.without.form":
            raise UnicodeError("label too long")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (name, port))]

    def bind(self: socket.socket, address: tuple[str, int]) -> None:
        if address[0] == "192.0.2.1":
            raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")
        really_bind(self, address)

    really_bind = socket.socket.bind
    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr(socket.socket, "bind", bind)
    file = own_folders / "c.yaml"
    text = f"server: {{host: '{host}', api_key: k, open_browser: false}}\n"
    file.write_text(text, encoding="utf-8")
    refused = octavo(command, "--config", str(file), "--port", "0")
    assert refused.code == 2
    assert len(refused.err.splitlines()) == 1
    assert said in refused.err
    assert file.read_text(encoding="utf-8") == text
    started = octavo(command, "--config", str(file), "--port", "0", "--host", "127.0.0.1")
    assert started.code == 0
    assert len(fake_server.runs) == 1


def test_a_second_start_shows_the_first_ones_page(octavo: Octavo, fake_server: FakeServer) -> None:
    second: list[Result] = []
    fake_server.during = lambda: second.append(octavo())
    octavo("--port", "0", "--no-browser")
    assert second[0].code == 0
    assert second[0].out.endswith(f"Octavo is already running at http://127.0.0.1:{fake_server.runs[0]['port']}\n")
    assert len(fake_server.runs) == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("serve", "--port", "8000"), "so --port was not applied. Stop it first"),
        (
            ("--host", "127.0.0.1", "--model", "a/b", "--device", "cpu"),
            "so --host, --model, --device were not applied.",
        ),
        (("serve",), "with its page, so serve was not applied. Stop it first"),
    ],
)
def test_a_second_start_says_what_it_cannot_apply(
    octavo: Octavo, fake_server: FakeServer, arguments: tuple[str, ...], said: str
) -> None:
    second: list[Result] = []
    fake_server.during = lambda: second.append(octavo(*arguments))
    octavo("--port", "0", "--no-browser")
    assert second[0].code == 1
    assert f"Octavo is already running at http://127.0.0.1:{fake_server.runs[0]['port']}" in second[0].err
    assert said in second[0].err
    assert len(fake_server.runs) == 1


def test_a_server_without_the_page_has_none_to_show(octavo: Octavo, fake_server: FakeServer) -> None:
    second: list[Result] = []
    fake_server.during = lambda: second.extend([octavo(), octavo("serve")])
    octavo("serve", "--port", "0")
    assert [result.code for result in second] == [1, 0]
    assert "without its page, so app was not applied." in second[0].err


def test_a_running_server_sees_a_changed_file(octavo: Octavo, fake_server: FakeServer, own_folders: Path) -> None:
    file = own_folders / "c.yaml"
    file.write_text("sampling: {seed: 4}\n", encoding="utf-8")
    seen: list[int | None] = []

    def change() -> None:
        settings = fake_server.runs[0]["settings"]
        seen.append(settings.values.sampling.seed)
        file.write_text("sampling: {seed: 55}\napp: {log_level: debug}\n", encoding="utf-8")
        deadline = time.monotonic() + 60
        while settings.values.sampling.seed != 55 and time.monotonic() < deadline:
            time.sleep(0.02)
        seen.append(settings.values.sampling.seed)

    fake_server.during = change
    result = octavo("serve", "--port", "0", "--config", str(file))
    assert seen == [4, 55]
    assert "sampling.seed has changed, in force from the next request on." in result.err


def test_another_data_folder_is_another_instance(
    octavo: Octavo, fake_server: FakeServer, own_folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start_another() -> None:
        fake_server.during = lambda: None
        monkeypatch.setenv("OCTAVO_DATA_DIR", str(own_folders / "data2"))
        assert octavo("--port", "0").code == 0

    fake_server.during = start_another
    octavo("--port", "0")
    assert len(fake_server.runs) == 2


def test_the_note_of_a_killed_instance_is_not_believed(
    octavo: Octavo, fake_server: FakeServer, own_folders: Path
) -> None:
    note = own_folders / "data" / "instance.json"
    note.parent.mkdir()
    note.write_text('{"pid": 1, "port": 1, "url": "http://127.0.0.1:1"}', encoding="utf-8")
    assert octavo("serve", "--port", "0").code == 0
    assert len(fake_server.runs) == 1
    assert not note.exists()


def test_the_lock_says_pid_and_port_while_it_is_held(tmp_path: Path) -> None:
    lock, other = InstanceLock(tmp_path / "data"), InstanceLock(tmp_path / "data")
    assert lock.acquire()
    assert not other.acquire()
    assert other.running() is None  # still starting
    lock.announce(7860, "http://127.0.0.1:7860")
    running = other.running()
    assert running is not None
    assert (running.pid, running.port) == (os.getpid(), 7860)
    other.release()  # does not have it
    assert json.loads((tmp_path / "data" / "instance.json").read_text(encoding="utf-8"))["port"] == 7860
    lock.release()
    assert other.acquire()
    other.release()


def test_a_start_beside_one_that_is_still_starting_says_so(octavo: Octavo, own_folders: Path) -> None:
    lock = InstanceLock(own_folders / "data")
    assert lock.acquire()
    try:
        result = octavo("serve", "--port", "0")
    finally:
        lock.release()
    assert result.code == 1
    assert "Another Octavo is just starting or stopping. Try again in a moment." in result.err


def test_a_data_folder_that_cannot_be_written_is_named(
    octavo: Octavo, own_folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (own_folders / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("OCTAVO_DATA_DIR", str(own_folders / "file" / "data"))
    result = octavo("serve", "--port", "0")
    assert result.code == 1
    assert "cannot be written" in result.err
    assert "OCTAVO_DATA_DIR" in result.err


def test_a_gpu_that_was_asked_for_and_is_not_there_ends_with_2(
    octavo: Octavo, fake_server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    for device in ("cuda", "cuda:1"):
        result = octavo("serve", "--port", "0", "--device", device)
        assert result.code == 2
        assert f"{device} was asked for, but" in result.err
        assert "Set model.device to cpu or auto." in result.err
    assert fake_server.runs == []
    assert octavo("serve", "--port", "0", "--device", "auto").code == 0


def test_the_browser_opens_only_before_a_person() -> None:
    assert browser.can_open({"DISPLAY": ":0"}, "linux")
    assert browser.can_open({"WAYLAND_DISPLAY": "wayland-0"}, "linux")
    assert not browser.can_open({}, "linux")
    assert not browser.can_open({"DISPLAY": ":0", "SSH_CONNECTION": "x"}, "linux")
    assert not browser.can_open({"SSH_TTY": "/dev/pts/0"}, "win32")
    assert browser.can_open({}, "win32")


def test_a_browser_that_fails_does_not_end_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    def fail(url: str) -> bool:
        opened.append(url)
        raise RuntimeError("no browser")

    monkeypatch.setattr(browser.webbrowser, "open", fail)
    monkeypatch.setattr(browser, "can_open", lambda: True)
    assert browser.open_page("http://127.0.0.1:1")
    deadline = time.monotonic() + 60
    while not opened and time.monotonic() < deadline:
        time.sleep(0.01)
    assert opened == ["http://127.0.0.1:1"]


@pytest.mark.parametrize(("flag", "opened"), [([], True), (["--no-browser"], False)])
def test_no_browser_keeps_the_running_ones_page_closed(
    octavo: Octavo, own_folders: Path, monkeypatch: pytest.MonkeyPatch, flag: list[str], opened: bool
) -> None:
    pages: list[str] = []
    monkeypatch.setattr(start, "open_page", pages.append)
    lock = InstanceLock(own_folders / "data")
    assert lock.acquire()
    try:
        lock.announce(7860, "http://127.0.0.1:7860")
        assert octavo(*flag).code == 0
    finally:
        lock.release()
    assert bool(pages) is opened


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:7"),
        ("localhost", "http://127.0.0.1:7"),
        ("0.0.0.0", "http://127.0.0.1:7"),
        ("::1", "http://[::1]:7"),
        ("::", "http://[::1]:7"),
        ("192.168.1.2", "http://192.168.1.2:7"),
    ],
)
def test_the_address_printed_is_one_to_click_on(host: str, url: str) -> None:
    assert page_url(host, 7) == url


def test_libraries_are_told_to_send_nothing_but_the_users_word_holds() -> None:
    variables = {"HF_HUB_DISABLE_TELEMETRY": "0"}
    environment.prepare(variables)
    assert variables["GRADIO_ANALYTICS_ENABLED"] == "False"
    assert variables["HF_HUB_DISABLE_TELEMETRY"] == "0"
    assert variables["OMP_WAIT_POLICY"] == "passive"


@pytest.mark.skipif(sys.platform == "win32", reason="Ctrl+C is sent by a signal")
def test_a_real_server_answers_and_ends_well_with_ctrl_c(own_folders: Path) -> None:
    command = [sys.executable, "-m", "octavo.app.cli", "serve", "--port", "0", "--model", "none"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline() if process.stdout else ""
        assert line.startswith("Running at http://127.0.0.1:"), process.communicate(timeout=60)
        with urllib.request.urlopen(line.split()[-1] + "/health", timeout=30) as answer:
            assert answer.status == 200
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    assert process.returncode == 0, err
    assert out == ""
    assert "Traceback" not in err
    assert not (own_folders / "data" / "instance.json").exists()


def test_after_a_restart_the_port_is_the_same_and_no_second_page_opens(
    octavo: Octavo, fake_server: FakeServer, own_folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from octavo.app import paths
    from octavo.app.restart import RestartNote

    with taken() as free:
        pass
    octavo("--port", "0")
    RestartNote(paths.data_dir()).leave("asked", asked_port=0, port=free)
    octavo("--port", "0")
    first, second = fake_server.runs
    assert second["port"] == free
    assert (first["open_browser"], second["open_browser"]) == (True, False)
    assert [item["kind"] for item in second["news"]] == ["asked"]
    octavo("--port", "0")
    assert fake_server.runs[2]["news"] == []


def test_the_process_of_the_command_line_ends_with_its_code_and_without_taking_python_apart() -> None:
    script = "import atexit, sys; atexit.register(print, 'taken apart'); from octavo.app.cli import main; main()"
    command = [sys.executable, "-c", script]
    fine = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=240)
    assert (fine.returncode, fine.stdout.count("\n"), fine.stderr) == (0, 1, "")
    wrong = subprocess.run([*command, "--nonsense"], capture_output=True, text=True, timeout=240)
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr.startswith("octavo: ")
