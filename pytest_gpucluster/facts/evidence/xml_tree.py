"""XML with line numbers, read as far as it goes: no entities, no external files."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from xml.sax import SAXException
from xml.sax.handler import ContentHandler

from defusedxml.common import DefusedXmlException
from defusedxml.sax import make_parser

from pytest_gpucluster.facts.evidence.document import Document

_MAX_ELEMENTS = 2_000_000
_MAX_DEPTH = 64


@dataclass
class Element:
    """One element: ``text`` without blanks at its ends, ``line`` of its start tag."""

    tag: str
    line: int
    attributes: dict[str, str] = field(default_factory=dict)
    text: str = ""
    children: list[Element] = field(default_factory=list)

    def all(self, tag: str) -> list[Element]:
        """Its direct children of this name."""
        return [child for child in self.children if child.tag == tag]


class _Tree(ContentHandler):
    def __init__(self) -> None:
        super().__init__()
        self.root: Element | None = None
        self.open: list[Element] = []
        self.count = 0
        self.ended = False
        self.locator: Any = None

    def setDocumentLocator(self, locator: Any) -> None:
        self.locator = locator

    def startElement(self, name: str, attrs: Any) -> None:
        self.count += 1
        if self.count > _MAX_ELEMENTS or len(self.open) > _MAX_DEPTH:
            raise SAXException("too many or too deeply nested elements")
        line = self.locator.getLineNumber() if self.locator else 0
        element = Element(name, line, dict(attrs.items()))
        if self.open:
            self.open[-1].children.append(element)
        elif self.root is None:
            self.root = element
        self.open.append(element)

    def characters(self, content: str) -> None:
        if self.open and (text := content.strip()):
            self.open[-1].text += text if not self.open[-1].text else f" {text}"

    def endElement(self, name: str) -> None:
        self.open.pop()
        self.ended = not self.open


def parse(document: Document, root: str) -> tuple[Element | None, str | None]:
    """The element ``root`` and, where the text is broken or ends early, why; never raises.

    What stands before ``<root`` (a prompt, a log line) is left out.
    """
    start = next((n for n, line in enumerate(document.lines) if f"<{root}" in line[:4096]), None)
    if start is None:
        return None, f"no <{root}> element"
    tree = _Tree()
    parser: Any = make_parser()
    parser.setContentHandler(tree)
    try:
        first = document.lines[start]
        parser.feed("\n" * start + first[first.index(f"<{root}") :] + "\n")
        for line in document.lines[start + 1 :]:
            if tree.ended:
                break
            parser.feed(line + "\n")
    except (SAXException, DefusedXmlException, ValueError) as error:
        reason = error.getMessage() if isinstance(error, SAXException) else str(error)
        return tree.root, f"broken XML: {reason[:120]}"
    if not tree.ended:
        return tree.root, "the XML ends early"
    return tree.root, None
