"""What a page makes of the prose: answers that fold stay in their fold, and pictures come along."""

from __future__ import annotations

import base64
from html.parser import HTMLParser

import nbformat
import pytest
from nbformat.v4 import new_markdown_cell, new_notebook

from diffgemma_lite.course.execute import NOTEBOOKS, ROOT
from diffgemma_lite.course.pages import export, with_pictures

FOLDED = """**1.** A question?
<details><summary>Answer</summary>

First *words*.

- a list

```python
x = 1

y = 2
```
</details>

After it.

<details>
<summary>Hint</summary>
<p>Second words.</p>
</details>"""


class Folds(HTMLParser):
    """The text inside each <details>, outermost first come; and that outside."""

    def __init__(self, markup: str):
        super().__init__()
        self.inside, self.outside, self.depth, self.skip = [], "", 0, 0
        self.feed(markup)

    def handle_starttag(self, tag, attrs):
        self.skip += tag in ("script", "style")
        if tag == "details":
            self.depth += 1
            self.inside.append("")

    def handle_endtag(self, tag):
        self.skip -= tag in ("script", "style")
        self.depth -= tag == "details"

    def handle_data(self, data):
        if self.skip:
            return
        if self.depth:
            self.inside[-1] += data
        else:
            self.outside += data


def exported(folder, *sources):
    path = folder / "00_page.ipynb"
    nbformat.write(new_notebook(cells=[new_markdown_cell(source) for source in sources]), str(path))
    return export([path], folder / "site")[0].read_text(encoding="utf-8")


def test_what_is_folded_stays_folded(tmp_path):
    page = exported(tmp_path, FOLDED)
    folds = Folds(page)
    assert len(folds.inside) == 2
    assert all(words in folds.inside[0] for words in ("First words.", "a list", "x", "y"))
    assert "<em>words</em>" in page and "Second words." in folds.inside[1]
    assert "After it." in folds.outside and "First" not in folds.outside


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_no_fold_of_the_course_is_empty(path):
    from nbconvert.filters import markdown2html

    prose = [
        cell.source
        for cell in nbformat.read(str(path), as_version=4).cells
        if cell.cell_type == "markdown"
    ]
    for source in (text for text in prose if "<details" in text):
        folds = Folds(markdown2html(with_pictures(source, path.parent))).inside
        assert len(folds) == source.count("<details")
        assert min(len(text.split()) for text in folds) >= 5, source


def test_pictures_of_the_prose_are_in_the_page(tmp_path):
    png = (ROOT / "assets" / "figures" / "player_light.png").read_bytes()
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "a.png").write_bytes(png)
    named = (
        '![words](figures/a.png)\n\n<img alt="more" src="figures/a.png" width="30">\n\n'
        "`![code](figures/none.png)`"
    )
    page = exported(tmp_path, named)
    data = base64.b64encode(png).decode()
    assert (
        page.count(f'src="data:image/png;base64,{data}"') == 2
        and 'alt="words"' in page
        and 'width="30"' in page
    )
    kept = (
        "![x](https://example.org/a.png) <img src='data:image/png;base64,AA=='> ![no](none.png) "
        "[a](figures/a.png)"
    )
    assert with_pictures(kept, tmp_path) == kept
