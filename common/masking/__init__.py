"""Secrets never leave: not in an event, a payload, an error, a log line or a label (invariant I9).

Two rules. A **key** that names a secret (`password`, `apiKey`, `Authorization`, …) hides its whole
value. In **text**, the secret part of what is written like one is hidden: keys known by how they
begin (`vendors`), what follows a name (`named`: `password=…`, `--token …`, in English and
Chinese), what stands in URLs, headers and tags (`places`). Both put `***` in its place. Masking is
a net below careful code, it cannot know every secret; a deployment adds its own with
`STEADYRUN_MASKING_PATTERNS` (`own`). All of it takes time in proportion to the text.

What goes out is bounded as well, in bytes, depth and items, and is always something that JSON,
UTF-8 and a Postgres text can hold: lone surrogates and NUL become U+FFFD.

`TextMask` does the same to a text that arrives in pieces, and gives the same result however it is
cut: a piece is held back while its end may begin a secret.
"""

from common.masking.keys import names_secret
from common.masking.masker import Masker
from common.masking.patterns import MASK
from common.masking.texts import TextMask

__all__ = ["MASK", "Masker", "TextMask", "names_secret"]
