"""Whole numbers that name things, such as users and resources, told from amounts.

They are where their column's name says so, where zeros stand in front of them, where at most 32 are different, such as
hours and grades, and by how often each is seen. An amount is about as frequent as the amounts next to it, or it is a
round one. Of names, a few are far more frequent than the others, and neither their neighbours nor their last digits say
which. So numbers are names where, the most frequent one left out (there are many zeros among amounts),

- more than 256 are different: fewer may have an id each as numbers too (:mod:`crossrank.data.number_codes`);
- their counts spread at least six times as widely as those of equally frequent things, which are Poisson's; twice is
  enough where amounts would seldom lie: a range 20 times as wide as they are many, or numbered through, with a gap for
  one in five at most, and in both cases each seen 2.5 times in the mean;
- the rank correlation between the counts of neighbours is below 0.12;
- no last digit is that of more than 15 % of them, nor of more frequent ones by three standard errors.

Up to 256 are names too where they lie far apart, among the numbers of two columns of more such names, and no last digit
is that of more of them than by chance: the departments and roles of a log of requests, from one space of ids.

The bounds were set on the columns of whole numbers with so many values in R's collections of example data, 506 with 300
rows or more. Names that are all about as frequent look like amounts by this.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from statistics import correlation, fmean, pvariance
from typing import Any

MAX_CODES = 32  # whole numbers with at most this many values are codes
CODE_WORDS = {"id", "ids", "uid", "userid", "itemid", "code", "type", "category", "zip"}
CODED = {"user", "item", "movie", "book", "product", "customer", "flight", "store", "shop", "song", "device", "query"}
PADDED = re.compile(r"0\d+", re.ASCII)  # 007, a code and not a number
FEWEST, SPREAD, ALIKE, DIGIT, CERTAIN = 256, 6.0, 0.12, 0.15, 3.0
NAMED_SPREAD, APART, NUMBERED, OFTEN = 2.0, 20.0, 1.2, 2.5  # of numbers that lie as names do
AROUND = 0.9  # of them


def few(distinct: int, rows: int) -> bool:
    """Whether so many different whole numbers in so many rows are codes."""
    return distinct <= max(2, min(MAX_CODES, rows // 4))


def words_of(name: str) -> set[str]:
    """The words in a column's name: {'user', 'age'} of user_age and userAge."""
    return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)}


def are_called_codes(name: str, values: Sequence[Any]) -> bool:
    """Whether a column's name, or zeros in front, say that whole numbers are codes: user, user_id, but not user_age."""
    words = words_of(name)
    padded = any(isinstance(value, str) and PADDED.fullmatch(value) for value in values)
    return padded or bool(words & CODE_WORDS) or bool(words and words <= CODED)


def are_names(numbers: Sequence[float]) -> bool:
    """Whether whole numbers are names, not amounts."""
    seen = Counter(numbers)
    if len(seen) <= FEWEST:
        return False
    del seen[seen.most_common(1)[0][0]]
    whole = sorted(seen)
    counts = [seen[number] for number in whole]
    width = (whole[-1] - whole[0]) / len(whole)
    lie_as_names = fmean(counts) >= OFTEN and (width >= APART or width <= NUMBERED)
    if pvariance(counts) < (NAMED_SPREAD if lie_as_names else SPREAD) * fmean(counts):
        return False
    ranks = _ranks(counts)
    if correlation(ranks[1:], ranks[:-1]) >= ALIKE:
        return False
    middle, spread = fmean(ranks), math.sqrt(pvariance(ranks))
    digits: dict[float, list[float]] = {}
    for number, rank in zip(whole, ranks, strict=True):
        digits.setdefault(abs(number) % 10, []).append(rank)
    return all(
        len(one) <= DIGIT * len(ranks) and (fmean(one) - middle) * math.sqrt(len(one)) < CERTAIN * spread
        for one in digits.values()
    )


def lie_apart(numbers: set[float]) -> bool:
    """Whether different whole numbers are from a far wider range than they are many."""
    return max(numbers) - min(numbers) >= APART * len(numbers)


def are_among(numbers: set[float], names: Sequence[set[float]]) -> bool:
    """Whether few different whole numbers are names where more of them in other columns are."""
    if len(numbers) > FEWEST or not lie_apart(numbers):
        return False
    around = [more for more in names if len(more) > FEWEST and lie_apart(more)]
    around = [more for more in around if fmean(min(more) <= one <= max(more) for one in numbers) > AROUND]
    most = max(Counter(abs(number) % 10 for number in numbers).values()) / len(numbers)
    by_chance = 0.1 + CERTAIN * math.sqrt(0.09 / len(numbers))
    return len(around) >= 2 and most <= by_chance


def _ranks(counts: Sequence[int]) -> list[float]:
    """The place of each among the sorted ones; equal ones have the mean of theirs."""
    places: dict[int, list[int]] = {}
    for place, count in enumerate(sorted(counts)):
        places.setdefault(count, []).append(place)
    means = {count: fmean(those) for count, those in places.items()}
    return [means[count] for count in counts]
