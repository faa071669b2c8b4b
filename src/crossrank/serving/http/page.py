"""The page at ``/``: a file that knows nothing; its script asks for the model and shows it as text."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path

PAGE = Path(__file__).with_name("page.html").read_text(encoding="utf-8")


def hashes(tag: str, page: str) -> str:
    """What a policy calls the inline contents of a tag."""
    found = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
    digests = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in found)
    return " ".join(f"'sha256-{digest}'" for digest in digests)


POLICY = (
    f"default-src 'none'; script-src {hashes('script', PAGE)}; style-src {hashes('style', PAGE)}; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
