"""The course as pages: one HTML file per notebook, its pictures and players inside, and an index.

Or as slides.
"""

from __future__ import annotations

import base64
import html
import json
import mimetypes
import re
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from .gate import PLOTLY, PNG

# nbconvert's page loads three scripts from the network; the js blocks are where it says so. It is
# light whatever the reader's system is; here the dark theme's colours come after the light ones,
# for a system that asks for them. Printed output breaks between words where it can.
OFFLINE = """{%- extends 'lab/index.html.j2' -%}
{%- block html_head_js_requirejs -%}{%- endblock -%}
{%- block html_head_js_mermaidjs -%}{%- endblock -%}
{%- block notebook_css -%}
{{ super() }}
{{ resources.include_css("static/theme-dark.css") \
| replace('type="text/css"', 'media="screen and (prefers-color-scheme: dark)"') }}
<style>
@media screen { html { color-scheme: light dark; } }
body .jp-RenderedText pre { word-break: normal; overflow-wrap: anywhere; }
</style>
{%- endblock -%}"""
NO_FORMULAS = "{%- block html_head_js_mathjax -%}{%- endblock -%}"
# A plotly figure: its picture (and tables, if it brings some) first; the script takes the place
# of the picture.
FIGURE = (
    '<div data-plotly="waiting">{still}<div></div>'
    '<script type="application/json">{figure}</script></div>'
)
DRAW = """<script>{plotly}</script><script>
for (const host of document.querySelectorAll("[data-plotly]")) {
  const [stage, code] = [...host.children].slice(-2), {data, layout} = JSON.parse(code.textContent);
  host.querySelector("img")?.after(stage);
  Plotly.newPlot(stage, data, layout, {responsive: true, displaylogo: false}).then(() => {
    if (stage.previousElementSibling?.tagName === "IMG") stage.previousElementSibling.remove();
    host.dataset.plotly = "live";
  }).catch((error) => { stage.remove(); host.dataset.plotly = "failed"; console.error(error); });
}
</script>"""
# ![words](file), <img src="file">
PICTURE = re.compile(r"""(!\[[^\]]*\]\(|<img\b[^>]*\bsrc=["'])((?!\w+:)[^)"'\s]+)([)"'\s])""")
INDEX = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>{title}</title><h1>{title}</h1>
<ul>
{rows}
</ul></html>
"""


def export(paths: list[Path], folder: Path, formulas: bool = False) -> list[Path]:
    """Writes the pages and index.html into the folder and returns them.

    With `formulas` each page loads from the network the script that typesets formulas; without it a
    page loads nothing, and formulas stay as they were typed.
    """
    from nbconvert import HTMLExporter

    exporter = HTMLExporter(raw_template=OFFLINE + ("" if formulas else NO_FORMULAS))
    folder.mkdir(parents=True, exist_ok=True)
    written, rows = [], []
    for path in paths:
        notebook = nbformat.read(str(path), as_version=4)
        title = notebook.metadata.setdefault("title", heading(notebook) or path.stem)
        for cell in notebook.cells:
            # a link to another notebook becomes a link to its page
            if cell.cell_type == "markdown":
                source = re.sub(r"(\]\((?!\w+:)[^)\s]*)\.ipynb\b", r"\1.html", cell.source)
                cell.source = with_pictures(source, path.parent)
        figures = [
            output
            for cell in notebook.cells
            for output in cell.get("outputs", [])
            if PLOTLY in output.get("data", {})
        ]
        for output in figures:
            output.data["text/html"] = with_figure(output)
        body, _ = exporter.from_notebook_node(
            notebook, resources={"metadata": {"path": str(path.parent)}}
        )
        if figures:
            before, end, after = body.rpartition("</body>")
            body = before + drawing() + end + after
        written.append(folder / f"{path.stem}.html")
        written[-1].write_text(body, encoding="utf-8")
        rows.append(f'<li><a href="{path.stem}.html">{html.escape(title)}</a></li>')
    written.append(folder / "index.html")
    written[-1].write_text(
        INDEX.format(title="diffgemma_lite", rows="\n".join(rows)), encoding="utf-8"
    )
    return written


def slides(paths: list[Path], folder: Path) -> list[Path]:
    """A presentation per notebook, a slide from each heading to the next (### goes down, not on).

    Returns the files.

    The script that turns pages comes from the network; without it a file shows everything, one
    thing below another.
    """
    from nbconvert import SlidesExporter

    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for path in paths:
        notebook = nbformat.read(str(path), as_version=4)
        notebook.metadata.setdefault("title", heading(notebook) or path.stem)
        notebook.cells = [part for cell in notebook.cells for part in _at_headings(cell)]
        for cell in notebook.cells:
            level = re.match(r"(#+) ", cell.source) if cell.cell_type == "markdown" else None
            if level and "slideshow" not in cell.metadata:
                cell.metadata["slideshow"] = {
                    "slide_type": "slide" if len(level[1]) < 3 else "subslide"
                }
            if cell.cell_type == "markdown":
                cell.source = with_pictures(cell.source, path.parent)
        body, _ = SlidesExporter().from_notebook_node(notebook)
        written.append(folder / f"{path.stem}.slides.html")
        written[-1].write_text(body, encoding="utf-8")
    return written


def _at_headings(cell: NotebookNode) -> list[NotebookNode]:
    """A text cell in parts that each begin with a heading (but for the first).

    Any other cell as it is.
    """
    if cell.cell_type != "markdown" or "```" in cell.source:  # a # in a block of code is no heading
        return [cell]
    parts = [
        part for part in re.split(r"^(?=#{1,3} )", cell.source, flags=re.MULTILINE) if part.strip()
    ]
    return [nbformat.v4.new_markdown_cell(part, metadata=dict(cell.metadata)) for part in parts]


def with_figure(output: NotebookNode) -> str:
    """HTML of an output with a plotly figure.

    What it shows without script, and the figure for the script at the page's end.
    """
    still, picture = output.data.get("text/html", ""), output.data.get(PNG)
    if not still and picture:
        alt = html.escape(output.metadata.get(PNG, {}).get("alt", "A figure"), quote=True)
        still = f'<img alt="{alt}" style="max-width:100%" src="data:image/png;base64,{picture}">'
    return FIGURE.format(
        still=still, figure=json.dumps(output.data[PLOTLY]).replace("<", "\\u003c")
    )


def drawing() -> str:
    """The script that draws the figures of a page, plotly in it."""
    from plotly.offline import get_plotlyjs

    return DRAW.replace("{plotly}", get_plotlyjs())


def with_pictures(source: str, folder: Path) -> str:
    """Markdown with the pictures it names, as files beside the notebook, put into it as data.

    nbconvert can do that too, but it closes what a block of HTML leaves open, and so empties a
    <details> with a blank line.
    """

    def embed(match: re.Match) -> str:
        kind, _ = mimetypes.guess_type(match[2])
        if not (kind or "").startswith("image/") or not (folder / match[2]).is_file():
            return match[0]
        picture = base64.b64encode((folder / match[2]).read_bytes()).decode()
        return f"{match[1]}data:{kind};base64,{picture}{match[3]}"

    return PICTURE.sub(embed, source)


def heading(notebook: NotebookNode) -> str | None:
    """The first heading of the first level."""
    prose = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    found = re.search(r"^# +(.+?) *$", prose, re.MULTILINE)
    return found and found.group(1)
