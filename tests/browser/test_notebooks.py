"""Every notebook where a reader meets it: six gates, on those that exist and on a specimen.

1 opened untrusted in JupyterLab: tables and pictures, no "Error displaying widget"; 2 trusted and
not run: players live; 3 run: live widgets answer to keyboard and slider; 4 exported page from a
file with the network off: players live; 5 the same as slides; 6 in all of them no console error and
no failed request.

That each cell runs is what nbval finds. So gate 3 runs a notebook only as far as there is something
a browser must draw, and not at all where there is nothing (`drawn`).
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest
from harness import PATIENCE, Complaints, browser_path

from diffgemma_lite.course.gate import PLOTLY

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
# Limits against hanging, not measures: a shared machine can be ten times slower than a free one.
RUN_SECONDS = 1200  # the cells of a notebook
LIVE_SECONDS = 600  # one press of Run in a live widget
WIDGET_ERROR = "Error displaying widget"
LIVE = "Knobs of the live player, with their first values"  # in the static twin of a live widget
WIDGETS = re.compile(r"\b(ipywidgets|anywidget|tqdm|VBox|HBox)\b")
# what JupyterLab itself says on a bare server, with no reader's part in it
LAB_NOISE = ("/api/workspaces/", "net::ERR_ABORTED", "/api/me", "lspws", "/lsp/", "preload")

SPECIMEN = [
    "import time\nfrom raced import raced\nfrom routed import routed\n"
    "from simulated import simulate\n"
    "from diffgemma_lite.view import live_player, noise_view, player, race_view, router_view\n"
    "from diffgemma_lite.view.noise_record import noise_record",
    "player(simulate(48, 8, pinned=(2,), layers=2), title='Specimen')",
    "router_view(routed(), title='Specimen of routing')",
    "race_view(raced(), title='Specimen of a race')",
    "record = noise_record(list(range(24)), lambda i: f' w{i}', 32)\n"
    "noise_view(record, title='Specimen of noise')",
    "from diffgemma_lite import Config\nfrom diffgemma_lite.view import roofline\n"
    "roofline(Config.preset('python_small'), canvases=(8, 64), batches=(1, 4), canvas=64)",
    "import torch\nfrom diffgemma_lite.view.nvfp4_record import block_map\n"
    "from diffgemma_lite.view.nvfp4_view import block_view\n"
    "weights = torch.randn(6, 32, generator=torch.Generator().manual_seed(0))\n"
    "block_view(block_map(weights, "
    "'a weight'))",
    "import plotly.graph_objects as go\n"
    "go.Figure(go.Scatter(y=[1, 3, 2]), layout=dict(title='A bare figure'))",
    """def run(settings, on_step):
    for n in range(settings["steps"]):
        time.sleep(0.05)
        if on_step():
            return simulate(32, n + 1, seed=settings["seed"])
    return simulate(32, settings["steps"], seed=settings["seed"])


knobs = {"prompt": "x", "seed": 3, "steps": 6}
live_player(run, knobs=knobs, trace=simulate(32, 4, seed=9))""",
    """def fail(settings, on_step):
    raise RuntimeError("a run that fails on purpose")


live_player(fail, knobs={"seed": 0}, title="failing")""",
    "from tqdm.auto import tqdm\nfor i in tqdm(range(3)):\n    pass",
]


@pytest.fixture(scope="session")
def specimen(tmp_path_factory, lab) -> Path:
    """A small notebook with recorded and live players, run and tidied by the course's command."""
    path = tmp_path_factory.mktemp("specimen") / "specimen.ipynb"
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(source) for source in SPECIMEN]
    )
    nbformat.write(notebook, path)
    command = [sys.executable, "-m", "diffgemma_lite.course", "run", str(path)]
    done = subprocess.run(
        command, check=False, env=lab.env, capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return path


@pytest.fixture(params=["specimen", *[p.stem for p in NOTEBOOKS]])
def notebook(request) -> Path:
    return (
        request.getfixturevalue("specimen")
        if request.param == "specimen"
        else ROOT / "notebooks" / f"{request.param}.ipynb"
    )


@pytest.fixture
def lab_page(chromium, lab):
    """A fresh page with the complaints it gathers; the notebook's kernel is stopped afterwards."""
    context = chromium.new_context(viewport={"width": 1400, "height": 1000})
    context.set_default_timeout(PATIENCE)
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
    "player": "Marks: ✓ accepted", "noise": "Marks: ≠ changed", "router": "busiest expert",
    "race": "Tokens kept (height)", "roofline": "Bytes are weights and cache.",
    "nvfp4": "over the scale",
}  # fmt: skip


def pages_of(path: Path) -> list[str]:
    """The HTML of the notebook's committed outputs."""
    cells = nbformat.read(path, 4).cells
    return [
        o.get("data", {}).get("text/html", "") for cell in cells for o in cell.get("outputs", [])
    ]


def recorded(path: Path, view: str | None = None) -> int:
    """How many recorded views the notebook's committed outputs hold, of one kind or of all."""
    return sum(
        page.count("<div data-dg=" if view is None else f'data-view="{view}"')
        for page in pages_of(path)
    )


def static_pictures(path: Path) -> int:
    """How many pictures stand in the static parts of those views (a view whose facts are a table
    has none).
    """
    return sum(
        page.count('src="data:image/png') for page in pages_of(path) if "<div data-dg=" in page
    )


def figures(path: Path) -> int:
    """How many plotly figures the notebook's committed outputs hold."""
    return sum(
        PLOTLY in o.get("data", {})
        for cell in nbformat.read(path, 4).cells
        for o in cell.get("outputs", [])
    )


def drawn(path: Path) -> int:
    """How many cells it takes to run all that a browser draws with code of its own: views, figures,
    live widgets.
    """
    marks = ("<div data-dg=", PLOTLY, LIVE)
    return max(
        (
            i
            for i, cell in enumerate(nbformat.read(path, 4).cells, 1)
            if cell.cell_type == "code"
            and (WIDGETS.search(cell.source) or any(m in str(cell.outputs) for m in marks))
        ),
        default=0,
    )


def knob_panels(path: Path) -> int:
    """How many live widgets a run makes: each committed output of one lists its knobs."""
    return path.read_text(encoding="utf-8").count(LIVE)


def until(page, condition: str, argument=None, timeout: int = PATIENCE) -> None:
    """Wait for `condition`, a function in JavaScript; what is a locator is given as its element."""
    page.wait_for_function(condition, arg=argument, timeout=timeout)


def press(field, key: str) -> None:
    """A key for this element, wherever JupyterLab has put the focus meanwhile."""
    field.press(key)


def becomes(field, value: str) -> None:
    until(field.page, "([field, value]) => field.value === value", [field.element_handle(), value])


def test_untrusted_it_shows_its_tables(notebook, lab, lab_page):
    lab.open(lab_page, lab.put(notebook, f"untrusted-{notebook.name}", trusted=False))
    page, count = lab_page, recorded(notebook)
    assert WIDGET_ERROR not in page.locator(".jp-Notebook").inner_text()
    assert page.locator("[data-live]").count() == 0
    if count:
        pictures = ".jp-OutputArea-output img[src^='data:image/png']"
        until(
            page,
            "([where, n]) => document.querySelectorAll(where).length >= n",
            [pictures, static_pictures(notebook)],
        )
        text = "".join(page.locator(".jp-OutputArea-output").all_inner_texts())
        for view, key in KEYS.items():
            assert text.count(key) >= recorded(notebook, view)
        assert "committed" in text or not recorded(notebook, "player")


def test_trusted_its_players_are_live_and_after_a_run_the_widgets_answer(notebook, lab, lab_page):
    """Gates 2 and 3 on one copy: it is opened, not run, and looked at; then it is run."""
    page = lab_page
    lab.open(page, lab.put(notebook, f"trusted-{notebook.name}", trusted=True))
    assert_views_live(page, notebook)
    assert_plotly_draws(page, notebook)
    assert WIDGET_ERROR not in page.locator(".jp-Notebook").inner_text()
    if not (last := drawn(notebook)):
        return
    errors = lab.run_first(page, last, RUN_SECONDS)
    expected = {
        o.ename
        for c in nbformat.read(notebook, 4).cells
        for o in c.get("outputs", [])
        if o.output_type == "error"
    }
    assert [e for e in errors if e.split(":")[0] not in expected] == []
    assert_plotly_draws(page, notebook)
    panels = page.locator(".knobs")  # each in a shadow root, where only a locator looks
    deadline = time.monotonic() + PATIENCE / 1000
    while panels.count() != knob_panels(notebook) and time.monotonic() < deadline:
        page.wait_for_timeout(200)
    assert panels.count() == knob_panels(notebook)
    for i in range(panels.count()):
        assert_live_widget(page, panels.nth(i), fails=notebook.stem == "specimen" and i == 1)
    if notebook.stem == "specimen":
        assert panels.count() == 2
        assert_cancel(page, panels.nth(0))


def assert_plotly_draws(page, notebook: Path) -> None:
    """Each figure is there; one that brings a picture shows that until a pointer comes."""
    until(
        page,
        "n => document.querySelectorAll('.jp-Notebook .jp-RenderedPlotly').length === n",
        figures(notebook),
    )
    for figure in page.locator(".jp-Notebook .jp-RenderedPlotly").all():
        until(page, "f => f.querySelector('img, .main-svg')", figure.element_handle())
        figure.hover()
        until(page, "f => f.querySelector('.main-svg')", figure.element_handle())


def assert_live_widget(page, panel, fails: bool) -> None:
    """Run by keyboard; then the slider and the arrows move the player of the new trace."""
    press(panel.locator("button.run"), "Enter")
    words = panel.locator(".words")
    until(
        page,
        "w => /^(done|failed|cancelled)/.test(w.textContent)",
        words.element_handle(),
        LIVE_SECONDS * 1000,
    )
    if fails:
        assert "a run that fails on purpose" in panel.locator(".error").inner_text()
        return
    assert words.text_content().startswith("done"), panel.locator(".error").inner_text()
    until(  # the new trace is unpacked after the words say done
        page,
        "p => { const s = p.parentNode.querySelector('.knobs ~ * input[type=range]'); "
        "return s && s.max > 0 && s.value === s.max; }",
        panel.element_handle(),
        LIVE_SECONDS * 1000,
    )
    player = panel.locator("xpath=following-sibling::*")
    slider = player.locator("input[type=range]")
    assert slider.count() == 1
    last = slider.get_attribute("max")
    assert "committed" in player.locator(".status").first.text_content()
    press(slider, "ArrowLeft")
    becomes(slider, str(int(last) - 1))
    slider.fill("0")
    until(
        page,
        "s => s.textContent.startsWith('step 1 of')",
        player.locator(".status").first.element_handle(),
    )


def assert_cancel(page, panel) -> None:
    """A long run is cancelled while it runs, which only a kernel that is free to listen can do."""
    words = panel.locator(".words").element_handle()
    panel.locator("[data-knob=steps]").fill("200")
    press(panel.locator("button.run"), "Enter")
    until(page, "w => /^step [2-9]/.test(w.textContent)", words)
    press(panel.locator("button.cancel"), "Enter")
    until(page, "w => /^cancelled/.test(w.textContent)", words)
    bar = panel.locator("progress")
    assert int(bar.get_attribute("max")) == 200
    until(
        page,
        "p => { const s = p.parentNode.querySelector('.knobs ~ * input[type=range]'); "
        "return s.max >= 1 && s.max < 200; }",
        panel.element_handle(),
    )


def assert_views_live(page, notebook: Path) -> None:
    """All of them started, and the first of each kind plays by keyboard and by slider."""
    until(
        page, "n => document.querySelectorAll('[data-live=yes]').length === n", recorded(notebook)
    )
    for view in KEYS:
        if recorded(notebook, view):
            others = {
                "router": assert_routes,
                "race": assert_races,
                "roofline": assert_slides,
                "nvfp4": assert_shows_blocks,
            }
            plays = others.get(view, assert_plays)
            plays(page, page.locator(f"[data-view={view}][data-live=yes]").first)


def assert_plays(page, first) -> None:
    """The slider, the arrows and Play move its cells.

    An arrow in a cell goes to the next position.
    """
    slider, cells = first.locator("input[type=range]"), first.locator(".grid .cell")
    slider.fill("0")
    before = cells.all_text_contents()
    press(slider, "ArrowRight")
    becomes(slider, "1")
    press(first.get_by_role("button", name="Play"), " ")
    until(page, "s => Number(s.value) >= 3", slider.element_handle())
    slider.fill("3")  # pauses it
    assert cells.all_text_contents() != before
    chosen = first.locator("input[name=shown]:checked")
    value = chosen.get_attribute("value")
    press(chosen, "ArrowDown")  # JupyterLab would take it for the next cell of the notebook
    until(
        page, "c => !c.checked", first.locator(f"input[name=shown][value={value}]").element_handle()
    )
    press(first.locator(".grid .cell[tabindex='0']"), "Home")
    press(first.locator(".grid .cell[tabindex='0']"), "ArrowRight")
    heading = first.locator(".inspector h4, .detail h4").first
    until(page, "h => h.textContent.startsWith('Position 1')", heading.element_handle())


def assert_routes(page, first) -> None:
    """The arrows go through layers, positions and experts."""
    press(first.locator("[name=layer], select").first, "ArrowDown")
    until(
        page,
        "s => s.textContent.startsWith('layer 2 of')",
        first.locator(".status").first.element_handle(),
    )
    for kind, key, words in (
        (".grid .cell", "ArrowRight", "Position 1 "),
        (".rows .row", "ArrowDown", "Expert 1"),
    ):
        press(first.locator(f"{kind}[tabindex='0']"), "Home")
        press(first.locator(f"{kind}[tabindex='0']"), key)
        until(
            page,
            "([d, words]) => d.textContent.includes(words)",
            [first.locator(".detail").element_handle(), words],
        )
    assert first.locator(".rows .row").nth(1).get_attribute("aria-selected") == "true"


def assert_races(page, first) -> None:
    """Play moves the lanes, End shows where they ended."""
    press(first.get_by_role("button", name="Play"), " ")
    slider = first.locator("input[type=range]")
    until(page, "s => Number(s.value) > 20", slider.element_handle())
    press(slider, "End")
    becomes(slider, "1000")
    states = first.locator(".heading span").all_text_contents()
    assert len(states) == 2 and all(state.startswith("done: ") for state in states)


def assert_slides(page, first) -> None:
    """Each slider goes to its end by keyboard, and the status says another step."""
    status = first.locator(".status").first
    for slider in first.locator("input[type=range]:enabled").all():
        before, least = status.text_content(), slider.evaluate("s => s.value === s.max")
        press(slider, "Home" if least else "End")
        until(page, "([s, before]) => s.textContent !== before", [status.element_handle(), before])


def assert_shows_blocks(page, first) -> None:
    """The heat map by its arrows, or the outlier by its slider."""
    status = first.locator(".status").first
    before = status.text_content()
    if first.locator(".spot").count():
        press(first.locator(".spot[tabindex='0']"), "ArrowRight")
        until(page, "([s, before]) => s.textContent !== before", [status.element_handle(), before])
    else:
        slider = first.locator("input[type=range]")
        press(slider, "ArrowRight")
        becomes(slider, "1")


def test_exported_page_plays_with_the_network_off(notebook, open_page, tmp_path):
    from diffgemma_lite.course.pages import export

    written = export([notebook], tmp_path)
    page = open_page(written[0])
    assert WIDGET_ERROR not in page.locator("body").inner_text()
    assert_views_live(page, notebook)


def test_slides_play_with_the_network_off(notebook, open_page, tmp_path):
    """The presentation's own script comes from the network and is missing here.

    The players must not need it.
    """
    if not recorded(notebook) + figures(notebook):
        pytest.skip("this notebook holds no recorded player and no figure")
    from diffgemma_lite.course.pages import slides

    page = open_page(
        slides([notebook], tmp_path)[0],
        ignore=(
            "cdnjs.cloudflare.com",
            "unpkg.com",
            "cdn.jsdelivr.net",
            "ERR_INTERNET_DISCONNECTED",
            "require",
            "Reveal",
        ),
    )
    until(
        page, "n => document.querySelectorAll('[data-live=yes]').length === n", recorded(notebook)
    )
    headings = sum(
        c.cell_type == "markdown" and c.source.startswith("#")
        for c in nbformat.read(notebook, 4).cells
    )
    assert page.locator(".slides section section").count() >= headings


def test_a_notebook_without_a_browser_is_skipped_by_name_or_fails_in_ci(monkeypatch):
    """What a machine without chromium says: the command that installs it.

    And that CI does not pass by skipping.
    """
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="apt-get install"):
        browser_path()
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="apt-get install"):
        browser_path()
