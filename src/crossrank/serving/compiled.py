"""A model compiled for the processor of this machine by torch's AOTInductor: a shared library in a ``.pt2`` file."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from crossrank.data.rows import EncodedRows
from crossrank.errors import BundleError
from crossrank.serving.bundle import Bundle
from crossrank.serving.scorer import graph_inputs

ELSEWHERE = "Export the run again on this machine, or with --format onnx, which runs on any."


def processor() -> str:
    """What a compiled model is bound to: the processor and all that it can do, the system, and torch."""
    about = [platform.system(), platform.machine(), platform.processor()]
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
        about += sorted({line.split(":", 1)[1].strip() for line in lines if line.startswith(("model name", "flags"))})
    except OSError:  # another system
        pass
    return f"{' '.join(filter(None, about))}; torch {torch.__version__}"


def write_compiled(answers: nn.Module, inputs: tuple[Tensor, ...], sizes: tuple[Any, ...], path: Path) -> None:
    """Compile a module that takes these inputs, of which some sizes may be others.

    Raises:
        BundleError: where there is no compiler, or the module cannot be compiled.
    """
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        raise BundleError(
            f"Exporting to pt2 needs a C++ compiler; got no '{compiler}' on the path.",
            hint="Install g++, or export with --format onnx, which needs none.",
        )
    try:
        program = torch.export.export(answers, inputs, dynamic_shapes=(sizes,))
        torch._inductor.aoti_compile_and_package(program, package_path=str(path))
    except Exception as error:  # of many kinds, none of them public
        raise BundleError(
            f"The model must be one that torch can compile; got: {str(error).strip().splitlines()[0]}",
            hint="Export with --format onnx. In a model of your own, forward may not look at values (.item()).",
        ) from error


def compiled_answers(path: Path) -> Callable[[EncodedRows], NDArray[np.float32]]:
    """A function that runs a compiled model."""
    run: Any = torch._inductor.aoti_load_package(str(path))

    def answers(rows: EncodedRows) -> NDArray[np.float32]:
        with torch.inference_mode():
            found: NDArray[np.float32] = run(*map(torch.from_numpy, graph_inputs(rows).values())).numpy()
        return found

    return answers


def open_compiled(bundle: Bundle, *, allowed: bool) -> Callable[[EncodedRows], NDArray[np.float32]]:
    """The same of a bundle.

    Raises:
        BundleError: where its code is not allowed to run, or was compiled for another processor.
    """
    if not allowed:
        raise BundleError(
            f"{bundle.path} holds code that would run, so it is opened only where that is allowed.",
            hint="For one that you made: Scorer.open(..., allow_code=True). To serve it, export with --format onnx.",
        )
    if bundle.manifest.get("processor") != processor():
        raise BundleError(
            f"{bundle.path} must be opened on a processor like the one it was compiled on, with the same torch; one of "
            "them is another.",
            hint=ELSEWHERE,
        )
    return bundle.read_graph(compiled_answers)
