"""Secrets out of texts, host names replaced; bytes in, bytes out, nothing else changed."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable

LEFT_OUT = "[left out]"

# Patterns start at the telling word, not at the variable's beginning: a search that may begin
# anywhere in a long word would not be linear.
_WORD = (
    r"(?:token|secret|passw(?:or)?d|passphrase|credentials?|api[_-]?key|access[_-]?key"
    r"|private[_-]?key|auth[_-]?key|secret[_-]?key)"
)
# The rest of the name is taken whole, "(?=(x))\1", so that nothing is tried twice.
_NAME = rf"{_WORD}(?=(?P<rest>[\w.-]{{0,40}}))(?P=rest)"
_BARE = r"[^\s\"'<>\\]{1,4096}"
_ASSIGNED = re.compile(
    rf"(?P<name>{_NAME}(?:\\?[\"'])?[ \t]{{0,4}}[=:][ \t]{{0,4}})"
    r"(?:(?P<escaped>\\[\"'])[^\"'\\\n]{1,4096}"  # JSON inside JSON
    r"|(?P<quote>[\"'])(?:\\.|(?!(?P=quote))[^\\\n]){1,4096}"
    rf"|(?P<bare>{_BARE}))",
    re.I | re.A,
)
_OPTION = re.compile(rf"(?P<name>{_NAME}[ \t]{{1,4}})(?P<bare>{_BARE})", re.I | re.A)
_DASHES = re.compile(r"(?:^|[\s\"'=])--?[\w-]{0,20}$", re.ASCII)
_KEY = re.compile(rf"(?P<name>(?<![Pp])KEY(?:_ID|_DATA|_BASE64)?=)(?P<bare>{_BARE})", re.ASCII)
_SHAPES = re.compile(
    r"\bhf_[A-Za-z0-9]{20,100}|\bgh[pousr]_[A-Za-z0-9]{30,255}|\bgithub_pat_\w{30,255}"
    r"|\bglpat-[\w-]{20,100}|\b(?:AKIA|ASIA)[0-9A-Z]{16}\b|\bsk-[\w-]{20,200}"
    r"|\bxox[abeoprs]-[\w-]{10,200}|\bnvapi-[\w-]{20,200}"
    r"|\beyJ[\w-]{10,4000}\.[\w-]{10,8000}\.[\w-]{5,4000}",
    re.ASCII,
)
_BEARER = re.compile(r"((?:Bearer|Basic) )[\w+/=.~-]{8,4096}", re.ASCII)
_IN_URL = re.compile(r"(://[^\s/:@]{0,200}:)[^\s/@]{1,1000}(?=@)", re.ASCII)
_KEY_BEGINS = re.compile(r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----", re.ASCII)
_KEY_ENDS = "-----END "
_MAX_KEY = 20_000
_HARMLESS = re.compile(r"(?:[0-9.]{1,20}|true|false|null|none)[,}\])]{0,40}", re.I | re.A)
# Host names that are words of the texts themselves: replacing them would change the evidence.
_WORDS_OF_TEXTS = re.compile(
    r"gpus?|nodes?|(?:local)?host|kernel|nvidia|cuda|linux|links?|ports?|state|rate|info|error"
    r"|warning|none|true|false|unknown|active|down|status|fabric|memory|driver|server|test",
    re.IGNORECASE,
)


def without_secrets(content: bytes) -> tuple[bytes, int]:
    """``content`` without values that look like secrets, and how many were left out."""
    text = content.decode("latin-1")  # every byte survives the way back
    count = 0

    def assigned(match: re.Match[str]) -> str:
        nonlocal count
        groups = match.groupdict()
        bare = groups["bare"]
        if bare is not None and bare.startswith(LEFT_OUT[:5]):
            return match[0]
        if bare is not None and groups["name"].rstrip().endswith(":") and _HARMLESS.fullmatch(bare):
            return match[0]  # a JSON number: a text in its place would break the document
        after: str = (
            groups["name"] + (groups.get("escaped") or groups.get("quote") or "") + LEFT_OUT
        )
        count += match[0] != after
        return after

    def option(match: re.Match[str]) -> str:
        before = match.string[max(0, match.start() - 24) : match.start()]
        return assigned(match) if _DASHES.search(before) else match[0]

    def found(match: re.Match[str]) -> str:
        nonlocal count
        count += 1
        return (match[1] if match.re.groups else "") + LEFT_OUT

    text, count = _without_private_keys(text)
    for pattern, replacement in (
        (_SHAPES, found),
        (_BEARER, found),
        (_IN_URL, found),
        (_ASSIGNED, assigned),
        (_OPTION, option),
        (_KEY, assigned),
    ):
        text = pattern.sub(replacement, text)
    return text.encode("latin-1"), count


def _without_private_keys(text: str) -> tuple[str, int]:
    kept = []
    count = at = 0
    while match := _KEY_BEGINS.search(text, at):
        end = text.find(_KEY_ENDS, match.end(), match.end() + _MAX_KEY)
        if end < 0:  # cut off: what follows may still be the key
            end = min(len(text), match.end() + _MAX_KEY)
        kept.append(text[at : match.end()] + LEFT_OUT)
        at = end
        count += text[match.end() : end] != LEFT_OUT
    return "".join(kept) + text[at:], count


def own_names() -> list[str]:
    """The names this node goes by, longest first."""
    names = {os.uname().nodename, os.environ.get("SLURMD_NODENAME", "")}
    names |= {name.partition(".")[0] for name in names}
    return sorted((name for name in names if name), key=lambda name: (-len(name), name))


def pseudonym(name: str) -> str:
    """A name in the place of a host's: the same for the same host, wherever it is made."""
    short = name.partition(".")[0].lower()
    return "host-" + hashlib.sha256(short.encode("utf-8", "replace")).hexdigest()[:10]


def is_replaceable(name: str) -> bool:
    """Whether a host name can be told from the words of the texts."""
    return len(name) > 2 and not _WORDS_OF_TEXTS.fullmatch(name)


def without_names(content: bytes, names: Iterable[str]) -> bytes:
    """``content`` with each of ``names``, standing alone, replaced by its pseudonym."""
    text = content.decode("latin-1")
    for name in names:
        if is_replaceable(name):
            inside = re.escape(name.encode("utf-8", "replace").decode("latin-1"))
            domain = r"(?:\.[A-Za-z][\w-]{0,62}){0,6}"  # goes with the name
            pattern = rf"(?<![\w.-]){inside}{domain}(?![\w-])"
            text = re.sub(pattern, pseudonym(name), text, flags=re.ASCII)
    return text.encode("latin-1")
