"""Cheng et al. 2016, Eq. 3, with each cross as the one-hot product of Eq. 1, its places hashed where there are many."""

from __future__ import annotations

import hashlib

from references.parts import deep, dot, output


def place(i, j, pair, vocab_sizes, buckets):
    """Which weight of a cross the ids i and j choose."""
    left, right = pair
    if vocab_sizes[left] * vocab_sizes[right] <= buckets:
        return i * vocab_sizes[right] + j
    digest = hashlib.blake2b(f"{left}*{right}".encode(), digest_size=8).digest()
    prime = 2**31 - 1
    m, n = int.from_bytes(digest[:4], "little") % prime, int.from_bytes(digest[4:], "little") % prime
    return (m * i + n * j) % prime % buckets


def wide_deep(x0, values, ids, weights, *, pairs, vocab_sizes, buckets):
    slopes = weights["linear.values.numbers"]
    num_embedded = len(values) - len(slopes)
    wide = sum(values[:num_embedded]) + dot(slopes, values[num_embedded:])
    start = 0
    for left, right in pairs:
        chosen = place(int(ids[left]), int(ids[right]), (left, right), vocab_sizes, buckets)
        wide += weights["linear.crosses.table.weight"][start + chosen]
        start += min(buckets, vocab_sizes[left] * vocab_sizes[right])
    return wide + output(deep(x0, weights, "deep"), weights)
