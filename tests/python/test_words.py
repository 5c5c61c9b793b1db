"""The check of the prose counts the words of sentences, and nothing else."""

import pytest
from prose import passives, sentences, words

pytestmark = pytest.mark.constant

PAGE = """\
# A heading

One two `SELECT 1; SELECT 2.` four. A [link of five](https://example.org/a.b), 0.2.0! (In
brackets?) Last

* An item.

| a table | counts |
|---|---|
| not. | at all. |

```sql
SELECT 1;
```
"""
CELLS = [(8, 2), (8, 1), (10, 1), (10, 2)]


def test_each_sentence_is_found_with_its_line_and_its_words() -> None:
    found = [(line, words(sentence)) for line, sentence in sentences(PAGE)]
    assert found == [(1, 2), (3, 4), (3, 5), (3, 2), (3, 1), (6, 2), *CELLS]


def test_verbs_in_the_passive_voice_are_counted() -> None:
    assert passives("A tick frees leases, and jobs that are due move.") == 0
    assert passives("The job is not yet written, and has never been read.") == 1
    assert passives("It is told when the lease was lost and the job is being given back.") == 3
