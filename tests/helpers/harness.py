"""What the browser tests stand on.

Where the browser is, what it complained about, and a JupyterLab to point it at.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# milliseconds: a limit against hanging, not a measure; a shared machine can be ten times slower
# than a free one
PATIENCE = 300_000
# or Google Chrome from its own site, on macOS and Windows
INSTALL = "sudo apt-get install -y chromium"
MAC_CHROME = "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome"


def browser_path() -> str:
    """The browser's executable; a test without one skips by name, and fails where CI=true."""
    names = (
        "chromium",
        "chromium-browser",
        "google-chrome",
        "google-chrome-stable",
        "chrome",
        MAC_CHROME,
    )
    for name in (os.environ.get("DIFFGEMMA_BROWSER") or "", *names):
        if found := shutil.which(name):
            return found
    message = f"no chromium or google-chrome on PATH; install it with: {INSTALL}"
    if os.environ.get("CI") == "true":
        pytest.fail(message)
    pytest.skip(message)


RUN_FIRST = """const notebook = window.jupyterapp.shell.currentWidget.content;
  for (const cell of notebook.widgets.slice(0, n)) cell.model.executionCount = null;
  notebook.activeCellIndex = n;
  window.ran = '';
  const which = n < notebook.widgets.length ? 'run-all-above' : 'run-all-cells';
  window.jupyterapp.commands.execute('notebook:' + which)
    .then(() => window.ran = 'done');"""
# one for each cell that ended in an error or did not run
ERRORS = """n => window.jupyterapp.shell.currentWidget.content.widgets.slice(0, n)
.flatMap((cell) => {
  const { sharedModel, executionCount, type } = cell.model;
  if (type !== 'code' || !sharedModel.source.trim()) return [];
  if (!executionCount) return ['NotRun: ' + sharedModel.source];
  return sharedModel.outputs.filter((o) => o.output_type === 'error')
    .map((o) => `${o.ename}: ${o.evalue}`);
})"""
# a kernel that dies leaves a run waiting for ever
WATCH_KERNEL = """
const context = window.jupyterapp.shell.currentWidget.sessionContext;
context.statusChanged.connect((_, status) => {
  const over = ['dead', 'autorestarting', 'restarting', 'terminating'].includes(status);
  if (over && !window.ran) window.ran = status; });"""


COUNT_COLOURS = """async (data) => {
  const image = new Image();
  image.src = 'data:image/png;base64,' + data;
  await image.decode();
  const pen = new OffscreenCanvas(image.width, image.height).getContext('2d');
  pen.drawImage(image, 0, 0);
  const raw = pen.getImageData(0, 0, image.width, image.height).data, counts = {};
  for (let i = 0; i < raw.length; i += 4) {
    const name = ((raw[i] << 16) | (raw[i + 1] << 8) | raw[i + 2]).toString(16).padStart(6, '0');
    counts[name] = (counts[name] ?? 0) + 1;
  }
  return [image.width, image.height, counts];
}"""


def colours(browser, png: bytes) -> tuple[int, int, dict[str, int]]:
    """Width and height of a PNG in pixels, and how many of them have each colour ("ff0000")."""
    page = browser.new_page()
    width, height, counts = page.evaluate(COUNT_COLOURS, base64.b64encode(png).decode())
    page.close()
    return width, height, counts


class Complaints:
    """What the browser complained about: console errors, uncaught exceptions, failed requests."""

    def __init__(self, page, ignore: tuple[str, ...] = ()):
        self.found: list[str] = []
        self.ignore = ignore
        page.on(
            "console",
            lambda m: (
                m.type == "error" and self.add(f"console: {m.text} ({m.location.get('url', '')})")
            ),
        )
        page.on("pageerror", lambda e: self.add(f"exception: {e}"))
        page.on("requestfailed", self._failed)

    def _failed(self, request) -> None:
        """A page that is left or loaded again drops what it was still reading of its own.

        That is no fault of it.
        """
        if not (request.url.startswith("blob:") and "ERR_ABORTED" in str(request.failure)):
            self.add(f"request: {request.url[:120]} {request.failure}")

    def add(self, words: str) -> None:
        if not any(part in words for part in self.ignore):
            self.found.append(words)


class Lab:
    """A running JupyterLab, its folder, and how to put a notebook there, open it and run it."""

    def __init__(self, home: Path):
        self.home, self.folder, self.token = home, home / "notebooks", "test-token"
        self.folder.mkdir(parents=True)
        for part in ROOT.iterdir():  # notebooks read ../assets and the like
            if part.name != "notebooks" and not part.name.startswith("."):
                (home / part.name).symlink_to(part)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        own = home / "jupyter"
        places = {
            f"JUPYTER_{kind}_DIR": str(own / kind.lower()) for kind in ("CONFIG", "DATA", "RUNTIME")
        }
        self._settings(own / "config" / "labconfig")
        # the package and the simulated traces, whatever the kernel's folder is
        python_path = [str(ROOT), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
        self.env = os.environ | places | {"PYTHONPATH": os.pathsep.join(python_path)}
        self.env |= {"IPYTHONDIR": str(own / "ipython")}
        options = [
            f"--ServerApp.port={self.port}",
            "--ServerApp.port_retries=0",
            "--ServerApp.ip=127.0.0.1",
            "--no-browser",
            f"--IdentityProvider.token={self.token}",
            f"--ServerApp.root_dir={self.folder}",
            "--allow-root",
            "--LabApp.expose_app_in_browser=True",
            "--LabApp.extension_manager=readonly",
        ]
        self.log = (own / "lab.log").open("wb")
        command = [sys.executable, "-m", "jupyterlab", *options]
        self.process = subprocess.Popen(
            command, env=self.env, stdout=self.log, stderr=subprocess.STDOUT
        )
        self._wait()

    def _settings(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        overrides = {
            "@jupyterlab/apputils-extension:notification": {
                "fetchNews": "false",
                "checkForUpdates": False,
            },
            # every cell is in the page
            "@jupyterlab/notebook-extension:tracker": {"windowingMode": "none"},
        }
        (folder / "default_setting_overrides.json").write_text(json.dumps(overrides))

    def _wait(self) -> None:
        address, deadline = (
            f"http://127.0.0.1:{self.port}/api/status?token={self.token}",
            time.monotonic() + PATIENCE / 1000,
        )
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                break
            try:
                with urllib.request.urlopen(address, timeout=2):
                    return
            except OSError:
                time.sleep(0.2)
        raise RuntimeError(
            "JupyterLab did not start:\n" + (self.home / "jupyter" / "lab.log").read_text()[-3000:]
        )

    def close(self) -> None:
        address = f"http://127.0.0.1:{self.port}/api/shutdown?token={self.token}"
        try:
            with urllib.request.urlopen(urllib.request.Request(address, method="POST"), timeout=5):
                pass
            self.process.wait(10)
        except (OSError, subprocess.TimeoutExpired):
            self.process.kill()
        self.log.close()

    def put(self, notebook: Path, name: str, *, trusted: bool) -> str:
        """Copy a notebook into the server's folder, signed or not; returns the name to open."""
        import nbformat
        from nbformat.sign import NotebookNotary

        target = self.folder / name
        shutil.copyfile(notebook, target)
        node = nbformat.read(target, as_version=4)
        notary = NotebookNotary(data_dir=self.env["JUPYTER_DATA_DIR"])
        notary.sign(node) if trusted else notary.unsign(node)
        notary.store.close()
        return name

    def open(self, page, name: str) -> None:
        """Open a notebook in its own workspace and wait until its cells are drawn."""
        page.goto(
            f"http://127.0.0.1:{self.port}/lab/workspaces/{name.split('.')[0]}/tree/{name}?token={self.token}&reset"
        )
        page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=PATIENCE)
        ready = "() => window.jupyterapp?.shell.currentWidget?.content?.widgets?.length > 0"
        page.wait_for_function(ready, timeout=PATIENCE)

    def run_first(self, page, cells: int, timeout: float) -> list[str]:
        """Run the first cells and wait for the last; returns the errors that cells put out."""
        page.wait_for_function(
            "() => "
            "window.jupyterapp.shell.currentWidget.sessionContext.session?.kernel?.status === "
            "'idle'",
            timeout=PATIENCE,
        )
        page.evaluate(f"n => {{ {RUN_FIRST} {WATCH_KERNEL} }}", cells)
        page.wait_for_function("() => window.ran !== ''", timeout=timeout * 1000)
        if (ended := page.evaluate("() => window.ran")) != "done":
            raise RuntimeError(
                f"the kernel went {ended} under way; the machine may be out of memory"
            )
        return page.evaluate(ERRORS, cells)

    def shut_kernels(self, page) -> None:
        page.evaluate(
            "async () => { await window.jupyterapp.serviceManager.sessions.shutdownAll(); }"
        )
