"""The best settings of the DCN-V2 paper's Table 6 as data, with the sizes and FLOPs it prints beside them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from crossrank.models.build import parse_model_settings
from crossrank.models.cost import Cost, markdown_table, model_cost
from crossrank.schema import Feature


@dataclasses.dataclass(frozen=True)
class PaperRow:
    """A row of the table: its label, our settings for it, and what is printed, to two digits, without embeddings."""

    label: str
    settings: Mapping[str, Any]
    parameters: str
    flops: str


@dataclasses.dataclass(frozen=True)
class PaperData:
    """A data set of the table: its features, the one width of its embeddings, its rows."""

    features: Sequence[Feature]
    embedding_dim: int
    rows: Sequence[PaperRow]

    def cost(self, row: PaperRow) -> Cost:
        return model_cost(
            parse_model_settings({"embedding": {"dim": self.embedding_dim}, **row.settings}), self.features
        )

    def table(self) -> str:
        """What the paper prints and what the models here count, row by row, as Markdown."""
        lines = [["model", "parameters", "paper", "", "FLOPs", "paper", ""]]
        for row in self.rows:
            cost = self.cost(row)
            lines.append([row.label])
            for count, printed in ((cost.network_parameters, row.parameters), (cost.flops, row.flops)):
                lines[-1] += [f"{count:,}", printed, "✓" if two_digits(count) == printed else "✗"]
        return markdown_table(lines)


def two_digits(count: int) -> str:
    """A count as the paper prints it.

    >>> [two_digits(count) for count in (3_152_897, 32_081_800, 110_800, 54_449, 7_721)]
    ['3.2M', '32M', '110K', '54K', '7.7K']
    """
    rounded = float(f"{count:.1e}")
    scaled, unit = (rounded / 1e6, "M") if rounded >= 1e6 else (rounded / 1e3, "K")
    return f"{scaled:.1f}{unit}" if scaled < 10 else f"{scaled:.0f}{unit}"


def _deep(num_layers: int, size: int) -> dict[str, Any]:
    return {"sizes": [size] * num_layers}


# Vocabularies are not printed singly; only their sum, 2.3 million, and the embeddings count in no row anyway.
CRITEO = PaperData(
    [Feature(f"C{i}", "categorical", 2_300_000 // 26) for i in range(1, 27)]
    + [Feature(f"I{i}", "numeric") for i in range(1, 14)],
    39,
    [
        PaperRow("PNN", {"name": "pnn", "product": "outer", "deep": _deep(3, 1024)}, "3.1M", "6.1M"),
        PaperRow("DeepFM", {"name": "deepfm", "deep": _deep(2, 768)}, "1.4M", "2.8M"),
        PaperRow(
            "DLRM",
            {"name": "dlrm", "bottom_sizes": [512, 256, 64], "with_itself": True, "deep": _deep(2, 768)},
            "1.1M",
            "2.2M",
        ),
        PaperRow("xDeepFM", {"name": "xdeepfm", "cin": {"sizes": [100, 100]}, "deep": _deep(3, 1024)}, "3.7M", "32M"),
        PaperRow(
            "AutoInt+",
            {
                "name": "autoint-plus",
                "attention": {"num_layers": 2, "num_heads": 2, "head_dim": 40},
                "deep": _deep(4, 1024),
            },
            "4.2M",
            "8.7M",
        ),
        PaperRow("DCN", {"name": "dcn", "cross": {"num_layers": 4}, "deep": _deep(2, 1024)}, "2.1M", "4.2M"),
        PaperRow("DNN", {"name": "dnn", "deep": _deep(3, 1024)}, "3.2M", "6.3M"),
        PaperRow("DCN-V2", {"name": "dcn-v2", "cross": {"num_layers": 2}, "deep": _deep(2, 768)}, "3.5M", "7.0M"),
        PaperRow(
            "DCN-Mix",
            {
                "name": "dcn-mix",
                "cross": {"num_layers": 3, "num_experts": 4, "rank": 64, "gate": "constant", "activation": "hard_tanh"},
                "deep": _deep(2, 512),
            },
            "2.4M",
            "4.8M",
        ),
        PaperRow(
            "CrossNet",
            {"name": "cross-net-mix", "cross": {"num_layers": 4, "num_experts": 4, "rank": 64, "gate": "softmax"}},
            "2.1M",
            "4.2M",
        ),
    ],
)

# No settings are printed for MovieLens-1M: these are the ones whose counts are right.
MOVIELENS = PaperData(
    [Feature(f"F{i}", "categorical", 3_500 // 6) for i in range(1, 7)],
    30,
    [
        PaperRow("DeepFM", {"name": "deepfm", "deep": {"sizes": [200, 50]}}, "46K", "93K"),
        PaperRow("DNN", {"name": "dnn", "deep": {"sizes": [200, 50]}}, "46K", "92K"),
        PaperRow(
            "DCN-V2",
            {"name": "dcn-v2", "structure": "parallel", "cross": {"num_layers": 2}, "deep": {"sizes": [200, 50]}},
            "110K",
            "220K",
        ),
        PaperRow("CrossNet", {"name": "cross-net", "cross": {"num_layers": 2}}, "65K", "130K"),
    ],
)
