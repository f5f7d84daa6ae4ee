"""What can be taken out of a text before a model reads it: runs of white space, HTML. Pure; time linear in the text."""

from __future__ import annotations

import re

_VOID = ("area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr")
_BLOCK = (
    "address", "article", "aside", "blockquote", "dd", "details", "div", "dl", "dt", "fieldset", "figcaption", "figure",
    "footer", "form", "h1", "h2", "h3", "h4", "h5", "h6", "header", "li", "main", "nav", "ol", "option", "p", "pre",
    "section", "summary", "table", "tr", "ul",
)  # fmt: skip
_INLINE = (
    "a", "abbr", "b", "bdi", "bdo", "big", "body", "button", "caption", "center", "cite", "code", "colgroup", "data",
    "datalist", "del", "dfn", "em", "font", "head", "html", "i", "iframe", "ins", "kbd", "label", "legend", "mark",
    "noscript", "optgroup", "picture", "q", "s", "samp", "select", "small", "span", "strike", "strong", "sub", "sup",
    "tbody", "td", "textarea", "tfoot", "th", "thead", "time", "title", "tt", "u", "var", "video", "audio", "canvas",
)  # fmt: skip
# Their contents are no text for a reader.
_RAW = ("script", "style")
_KINDS = {
    **dict.fromkeys(_VOID, "wbr"), **dict.fromkeys((*_BLOCK, *_INLINE), "span"), **{name: name for name in _RAW},
}  # fmt: skip
_TAG = re.compile(r"<(/?)([A-Za-z][A-Za-z0-9]{0,15}(?=[\s/>]))?(!--|!doctype(?=[\s>]))?", re.IGNORECASE)
_MARKUP = re.compile(r"<(?:/?[A-Za-z]|!)|&[#A-Za-z]")
_BREAKING = frozenset({*_BLOCK, "br", "hr"})


def strip_html(text: str) -> str:
    """
    Return `text` without HTML: tags and comments gone, scripts and styles with what is in them, entities as characters.

    Only elements that HTML has count: `a < b` and `List<int>` stay. A block element begins and ends a line.
    Text that holds no markup comes back as it is.
    """
    if _MARKUP.search(text) is None:
        return text
    # Here, because only instances that strip HTML need the library.
    from selectolax.lexbor import LexborHTMLParser

    body = LexborHTMLParser("<body>" + _TAG.sub(_plain_tag, text)).body
    if body is None:
        return ""
    for node in body.css("script, style"):
        node.decompose()
    return str(body.text(deep=True, separator=""))


def _plain_tag(match: re.Match[str]) -> str:
    """
    Reduce a tag to one of four kinds, and escape what is none.

    The parser then reads attributes, quotes, comments and entities as HTML says, without the tree rules of HTML, for
    which no text is worth its time: misnested elements take the square of their number there.
    """
    slash, name, other = match[1], match[2], match[3]
    if other is not None and not slash:
        return match[0]
    kind = _KINDS.get(name.lower()) if name else None
    if kind is None:
        return "&lt;" + match[0][1:]
    line = "\n" if name.lower() in _BREAKING else ""
    if kind == "wbr":
        return f"{line}<wbr"
    return f"{line}<{slash}{kind}"


def collapse_whitespace(text: str, *, keep_indent: bool) -> str:
    """
    Return `text` with one space for each run of white space in a line, and one empty line for each run of them.

    Lines have no white space at their end, and none at their start unless `keep_indent`. White space is Unicode's.
    """
    lines: list[str] = []
    for line in text.split("\n"):
        words = " ".join(line.split())
        if words and keep_indent:
            words = line[: len(line) - len(line.lstrip())] + words
        if words or (lines and lines[-1]):
            lines.append(words)
    if lines and not lines[-1]:
        lines.pop()
    return "\n".join(lines)
