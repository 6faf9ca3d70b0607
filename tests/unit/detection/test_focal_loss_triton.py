"""The focal loss's kernel compiled for GPUs that are not there: PTX, machine code, registers."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from retina_dist.detection.model.focal_loss import HAS_TRITON

pytestmark = pytest.mark.skipif(not HAS_TRITON, reason="Triton comes with the CUDA build of torch only")

CLASSES = 91
CAPABILITIES = (70, 80, 90, 100)  # V100, A100, H100, B200
# of the logits, and of the gradient (`gradient_dtype`)
TYPES = {"float32": ("*fp32", "*fp32"), "bfloat16": ("*bf16", "*bf16"), "float16": ("*fp16", "*fp32")}
REGISTERS = (
    64  # for each of 128 threads; with 64, a multiprocessor of 65,536 registers holds eight blocks of them at once
)
USAGE = re.compile(r"REG:(\d+) STACK:(\d+) .*?LOCAL:(\d+)")


def compiled(dtype: str, capability: int, square: bool) -> dict[str, bytes | str]:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from retina_dist.detection.model.focal_loss_triton import BLOCK, _kernel

    logits, gradient = TYPES[dtype]
    constants = {"K": CLASSES, "SQUARE": square, "BLOCK": BLOCK}
    types = {
        "logits": logits,
        "classes": "*i64",
        "rows": "*fp32",
        "gradient": gradient,
        "parts": "*fp32",
        "count": "i32",
    }
    types |= {"alpha": "fp32", "gamma": "fp32"}
    signature = {name: types.get(name, "constexpr") for name in _kernel.arg_names}
    # torch's memory is aligned to 16 bytes and more, and so Triton specialises the kernel when it is launched
    aligned = {(i,): [["tt.divisibility", 16]] for i, kind in enumerate(signature.values()) if kind.startswith("*")}
    source = ASTSource(_kernel, signature, constexprs=constants, attrs=aligned)
    return dict(triton.compile(source, target=GPUTarget("cuda", capability, 32)).asm)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("capability", CAPABILITIES)
def test_the_kernel_compiles_and_spills_no_register(
    capability: int, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from triton import knobs

    monkeypatch.setattr(knobs.cache, "dir", str(tmp_path / "cache"))
    for square in (True, False) if capability == 80 else (True,):  # gamma = 2, and any other
        found = compiled(dtype, capability, square)
        assert re.search(rf"^\.target sm_{capability}a?\b", str(found["ptx"]), re.MULTILINE)
        cubin = tmp_path / "kernel.cubin"
        cubin.write_bytes(found["cubin"])  # type: ignore[arg-type]
        command = [knobs.nvidia.cuobjdump.path, "-res-usage", str(cubin)]
        usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        match = USAGE.search(usage)
        assert match, usage
        registers, stack, local = map(int, match.groups())
        print(
            f"sm_{capability} {dtype} gamma={'2' if square else 'any'}: {registers} registers, {stack + local} B spilled"
        )
        assert stack == local == 0
