"""Every notebook where a reader meets it: six gates, on the notebooks that exist and on a specimen made here.

1 opened untrusted in JupyterLab: tables and pictures, no "Error displaying widget"; 2 trusted and not run: players live;
3 Run All: live widgets answer to keyboard and slider; 4 exported page from a file with the network off: players live;
5 the same as slides; 6 in all of them no console error and no failed request.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from harness import Complaints, browser_path

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
# Limits against hanging, not measures: a shared machine can be ten times slower than a free one.
RUN_SECONDS = 400  # Run All of a notebook
SLOW = {"06_training": 900, "09_sudoku": 900}
LIVE_SECONDS = 300  # one press of Run in a live widget
WIDGET_ERROR = "Error displaying widget"
# what JupyterLab itself says on a bare server, with no reader's part in it
LAB_NOISE = ("/api/workspaces/", "net::ERR_ABORTED", "/api/me", "lspws", "/lsp/", "preload")

SPECIMEN = [
    "import time\nfrom raced import raced\nfrom routed import routed\nfrom simulated import simulate\n"
    "from diffgemma_lite.view import live_player, noise_view, player, race_view, router_view\n"
    "from diffgemma_lite.view.noise_record import noise_record",
    "player(simulate(48, 8, pinned=(2,), layers=2), title='Specimen')",
    "router_view(routed(), title='Specimen of routing')",
    "race_view(raced(), title='Specimen of a race')",
    "noise_view(noise_record(list(range(24)), lambda i: f' w{i}', 32), title='Specimen of noise')",
    """def run(settings, on_step):
    for n in range(settings["steps"]):
        time.sleep(0.05)
        if on_step():
            return simulate(32, n + 1, seed=settings["seed"])
    return simulate(32, settings["steps"], seed=settings["seed"])


live_player(run, knobs={"prompt": "x", "seed": 3, "steps": 6}, trace=simulate(32, 4, seed=9))""",
    """def fail(settings, on_step):
    raise RuntimeError("a run that fails on purpose")


live_player(fail, knobs={"seed": 0}, title="failing")""",
]


@pytest.fixture(scope="session")
def specimen(tmp_path_factory, lab) -> Path:
    """A small notebook with recorded and live players, run and tidied by the course's own command."""
    path = tmp_path_factory.mktemp("specimen") / "specimen.ipynb"
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in SPECIMEN])
    nbformat.write(notebook, path)
    command = [sys.executable, "-m", "diffgemma_lite.notebook_tools", "run", str(path)]
    done = subprocess.run(command, check=False, env=lab.env, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    return path


@pytest.fixture(params=["specimen", *[p.stem for p in NOTEBOOKS]])
def notebook(request, specimen) -> Path:
    return specimen if request.param == "specimen" else ROOT / "notebooks" / f"{request.param}.ipynb"


@pytest.fixture
def lab_page(chromium, lab):
    """A fresh page with the complaints it gathers; the notebook's kernel is stopped afterwards."""
    context = chromium.new_context(viewport={"width": 1400, "height": 1000})
    context.set_default_timeout(120_000)
    page = context.new_page()
    complaints = Complaints(page, LAB_NOISE)
    yield page
    found = list(complaints.found)  # before the kernel goes, which JupyterLab complains about
    if page.url.startswith("http"):
        lab.shut_kernels(page)
    context.close()
    assert not found, found


# words of each view's static part
KEYS = {
    "player": "Marks: ✓ accepted", "noise": "Marks: ≠ changed", "router": "busiest expert", "race": "Tokens kept (height)",
}  # fmt: skip


def recorded(path: Path, view: str | None = None) -> int:
    """How many recorded views the notebook's committed outputs hold, of one kind or of all."""
    cells = nbformat.read(path, 4).cells
    pages = [o.get("data", {}).get("text/html", "") for cell in cells for o in cell.get("outputs", [])]
    return sum(page.count("<div data-dg=" if view is None else f'data-view="{view}"') for page in pages)


def test_untrusted_it_shows_its_tables(notebook, lab, lab_page):
    lab.open(lab_page, lab.put(notebook, f"untrusted-{notebook.name}", trusted=False))
    page, count = lab_page, recorded(notebook)
    assert WIDGET_ERROR not in page.locator(".jp-Notebook").inner_text()
    assert page.locator("[data-live]").count() == 0
    if count:
        pictures = page.locator(".jp-OutputArea-output img[src^='data:image/png']")
        page.wait_for_function("n => document.querySelectorAll('.jp-OutputArea-output img').length >= n", arg=count)
        assert pictures.count() >= count
        text = "".join(page.locator(".jp-OutputArea-output").all_inner_texts())
        for view, key in KEYS.items():
            assert text.count(key) >= recorded(notebook, view)
        assert "committed" in text or not recorded(notebook, "player")


def test_trusted_and_not_run_the_players_are_live(notebook, lab, lab_page):
    if not recorded(notebook):
        pytest.skip("this notebook holds no recorded player")
    lab.open(lab_page, lab.put(notebook, f"trusted-{notebook.name}", trusted=True))
    assert_views_live(lab_page, notebook)
    assert WIDGET_ERROR not in lab_page.locator(".jp-Notebook").inner_text()


def test_run_all_and_the_live_widgets_answer(notebook, lab, lab_page):
    page, seconds = lab_page, SLOW.get(notebook.stem, RUN_SECONDS)
    lab.open(page, lab.put(notebook, f"run-{notebook.name}", trusted=True))
    errors = lab.run_all(page, seconds)
    expected = {o.ename for c in nbformat.read(notebook, 4).cells for o in c.get("outputs", []) if o.output_type == "error"}
    assert [e for e in errors if e.split(":")[0] not in expected] == []
    panels = page.locator(".knobs")
    for i in range(panels.count()):
        panel = panels.nth(i)
        fails = notebook.stem == "specimen" and i == 1
        assert_live_widget(page, panel, fails)
    if notebook.stem == "specimen":
        assert panels.count() == 2
        assert_cancel(page, panels.nth(0))


def assert_live_widget(page, panel, fails: bool) -> None:
    """Run by keyboard; then the slider and the arrows move the player of the new trace."""
    run = panel.locator("button.run")
    run.focus()
    page.keyboard.press("Enter")
    words = panel.locator(".words")
    page.wait_for_function(
        "w => /^(done|failed|cancelled)/.test(w.textContent)", arg=words.element_handle(), timeout=LIVE_SECONDS * 1000
    )
    if fails:
        assert "a run that fails on purpose" in panel.locator(".error").inner_text()
        return
    assert words.text_content().startswith("done"), panel.locator(".error").inner_text()
    page.wait_for_function(  # the new trace is unpacked after the words say done
        "p => { const s = p.parentNode.querySelector('.knobs ~ * input[type=range]'); return s && s.max > 0 && s.value === s.max; }",
        arg=panel.element_handle(), timeout=LIVE_SECONDS * 1000,
    )  # fmt: skip
    slider = panel.locator("xpath=following-sibling::*").locator("input[type=range]")
    assert slider.count() == 1
    slider.scroll_into_view_if_needed()
    slider.focus()
    player, last = panel.locator("xpath=following-sibling::*"), slider.get_attribute("max")
    assert slider.input_value() == last and "committed" in player.locator(".status").first.text_content()
    page.keyboard.press("ArrowLeft")
    assert slider.input_value() == str(int(last) - 1)
    slider.fill("0")
    assert "step 1 of" in player.locator(".status").first.text_content()


def assert_cancel(page, panel) -> None:
    """A long run is cancelled while it runs, which only a kernel that is free to listen can do."""
    panel.locator("[data-knob=steps]").fill("200")
    panel.locator("button.run").click()
    page.wait_for_function(
        "w => /^step [2-9]/.test(w.textContent)", arg=panel.locator(".words").element_handle(), timeout=60_000
    )
    panel.locator("button.cancel").click()
    page.wait_for_function(
        "w => /^cancelled/.test(w.textContent)", arg=panel.locator(".words").element_handle(), timeout=60_000
    )
    steps = int(panel.locator("xpath=following-sibling::*").locator("input[type=range]").get_attribute("max"))
    assert 1 <= steps < 200


def assert_views_live(page, notebook: Path) -> None:
    """All of them started, and the first of each kind plays by keyboard and by slider."""
    count = recorded(notebook)
    page.wait_for_function("n => document.querySelectorAll('[data-live=yes]').length === n", arg=count, timeout=60_000)
    for view in KEYS:
        if recorded(notebook, view):
            plays = {"router": assert_routes, "race": assert_races}.get(view, assert_plays)
            plays(page, page.locator(f"[data-view={view}][data-live=yes]").first)


def assert_plays(page, first) -> None:
    """The slider, the arrows and Play move its cells; an arrow in a cell goes to the next position."""
    slider = first.locator("input[type=range]")
    first.scroll_into_view_if_needed()
    slider.fill("0")
    before = first.locator(".grid .cell").all_text_contents()
    slider.focus()
    page.keyboard.press("ArrowRight")
    assert slider.input_value() == "1"
    first.get_by_role("button", name="Play").focus()
    page.keyboard.press(" ")
    page.wait_for_function("s => Number(s.value) >= 3", arg=slider.element_handle(), timeout=60_000)
    page.keyboard.press(" ")
    assert first.locator(".grid .cell").all_text_contents() != before
    chosen = first.locator("input[name=shown]:checked")
    value = chosen.get_attribute("value")
    chosen.focus()
    page.keyboard.press("ArrowDown")  # JupyterLab would take it for the next cell of the notebook
    assert chosen.get_attribute("value") != value
    cell = first.locator(".grid .cell[tabindex='0']")
    cell.focus()
    page.keyboard.press("ArrowRight")
    assert "Position 1" in first.locator(".inspector h4, .detail h4").text_content()


def assert_routes(page, first) -> None:
    """The arrows go through layers, positions and experts."""
    first.scroll_into_view_if_needed()
    first.locator("[name=layer], select").first.focus()
    page.keyboard.press("ArrowDown")
    assert first.locator(".status").first.text_content().startswith("layer 2 of")
    for kind, words in ((".grid .cell", "Position 1 "), (".rows .row", "Expert")):
        first.locator(f"{kind}[tabindex='0']").focus()
        page.keyboard.press("Home")
        page.keyboard.press("ArrowRight" if "cell" in kind else "ArrowDown")
        assert words in first.locator(".detail").text_content()
    assert first.locator(".rows .row").nth(1).get_attribute("aria-selected") == "true"


def assert_races(page, first) -> None:
    """Play moves the lanes, End shows where they ended."""
    first.scroll_into_view_if_needed()
    first.get_by_role("button", name="Play").focus()
    page.keyboard.press(" ")
    slider = first.locator("input[type=range]")
    page.wait_for_function("s => Number(s.value) > 20", arg=slider.element_handle(), timeout=60_000)
    page.keyboard.press(" ")
    slider.focus()
    page.keyboard.press("End")
    states = first.locator(".heading span").all_text_contents()
    assert len(states) == 2 and all(state.startswith("done: ") for state in states)


def test_exported_page_plays_with_the_network_off(notebook, open_page, tmp_path):
    from diffgemma_lite.notebook_tools.pages import export

    written = export([notebook], tmp_path)
    page = open_page(written[0])
    assert WIDGET_ERROR not in page.locator("body").inner_text()
    if recorded(notebook):
        assert_views_live(page, notebook)


def test_slides_play_with_the_network_off(notebook, open_page, tmp_path):
    """The presentation's own script comes from the network and is missing here; the players must not need it."""
    if not recorded(notebook):
        pytest.skip("this notebook holds no recorded player")
    from nbconvert import SlidesExporter

    body, _ = SlidesExporter().from_filename(str(notebook))
    path = tmp_path / "slides.html"
    path.write_text(body, encoding="utf-8")
    page = open_page(
        path,
        ignore=("cdnjs.cloudflare.com", "unpkg.com", "cdn.jsdelivr.net", "ERR_INTERNET_DISCONNECTED", "require", "Reveal"),
    )
    page.wait_for_function(
        "n => document.querySelectorAll('[data-live=yes]').length === n", arg=recorded(notebook), timeout=60_000
    )


def test_a_notebook_without_a_browser_is_skipped_by_name_or_fails_in_ci(monkeypatch):
    """What a machine without chromium says: the command that installs it; and that CI does not pass by skipping."""
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="apt-get install"):
        browser_path()
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="apt-get install"):
        browser_path()
