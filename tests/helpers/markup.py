"""What a page says, read back from its HTML."""

from __future__ import annotations

import re
from html.parser import HTMLParser


class Reader(HTMLParser):
    """Tags, attributes and text of a page, scripts aside."""

    def __init__(self, markup: str):
        super().__init__()
        self.tags, self.attributes, self.text, self.script = [], [], [], False
        self.feed(markup)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]
        self.script = tag == "script"

    def handle_endtag(self, tag):
        self.script = False

    def handle_data(self, data):
        if not self.script:
            self.text.append(data)


def tables(markup: str) -> list[list[list[str]]]:
    """The cells of each table, row by row, as text."""
    rows = [
        re.findall(r"<tr>(.*?)</tr>", t, re.DOTALL)
        for t in re.findall(r"<table>(.*?)</table>", markup, re.DOTALL)
    ]
    return [
        [re.findall(r"<t[hd]>(.*?)</t[hd]>", row, re.DOTALL) for row in table] for table in rows
    ]
