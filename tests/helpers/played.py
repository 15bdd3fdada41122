"""A view in a page, as the browser tests drive it: cells, slider, focus, colours."""

from __future__ import annotations

ROOT = "document.querySelector('[data-live]').lastElementChild.shadowRoot"
# the least contrast between the text and the ground of these elements
CONTRAST = """cells => {
  const lum = (css) => {
    const of = (x) => css.startsWith('color(') ? x : x / 255;
    const v = css.match(/[\\d.]+/g).slice(0, 3).map(of)
      .map((x) => x <= 0.04045 ? x / 12.92 : ((Number(x) + 0.055) / 1.055) ** 2.4);
    return 0.2126 * v[0] + 0.7152 * v[1] + 0.0722 * v[2];
  };
  return Math.min(...cells.map((c) => {
    const s = getComputedStyle(c), a = lum(s.color), b = lum(s.backgroundColor);
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  }));
}"""


def live(page):
    page.wait_for_selector("[data-live=yes]")
    return page


def cells(page, name="shown") -> list[str]:
    what = {
        "shown": "x.textContent",
        "class": "x.className",
        "label": "x.getAttribute('aria-label')",
    }[name]
    return page.locator(".grid .cell").evaluate_all(f"all => all.map((x) => {what})")


def frame(page) -> int:
    return int(page.locator("input[type=range]").input_value())


def seek(page, n: int) -> None:
    page.locator("input[type=range]").evaluate(
        "(r, n) => { r.value = n; r.dispatchEvent(new Event('input')); }", n
    )


def pause_after(page, n: int, key: str | None = None) -> int:
    """Waits until it has played past frame n and pauses it in the same instant, by its button or by
    a key where the focus is: between two calls from here a slow machine may play to the end.
    Returns the frame it stopped at.
    """
    return page.evaluate(
        f"""async ([n, key]) => {{ const root = {ROOT};
        const range = root.querySelector('input[type=range]');
        while (Number(range.value) <= n) await new Promise((next) => requestAnimationFrame(next));
        if (key === null) root.querySelector('.controls .primary').click();
        else root.activeElement.dispatchEvent(new KeyboardEvent('keydown',
          {{ key, bubbles: true, composed: true, cancelable: true }}));
        return Number(range.value); }}""",
        [n, key],
    )


def settled(page) -> None:
    """Waits until no cell fades any more."""
    page.wait_for_function("() => document.getAnimations().every((a) => a.playState !== 'running')")


def focused(page) -> str:
    return page.evaluate(
        "() => { let e = document.activeElement; "
        "while (e.shadowRoot?.activeElement) e = e.shadowRoot.activeElement; "
        "return e.dataset?.p ?? e.getAttribute('aria-label') ?? e.value ?? e.tagName; }"
    )
