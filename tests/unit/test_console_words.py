"""The console has words of its own for all that can be refused or fail."""

import re
from importlib.resources import files
from typing import get_args

from common.errors import CODES
from common.runs import FailureCode

LANGUAGES = 2


def test_every_code_has_a_text_in_both_languages() -> None:
    source = (files("gateway") / "console" / "problems.js").read_text(encoding="utf-8")
    told = re.findall(r'^  ([A-Z_]+): "[^"]+",$', source, re.MULTILINE)
    assert sorted(told) == sorted((*CODES, *get_args(FailureCode)) * LANGUAGES)
