"""The page's scripts share one object: a name that two of them define would be the later one's alone."""

import re
from collections import Counter
from pathlib import Path

import everywatt.report.html

FOLDER = Path(everywatt.report.html.__file__).parent / "js"
DEFINED = re.compile(r"^everywatt\.(\w+) = ", re.MULTILINE)


def test_no_name_is_defined_twice():
    found = Counter(name for script in FOLDER.glob("*.js") for name in DEFINED.findall(script.read_text("utf-8")))
    assert len(found) > 10
    assert [name for name, times in found.items() if times > 1] == []
