"""The files of the guide to testing are a small project whose tests pass, as a reader would have it."""

from __future__ import annotations

import re
from pathlib import Path

from testing.test_pytest_plugin import ROOT, run_pytest

GUIDE = ROOT / "docs" / "guides" / "testing.md"
FILE = re.compile(r"^```python\n(?P<text># (?P<name>\w+\.py)\n.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_files_of_the_guide_are_a_project_with_tests_that_pass(tmp_path: Path) -> None:
    files = {found["name"]: found["text"] for found in FILE.finditer(GUIDE.read_text(encoding="utf-8"))}
    assert files.keys() == {"signup.py", "test_signup.py", "conftest.py"}
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert "1 passed" in run_pytest(tmp_path)
